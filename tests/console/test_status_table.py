"""Tables at every width: important columns are complete, and no line is wider than the terminal."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from sparkwright.console import grid, status_table
from sparkwright.console.events import tables
from sparkwright.console.rows import HostStatus
from tests.on_a_terminal import open_screen

WHY = "qwen35 exited with code 137 (killed: out of memory); restart 4 in progress, and the kernel's log names vllm as the victim"
ROWS = [
    HostStatus(
        "spark1", "crash-looping", WHY, "qwen3.5-35b", "vllm/vllm-openai:v0.32.0", "sha256:" + "a" * 64, "0.32.0",
        "Qwen/Qwen3.5-35B-A3B-FP8", "b" * 40, None, 47.0, 7200.0, 12 * 2**30, 120 * 2**30, ("env",), ("image",), 60.0,
    ),
    HostStatus("spark2", "ok", "", "qwen3.5-35b", tok_per_s=47.0, baseline_tok_per_s=47.0, checked_s=30.0, scheduled=True),
]  # fmt: skip
VERDICTS: list[dict[str, Any]] = [
    {"check": "generates", "verdict": "proved", "figure": "", "evidence": "generates: 8 tokens in 0.21 s"},
    {"check": "throughput", "verdict": "failed", "figure": "5.7 / 47.0 (-88%) tok/s", "evidence": WHY, "fix": WHY[:70]},
]
WIDTHS = (200, 120, 100, 80, 60, 40)


def join_words(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


@pytest.mark.parametrize("width", WIDTHS)
def test_state_and_reason_are_complete_at_every_width(width: int) -> None:
    lines = status_table.build_table(ROWS, width).plain.splitlines()
    assert max(map(len, lines)) <= width
    assert WHY in join_words(lines)
    assert "crash-looping" in lines[1] and lines[1].startswith("spark1")
    assert "…" not in join_words(lines).replace("aaaaaaaaaaaa…", "")
    assert re.match(r"spark2 +ok\b", lines[-1])


def test_less_important_columns_are_dropped_first() -> None:
    titles = [status_table.build_table(ROWS, width).plain.splitlines()[0].split() for width in (None, *WIDTHS)]
    assert titles[0] == [
        "HOST", "STATE", "RECIPE", "IMAGE", "ENGINE", "MODEL", "TOK/S", "UP", "MEMORY", "DRIFT", "CHECKED", "WHY",
    ]  # fmt: skip
    for wider, narrower in itertools.pairwise(titles):
        assert set(narrower) <= set(wider)
    assert {"HOST", "STATE"} <= set(titles[-1])
    assert "MODEL" not in titles[4] and {"TOK/S", "CHECKED", "DRIFT"} <= set(titles[4])


def test_host_is_one_line_without_a_terminal() -> None:
    lines = status_table.build_table(ROWS).plain.splitlines()
    assert len(lines) == 3 and lines[1].endswith(WHY)


def test_commands_are_named_as_the_program_was_started() -> None:
    row = HostStatus("spark1", "absent", "no server yet: `invoke deploy --host spark1` starts one")
    assert "`sparkwright deploy --host spark1`" in join_words(status_table.build_table([row]).plain.splitlines())


@pytest.mark.parametrize("width", WIDTHS)
def test_verdicts_evidence_and_remedies_are_complete_at_every_width(width: int) -> None:
    rows = tables.format_table(VERDICTS, tables.TABLES["verdict"][1], width)
    lines = [text for _, text in rows]
    assert max(map(len, lines)) <= width
    for text in ("generates: 8 tokens in 0.21 s", WHY, f"→ {WHY[:70]}", "5.7 / 47.0 (-88%) tok/s"):
        assert text in join_words(lines)
    assert [style for style, text in rows if text.lstrip().startswith("→")] == ["fix"]


def test_columns_before_one_that_is_too_wide_stay_aligned() -> None:
    path = f"/home/spark/{'a' * 60}"
    rows = [("spark1", "remove", "folder", path, ""), ("spark1", "keep", "container", "qwen35", "--server removes it")]
    columns = grid.columns(("HOST", 0), ("STATE", 0), ("KIND", 0), ("WHAT", 0), ("WHY", 0))
    lines = [grid.plain_text(line) for row_lines in grid.format_rows(columns, rows, 80) for line in row_lines]
    assert lines == [
        "HOST    STATE   KIND       WHAT",
        "spark1  remove  folder",
        f"    {path}",
        "spark1  keep    container  qwen35",
        "    --server removes it",
    ]


def test_evidence_is_one_line_in_a_pipe() -> None:
    lines = [text for _, text in tables.format_table(VERDICTS, tables.TABLES["verdict"][1], None)]
    assert any(line.endswith(WHY) for line in lines)


@pytest.mark.parametrize("width", (80, 60, 40))
def test_reason_of_an_unreachable_host_is_complete_on_a_real_terminal(tmp_path: Path, width: int) -> None:
    for folder in ("hosts", "playbooks"):
        (tmp_path / folder).mkdir()
    for name in ("spark1", "spark-with-a-long-name"):
        (tmp_path / f"hosts/{name}.yml").write_text("address: 127.0.0.1\nport: 1\n")
    with open_screen("status", cwd=tmp_path, env={"NO_COLOR": "1"}, columns=width) as screen:
        assert screen.wait_for_exit() == 3
        lines = screen.seen.splitlines()
    assert max(map(len, lines)) <= width
    assert join_words(lines).count("unreachable") == 2 and join_words(lines).count("refuses connections") == 2
