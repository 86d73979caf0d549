"""A value that prints as dots everywhere."""

from __future__ import annotations

from sparkwright.trust.redact import MASK


class Secret:
    """A secret in memory; `reveal()` is the only way to it.

    It is never serialised: a Plan names its secrets, their values go to the host's runner over standard input.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the secret itself, for the one call that needs it."""
        return self._value

    def __repr__(self) -> str:
        return f"Secret({MASK})"

    def __str__(self) -> str:
        return MASK

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a Secret is not serialised")
