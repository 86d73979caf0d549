"""The early look at the hosts of a pattern: the same connection settings as the complete check, or none."""

import subprocess
import sys
from pathlib import Path

import pytest

from sparkwright.project.inventory import patterns
from sparkwright.project.inventory.inventory import Inventory

HOSTS = {
    "spark1": "groups: [lab]\n",
    "spark2": "address: 10.0.0.2\nuser: me\nport: 2222\ngroups: [lab, rack]\n",
    "spark3": "groups: [rack, lab]\nport: 0x10\n",
    "spark4": "",
    "spark5": "groups: [rack, lab, rack]\n",
    "desk": "connection: local\n",
    "play": "connection: sandbox\n",
}
GROUPS = (
    "all: {user: ops}\nlab: {port: 2200, hosts: [spark2]}\nrack: {port: 2300, user: racker, hosts: [spark1]}\nnone:\n"
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts").mkdir()
    (tmp_path / "playbooks").mkdir()
    for name, text in HOSTS.items():
        (tmp_path / f"hosts/{name}.yml").write_text(text)
    (tmp_path / "hosts/groups.yml").write_text(GROUPS)
    return tmp_path


def test_settings_are_those_of_the_complete_check(project: Path) -> None:
    checked = Inventory.load(project).hosts
    settings = {host.name: host.connection_settings for host in patterns.read_ssh_hosts(project, ",".join(HOSTS))}
    names = ("spark1", "spark2", "spark3", "spark4", "spark5")
    assert settings == {name: checked[name].connection_settings for name in names}


@pytest.mark.parametrize("pattern", ["lab", "all", "spark*", "rack:!spark1", "lab:&rack", "spark4,spark1", "!lab"])
def test_pattern_matches_the_same_hosts(project: Path, pattern: str) -> None:
    wanted = [host.name for host in Inventory.load(project).match(pattern) if host.connection == "ssh"]
    assert [host.name for host in patterns.read_ssh_hosts(project, pattern)] == wanted


@pytest.mark.parametrize("pattern", ["", "groups", "nobody", "spark1:!spark1", "../hosts/spark1", "desk,play"])
def test_pattern_without_ssh_hosts_yields_none(project: Path, pattern: str) -> None:
    assert patterns.read_ssh_hosts(project, pattern) == []


@pytest.mark.parametrize(
    "text",
    [
        "- a list",
        "just text",
        "address: [a, b]",
        "user: {a: b}",
        "groups: 5",
        "groups: [[a]]",
        "port: : x",
        "a: 1\na: 2",
    ],
)
def test_invalid_host_yields_none(project: Path, text: str) -> None:
    (project / "hosts/spark1.yml").write_text(text)
    assert patterns.read_ssh_hosts(project, "spark1") == []


def test_invalid_groups_yield_none(project: Path) -> None:
    (project / "hosts/groups.yml").write_text("lab: [spark1]\n")
    assert patterns.read_ssh_hosts(project, "spark1") == []


def test_connections_start_before_pydantic_is_imported(project: Path) -> None:
    program = (
        "import sys; from sparkwright.app import connect\n"
        "connect.open_link = lambda host, need: print(host.name, host.port, 'pydantic' in sys.modules) or sys.exit(0)\n"
        "connect.connect_hosts('spark1', 'plan')"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, cwd=project, text=True, timeout=60, check=False
    )
    assert result.stdout == "spark1 2300 False\n", result.stderr


@pytest.mark.parametrize(
    "pattern", ["several", "several/b", "all:&/b", "several:&/a", "sev*", "lab:!several", "sever?l"]
)
def test_servers_of_a_host_that_serves_several(project: Path, pattern: str) -> None:
    text = "user: me\ngroups: [lab]\nserves: [a, {recipe: b, port: 8001}]\n"
    (project / "hosts/several.yml").write_text(text)
    checked = [host for host in Inventory.load(project).match(pattern) if host.connection == "ssh"]
    settings = [(host.name, host.connection_settings) for host in patterns.read_ssh_hosts(project, pattern)]
    assert settings == [(host.name, host.connection_settings) for host in checked]
    assert all(host.machine == "several" for host in checked if host.shared_machine)
