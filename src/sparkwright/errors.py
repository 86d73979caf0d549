"""Sparkwright's exceptions and their exit codes. Imported on both the laptop and the host."""

from __future__ import annotations

from enum import IntEnum

from sparkwright.visible import escape_invisible


class Exit(IntEnum):
    """The exit codes of every command, documented in docs/exit-codes.md."""

    OK = 0
    FAILED = 1
    CHANGES = 2
    UNREACHABLE = 3
    INCONCLUSIVE = 4
    REFUSED = 5


class SparkwrightError(Exception):
    """An error with a message for the user.

    The texts may quote a host, a hub or a file, so control characters in them are escaped.

    Args:
        message: the problem, in one sentence.
        where: "file:line" or a host; empty if neither applies.
        fix: how to solve the problem; empty if unknown.
    """

    exit: Exit = Exit.FAILED

    def __init__(self, message: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(message)
        self.message = escape_invisible(message)
        self.where = escape_invisible(where)
        self.fix = escape_invisible(fix)

    def __str__(self) -> str:
        prefix = f"{self.where}: " if self.where else ""
        suffix = f" {self.fix}" if self.fix else ""
        return f"{prefix}{self.message}{suffix}"


class Refused(SparkwrightError):
    """The command stopped before any change: the input is invalid, or the host can't do what was requested."""

    exit = Exit.REFUSED


class Unreachable(SparkwrightError):
    """The host did not answer, or the connection was lost. A run on the host may continue."""

    exit = Exit.UNREACHABLE


class KeysRejected(Unreachable):
    """The host answered, but accepted none of the user's keys."""


class Inconclusive(SparkwrightError):
    """The measurement does not allow a verdict."""

    exit = Exit.INCONCLUSIVE


class Failed(SparkwrightError):
    """A task failed."""
