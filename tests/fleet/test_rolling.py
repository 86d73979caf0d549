"""Rolling plays with the real command and real runners on this machine."""

from pathlib import Path

import pytest

from tests.fleet.project import HostsProject
from tests.on_a_terminal import open_screen
from tests.waiting import wait_until


@pytest.fixture
def project(tmp_path: Path) -> HostsProject:
    return HostsProject(tmp_path, 2)


def test_failure_stops_the_run_and_resume_continues(tmp_path: Path) -> None:
    project = HostsProject(tmp_path, 4)
    (project.home("s2") / "broken").touch()
    first = project.roll("--host", "lab")
    assert (first.code, first.ran) == (1, ["s1", "s2"])
    assert first.hosts_by_outcome == (["s1"], ["s2"], ["s3", "s4"])
    assert "s2 failed" in first.rolled["why"]
    assert first.rolled["resume"] == "sparkwright play roll --resume"
    (project.home("s2") / "broken").unlink()
    second = project.roll("--resume")
    assert (second.code, second.ran) == (0, ["s2", "s3", "s4"])
    assert second.rolled["earlier"] == ["s1"]
    assert project.roll("--resume").code == 5


def test_resume_leaves_out_hosts_that_were_removed_from_the_group(tmp_path: Path) -> None:
    project = HostsProject(tmp_path, 3)
    (project.home("s2") / "broken").touch()
    assert project.roll("--host", "lab").code == 1
    project.host("s2", f"connection: local\nenv: {{HOME: {project.home('s2')}}}\n")
    second = project.roll("--resume", "--host", "lab")
    assert (second.code, second.ran) == (0, ["s3"])
    assert [note["text"] for note in second.events("note")] == [
        "--host lab no longer selects s2: left out of this run."
    ]
    assert "nothing to resume" in project.roll("--resume").err


def test_resume_is_refused_after_all_remaining_hosts_were_removed(tmp_path: Path) -> None:
    project = HostsProject(tmp_path, 3)
    (project.home("s3") / "broken").touch()
    assert project.roll("--host", "lab").code == 1
    (project.root / "hosts/s3.yml").unlink()
    result = project.roll("--resume")
    assert (result.code, result.ran) == (5, [])
    assert "nothing to resume: `--host lab` no longer selects s3." in result.err


def test_canary_and_serial_of_the_command_line_override_the_playbook(tmp_path: Path) -> None:
    result = HostsProject(tmp_path, 5).roll("--host", "lab", "--canary", "1", "--serial", "50%")
    assert result.code == 0
    batches = [(event["hosts"], event["canary"]) for event in result.events("batch_started")]
    assert batches == [(["s1"], True), (["s2", "s3"], False), (["s4", "s5"], False)]


def test_allowed_failures_count_in_the_exit_code(tmp_path: Path) -> None:
    project = HostsProject(tmp_path, 4)
    (project.home("s2") / "broken").touch()
    result = project.roll("--host", "lab", "--serial", "2", "--max-fail-percentage", "50")
    assert (result.code, sorted(result.ran)) == (1, ["s1", "s2", "s3", "s4"])
    assert result.rolled["failed"] == ["s2"] and result.rolled["not_begun"] == []
    assert project.roll("--resume").ran == ["s2"]


def test_unreachable_host_blocks_the_run_unless_skipped(project: HostsProject) -> None:
    project.host("s3", "address: 127.0.0.1\nport: 1\ngroups: [lab]\n")
    result = project.roll("--host", "lab")
    assert (result.code, result.ran) == (3, [])
    assert result.rolled["unreachable"] == ["s3"] and "--skip-unreachable" in result.rolled["why"]
    skipped = project.roll("--host", "lab", "--skip-unreachable")
    assert (skipped.code, skipped.ran) == (3, ["s1", "s2"])
    assert skipped.rolled["resume"]


def test_read_only_command_continues_without_an_unreachable_host(project: HostsProject) -> None:
    project.host("s3", "address: 127.0.0.1\nport: 1\ngroups: [lab]\n")
    project.playbook("look", "  read_only: true\n  serial: 1\n  tasks: [{facts: }]")
    result = project.run("play", "look", "--host", "lab", "--json")
    assert (result.code, sorted(result.ran)) == (3, ["s1", "s2"])


