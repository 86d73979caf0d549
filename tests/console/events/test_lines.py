"""The output of a run in a log, a pipe or a cron mail."""

import io
import json
from typing import Any

import pytest

from sparkwright.console.events.lines import TaskLines
from sparkwright.console.events.subscriber import JsonLines
from sparkwright.protocol.events import Event, event
from tests.console import samples
from tests.console.samples import task_event

COUNTS = {"ok": 3, "changed": 1, "failed": 0, "skipped": 2, "unreachable": 0}


def print_events(*events: Event, hosts: tuple[str, ...] = ("spark1",), diff: bool = False) -> list[str]:
    return samples.print_events(lambda write: TaskLines(diff=diff, write=write), hosts, events)


def recap(host: str = "spark1", **fields: Any) -> Event:
    return samples.host_event("recap", host, **{**COUNTS, "seconds": 12, **fields})


def print_diff(field: str, before: Any, after: Any, why: str = "") -> list[str]:
    """Return the lines below the task's line."""
    change = {"field": field, "before": before, "after": after, "why": why}
    return [line.strip() for line in print_events(task_event(status="changed", diff=[change]), diff=True)[1:]]


def test_host_has_one_line_per_task_and_a_recap() -> None:
    printed = print_events(task_event(status="changed", seconds=12, msg="9.0 GB"), recap())
    assert printed[0] == "changed  Pull the image  (12s)  9.0 GB"
    assert printed[-1] == "spark1 : ok=3 changed=1 failed=0 skipped=2 unreachable=0  in 12s"


def test_lines_of_several_hosts_have_the_host() -> None:
    printed = print_events(task_event(), task_event(host="spark22"), hosts=("spark1", "spark22"))
    assert printed == ["ok       spark1   Pull the image", "ok       spark22  Pull the image"]


def test_failure_has_its_remedy_evidence_and_place() -> None:
    message, fix = "the tag is not there.", "Check the recipe's `image`."
    evidence = {"evidence": ["manifest unknown"]}
    where = "playbooks/deploy.yml:14"
    assert print_events(task_event(status="failed", msg=message, fix=fix, where=where, data=evidence)) == [
        "failed   Pull the image  the tag is not there.",
        "         → Check the recipe's `image`.",
        "         | manifest unknown",
        "         at playbooks/deploy.yml:14",
    ]


def test_diff_shows_a_field_before_and_after_with_the_reason() -> None:
    assert print_diff("--max-num-seqs", "8", "16", "the recipe says so") == [
        "- --max-num-seqs: 8",
        "+ --max-num-seqs: 16   # the recipe says so",
    ]


def test_value_in_a_diff_is_complete_in_a_pipe_and_shortened_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    before = ["--flag"] * 60
    assert str(before) in "\n".join(print_diff("command", before, None))
    monkeypatch.setenv("COLUMNS", "100")
    assert max(map(len, print_diff("command", before, None))) <= 101


def test_diff_of_a_long_text_shows_the_difference_and_its_neighbours() -> None:
    before = "\n".join(f"line {n}" for n in range(40))
    assert print_diff("content", before, before.replace("line 7", "line seven")) == [
        "content: line 6",
        "- content: line 7",
        "+ content: line seven",
        "content: line 8",
    ]


def test_diff_of_a_mapping_shows_the_keys_that_differ() -> None:
    before, after = {"A": "1", "B": "2", "C": "3"}, {"C": "3", "B": "9", "D": "4"}
    assert print_diff("env", before, after) == ["- env.A: 1", "- env.B: 2", "+ env.B: 9", "+ env.D: 4"]


def test_task_that_check_mode_can_not_evaluate_is_later() -> None:
    printed = print_events(
        task_event(status="skipped", name="prove", msg="known after: start"), task_event(status="skipped", name="x")
    )
    assert [line.split() for line in printed] == [["later", "prove"], ["skipped", "x"]]


def test_sandbox_is_named_as_simulated() -> None:
    printed = print_events(event("run_started", host="sandbox", sandbox=True, check=False))
    assert printed == ["sandbox is the sandbox: a simulated Spark without a GPU or a real model."]


def test_failure_is_printed_once() -> None:
    message, fix = "the tag is not there.", "Check the recipe's `image`."
    failed = task_event(status="failed", msg=message, fix=fix)
    printed = print_events(failed, recap(msg=f"{message} {fix}"))
    assert sum(message in line for line in printed) == sum(fix in line for line in printed) == 1
    final = task_event(
        status="failed", name="Report the outcome", msg=f"{message} {fix} The previous server is restored."
    )
    printed = print_events(failed, final, recap(msg=final["msg"]))
    assert "failed   Report the outcome  The previous server is restored." in printed
    assert sum(message in line for line in printed) == 1


def test_failure_without_a_failed_task_is_printed_with_the_recap() -> None:
    message = "the tag is not there."
    failed = task_event(status="failed", msg=message)
    assert f"  {message}" in print_events(recap(msg=message))
    assert f"  {message}" in print_events(failed, recap("spark2", msg=message), hosts=("spark1", "spark2"))


def print_json(*events: Event) -> list[dict[str, Any]]:
    out = io.StringIO()
    lines = JsonLines(out)
    for item in events:
        lines.on(item)
    lines.close()
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_json_has_one_event_per_line_and_the_recap_at_its_end() -> None:
    assert [row["event"] for row in print_json(recap(), task_event(), event("alive"))] == ["task_finished", "recap"]


def test_json_recap_of_a_failure_has_the_error() -> None:
    first, second = print_json(recap(exit=1, failed=1, msg="It broke."), recap("spark2", exit=2))
    assert (first["error"], first["exit"]) == ("It broke.", 1) and "error" not in second


def test_many_skipped_tasks_in_a_row_are_one_line() -> None:
    skipped = [task_event(status="skipped", name=f"step {n}", msg="condition is false") for n in range(5)]
    assert print_events(*skipped, task_event(), *skipped[:2], recap())[:4] == [
        "skipped  5 tasks: step 0 ... step 4",
        "ok       Pull the image",
        "skipped  step 0",
        "skipped  step 1",
    ]


def test_recap_of_a_restart_has_the_duration_of_each_stage() -> None:
    tasks = [
        task_event(stage=stage, module=module, seconds=seconds)
        for stage, module, seconds in (
            ("stop", "stopped", 2.0),
            ("start", "container", 0.4),
            ("start", "wait_ready", 95.0),
            ("verify", "smoke_test", 9.0),
        )
    ]
    skipped = task_event(stage="drain", module="drain", seconds=40.0, status="skipped", msg="condition is false")
    assert print_events(*tasks, skipped, recap())[-1] == "  stages: stop 2.0s, start 1m35s, verify 9.0s"


def test_recap_of_a_run_without_a_start_has_no_stages() -> None:
    assert not [line for line in print_events(task_event(seconds=12), recap()) if "stages" in line]


def test_same_refusal_of_several_hosts_is_printed_once() -> None:
    recaps = [recap(host, failed=1, msg="ray is not offered.") for host in ("one", "two")]
    printed = [line.strip() for line in print_events(*recaps, hosts=("one", "two"))]
    assert printed[2::2] == ["ray is not offered.", "same reason as one"]
