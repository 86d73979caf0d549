"""The output of a run on many hosts: rows, plain lines, plans, stages, and the table of a terminal."""

import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from sparkwright.console.events.host_lines import Board, HostLines
from sparkwright.console.events.live_lines import HostTable, LiveTaskLines
from sparkwright.console.events.plan_groups import PlanGroups
from sparkwright.console.events.stage_lines import StageLines
from sparkwright.engines.budget import Budget, Row
from sparkwright.protocol.events import Event, event
from tests.console import samples
from tests.console.samples import print_events
from tests.on_a_terminal import final_lines


def host_finished(host: str, code: int = 0, **fields: Any) -> Event:
    return samples.host_event("host_finished", host, exit=code, **fields)


def task_event(host: str, kind: str = "task_finished", **fields: Any) -> Event:
    return samples.task_event(kind, **{"host": host, "name": "Start it", "seconds": 1, **fields})


def make_board(*events: Event, hosts: tuple[str, ...] = ("s1", "s2")) -> Board:
    board = Board(clock=lambda: 0)
    board.set_hosts(list(hosts))
    for item in events:
        board.on(item)
    return board


def test_row_follows_its_host() -> None:
    board = make_board(event("run_started", host="s1"), task_event("s1", "task_started"))
    row, other = board.rows["s1"], board.rows["s2"]
    assert (row.verdict, row.stage, other.verdict) == ("running", "Start it", "waiting")
    board.on(event("progress", host="s1", done=5e8, total=1e9, unit="bytes", text="a file"))
    assert row.progress == " 50%  500.0 MB of 1.0 GB"
    board.on(event("waiting", host="s1"))
    assert (row.verdict, row.stage, row.progress) == ("waiting", "", "")
    board.clock = lambda: 75
    assert (board.elapsed_s(row), board.elapsed_s(other)) == (75, None)


