"""The errors of sparkwright and their exit codes. Both sides import it."""

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
    """A failure with a sentence for the user.

    The texts may quote a host, a hub or a file: control characters in them are made visible here.

    Args:
        message: what is wrong, one sentence.
        where: "file:line" or a host, if there is one.
        fix: what to do about it.
    """

    exit: Exit = Exit.FAILED

    def __init__(self, message: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(message)
        self.message = escape_invisible(message)
        self.where = escape_invisible(where)
        self.fix = escape_invisible(fix)

    def __str__(self) -> str:
        start = f"{self.where}: " if self.where else ""
        end = f" {self.fix}" if self.fix else ""
        return f"{start}{self.message}{end}"


class Refused(SparkwrightError):
    """Stopped before anything was touched: invalid input, or the host can't do what was requested."""

    exit = Exit.REFUSED


class Unreachable(SparkwrightError):
    """The host does not answer, or no longer. Its run may still continue."""

    exit = Exit.UNREACHABLE


class Inconclusive(SparkwrightError):
    """A measurement that proves nothing, neither good nor bad."""

    exit = Exit.INCONCLUSIVE


class Failed(SparkwrightError):
    """A task that did not reach its goal."""
