"""An engine's command line: the flags of a recipe under their own names, and the words that they become."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol


class Flags(Protocol):
    """What a recipe's section of flags means to one engine. Flags are given as `named` returns them, unless it says otherwise."""

    @property
    def ENTRYPOINT(self) -> tuple[str, ...] | None:
        """The program that the container runs; None: the image's own."""

    @property
    def PORT(self) -> str:
        """The flag with the port on which the server listens."""

    @property
    def MEMORY(self) -> str:
        """The flag with the share of memory that the server takes; "" where there is none."""

    @property
    def BUDGET(self) -> str:
        """The flag with the tokens of one step; "" where there is none."""

    @property
    def SET_BY(self) -> Mapping[str, str]:
        """Flags that no recipe gives, for another key of it does: by name, the key."""

    def named(self, written: Mapping[str, Any]) -> dict[str, Any]:
        """The flags under their own names, in their order; of two spellings of one the last wins."""

    def canonical(self, written: str) -> str:
        """A flag's own name."""

    def value(self, flags: Mapping[str, Any], name: str) -> Any:
        """What a flag is set to; None when it is not given."""

    def misfit(self, flags: Mapping[str, Any], name: str) -> str:
        """Why a flag's value is none that it can have, as "must be at least 1, got -3"; "" where nothing is known against it."""

    def argv(self, flags: Mapping[str, Any]) -> tuple[str, ...]:
        """The words of these flags, in their order."""

    def command(self, model: str, flags: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the words after the image. model: its path in the container."""

    def served_name(self, flags: Mapping[str, Any], model: str) -> str:
        """The name for requests. model: as for `command`."""

    def served_names(self, flags: Mapping[str, Any], model: str) -> tuple[str, ...]:
        """Return every name that requests may use, the served name first. model: as for `command`."""

    def port(self, flags: Mapping[str, Any]) -> int:
        """The port on which the server listens in its container."""

    def context(self, flags: Mapping[str, Any]) -> int | None:
        """The longest sequence that is asked for, in tokens; None when none is."""

    def properties(self) -> dict[str, Any]:
        """The flags that are known, as the properties of a JSON Schema."""


def spelling(flags: Flags, written: Iterable[str], name: str) -> str:
    """How a flag's own name is spelled among these; "" when it is not there."""
    return next((one for one in reversed(list(written)) if flags.canonical(one) == name), "")


def twice(flags: Flags, written: Iterable[str]) -> tuple[str, str] | None:
    """Two spellings of one flag; None when there are none."""
    seen: dict[str, str] = {}
    for one in written:
        before = seen.setdefault(flags.canonical(one), one)
        if before != one:
            return before, one
    return None
