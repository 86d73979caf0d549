"""The description of a server that sparkwright has no engine for: the section `openai` of its recipe, carried in a container
label.

A label is untrusted data, so a description from a label must keep the rules of a recipe; a label that breaks one describes
nothing, and the defaults of OpenAI's API apply.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sparkwright.engines import http
from sparkwright.engines.log.state import SETTINGS
from sparkwright.visible import one_line

#: a mistake in a section or its mappings: the place, and the reason, as "must be ..."
Mistake = tuple[tuple[str | int, ...], str]
Check = Callable[[Any], Iterator[Mistake]]

LABEL_CHARS = 8192
SHOWN_CHARS = 60
MOST = 32
WORDS = 512
ROLES = (*http.COUNTERS, http.RUNNING, http.WAITING, http.KV_CACHE_USED)

#: paths that a gateway answers itself
OWN = ("/v1/models", "/metrics", "/health", "/")
_PATH = re.compile(r"/(?:[A-Za-z0-9._~-]{1,100}(?:/[A-Za-z0-9._~-]{1,100}){0,8}/?)?")
_METRIC = re.compile(r'[A-Za-z_:][A-Za-z0-9_:]{0,199}(?:\{[A-Za-z_][A-Za-z0-9_]{0,63}="[\w ./:-]{0,100}"\})?', re.ASCII)
_FIELD = re.compile(r"[A-Za-z0-9_-]{1,64}(?:\.[A-Za-z0-9_-]{1,64}){0,7}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_FLAG = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_ADDRESS = re.compile(r"[A-Za-z0-9.:\[\]-]{1,100}")
_NAME = re.compile(r"[^\s\x00-\x1f\x7f]{1,200}")


def _text(pattern: re.Pattern[str], what: str) -> Check:
    def check(value: Any) -> Iterator[Mistake]:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            yield (), f"must be {what}, got {_shown(value)}"

    return check


def _number(least: float, most: float, *, integer: bool) -> Check:
    kind = "an integer" if integer else "a number"

    def check(value: Any) -> Iterator[Mistake]:
        if isinstance(value, bool) or not isinstance(value, int if integer else int | float):
            yield (), f"must be {kind}, got {_shown(value)}"
        elif not least <= value <= most:
            yield (), f"must be {f'at least {least:g}' if value < least else f'at most {most:g}'}, got {_shown(value)}"

    return check


def _several(check: Check, what: str, most: int = MOST) -> Check:
    def each(value: Any) -> Iterator[Mistake]:
        if not isinstance(value, list | tuple):
            yield (), f"must be a list of {what}, got {_shown(value)}"
        elif len(value) > most:
            yield (), f"must have at most {most} entries, got {len(value)}"
        else:
            yield from (((n, *place), why) for n, entry in enumerate(value) for place, why in check(entry))

    return each


def _mapping(keys: Mapping[str, Check], needs: tuple[str, ...] = (), *, single: bool = False) -> Check:
    """Return a check of a mapping with these keys. single: exactly one of the keys."""

    def check(value: Any) -> Iterator[Mistake]:
        if not isinstance(value, Mapping):
            yield (), f"must be a mapping, got {_shown(value)}"
            return
        for name, given in value.items():
            if name not in keys:
                yield (str(name),), f"is unknown; known keys: {', '.join(sorted(keys))}"
            else:
                yield from (((str(name), *place), why) for place, why in keys[name](given))
        if missing := next((name for name in needs if name not in value), ""):
            yield (), f"needs `{missing}`"
        if single and len(value) != 1:
            yield (), f"must have one of {' and '.join(keys)}"

    return check


def _any_text(value: Any) -> Iterator[Mistake]:
    if not isinstance(value, str) or "\0" in value:
        yield (), f"must be text (quote a number), got {_shown(value)}"


_path = _text(_PATH, "a path, as /health")
_served = _text(
    re.compile(f"(?!{'|'.join(map(re.escape, OWN))}$){_PATH.pattern}"),
    "a path of the server's API, as /v1/audio/speech",
)
_off = _text(re.compile(f"(?:{_PATH.pattern})?"), "a path, as /version, or empty")
_metric = _text(_METRIC, 'the name of a metric, as requests_running or steps_total{mode="decode"}')
_field = _text(_FIELD, "a key of the answer, as max_seq_len or config.max_seq_len")


def _added_path(value: Any) -> Iterator[Mistake]:
    """Check a path that clients use beyond those of every engine: its name, or a mapping with the place of `model`."""
    if isinstance(value, Mapping):
        yield from _mapping({"path": _served, "model": _text(re.compile("json|form"), "json or form")}, ("path",))(
            value
        )
    else:
        yield from _served(value)


#: the part of a description that the host needs; a label holds it
CARRIED: Mapping[str, Check] = {
    "port": _number(1, 65535, integer=True),
    "health": _path,
    "loading": _several(_number(400, 599, integer=True), "HTTP statuses"),
    "models": _path,
    "version": _off,
    "settings": _mapping({"path": _path, **dict.fromkeys(SETTINGS, _field)}, ("path",)),
    "metrics": _mapping({"path": _path, **dict.fromkeys(ROLES, _metric)}, ("path",)),
    "public": _several(_path, "paths"),
    "paths": _several(_added_path, "paths"),
    "key": _mapping(
        {"env": _text(_VARIABLE, "the name of a variable"), "file_flag": _text(_FLAG, "a flag without its dashes")},
        single=True,
    ),
}
KEYS: Mapping[str, Check] = {
    "served_name": _text(_NAME, "a name without spaces"),
    "command": _several(_any_text, "words", WORDS),
    "host": _text(_ADDRESS, "an address, as 0.0.0.0"),
    "context": _number(1, 1 << 31, integer=True),
    "memory_gib": _number(0.1, 1 << 16, integer=False),
    **CARRIED,
}
NEEDED = ("served_name",)


def mistakes(section: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield the mistakes in a section, in its order."""
    return _mapping(KEYS, NEEDED)(section)


def written(section: Mapping[str, Any]) -> str:
    """Return the content of a container's label for a section."""
    return json.dumps({name: section[name] for name in sorted(CARRIED) if name in section}, separators=(",", ":"))


@functools.lru_cache(maxsize=16)
def read(label: str) -> Mapping[str, Any]:
    """Return the description in a label; empty for an invalid one."""
    try:
        found = json.loads(label) if len(label) <= LABEL_CHARS else None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and not any(_mapping(CARRIED)(found)) else {}


def _shown(value: Any) -> str:
    return one_line(repr(value), at_most=SHOWN_CHARS)
