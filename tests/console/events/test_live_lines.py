"""The state of many hosts: rows, plain lines, and the table of a terminal."""

import io
from typing import Any

import pytest
from rich.console import Console

from sparkwright.console.events.host_lines import Board, HostLines
from sparkwright.console.events.live_lines import HostTable
from sparkwright.console.events.plan_groups import PlanGroups
from sparkwright.console.events.stage_lines import StageLines
from sparkwright.protocol.events import Event, event

COUNTS = {"ok": 3, "changed": 0, "failed": 0, "skipped": 0, "unreachable": 0}


def host_finished(host: str, code: int = 0, **more: Any) -> Event:
    return event("host_finished", host=host, **{**COUNTS, "exit": code, "seconds": 61, "msg": "", **more})


def task_event(host: str, kind: str = "task_finished", **more: Any) -> Event:
    defaults = {
        "task": "t1",
        "name": "Start it",
        "module": "started",
        "status": "ok",
        "msg": "",
        "seconds": 1,
        "data": {},
    }
    return event(kind, host=host, **{**defaults, **more})


def make_board(*events: Event, hosts: tuple[str, ...] = ("s1", "s2"), clock_s: float = 0) -> Board:
    value = Board(clock=lambda: clock_s)
    value.set_hosts(list(hosts))
    for item in events:
        value.on(item)
    return value


def test_a_row_follows_its_host() -> None:
    value = make_board(event("run_started", host="s1"), task_event("s1", "task_started"))
    assert (value.rows["s1"].verdict, value.rows["s1"].stage, value.rows["s2"].verdict) == (
        "running",
        "Start it",
        "waiting",
    )
    value.on(event("progress", host="s1", done=5e8, total=1e9, unit="bytes", text="a file"))
    assert value.rows["s1"].progress == " 50%  500.0 MB of 1.0 GB"
    value.on(event("waiting", host="s1"))
    assert (value.rows["s1"].verdict, value.rows["s1"].stage, value.rows["s1"].progress) == ("waiting", "", "")
    value.clock = lambda: 75
    assert (value.took_s(value.rows["s1"]), value.took_s(value.rows["s2"])) == (75, None)


@pytest.mark.parametrize(
    ("code", "more", "verdict"),
    [
        (0, {}, "ok"),
        (0, {"changed": 2}, "changed"),
        (2, {"changed": 2}, "would change"),
        (1, {}, "failed"),
        (3, {}, "unreachable"),
        (4, {}, "inconclusive"),
        (5, {}, "refused"),
    ],
)
def test_how_it_ended_is_a_word(code: int, more: dict[str, Any], verdict: str) -> None:
    assert make_board(host_finished("s1", code, **more)).rows["s1"].verdict == verdict


def test_a_failed_host_whose_old_server_is_back_says_so() -> None:
    value = make_board(task_event("s1", module="grant_restart_previous", status="changed"), host_finished("s1", 1))
    assert value.rows["s1"].verdict == "failed, restored"


def test_where_there_is_no_room_those_that_matter_are_shown_in_their_order() -> None:
    hosts = tuple(f"s{n}" for n in range(100))
    value = make_board(host_finished("s90", 1), event("run_started", host="s50"), host_finished("s3"), hosts=hosts)
    shown = [row.host for row in value.select_rows(4)]
    assert {"s50", "s90"} <= set(shown) and "s3" not in shown
    assert shown == sorted(shown, key=lambda name: int(name[1:]))
    assert value.totals() == "100 hosts: 97 waiting, 1 ok, 1 running, 1 failed"


def print_lines(*events: Event) -> list[str]:
    printed: list[str] = []
    value = HostLines(write=lambda _, text: printed.append(text.rstrip()))
    value.set_hosts(["s1", "s22"])
    for item in events:
        value.on(item)
    value.close()
    return printed


def test_a_log_gets_one_line_a_host_with_what_was_proved() -> None:
    proof = task_event("s1", module="smoke_test", msg="52 tok/s")
    printed = print_lines(
        task_event("s1", "task_started"),
        proof,
        host_finished("s1", changed=3),
        host_finished("s22"),
        event("alive", host="s1"),
    )
    assert printed == [
        "changed      s1    1m01s  52 tok/s",
        "ok           s22   1m01s  ok=3",
        "",
        "2 hosts: 1 changed, 1 ok",
    ]


def test_a_sandbox_is_named_once_however_many_plays_it_runs() -> None:
    pending = event("run_started", host="s1", run="r", play="p", sandbox=True)
    assert (
        len(
            [
                line
                for line in print_lines(pending, pending, host_finished("s1"), host_finished("s22"))
                if "is the sandbox" in line
            ]
        )
        == 1
    )


