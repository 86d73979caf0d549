"""A host's answer as a row of `status`, and the row as a line."""

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from sparkwright.app.queries.fleet_status import IntendedServer, mark_lost_members, parse_row
from sparkwright.console import status_table
from sparkwright.console.rows import HostStatus
from sparkwright.errors import Exit
from sparkwright.health.record import Container, Record, Serves, Speed
from sparkwright.project.inventory.groups import Cluster

NOW_S = 1_000_000.0
DIGEST, OTHER = "sha256:" + "a" * 64, "sha256:" + "f" * 64
RECORD = Record(
    *(NOW_S - 60, "ok", "ok", NOW_S - 9000),
    why="fine",
    every_s=300.0,
    container=Container("qwen35", "c" * 64, "running", 0, "unless-stopped", None, NOW_S - 7200, verified=True),
    serves=Serves(f"vllm/vllm-openai:v0.32.0@{DIGEST}", "0.32.0", "Qwen/Qwen3.5-35B-A3B", "b" * 40, "qwen", 1.0),
    speed=Speed(51.2, 52.4, 0.1, "proved", NOW_S - 600),
)
PINNED = IntendedServer("qwen3.5-35b", "qwen35", DIGEST, "b" * 40)


def status_answer(record: Record = RECORD, **more: Any) -> dict[str, Any]:
    memory = {"memory_available_bytes": 18 * 2**30, "memory_total_bytes": 120 * 2**30}
    return {"record": record.to_json(), "live": False, "late": False, "busy": "", "outdated": "", **memory, **more}


def render_line(row: HostStatus) -> str:
    """The row's line in a wide terminal."""
    out = io.StringIO()
    Console(file=out, width=400).print(status_table.build_table([row]))
    return out.getvalue().splitlines()[-1]


def test_a_line_holds_what_was_asked_for() -> None:
    result = render_line(parse_row("spark1", status_answer(), PINNED, NOW_S))
    for words in (
        "spark1",
        "ok",
        "qwen3.5-35b",
        "a" * 12,
        "0.32.0",
        "Qwen3.5-35B-A3B@bbbbbbbb",
        "51.2 / 52.4",
        "2h",
        "none",
    ):
        assert words in result
    assert "18.0 of 120 GiB free" in result
    assert "1m ago" in result
    assert "a" * 13 not in result


def test_the_stages_of_the_start_are_shown_where_they_were_measured() -> None:
    result = render_line(
        parse_row("spark1", status_answer(load_s={"weights": 210.4, "compile": 95.0, "graphs": 4.0}), PINNED, NOW_S)
    )
    assert "weights 210 s, compile 95 s, graphs 4.0 s" in result


@pytest.mark.parametrize(
    ("record", "exit_code"),
    [(RECORD, 0), *((replace(RECORD, state=state, why="because"), code) for state, code in (
        ("starting", 0), ("degraded", 2), ("unknown", 4), ("stalled", 1), ("wedged", 1), ("crash-looping", 1), ("down", 1)))],
)  # fmt: skip
def test_the_state_decides_how_it_ends_and_is_explained(record: Record, exit_code: int) -> None:
    row = parse_row("spark1", status_answer(record), PINNED, NOW_S)
    assert row.exit == exit_code
    assert ("because" in render_line(row)) == (record.state != "ok")


def test_an_overdue_check_says_nothing_of_the_present() -> None:
    row = parse_row("spark1", status_answer(late=True), PINNED, NOW_S)
    assert row.state == "unknown"
    assert "overdue" in row.why
    assert row.drift is None
    assert row.exit == 4


def test_a_lock_that_moved_on_is_seen() -> None:
    row = parse_row("spark1", status_answer(), replace(PINNED, digest=OTHER, commit="d" * 40), NOW_S)
    assert row.behind == ("image", "model")
    assert "behind the lock: image, model" in render_line(row)
    row = parse_row(
        "spark1", status_answer(), IntendedServer("gemma", "gemma", "sha256:new", "abc", "google/gemma"), NOW_S
    )
    assert row.behind == ("recipe",)
    assert "gemma is not deployed yet" in render_line(row)


