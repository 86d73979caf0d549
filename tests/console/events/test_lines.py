"""The output of a run in a log, a pipe or a cron mail."""

import io
import json
from typing import Any

import pytest

from sparkwright.console.events.lines import TaskLines
from sparkwright.console.events.subscriber import JsonLines
from sparkwright.protocol.events import event

COUNTS = {"ok": 3, "changed": 1, "failed": 0, "skipped": 2, "unreachable": 0}


def print_events(*events: dict[str, Any], hosts: tuple[str, ...] = ("spark1",), diff: bool = False) -> list[str]:
    printed: list[str] = []
    lines = TaskLines(diff=diff, write=lambda _, text: printed.append(text.rstrip()))
    lines.set_hosts(list(hosts))
    for item in events:
        lines.on(item)
    lines.close()
    return printed


def task_finished(**fields: Any) -> dict[str, Any]:
    defaults = {"task": "1", "name": "Pull the image", "module": "docker_image", "status": "ok", "msg": "", "diff": []}
    return event("task_finished", **{**defaults, "host": "spark1", "seconds": 0.1, "data": {}, **fields})


def test_one_host_has_one_line_a_task_and_a_recap() -> None:
    printed = print_events(
        task_finished(status="changed", seconds=12, msg="9.0 GB"),
        event("recap", host="spark1", seconds=12, msg="", **COUNTS),
    )
    assert printed[0] == "changed  Pull the image  (12s)  9.0 GB"
    assert printed[-1] == "spark1 : ok=3 changed=1 failed=0 skipped=2 unreachable=0  in 12s"


def test_many_hosts_are_told_apart() -> None:
    printed = print_events(task_finished(), task_finished(host="spark22"), hosts=("spark1", "spark22"))
    assert printed == ["ok       spark1   Pull the image", "ok       spark22  Pull the image"]


def test_a_failure_keeps_its_evidence_its_place_and_the_way_out() -> None:
    printed = print_events(
        task_finished(
            status="failed",
            msg="the tag is not there.",
            fix="Check the recipe's `image`.",
            where="playbooks/deploy.yml:14",
            data={"evidence": ["manifest unknown"]},
        )
    )
    assert printed == [
        "failed   Pull the image  the tag is not there.",
        "         → Check the recipe's `image`.",
        "         | manifest unknown",
        "         at playbooks/deploy.yml:14",
    ]


def test_diff_shows_each_field_before_and_after_with_its_reason() -> None:
    change = {"field": "--max-num-seqs", "before": "8", "after": "16", "why": "the recipe says so"}
    printed = print_events(task_finished(status="changed", diff=[change]), diff=True)
    assert printed[1:] == ["         - --max-num-seqs: 8", "         + --max-num-seqs: 16   # the recipe says so"]


def test_in_a_pipe_a_value_of_a_diff_is_complete_and_on_a_terminal_of_a_width_it_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    change = {"field": "command", "before": ["--flag"] * 60, "after": None, "why": ""}
    assert str(change["before"]) in "\n".join(print_events(task_finished(status="changed", diff=[change]), diff=True))
    monkeypatch.setenv("COLUMNS", "100")
    assert max(map(len, print_events(task_finished(status="changed", diff=[change]), diff=True))) <= 110


def test_an_error_stands_in_its_recap_for_programs() -> None:
    out = io.StringIO()
    lines = JsonLines(out)
    counts = {**COUNTS, "failed": 1}
    lines.on(event("recap", host="spark1", exit=1, seconds=1, msg="It broke.", **counts))
    lines.on(event("recap", host="spark2", exit=2, seconds=1, msg="", **COUNTS))
    lines.close()
    first, second = map(json.loads, out.getvalue().splitlines())
    assert (first["error"], first["exit"]) == ("It broke.", 1) and "error" not in second


def test_diff_of_a_long_text_shows_what_differs_and_its_neighbours() -> None:
    before = "".join(f"line {n}\n" for n in range(30))
    change = {"field": "content", "before": before, "after": before.replace("line 7", "line seven"), "why": ""}
    printed = print_events(task_finished(status="changed", diff=[change]), diff=True)
    rows = [row.strip() for row in printed[1:]]
    assert rows == ["content: line 6", "- content: line 7", "+ content: line seven", "content: line 8"]


