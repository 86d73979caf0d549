"""`status`: a host's answer as a row, and the row as a line."""

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from sparkwright.app.queries.fleet_status import IntendedServer, mark_cluster_outages, parse_row
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


def parse(record: Record = RECORD, intended: IntendedServer = PINNED, **fields: Any) -> HostStatus:
    """Return the row of a host with this record. fields: of its answer."""
    memory = {"memory_available_bytes": 18 * 2**30, "memory_total_bytes": 120 * 2**30}
    answer = {"record": record.to_json(), "live": False, "late": False, "busy": "", "outdated": "", **memory}
    return parse_row("spark1", {**answer, "now_s": NOW_S, **fields}, intended)


def render_line(row: HostStatus) -> str:
    out = io.StringIO()
    Console(file=out, width=400).print(status_table.build_table([row]))
    return out.getvalue().splitlines()[-1]


def test_line_has_all_columns() -> None:
    line = render_line(parse())
    names = ("spark1", "ok", "qwen3.5-35b", "a" * 12, "0.32.0", "Qwen3.5-35B-A3B@bbbbbbbb")
    for text in (*names, "51.2 / 52.4", "2h", "18.0 of 120 GiB free", "none", "1m ago"):
        assert text in line
    assert "a" * 13 not in line


def test_measured_stages_of_the_start_are_shown() -> None:
    line = render_line(parse(load_s={"weights": 210.4, "compile": 95.0, "graphs": 4.0}))
    assert "weights 210 s, compile 95 s, graphs 4.0 s" in line


@pytest.mark.parametrize(
    ("state", "exit_code"),
    [("ok", 0), ("starting", 0), ("degraded", 2), ("unknown", 4), ("stalled", 1), ("wedged", 1), ("crash-looping", 1), ("down", 1)],
)  # fmt: skip
def test_state_decides_the_exit_code_and_only_ok_has_no_reason(state: Any, exit_code: int) -> None:
    row = parse(replace(RECORD, state=state, why="because"))
    assert row.exit == exit_code
    assert ("because" in render_line(row)) == (state != "ok")


def test_overdue_check_makes_the_state_unknown() -> None:
    row = parse(late=True)
    assert (row.state, row.drift, row.exit) == ("unknown", None, 4)
    assert "overdue" in row.why


@pytest.mark.parametrize(
    ("intended", "behind", "shown"),
    [
        (replace(PINNED, digest=OTHER, commit="d" * 40), ("image", "model"), "behind the lock: image, model"),
        (IntendedServer("gemma", "gemma", OTHER, "abc", "google/gemma"), ("recipe",), "gemma is not deployed yet"),
        (IntendedServer("qwen3.5-35b", "qwen35"), (), "ok"),
    ],
    ids=["newer lock", "other recipe", "nothing locked"],
)
def test_difference_from_the_lock_is_shown(intended: IntendedServer, behind: tuple[str, ...], shown: str) -> None:
    row = parse(intended=intended)
    assert row.behind == behind
    assert shown in render_line(row)


def test_drift_is_named_and_is_unknown_in_a_live_answer() -> None:
    assert "env, image" in render_line(parse(replace(RECORD, drift=("env", "image"))))
    live = parse(replace(RECORD, every_s=0.0), live=True)
    assert live.drift is None
    assert "none" not in render_line(live)
    assert "no schedule" in render_line(live)


def test_long_list_of_drifted_model_files_is_shortened_in_the_line_only() -> None:
    files = tuple(f"model model-{n:05}-of-00163.safetensors" for n in range(163))
    row = parse(replace(RECORD, drift=files))
    assert row.drift == files
    first = "163 files of its model: model-00000-of-00163.safetensors, model-00001-of-00163.safetensors, "
    assert f"{first}model-00002-of-00163.safetensors and 160 more" in render_line(row)


def test_flapping_server_is_marked_while_it_serves() -> None:
    row = parse(replace(RECORD, flapping=True))
    assert (row.state, row.exit) == ("ok", 0)
    assert "it changed state several times" in render_line(row)


def test_ok_server_whose_last_check_found_another_state_has_its_reason() -> None:
    row = parse(replace(RECORD, seen="degraded", why="GPU temperature 96 °C"))
    assert (row.state, row.exit) == ("ok", 0)
    assert "this check: degraded (not yet confirmed): GPU temperature 96 °C" in render_line(row)


def test_running_command_is_shown() -> None:
    assert "ann@desk runs deploy" in render_line(parse(busy="ann@desk runs deploy"))


def test_stopped_server_has_no_uptime() -> None:
    stopped = replace(RECORD.container, status="exited", exit_code=137)
    assert parse(replace(RECORD, state="down", container=stopped)).up_s is None


def test_ages_do_not_depend_on_the_laptops_clock() -> None:
    row = parse(now_s=NOW_S + 3600)
    assert (row.checked_s, row.up_s) == (3660, 10800)


def test_uptime_of_a_server_that_started_before_the_clock_was_set_back_is_unknown() -> None:
    assert parse(now_s=NOW_S - 86400).up_s is None


def test_missing_measurement_is_a_dash() -> None:
    line = render_line(parse(replace(RECORD, speed=Speed(None, 52.4))))
    assert "- / 52.4" in line
    assert "0.0" not in line


def test_outdated_check_is_explained() -> None:
    reason = "no check since the container was started (last state: wedged)"
    line = render_line(parse(live=True, outdated=reason))
    assert "now " in line and "no schedule" not in line
    assert reason in line


def test_deploy_in_progress_is_inconclusive() -> None:
    state: Any = "in progress"
    row = parse(replace(RECORD, state=state), busy="ann@desk runs deploy", live=True)
    assert (row.state, row.exit) == ("in progress", 4)


@pytest.mark.parametrize(("state", "head"), [("unreachable", "unknown"), ("down", "unknown"), ("ok", "ok")])
def test_head_of_a_cluster_is_unknown_without_its_worker(state: str, head: str) -> None:
    pair = Cluster("pair", "r", ("one", "two"), ("", ""))
    rows = [
        HostStatus("one", "ok", "", "r", exit=0),
        HostStatus("two", state, "no route to host", "r"),
        HostStatus("alone", "ok", "", "r"),
    ]
    marked = mark_cluster_outages(rows, {"one": pair, "two": pair, "alone": None})
    assert [row.state for row in marked] == [head, state, "ok"]
    if head != "ok":
        assert marked[0].why.startswith(f"two (rank 1 of pair) is {state}: ")
        assert (marked[0].exit, marked[0].tok_per_s) == (Exit.INCONCLUSIVE, None)
