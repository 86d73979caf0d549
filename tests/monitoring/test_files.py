"""The files that `monitoring.install` writes, as Prometheus and Grafana read them."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwright.gateway import usage
from sparkwright.monitoring import alerts, dashboard, scrape

needs_promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is in Debian's package prometheus")


def find_losses(ours: Any, theirs: Any, at: str = "") -> list[str]:
    """Return the places in which the reader's data lacks or changes what was written."""
    if isinstance(ours, dict):
        known = theirs if isinstance(theirs, dict) else {}
        return [
            item
            for key, value in ours.items()
            for item in (find_losses(value, known[key], f"{at}.{key}") if key in known else [f"{at}.{key}"])
        ]
    if isinstance(ours, list):
        pairs = zip(ours, theirs, strict=True) if isinstance(theirs, list) and len(ours) == len(theirs) else None
        return (
            [at]
            if pairs is None
            else [item for n, (a, b) in enumerate(pairs) for item in find_losses(a, b, f"{at}[{n}]")]
        )
    return [] if ours == theirs else [at]


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
        cells = {
            (x, y)
            for x in range(position["x"], position["x"] + position["w"])
            for y in range(position["y"], position["y"] + position["h"])
        }
        assert not cells & taken and position["x"] + position["w"] <= 24, panel["title"]
        taken |= cells


@needs_promtool
def test_promtool_takes_rules_and_scrapes(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(alerts.render_rules())
    hosts = [scrape.Endpoint("spark1", "spark1.local", 9100), scrape.Endpoint("spark2", "fd00::2", 9100)]
    gateways = [
        scrape.Endpoint("lab", "10.0.0.1", 8080, tls=True, needs_key=True, has_clients=True),
        scrape.Endpoint("two", "10.0.0.2", 8080),
    ]
    text = scrape.render_config("x.yml", hosts, gateways)
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump({"rule_files": ["rules.yml"], **yaml.safe_load(text)}))
    completed = subprocess.run(
        ["promtool", "check", "config", "--syntax-only", "prometheus.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (completed.returncode, completed.stderr) == (0, "")
    jobs = yaml.safe_load(text)["scrape_configs"]
    assert jobs[0]["static_configs"][1] == {"targets": ["[fd00::2]:9100"], "labels": {"instance": "spark2"}}
    assert (
        jobs[1]["authorization"] == {"credentials_file": "/etc/prometheus/lab.gateway-key"}
        and jobs[1]["scheme"] == "https"
    )
    assert {job["static_configs"][0]["labels"]["job"] for job in jobs[1:3]} == {alerts.GATEWAY_JOB}
    (of_clients,) = jobs[3:]
    assert of_clients["metrics_path"] == usage.METRICS_PATH and of_clients["authorization"] == jobs[1]["authorization"]
    assert of_clients["static_configs"][0]["labels"] == {"instance": "lab", "job": alerts.CLIENTS_JOB}