def test_resume_refuses_changed_playbook_hosts_and_options(project: HostsProject) -> None:
    (project.home("s2") / "broken").touch()
    project.roll("--host", "lab")
    assert "not for s1." in project.roll("--resume", "--host", "s1").err
    assert "different `--skip-tags`" in project.roll("--resume", "--skip-tags", "all").err
    project.playbook("roll", "  serial: 1\n  tasks: [{facts: }]")
    result = project.roll("--resume")
    assert result.code == 5
    assert "playbooks/roll.yml has changed since s1 was done" in result.err


def test_stopped_run_starts_no_later_play(project: HostsProject) -> None:
    book = project.root / "playbooks/roll.yml"
    book.write_text(book.read_text() + book.read_text().replace("~/broken", "~/never"))
    (project.home("s1") / "broken").touch()
    assert project.roll("--host", "lab").ran == ["s1"]


def test_summary_lists_done_failed_and_not_started(tmp_path: Path) -> None:
    project = HostsProject(tmp_path, 3)
    (project.home("s2") / "broken").touch()
    last_lines = project.run("play", "roll", "--host", "lab").out.splitlines()[-5:]
    assert last_lines == [
        "roll stopped: s2 failed.",
        "  done         s1",
        "  failed       s2",
        "  not started  s3",
        "  → `sparkwright play roll --resume` continues with the rest.",
    ]


def test_resume_refuses_a_changed_included_file(project: HostsProject) -> None:
    (project.root / "playbooks/parts").mkdir()
    part = project.root / "playbooks/parts/a.yml"
    part.write_text("- command: {argv: [sh, -c, 'test ! -e ~/broken']}\n")
    project.playbook("roll", "  serial: 1\n  tasks: [{include: parts/a.yml}]")
    (project.home("s2") / "broken").touch()
    assert project.roll("--host", "lab").code == 1
    part.write_text("- command: {argv: ['true']}\n")
    result = project.roll("--resume")
    assert (result.code, "has changed since s1 was done" in result.err) == (5, True)


def test_resume_refuses_a_template_that_was_edited_while_the_run_was_in_progress(project: HostsProject) -> None:
    template = project.root / "templates/note.j2"
    template.parent.mkdir()
    template.write_text("before\n")
    edit = f"test ! -e ~/broken && echo after > {template}"
    project.playbook(
        "roll", f"  serial: 1\n  tasks:\n    - command: {{argv: [sh, -c, '{edit}']}}\n      changed_when: false"
    )
    (project.home("s2") / "broken").touch()
    assert project.roll("--host", "lab").hosts_by_outcome == (["s1"], ["s2"], [])
    result = project.roll("--resume")
    assert (result.code, result.ran) == (5, [])
    assert "templates/note.j2 has changed since s1 was done" in result.err


def test_ctrl_c_leaves_a_resumable_run(project: HostsProject) -> None:
    go = project.root / "go"
    wait = f"[sh, -c, 'while test ! -e {go}; do sleep 0.02; done']"
    project.playbook("roll", f"  serial: 1\n  tasks:\n    - command: {{argv: {wait}}}")
    project.interrupt_at("task_started")
    go.touch()
    result = project.roll("--resume", "--wait")
    assert (result.code, result.ran) == (0, ["s1", "s2"])


@pytest.mark.parametrize("host", ["s1", "lab"])
def test_question_after_ctrl_c_ends_with_the_run(project: HostsProject, host: str) -> None:
    begun, go = project.root / "begun", project.root / "go"
    wait = f"[sh, -c, 'touch {begun}; while test ! -e {go}; do sleep 0.02; done']"
    project.playbook("roll", f"  serial: 1\n  tasks:\n    - name: Wait\n      command: {{argv: {wait}}}")
    with open_screen("play", "roll", "--host", host, cwd=project.root) as terminal:
        wait_until(begun.exists)
        terminal.type("\x03")
        terminal.wait_for("stop it at the next safe point (s)?")
        go.touch()
        code = terminal.wait_for_exit()
    if host == "s1":
        assert code == 0 and "changed=1" in terminal.seen
    else:
        assert code == 4 and "stopped by Ctrl-C before s2." in terminal.seen
        assert "`sparkwright play roll --resume` continues with the rest" in " ".join(terminal.seen.split())
        assert project.roll("--resume").ran == ["s2"]
