"""Output of the host's programs is read up to a size and a deadline."""

import time

import pytest

from sparkwright.errors import Failed
from sparkwright.host.machine import Machine

HERE = Machine(env={"PATH": "/usr/bin:/bin"})


def test_output_errors_and_code_are_the_programs() -> None:
    result = HERE.run(["sh", "-c", "cat; echo err >&2; exit 3"], stdin="x" * 300_000)
    assert (result.code, result.out, result.err, result.ok) == (3, "x" * 300_000, "err\n", False)


def test_input_that_nobody_reads_is_no_error() -> None:
    assert HERE.run(["true"], stdin="x" * 10_000_000).ok


def test_a_missing_program_is_127() -> None:
    assert HERE.run(["no-such-program"]).code == 127


def test_a_program_that_prints_without_end_is_killed() -> None:
    with pytest.raises(Failed, match="yes printed more than 16 MiB"):
        HERE.run(["yes"])


def test_a_program_that_never_ends_is_killed() -> None:
    began = time.monotonic()
    with pytest.raises(Failed, match="sleep timed out after 0.2 s"):
        HERE.run(["sleep", "600"], timeout_s=0.2)
    assert time.monotonic() - began < 60
