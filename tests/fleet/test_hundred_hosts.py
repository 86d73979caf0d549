"""A read-only command on a hundred hosts, which are names for the same sshd."""

import sys
from pathlib import Path

import pytest

from tests.fleet.project import HostsProject, PlayResult
from tests.remote.conftest import SshLab, lab  # noqa: F401

pytestmark = pytest.mark.ssh

HOSTS = 100
MAX_MEMORY_MB = 150
#: runs a command, and writes the peak memory of it and its ssh processes to a file
MEASURE_PROGRAM = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[2:]).returncode
open(sys.argv[1], "w").write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024))
sys.exit(code)
"""


def test_read_only_command_on_a_hundred_hosts(lab: SshLab, tmp_path: Path) -> None:  # noqa: F811
    """The answer is complete and names the unreachable host, and the memory is limited."""
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
    wrapper = (sys.executable, "-c", MEASURE_PROGRAM, str(peak))
    process = project.start("play", "look", "--host", "all", "--json", wrapper=wrapper)
    out, err = process.communicate(timeout=100)
    result = PlayResult(process.returncode, out, err)
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
