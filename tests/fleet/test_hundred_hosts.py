"""A hundred hosts: a read-only command over one sshd with a hundred names."""

import sys
from pathlib import Path

import pytest

from tests.fleet.project import HostsProject
from tests.remote.conftest import SshLab, lab  # noqa: F401

pytestmark = pytest.mark.ssh

HOSTS = 100
MAX_MEMORY_MB = 150
#: says in the file of its first word how much memory the command of the others took at most, its ssh processes too
MEASURE_PROGRAM = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[2:]).returncode
open(sys.argv[1], "w").write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024))
sys.exit(code)
"""


def test_read_only_command_on_a_hundred_hosts(lab: SshLab, tmp_path: Path) -> None:  # noqa: F811
    """One connection each, at most 16 at a time; the answer is complete, and the memory stays that of a laptop's command."""
    names = [f"h{n}" for n in range(HOSTS)]
    lab.write_config(f"Host h*\n  HostName 127.0.0.1\n  Port {lab.sshd.port}\n  User root\n")
    root = tmp_path / "project"
    root.mkdir()
    project = HostsProject(root, 0)
    for name in names:
        project.host(name, f"home: {lab.sshd.home}\n")
    project.host("h50", f"home: {lab.sshd.home}\naddress: 127.0.0.1\nport: 1\n")
    (project.root / "playbooks/look.yml").write_text(
        "- hosts: all\n  read_only: true\n  tasks: [{command: {argv: ['true']}, changed_when: false}]\n"
    )
    project.run("play", "look", "--host", "h0")  # ships the runtime
    peak = tmp_path / "peak"
    result = project.run(
        "play", "look", "--host", "all", "--json", under=(sys.executable, "-c", MEASURE_PROGRAM, str(peak))
    )
    exit_codes = {event["host"]: event["exit"] for event in result.events("recap")}
    assert result.code == 3, {event["msg"] for event in result.events("recap")}
    assert exit_codes == {name: 3 if name == "h50" else 0 for name in names}
    assert len(result.ran) == HOSTS - 1
    assert len(result.events("host_finished")) == HOSTS
    assert float(peak.read_text()) < MAX_MEMORY_MB


def test_many_hosts_have_a_line_each(tmp_path: Path) -> None:
    project = HostsProject(tmp_path, 12)
    project.playbook("look", "  read_only: true\n  tasks: [{command: {argv: ['true']}, changed_when: false}]")
    lines = project.run("play", "look", "--host", "lab").out.splitlines()
    assert len([line for line in lines if line.startswith("ok ")]) == 12
    assert lines[-1] == "12 hosts: 12 ok"