@pytest.mark.parametrize(
    ("code", "counts", "verdict"),
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
def test_verdict_of_a_finished_host(code: int, counts: dict[str, Any], verdict: str) -> None:
    assert make_board(host_finished("s1", code, **counts)).rows["s1"].verdict == verdict


def test_verdict_of_a_failed_host_with_a_restored_server() -> None:
    board = make_board(task_event("s1", module="grant_restart_previous", status="changed"), host_finished("s1", 1))
    assert board.rows["s1"].verdict == "failed, restored"


def test_running_and_failed_hosts_are_shown_first_if_space_is_limited() -> None:
    hosts = tuple(f"s{n}" for n in range(100))
    board = make_board(host_finished("s90", 1), event("run_started", host="s50"), host_finished("s3"), hosts=hosts)
    shown = [row.host for row in board.select_rows(4)]
    assert {"s50", "s90"} <= set(shown) and "s3" not in shown
    assert shown == sorted(shown, key=lambda name: int(name[1:]))
    assert board.format_totals() == "100 hosts: 97 waiting, 1 ok, 1 running, 1 failed"


def print_lines(*events: Event) -> list[str]:
    return print_events(lambda write: HostLines(write=write), ("s1", "s22"), events)


def test_log_has_one_line_per_host_with_the_measured_rate() -> None:
    proof = task_event("s1", module="smoke_test", msg="52 tok/s")
    ends = host_finished("s1", changed=3), host_finished("s22")
    assert print_lines(task_event("s1", "task_started"), proof, *ends, event("alive", host="s1")) == [
        "changed      s1    1m01s  52 tok/s",
        "ok           s22   1m01s  ok=3",
        "",
        "2 hosts: 1 changed, 1 ok",
    ]


def test_sandbox_is_named_once_for_several_plays() -> None:
    started = event("run_started", host="s1", run="r", play="p", sandbox=True)
    printed = print_lines(started, started, host_finished("s1"), host_finished("s22"))
    assert sum("is the sandbox" in line for line in printed) == 1


def failure(host: str, evidence: str = "x") -> list[Event]:
    fields: dict[str, Any] = {
        "msg": "no.",
        "fix": "Do this.",
        "where": "playbooks/a.yml:3",
        "data": {"evidence": [evidence]},
    }
    return [task_event(host, status="failed", **fields), host_finished(host, 1, msg="no. Do this.")]


def test_failure_is_printed_with_its_details_and_an_unreachable_host_with_the_reason() -> None:
    unreachable = samples.host_event("recap", "s22", exit=3, seconds=0, msg="s22: unreachable: silent.")
    printed = print_lines(*failure("s1"), host_finished("s1", 1), unreachable)
    assert printed[:4] == [
        "failed       s1    1m01s  no.",
        "             → Do this.",
        "             | x",
        "             at playbooks/a.yml:3",
    ]
    assert "unreachable  s22    0.0s  silent." in printed


def test_same_failure_of_another_host_is_not_repeated() -> None:
    same, other = (print_lines(*failure("s1"), *failure("s22", evidence)) for evidence in ("x", "y"))
    assert same[4:5] == ["failed       s22   1m01s  same reason as s1"] and same.count("             → Do this.") == 1
    assert other[4:7] == ["failed       s22   1m01s  no.", "             → Do this.", "             | y"]


def test_table_ends_with_every_host_and_the_reason_of_the_stop() -> None:
    out = io.StringIO()
    table = HostTable(console=Console(file=out, force_terminal=True, width=100, height=10, highlight=False))
    hosts = [f"s{n}" for n in range(30)]
    table.set_hosts(hosts)
    for host in hosts[:28]:
        table.on(host_finished(host))
    table.on(host_finished("s28", 1, msg="it broke"))
    ends = {
        "done": hosts[:28],
        "earlier": [],
        "failed": ["s28"],
        "inconclusive": [],
        "unreachable": [],
        "not_begun": ["s29"],
    }
    table.on(event("rolled", host="", playbook="restart", **ends, why="s28 failed", resume="invoke restart --resume"))
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


def print_plan(hosts: list[str], *events: Event) -> list[str]:
    return [line.strip() for line in print_events(lambda write: PlanGroups(write=write), hosts, events)]


def test_plan_groups_hosts_with_the_same_changes() -> None:
    many = [f"s{n:02}" for n in range(48)]
    events = (*plan_events(*many), *plan_events("other", before=4), host_finished("same"))
    assert print_plan([*many, "other", "same"], *events) == [
        "48 hosts: --max-num-seqs 8 -> 6",
        f"{', '.join(many[:12])} and 36 more",
        "other: --max-num-seqs 4 -> 6",
        "1 host without changes: same",
        "50 hosts: 49 would change, 1 ok",
    ]


def test_plan_groups_hosts_with_the_same_refusal() -> None:
    hosts = ["s1", "s2"]
    refusals = [host_finished(host, 5, msg="the port is taken.") for host in hosts]
    assert print_plan(hosts, *refusals) == ["refused: s1 and s2: the port is taken.", "2 hosts: 2 refused"]


def test_stages_of_several_hosts_begin_with_the_host_and_are_wrapped() -> None:
    out = io.StringIO()
    lines = StageLines(console=Console(file=out, width=80, force_terminal=False))
    hosts = ["s1", "spark2"]
    lines.set_hosts(hosts)
    for host in hosts:
        lines.on(task_event(host, "task_started", stage="prepare"))
    for host in hosts:
        lines.on(task_event(host, stage="prepare", proof=True, msg=f"{'every word of it ' * 6}ends"))
        lines.on(task_event(host, "task_started", stage="stop"))
        lines.on(task_event(host, stage="stop", status="changed", name="Stop it"))
        lines.on(samples.host_event("recap", host, seconds=3))
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


def test_unfinished_stage_names_its_task_and_duration() -> None:
    out, times = io.StringIO(), iter([0, 0, 75])
    lines = StageLines(console=Console(file=out, width=80, force_terminal=False), clock=lambda: next(times))
    lines.on(task_event("s1", "task_started", stage="verify", name="Measure throughput"))
    lines.close()
    assert out.getvalue().splitlines() == ["… verify    1m15s  Measure throughput"]


def test_refused_start_shows_its_whole_memory_budget() -> None:
    out = io.StringIO()
    lines = StageLines(console=Console(file=out, width=80, force_terminal=False))
    table = Budget(2**30, tuple(Row(f"part {n}", 2**30, "its source") for n in range(12)))
    data = {"budget": table.to_json(), "evidence": table.lines()}
    lines.on(task_event("s1", status="failed", msg="it does not fit.", data=data))
    lines.on(samples.host_event("recap", "s1", seconds=3, exit=5, failed=1, msg="it does not fit."))
    lines.close()
    output = out.getvalue().splitlines()
    assert [line[4:] for line in output if line.startswith("  | ")] == table.lines()


@pytest.mark.parametrize(
    "create",
    [lambda console: StageLines(console=console), lambda console: LiveTaskLines(console=console),
     lambda console: HostTable(console=console)],
    ids=["stages", "tasks", "hosts"],
)  # fmt: skip
def test_nothing_live_is_on_the_screen_during_a_question(create: Callable[[Console], Any]) -> None:
    out = io.StringIO()
    presenter = create(Console(file=out, width=80, force_terminal=True, _environ={"TERM": "xterm"}))
    presenter.set_hosts(["s1"])
    presenter.on(task_event("s1", "task_started", stage="verify", name="Measure throughput"))
    presenter.on(event("progress", host="s1", done=1, total=4, unit="tokens", text="measuring"))
    presenter.pause()
    out.write("\nleave it running or stop it? s\n")
    screen = [line for line in final_lines(out.getvalue()) if line.strip()]
    assert screen == ["leave it running or stop it? s"]
    presenter.resume()
    presenter.on(task_event("s1", status="changed", name="Measure throughput", stage="verify"))
    presenter.close()
    screen = [line for line in final_lines(out.getvalue()) if line.strip()]
    assert screen[0] == "leave it running or stop it? s" and len(screen) > 1
