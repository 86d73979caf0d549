"""`monitoring.install` on the command line."""

import json
from pathlib import Path

import yaml

from tests import commands, published

HOST = "address: 192.0.2.7\n"
GROUPS = """\
lab:
  hosts: [spark1]
  gateway: {host: spark1, port: 8080, tls: none, key: {env: GATEWAY_KEY}}
"""


def write_project(path: Path) -> Path:
    (path / "hosts").mkdir()
    (path / "playbooks").mkdir()
    (path / "hosts/spark1.yml").write_text(HOST)
    (path / "hosts/groups.yml").write_text(GROUPS)
    return path


def test_it_writes_what_is_missing_and_then_nothing(tmp_path: Path) -> None:
    here = write_project(tmp_path)
    pending = commands.run("monitoring.install", "--to", "mon", "--check", cwd=here)
    assert pending.returncode == 2 and not (here / "mon").exists()
    completed = commands.run("monitoring.install", "--to", "mon", cwd=here)
    assert completed.returncode == 0 and completed.stdout.count(": written.") == 3
    second_run = commands.run("monitoring.install", "--to", "mon", "--json", cwd=here)
    assert set(json.loads(second_run.stdout)["files"].values()) == {False}
    assert published.check_output("monitoring.install", second_run.stdout) == []
    assert commands.run("monitoring.install", "--to", "mon", "--check", cwd=here).returncode == 0


def test_it_scrapes_the_hosts_and_gateways_of_the_inventory(tmp_path: Path) -> None:
    here = write_project(tmp_path)
    commands.run("monitoring.install", "--to", "mon", cwd=here)
    hosts, gateway = yaml.safe_load((here / "mon/sparkwright.scrape.yml").read_text())["scrape_configs"]
    assert hosts["static_configs"] == [{"targets": ["192.0.2.7:9100"], "labels": {"instance": "spark1"}}]
    assert gateway["static_configs"][0]["targets"] == ["192.0.2.7:8080"]
    assert gateway["authorization"] == {"credentials_file": "/etc/prometheus/lab.gateway-key"}


def test_a_mistake_is_one_sentence(tmp_path: Path) -> None:
    here = write_project(tmp_path)
    options = commands.run("monitoring.install", cwd=here)
    assert (options.returncode, options.stderr) == (
        5,
        "no folder was named: pass --to DIR for the files, --textfile DIR for the hosts' metrics, or both.\n",
    )
    unclear = commands.run("monitoring.install", "--to", "out", "--textfile", "/srv/metrics", cwd=here)
    assert unclear.returncode == 5 and "no host was named" in unclear.stderr
    assert not (here / "out").exists()  # refused before anything
    (here / "file").write_text("")
    refused = commands.run("monitoring.install", "--to", "file", cwd=here)
    assert refused.returncode == 5 and "file" in refused.stderr and "Traceback" not in refused.stderr
