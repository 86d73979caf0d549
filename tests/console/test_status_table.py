"""Tables at every width: important columns are complete, and nothing is wider than the terminal."""

import fcntl
import itertools
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

from sparkwright.console import status_table
from sparkwright.console.events import tables
from sparkwright.console.rows import HostStatus

WHY = "qwen35 exited with code 137 (killed: out of memory); restart 4 in progress, and the kernel's log names vllm as the victim"
ROWS = [
    HostStatus(
        *("spark1", "crash-looping", WHY, "qwen3.5-35b", "vllm/vllm-openai:v0.32.0", "sha256:" + "a" * 64, "0.32.0"),
        *(
            "Qwen/Qwen3.5-35B-A3B-FP8",
            "b" * 40,
            None,
            47.0,
            7200.0,
            12 * 2**30,
            120 * 2**30,
            ("env",),
            ("image",),
            60.0,
        ),
    ),
    HostStatus(
        "spark2", "ok", "", "qwen3.5-35b", tok_per_s=47.0, baseline_tok_per_s=47.0, checked_s=30.0, scheduled=True
    ),
]
VERDICTS: list[dict[str, Any]] = [
    {"check": "generates", "verdict": "proved", "figure": "", "evidence": "generates: 8 tokens in 0.21 s"},
    {"check": "throughput", "verdict": "failed", "figure": "5.7 / 47.0 (-88%) tok/s", "evidence": WHY, "fix": WHY[:70]},
]
WIDTHS = (200, 120, 100, 80, 60, 40)


def join_words(lines: list[str]) -> str:
    """Return the words of lines in reading order."""
    return " ".join(" ".join(lines).split())


@pytest.mark.parametrize("width", WIDTHS)
def test_a_state_and_its_reason_are_whole_at_every_width(width: int) -> None:
    lines = status_table.build_table(ROWS, width).plain.splitlines()
    assert max(map(len, lines)) <= width
    assert WHY in join_words(lines)
    assert "crash-looping" in lines[1] and lines[1].startswith("spark1")
    assert "…" not in join_words(lines).replace("aaaaaaaaaaaa…", "")
    assert re.match(r"spark2 +ok\b", lines[-1])


def test_what_matters_less_leaves_first() -> None:
    titles = [status_table.build_table(ROWS, width).plain.splitlines()[0].split() for width in (None, *WIDTHS)]
    assert titles[0] == [
        "HOST", "STATE", "RECIPE", "IMAGE", "ENGINE", "MODEL", "TOK/S", "UP", "MEMORY", "DRIFT", "CHECKED", "WHY",
    ]  # fmt: skip
    for wider, narrower in itertools.pairwise(titles):
        assert set(narrower) <= set(wider)
    assert {"HOST", "STATE"} <= set(titles[-1])
    assert "MODEL" not in titles[4] and {"TOK/S", "CHECKED", "DRIFT"} <= set(titles[4])


def test_where_no_terminal_limits_it_a_host_is_one_line() -> None:
    lines = status_table.build_table(ROWS).plain.splitlines()
    assert len(lines) == 3 and lines[1].endswith(WHY)


@pytest.mark.parametrize("width", WIDTHS)
def test_verdicts_evidence_and_fixes_are_whole_at_every_width(width: int) -> None:
    columns = tables.TABLES["verdict"][1]
    found = tables.format_table(VERDICTS, columns, width)
    lines = [text for _, text in found]
    assert max(map(len, lines)) <= width
    message = join_words(lines)
    for text in ("generates: 8 tokens in 0.21 s", WHY, f"→ {WHY[:70]}", "5.7 / 47.0 (-88%) tok/s"):
        assert text in message
    assert [style for style, text in found if text.lstrip().startswith("→")] == ["fix"]


def test_in_a_pipe_evidence_is_one_line() -> None:
    lines = [text for _, text in tables.format_table(VERDICTS, tables.TABLES["verdict"][1], None)]
    assert any(line.endswith(WHY) for line in lines)


@pytest.mark.parametrize("width", (80, 60, 40))
def test_a_terminal_is_told_why_a_host_is_away(tmp_path: Path, width: int) -> None:
    """Run the real command in a terminal of this width."""
    for folder in ("hosts", "playbooks"):
        (tmp_path / folder).mkdir()
    for name in ("spark1", "spark-with-a-long-name"):
        (tmp_path / f"hosts/{name}.yml").write_text("address: 127.0.0.1\nport: 1\n")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    program = [sys.executable, "-c", "from sparkwright.cli import main; main()", "status"]
    env = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    env |= {"TERM": "xterm", "NO_COLOR": "1"}
    done = subprocess.Popen(program, cwd=tmp_path, stdout=theirs, stderr=theirs, stdin=theirs, env=env)
    os.close(theirs)
    output = _read_terminal(ours)
    assert done.wait(timeout=60) == 3
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output).replace("\r", "").splitlines()
    assert max(map(len, lines)) <= width
    assert join_words(lines).count("unreachable") == 2 and join_words(lines).count("refuses connections") == 2


def _read_terminal(descriptor: int) -> str:
    """Return everything that a program writes to its terminal."""
    output = b""
    try:
        while piece := os.read(descriptor, 65536):
            output += piece
    except OSError:  # Linux: the other end is closed
        pass
    os.close(descriptor)
    return output.decode()