def test_what_check_mode_can_not_try_is_later_not_skipped() -> None:
    printed = print_events(
        task_finished(status="skipped", name="prove", msg="known after: start"),
        task_finished(status="skipped", name="x"),
    )
    assert [row.split() for row in printed] == [["later", "prove"], ["skipped", "x"]]


def test_the_sandbox_always_says_that_it_is_one() -> None:
    printed = print_events(event("run_started", host="sandbox", sandbox=True, check=False))
    assert printed == ["sandbox is the sandbox: a simulated Spark without GPU or real model."]


def test_a_failure_is_told_once() -> None:
    why, fix = "the tag is not there.", "Check the recipe's `image`."
    failed = task_finished(status="failed", msg=why, fix=fix)
    printed = print_events(failed, event("recap", host="spark1", seconds=1, msg=f"{why} {fix}", **COUNTS))
    assert sum(why in line for line in printed) == sum(fix in line for line in printed) == 1
    ended = task_finished(
        status="failed", name="Report the outcome", msg=f"{why} {fix} The previous server is restored."
    )
    printed = print_events(failed, ended, event("recap", host="spark1", seconds=1, msg=ended["msg"], **COUNTS))
    assert "failed   Report the outcome  The previous server is restored." in printed
    assert sum(why in line for line in printed) == 1
    elsewhere = event("recap", host="spark2", seconds=1, msg=why, **COUNTS)
    assert f"  {why}" in print_events(failed, elsewhere, hosts=("spark1", "spark2"))
    assert f"  {why}" in print_events(elsewhere), "a refusal before any task has its line at the end"


def test_json_holds_one_object_a_line_and_ends_with_the_recap() -> None:
    out = io.StringIO()
    lines = JsonLines(out)
    for item in (event("recap", host="a", exit=0, **COUNTS), task_finished(), event("alive")):
        lines.on(item)
    lines.close()
    kinds = [json.loads(line)["event"] for line in out.getvalue().splitlines()]
    assert kinds == ["task_finished", "recap"]


def test_many_tasks_skipped_in_a_row_are_one_line_and_a_few_have_one_each() -> None:
    skips = [task_finished(status="skipped", name=f"step {n}", msg="condition is false") for n in range(5)]
    printed = print_events(
        *skips, task_finished(), *skips[:2], event("recap", host="spark1", seconds=1, msg="", **COUNTS)
    )
    assert printed[:4] == [
        "skipped  5 tasks: step 0 ... step 4",
        "ok       Pull the image",
        "skipped  step 0",
        "skipped  step 1",
    ]


def test_the_recap_of_a_restart_tells_what_each_stage_took() -> None:
    tasks = (
        ("stop", "stopped", 2.0),
        ("start", "container", 0.4),
        ("start", "wait_ready", 95.0),
        ("verify", "smoke_test", 9.0),
    )
    rows = [task_finished(stage=stage, module=module, seconds=seconds) for stage, module, seconds in tasks]
    rows.append(task_finished(stage="drain", module="drain", seconds=40.0, status="skipped", msg="condition is false"))
    recap = event("recap", host="spark1", seconds=120, msg="", **COUNTS)
    assert print_events(*rows, recap)[-1] == "  stages: stop 2.0s, start 1m35s, verify 9.0s"


def test_a_run_that_loaded_nothing_tells_no_stages() -> None:
    printed = print_events(task_finished(seconds=12), event("recap", host="spark1", seconds=12, msg="", **COUNTS))
    assert not [item for item in printed if "stages" in item]


def test_hosts_that_were_refused_with_the_same_words_share_the_sentence() -> None:
    counts = {**COUNTS, "failed": 1}
    recaps = [event("recap", host=host, seconds=0, msg="ray is not offered.", **counts) for host in ("one", "two")]
    assert [line.strip() for line in print_events(*recaps, hosts=("one", "two"))][2::2] == [
        "ray is not offered.",
        "same reason as one",
    ]


def test_of_a_mapping_only_the_keys_that_differ_are_shown() -> None:
    row = {"field": "env", "before": {"A": "1", "B": "2", "C": "3"}, "after": {"C": "3", "B": "9", "D": "4"}, "why": ""}
    printed = print_events(task_finished(status="changed", diff=[row]), diff=True)
    assert [line.strip() for line in printed[1:]] == ["- env.A: 1", "- env.B: 2", "+ env.B: 9", "+ env.D: 4"]
