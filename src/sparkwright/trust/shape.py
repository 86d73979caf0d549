"""JSON that was written long ago, by another version, or half: a part that is not of the kind its readers count on is absent."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: whether a value is of a kind
Kind = Callable[[Any], bool]

#: beyond this no figure of a host is one: bytes, seconds since the epoch, tokens
LARGEST = 2**64


def parsed(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError for whatever is none, too deep nesting included."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def text(value: Any) -> bool:
    """Text that can be written to a file again."""
    return isinstance(value, str) and not any("\ud800" <= one <= "\udfff" for one in value)


def flag(value: Any) -> bool:
    """True or false."""
    return isinstance(value, bool)


def number(value: Any) -> bool:
    """A figure: finite, and small enough for a float and for the calendar."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST < value < LARGEST


def whole_number(value: Any) -> bool:
    """A count."""
    return isinstance(value, int) and number(value)


def optional(kind: Kind) -> Kind:
    """Null, or this kind."""
    return lambda value: value is None or kind(value)


def list_of(kind: Kind) -> Kind:
    """A list of values of one kind."""
    return lambda value: isinstance(value, list) and all(map(kind, value))


def table_of(kind: Kind) -> Kind:
    """An object whose values are of one kind, whatever their names."""
    return lambda value: isinstance(value, dict) and all(map(kind, value.values())) and all(map(text, value))


def row_of(*kinds: Kind) -> Kind:
    """A list of so many values, each of its kind."""
    return lambda value: (
        isinstance(value, list) and len(value) == len(kinds) and all(k(v) for k, v in zip(kinds, value, strict=True))
    )


def anything(value: Any) -> bool:
    """Whatever JSON holds, as long as it can be written again."""
    try:
        json.dumps(value, allow_nan=False).encode()
        return True
    except (ValueError, RecursionError):
        return False


@dataclass(frozen=True, slots=True)
class Shape:
    """An object with these fields. needs: without them it is none. strict: nor with a field that is wrong, or unknown."""

    fields: Mapping[str, Kind | Shape] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    strict: bool = False

    def of(self, value: Any) -> dict[str, Any] | None:
        """The object without the fields that are wrong; None when it is none."""
        if not isinstance(value, dict):
            return None
        right: dict[str, Any] = {}
        for name, given in value.items():
            kind = self.fields.get(name)
            kept = kind.of(given) if isinstance(kind, Shape) else given
            wrong = kept is None if isinstance(kind, Shape) else not kind(given) if kind else self.strict
            if not wrong:
                right[name] = kept
            elif self.strict:
                return None
        return right if all(name in right for name in self.needs) else None


def listed(shape: Shape, values: Any) -> list[dict[str, Any]]:
    """The objects of a list that have this shape."""
    found = map(shape.of, values) if isinstance(values, list) else ()
    return [one for one in found if one is not None]
