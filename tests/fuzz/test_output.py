"""The output of a host's programs has a size limit and a deadline."""

import pytest

from sparkwright.errors import Failed
from sparkwright.host.machine import Machine

HERE = Machine(env={"PATH": "/usr/bin:/bin"})


def test_a_result_has_output_errors_and_exit_code() -> None:
    result = HERE.run(["sh", "-c", "cat; echo err >&2; exit 3"], stdin="x" * 300_000)
    assert (result.code, result.out, result.err, result.ok) == (3, "x" * 300_000, "err\n", False)


def test_unread_input_is_ignored() -> None:
    assert HERE.run(["true"], stdin="x" * 10_000_000).ok


def test_a_missing_program_has_exit_code_127() -> None:
    assert HERE.run(["no-such-program"]).code == 127


def test_a_program_with_endless_output_is_killed() -> None:
    with pytest.raises(Failed, match="yes printed more than 16 MiB"):
        HERE.run(["yes"])


def test_a_program_that_runs_too_long_is_killed() -> None:
    with pytest.raises(Failed, match="sleep timed out after 0.2 s"):
        HERE.run(["sleep", "600"], timeout_s=0.2)
