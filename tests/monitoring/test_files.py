"""The files that `monitoring.install` writes, as Prometheus and Grafana read them."""

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from sparkwright.gateway import usage
from sparkwright.monitoring import alerts, dashboard, scrape

from .conftest import needs_promtool


def find_losses(written: Any, parsed: Any, path: str = "") -> list[str]:
    """Return the paths of the values that are missing or different in the parsed data, which may have more keys."""
    if isinstance(written, dict) and isinstance(parsed, dict):
        items = [(value, parsed.get(key, ...), f"{path}.{key}") for key, value in written.items()]
    elif isinstance(written, list) and isinstance(parsed, list) and len(written) == len(parsed):
        items = [(value, other, f"{path}[{n}]") for n, (value, other) in enumerate(zip(written, parsed, strict=True))]
    else:
        return [] if written == parsed else [path]
    return [loss for item in items for loss in find_losses(*item)]


def test_grafanas_own_types_know_every_key_of_the_dashboard() -> None:
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    ours = json.loads(dashboard.render_dashboard())
    read = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(ours)))
    assert find_losses(ours, read) == []


def test_no_two_panels_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(dashboard.render_dashboard())["panels"]:
        position = panel["gridPos"]
        columns, rows = (range(position[at], position[at] + position[size]) for at, size in ("xw", "yh"))
        cells = {(x, y) for x in columns for y in rows}
        assert not cells & taken and position["x"] + position["w"] <= 24, panel["title"]
        taken |= cells


@needs_promtool
def test_promtool_accepts_rules_and_scrape_configuration(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(alerts.render_rules())
    hosts = [scrape.Endpoint("spark1", "spark1.local", 9100), scrape.Endpoint("spark2", "fd00::2", 9100)]
    gateways = [
        scrape.Endpoint("lab", "10.0.0.1", 8080, tls=True, needs_key=True, has_clients=True),
        scrape.Endpoint("two", "10.0.0.2", 8080),
    ]
    text = scrape.render_config("x.yml", hosts, gateways)
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump({"rule_files": ["rules.yml"], **yaml.safe_load(text)}))
    command = ["promtool", "check", "config", "--syntax-only", "prometheus.yml"]
    completed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (completed.returncode, completed.stderr) == (0, "")
    host_job, lab, two, clients = yaml.safe_load(text)["scrape_configs"]
    assert host_job["static_configs"][1] == {"targets": ["[fd00::2]:9100"], "labels": {"instance": "spark2"}}
    key = {"credentials_file": "/etc/prometheus/lab.gateway-key"}
    assert (lab["authorization"], lab["scheme"]) == (key, "https")
    assert {job["static_configs"][0]["labels"]["job"] for job in (lab, two)} == {alerts.GATEWAY_JOB}
    assert (clients["metrics_path"], clients["authorization"]) == (usage.METRICS_PATH, key)
    assert clients["static_configs"][0]["labels"] == {"instance": "lab", "job": alerts.CLIENTS_JOB}