def test_a_lock_that_knows_nothing_is_no_drift() -> None:
    assert parse_row("spark1", status_answer(), IntendedServer("qwen3.5-35b", "qwen35"), NOW_S).behind == ()


def test_drift_is_named_and_what_was_not_looked_for_is_not_called_none() -> None:
    drifted = replace(RECORD, drift=("env", "image"))
    assert "env, image" in render_line(parse_row("spark1", status_answer(drifted), PINNED, NOW_S))
    live = parse_row("spark1", status_answer(replace(RECORD, every_s=0.0), live=True), PINNED, NOW_S)
    assert live.drift is None
    assert "none" not in render_line(live)
    assert "no schedule" in render_line(live)


def test_a_model_whose_files_all_differ_fills_no_screen_and_json_has_each() -> None:
    files = tuple(f"model model-{n:05}-of-00163.safetensors" for n in range(163))
    row = parse_row("spark1", status_answer(replace(RECORD, drift=files)), PINNED, NOW_S)
    assert row.drift == files
    result = "163 files of its model: model-00000-of-00163.safetensors, model-00001-of-00163.safetensors, "
    assert f"{result}model-00002-of-00163.safetensors and 160 more" in render_line(row)


def test_a_server_that_comes_and_goes_is_shown_as_one_while_it_serves() -> None:
    row = parse_row("spark1", status_answer(replace(RECORD, flapping=True)), PINNED, NOW_S)
    assert (row.state, row.exit) == ("ok", 0)
    assert "it changed state several times" in render_line(row)


def test_who_works_there_is_told() -> None:
    assert "ann@desk runs deploy" in render_line(
        parse_row("spark1", status_answer(busy="ann@desk runs deploy"), PINNED, NOW_S)
    )


def test_a_stopped_server_has_no_uptime() -> None:
    stopped = replace(RECORD, state="down", container=replace(RECORD.container, status="exited", exit_code=137))
    assert parse_row("spark1", status_answer(stopped), PINNED, NOW_S).up_s is None


def test_what_was_never_measured_is_a_dash_and_not_a_zero() -> None:
    result = render_line(parse_row("spark1", status_answer(replace(RECORD, speed=Speed(None, 52.4))), PINNED, NOW_S))
    assert "- / 52.4" in result
    assert "0.0" not in result


def test_a_check_that_no_longer_speaks_for_the_server_is_said_beside_what_is_seen() -> None:
    result = render_line(
        parse_row(
            "spark1",
            status_answer(live=True, outdated="no check since the container was started (last state: wedged)"),
            PINNED,
            NOW_S,
        )
    )
    assert "now " in result and "no schedule" not in result
    assert "no check since the container was started (last state: wedged)" in result


def test_a_deploy_in_progress_is_no_verdict() -> None:
    record = {**RECORD.to_json(), "state": "in progress"}
    row = parse_row(
        "spark1", {**status_answer(busy="ann@desk runs deploy"), "record": record, "live": True}, PINNED, NOW_S
    )
    assert (row.state, row.exit) == ("in progress", 4)


@pytest.mark.parametrize(("state", "head"), [("unreachable", "unknown"), ("down", "unknown"), ("ok", "ok")])
def test_a_head_is_not_ok_in_the_table_in_which_a_worker_is_gone(state: str, head: str) -> None:
    pair = Cluster("pair", "r", ("one", "two"), ("", ""))
    rows = [
        HostStatus("one", "ok", "", "r", exit=0),
        HostStatus("two", state, "no route to host", "r"),
        HostStatus("alone", "ok", "", "r"),
    ]
    shown = mark_lost_members(rows, {"one": pair, "two": pair, "alone": None})
    assert [row.state for row in shown] == [head, state, "ok"]
    if head != "ok":
        assert shown[0].why.startswith(f"two (rank 1 of pair) is {state}: ")
        assert (shown[0].exit, shown[0].tok_per_s) == (Exit.INCONCLUSIVE, None)
