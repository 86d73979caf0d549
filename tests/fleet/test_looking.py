"""A play that stops servers first runs in check mode on all hosts; the commands and the runners are real."""

from pathlib import Path

import pytest

from tests.fleet.project import HostsProject

PLAYBOOK = """  serial: 1
  tasks:
    - fail: {msg: no room here, refused: true}
      when: host.name in refused
    - fail: {msg: broken}
      when: host.name in failing
    - file: {path: ~/made, state: directory}
    - stopped: {name: none, stop_timeout_s: 1}
      when: false
"""


@pytest.fixture
def project(tmp_path: Path) -> HostsProject:
    value = HostsProject(tmp_path, 4)
    value.playbook("roll", PLAYBOOK)
    (value.root / "hosts/groups.yml").write_text("all: {vars: {refused: [], failing: []}}\n")
    return value


def changed_hosts(project: HostsProject) -> list[str]:
    return sorted(path.parent.name for path in (project.root / "homes").glob("*/made"))


def write_variables(project: HostsProject, **names: list[str]) -> None:
    (project.root / "hosts/groups.yml").write_text(f"all: {{vars: { ({'refused': [], 'failing': []} | names) }}}\n")


def test_unchanged_hosts_are_done_without_a_batch(project: HostsProject) -> None:
    for name in ("s1", "s2", "s4"):
        (project.home(name) / "made").mkdir()
    first = project.roll("--host", "lab")
    assert (first.code, changed_hosts(project)) == (0, ["s1", "s2", "s3", "s4"])
    assert [event["hosts"] for event in first.events("batch_started")] == [["s3"]]
    assert [event["host"] for event in first.events("waiting")] == ["s3"]
    assert first.ran[-1] == "s3", "the other hosts are checked first"
    assert {event["host"]: event["changed"] for event in first.events("recap")} == {"s1": 0, "s2": 0, "s3": 1, "s4": 0}
    second = project.roll("--host", "lab")
    assert (second.code, second.rolled["done"]) == (0, ["s1", "s2", "s3", "s4"])
    assert {event["check"] for event in second.events("run_started")} == {True}


def test_refusal_of_a_host_is_found_before_any_change(project: HostsProject) -> None:
    write_variables(project, refused=["s3"])
    result = project.roll("--host", "lab")
    assert (result.code, changed_hosts(project)) == (5, [])
    assert (result.rolled["failed"], result.rolled["not_begun"]) == (["s3"], ["s1", "s2", "s4"])
    assert result.rolled["why"] == "checks failed on s3; no host was touched"
    write_variables(project)
    assert project.roll("--resume").code == 0
    assert changed_hosts(project) == ["s1", "s2", "s3", "s4"]


def test_max_fail_percentage_allows_refusals(project: HostsProject) -> None:
    write_variables(project, refused=["s3"])
    result = project.roll("--host", "lab", "--max-fail-percentage", "25")
    assert (result.code, changed_hosts(project)) == (5, ["s1", "s2", "s4"])


def test_failing_host_stops_the_run_in_its_batch(project: HostsProject) -> None:
    write_variables(project, failing=["s2"])
    result = project.roll("--host", "lab")
    assert (result.code, changed_hosts(project)) == (1, ["s1"])
    assert result.hosts_by_outcome == (["s1"], ["s2"], ["s3", "s4"])


def test_ctrl_c_during_the_checks_leaves_a_resumable_run(project: HostsProject) -> None:
    programs, go = project.root / "bin", project.root / "go"
    programs.mkdir()
    (programs / "nvidia-smi").write_text(f"#!/bin/sh\nwhile test ! -e {go}; do sleep 0.02; done\n")
    (programs / "nvidia-smi").chmod(0o755)
    for name in ("s1", "s2", "s3", "s4"):
        env = f"{{HOME: {project.home(name)}, PATH: '{programs}:/usr/bin:/bin'}}"
        project.host(name, f"connection: local\ngroups: [lab]\nenv: {env}\n")
    project.playbook("roll", PLAYBOOK.replace("  tasks:\n", "  tasks:\n    - facts:\n"))
    project.interrupt_at("looking")
    assert changed_hosts(project) == []
    go.touch()
    assert project.roll("--resume").code == 0
    assert changed_hosts(project) == ["s1", "s2", "s3", "s4"]


def test_play_that_acts_in_check_mode_is_not_checked_first(project: HostsProject) -> None:
    project.playbook("roll", PLAYBOOK + "    - command: {argv: [touch, acted]}\n      check_mode: false\n")
    result = project.roll("--host", "lab")
    assert (result.code, result.events("looking"), len(result.events("batch_started"))) == (0, [], 4)
