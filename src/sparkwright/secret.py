"""A secret value that prints as dots."""

from __future__ import annotations

from sparkwright.trust.redact import MASK


class Secret:
    """A secret in memory, readable only through `reveal()`.

    It can't be serialized: a Plan contains only the names of secrets, and the host's runner gets their values on standard input.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the plain value."""
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
        raise TypeError("a Secret can't be serialized")
