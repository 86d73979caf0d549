"""A request on standard input: one JSON line. An invalid one is refused before anything is done."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import IO, Any

from sparkwright.errors import Refused
from sparkwright.trust import bounds
from sparkwright.visible import one_line

#: a plan with every file of a big model is far below it
LINE_BYTES = 64 * 2**20
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read(source: IO[bytes]) -> dict[str, Any]:
    """Read a request. Raises Refused with the reason if it is not valid."""
    line = source.readline(LINE_BYTES + 1)
    if len(line) > LINE_BYTES:
        raise _refused(f"it is longer than {LINE_BYTES} bytes")
    return parsed(line)


def parsed(line: bytes) -> dict[str, Any]:
    """Parse the request of a line. Raises Refused."""
    try:
        request = bounds.parsed(line)
    except ValueError:
        raise _refused("it is not JSON") from None
    if not isinstance(request, dict) or not isinstance(request.get("verb"), str):
        raise _refused("it has no verb")
    for name, value in request.items():
        if name in _IS and not _IS[name](value):
            raise _refused(f"its `{name}` is invalid")
    return request


def unknown(verb: str) -> Refused:
    """Return the refusal of an unknown verb."""
    return _refused(f"'{one_line(verb, at_most=40)}' is not a verb of this runner")


def _refused(why: str) -> Refused:
    return Refused(f"invalid request: {why}.", fix="Laptop and host have different versions: deploy again.")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value and value.encode(errors="replace").decode() == value


def _are_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, (*value, *value.values())))


def _is_environment(value: Any) -> bool:
    return _are_texts(value) and all(map(VARIABLE.fullmatch, value))


def _is_number(value: Any) -> bool:
    """Return True for seconds, or None; False for anything else, NaN included."""
    return value is None or (isinstance(value, int | float) and abs(value) < 10**12)


_IS: dict[str, Callable[[Any], bool]] = {
    "env": _is_environment,
    "secrets": _are_texts,
    **dict.fromkeys(("plan", "restart"), lambda value: isinstance(value, dict)),
    **dict.fromkeys(("smoke", "gateway"), lambda value: isinstance(value, bool)),
    "token_s": _is_number,
    "since_s": _is_number,
    **dict.fromkeys(("verb", "run", "how", "name", "container", "server"), _is_text),
}
