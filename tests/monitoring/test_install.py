"""`monitoring.install` on the command line."""

import json
from pathlib import Path

import pytest
import yaml

from tests import commands, published

GROUPS = """\
lab:
  hosts: [spark1]
  gateway: {host: spark1, port: 8080, tls: none, key: {env: GATEWAY_KEY}}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "hosts").mkdir()
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "hosts/spark1.yml").write_text("address: 192.0.2.7\n")
    (tmp_path / "hosts/groups.yml").write_text(GROUPS)
    return tmp_path


def test_a_first_run_writes_three_files_and_a_second_none(project: Path) -> None:
    pending = commands.run("monitoring.install", "--to", "mon", "--check", cwd=project)
    assert pending.returncode == 2 and not (project / "mon").exists()
    completed = commands.run("monitoring.install", "--to", "mon", cwd=project)
    assert completed.returncode == 0 and completed.stdout.count(": written.") == 3
    second_run = commands.run("monitoring.install", "--to", "mon", "--json", cwd=project)
    assert set(json.loads(second_run.stdout)["files"].values()) == {False}
    assert published.check_output("monitoring.install", second_run.stdout) == []
    assert commands.run("monitoring.install", "--to", "mon", "--check", cwd=project).returncode == 0


def test_hosts_and_gateways_of_the_inventory_are_scraped(project: Path) -> None:
    commands.run("monitoring.install", "--to", "mon", cwd=project)
    hosts, gateway = yaml.safe_load((project / "mon/sparkwright.scrape.yml").read_text())["scrape_configs"]
    assert hosts["static_configs"] == [{"targets": ["192.0.2.7:9100"], "labels": {"instance": "spark1"}}]
    assert gateway["static_configs"][0]["targets"] == ["192.0.2.7:8080"]
    assert gateway["authorization"] == {"credentials_file": "/etc/prometheus/lab.gateway-key"}


def test_a_mistake_is_reported_in_one_sentence(project: Path) -> None:
    missing = commands.run("monitoring.install", cwd=project)
    remedy = "pass --to DIR for the files, --textfile DIR for the hosts' metrics, or both."
    assert (missing.returncode, missing.stderr) == (5, f"no folder was named: {remedy}\n")
    unclear = commands.run("monitoring.install", "--to", "out", "--textfile", "/srv/metrics", cwd=project)
    assert unclear.returncode == 5 and "no host was named" in unclear.stderr
    assert not (project / "out").exists()
    (project / "file").write_text("")
    refused = commands.run("monitoring.install", "--to", "file", cwd=project)
    assert refused.returncode == 5 and "file" in refused.stderr and "Traceback" not in refused.stderr
