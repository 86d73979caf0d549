"""The alert rules over time: promtool evaluates them with series of metrics."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwright.gateway import usage
from sparkwright.health import textfile
from sparkwright.health.record import Record
from sparkwright.monitoring import alerts, dashboard

from .conftest import needs_promtool

GIB = 2**30
METRIC = re.compile(rf"{textfile.PREFIX}(\w+)")
GATEWAY = f'{{instance="lab",job="{alerts.GATEWAY_JOB}"}}'
#: by alert: metric with labels, values by minute, last minute without and first minute with the alert, part of its summary
CASES: dict[str, tuple[str, str, int, int, str]] = {
    "ServerDown": ('health_state{state="wedged"@}', "0x9 1x20", 10, 12, "The server on spark1 is wedged."),
    "CheckMissing": ("health_check_timestamp_seconds", "0x60", 15, 17, "was last checked 17m 0s ago"),
    "HostMissing": ("health_check_timestamp_seconds", "0+60x30 stale _x600", 35, 600, "has no sparkwright metrics"),
    "ServerDegraded": ('health_state{state="degraded"@}', "1x40", 14, 15, "The server on spark1 is degraded."),
    "Flapping": ("health_flapping", "1x40", 9, 10, "is flapping"),
    "Healed": ("heal_restarts_last_day", "2x9 3x9", 9, 10, "restarted the server on spark1 3 times"),
    "Slow": ("decode_tokens_per_second", "40x9 38x9", 9, 10, "generates 38 tok/s"),
    "Queue": ("server_waiting_requests", "3x60", 29, 30, "3 requests are waiting at spark1"),
    "MemoryLow": ("memory_available_bytes", f"{3 * GIB}x9 {GIB}x20", 14, 15, "has 1GiB of memory left"),
    "MemoryGrowing": ("memory_growing", "0x9 1x20", 9, 10, "has grown"),
    "DiskLow": ("disk_free_bytes", f"{6 * GIB}x9 {4 * GIB}x20", 14, 15, "has 4GiB of disk left"),
    "Hot": ("gpu_temperature_celsius", "90x9 93x30", 19, 20, "is at 93"),
    "GatewayDown": (f"up{GATEWAY}", "1x9 0x20", 11, 12, "The gateway lab does not answer."),
    "GatewayModelDown": (
        f"haproxy_backend_active_servers{GATEWAY}".replace("}", ',proxy="small"}'),
        *("1x9 0x20", 11, 12, "The gateway on lab has no server for small."),
    ),
    "Drift": ("drift_fields", "1x90", 59, 60, "differs from what was verified"),
}
#: further series of an alert; a name with `instance` has all its labels
SIDE_SERIES = {
    "Slow": ("decode_baseline_tokens_per_second", "48x60"),
    "HostMissing": (f'up{{instance="spark1",job="{alerts.NODE_JOB}"}}', "1x30 0x600"),
}


def unit_test(name: str) -> dict[str, Any]:
    """Return a case for promtool: the alert is absent before its time, and fires afterwards."""
    metric, values, quiet, fires, _ = CASES[name]
    series = [(metric, values), *([SIDE_SERIES[name]] if name in SIDE_SERIES else [])]
    rule = next(alert for alert in alerts.ALERTS if alert.name == f"Sparkwright{name}")
    labels = dict(re.findall(r'(\w+)="([^"]*)"', _add_labels(metric)))
    alert = {"exp_labels": {**labels, "severity": rule.severity}, "exp_annotations": {}}
    return {
        "interval": "1m",
        "input_series": [{"series": _add_labels(metric), "values": values} for metric, values in series],
        "alert_rule_test": [
            {"eval_time": f"{quiet}m", "alertname": rule.name, "exp_alerts": []},
            {"eval_time": f"{fires}m", "alertname": rule.name, "exp_alerts": [alert]},
        ],
    }


def _add_labels(metric: str) -> str:
    if "instance=" in metric:
        return metric
    labels = 'instance="spark1"'
    name = f"{textfile.PREFIX}{metric}"
    return name.replace("@", f",{labels}") if "@" in name else f"{name}{{{labels}}}"


@needs_promtool
@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_after_its_time_with_its_summary(tmp_path: Path, name: str) -> None:
    assert promtool(tmp_path, name, unit_test(name), summary=False) == ""
    # promtool names the annotation that was not expected
    assert CASES[name][4] in promtool(tmp_path, name, unit_test(name), summary=True)


def promtool(folder: Path, name: str, case: dict[str, Any], *, summary: bool) -> str:
    """Return the errors of `promtool test rules` for an alert. summary: keep the rule's summary, its only annotation."""
    rules = yaml.safe_load(alerts.render_rules())
    (rule,) = [rule for rule in rules["groups"][0]["rules"] if rule["alert"] == f"Sparkwright{name}"]
    rule["annotations"] = {"summary": rule["annotations"]["summary"]} if summary else {}
    (folder / "rules.yml").write_text(yaml.safe_dump(rules))
    tests = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [case]}
    (folder / "test.yml").write_text(yaml.safe_dump(tests))
    command = ["promtool", "test", "rules", "test.yml"]
    completed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return "" if completed.returncode == 0 else completed.stdout + completed.stderr


def test_every_alert_has_a_case() -> None:
    assert {f"Sparkwright{name}" for name in CASES} == {alert.name for alert in alerts.ALERTS}


def test_rules_and_dashboard_use_metrics_that_are_written() -> None:
    page = textfile.render_metrics(Record(0.0, "ok", "ok", 0.0))
    written = {name.removeprefix(textfile.PREFIX) for name in re.findall(r"^# HELP (\S+)", page, re.M)}
    written |= {metric.name for metric in textfile.METRICS}
    written |= {f"client_{field.replace('queue_ms', 'queue_seconds')}_total" for field in usage.FIELDS}
    queries = [alert.expr for alert in alerts.ALERTS] + dashboard.list_queries()
    used = {name for query in queries for name in METRIC.findall(query)}
    assert used and used <= written, used - written


def test_runbook_links_start_with_the_given_url() -> None:
    rules = yaml.safe_load(alerts.render_rules("https://wiki.example.org/alerts"))
    links = [rule["annotations"]["runbook_url"] for rule in rules["groups"][0]["rules"]]
    assert "https://wiki.example.org/alerts#sparkwrightslow" in links and len(set(links)) == len(alerts.ALERTS)