def test_a_failure_brings_what_is_known_of_it_and_a_host_nobody_reached_is_there_too() -> None:
    failed = task_event(
        "s1", status="failed", msg="no.", fix="Do this.", where="playbooks/a.yml:3", data={"evidence": ["x"]}
    )
    lost = event("recap", host="s22", **{**COUNTS, "exit": 3, "seconds": 0, "msg": "s22: unreachable: silent."})
    printed = print_lines(failed, host_finished("s1", 1, msg="no. Do this."), host_finished("s1", 1), lost)
    assert printed[:4] == [
        "failed       s1    1m01s  no.",
        "             → Do this.",
        "             | x",
        "             at playbooks/a.yml:3",
    ]
    assert "unreachable  s22    0.0s  s22: unreachable: silent." in printed


def test_a_failure_with_the_very_words_of_an_earlier_one_is_not_told_again() -> None:
    def failed(host: str, evidence: str) -> list[Event]:
        message = {"msg": "no.", "fix": "Do this.", "where": "playbooks/a.yml:3", "data": {"evidence": [evidence]}}
        return [task_event(host, status="failed", **message), host_finished(host, 1, msg="no. Do this.")]

    same, other = (print_lines(*failed("s1", "x"), *failed("s22", evidence)) for evidence in ("x", "y"))
    assert same[4:5] == ["failed       s22   1m01s  same reason as s1"] and same.count("             → Do this.") == 1
    assert other[4:7] == ["failed       s22   1m01s  no.", "             → Do this.", "             | y"]


def test_the_table_of_a_terminal_ends_with_every_host_and_what_was_not_done() -> None:
    out = io.StringIO()
    table = HostTable(console=Console(file=out, force_terminal=True, width=100, height=10, highlight=False))
    hosts = [f"s{n}" for n in range(30)]
    table.set_hosts(hosts)
    for host in hosts[:29]:
        table.on(host_finished(host, 1 if host == "s28" else 0, msg="it broke" if host == "s28" else ""))
    rolled = {"playbook": "restart", "done": hosts[:28], "earlier": [], "failed": ["s28"], "unreachable": []}
    more = {"not_begun": ["s29"], "why": "s28 failed", "resume": "invoke restart --resume"}
    table.on(event("rolled", host="", **rolled, **more))
    table.close()
    end = out.getvalue().split("HOST")[-1]
    assert all(f"{host} " in end for host in hosts)
    assert "restart stopped: s28 failed." in end and "invoke restart --resume" in end


def plan_events(*hosts: str, before: int = 8, after: int = 6) -> list[Event]:
    change = {"field": "--max-num-seqs", "before": before, "after": after, "why": ""}
    return [
        row
        for host in hosts
        for row in (
            task_event(host, status="changed", diff=[change]),
            task_event(host, status="changed", diff=[change], module="container"),
            task_event(host, status="skipped", msg="condition is false"),
            host_finished(host, 2, changed=2),
        )
    ]


def test_a_plan_shows_hosts_whose_changes_are_alike_once_and_nothing_that_is_equal() -> None:
    printed: list[str] = []
    groups = PlanGroups(write=lambda style, text: printed.append(text))
    many = [f"s{n:02}" for n in range(48)]
    groups.set_hosts([*many, "other", "same"])
    for item in (*plan_events(*many), *plan_events("other", before=4), host_finished("same")):
        groups.on(item)
    groups.close()
    assert printed[0] == "48 hosts: --max-num-seqs 8 -> 6"
    assert printed[1].strip() == f"{', '.join(many[:12])} and 36 more"
    assert printed[2:] == [
        "other: --max-num-seqs 4 -> 6",
        "1 host without changes: same",
        "50 hosts: 49 would change, 1 ok",
    ]


def test_a_plan_says_a_reason_once_with_all_its_hosts() -> None:
    printed: list[str] = []
    groups = PlanGroups(write=lambda style, text: printed.append(text))
    groups.set_hosts(["s1", "s2"])
    for host in ("s1", "s2"):
        groups.on(host_finished(host, 5, msg="the port is taken."))
    groups.close()
    assert printed == ["refused: s1 and s2: the port is taken.", "2 hosts: 2 refused"]


def test_the_stages_of_several_hosts_begin_with_the_hosts_name() -> None:
    out = io.StringIO()
    lines = StageLines(console=Console(file=out, width=80, force_terminal=False))
    lines.set_hosts(["s1", "spark2"])
    for host in ("s1", "spark2"):
        lines.on(task_event(host, "task_started", stage="prepare"))
    for host in ("s1", "spark2"):
        lines.on(task_event(host, stage="prepare", proof=True, msg=f"{'every word of it ' * 6}ends"))
        lines.on(task_event(host, "task_started", stage="stop"))
        lines.on(task_event(host, stage="stop", status="changed", name="Stop it"))
        lines.on(event("recap", host=host, **{**COUNTS, "exit": 0, "seconds": 3, "msg": ""}))
    lines.close()
    output = out.getvalue().splitlines()
    assert [line[:17].rstrip() for line in output if line.startswith("✓")] == [
        "✓ s1      prepare",
        "✓ s1      stop",
        "✓ spark2  prepare",
        "✓ spark2  stop",
    ]
    assert max(map(len, output)) <= 80
    wrapped = output[output.index(next(line for line in output if "prepare" in line)) + 1]
    assert wrapped.startswith(" " * 27) and wrapped.strip().startswith(("every", "word", "of", "it"))
