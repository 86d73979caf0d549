"""The description of a custom server, whose engine is unknown: the recipe's section `openai`, stored in a container label.

A label is untrusted and validated like a recipe. If it is invalid, the defaults of OpenAI's API apply.
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

#: a mistake in a section: the path of the key, and what is wrong, such as "must be ..."
Mistake = tuple[tuple[str | int, ...], str]
Check = Callable[[Any], Iterator[Mistake]]

MAX_LABEL_CHARS = 8192
MAX_SHOWN_CHARS = 60
MAX_ENTRIES = 32
MAX_COMMAND_WORDS = 512
METRIC_ROLES = (*http.COUNTER_ROLES, http.RUNNING, http.WAITING, http.KV_CACHE_USED)

#: paths that a gateway answers itself
GATEWAY_PATHS = ("/v1/models", "/metrics", "/health", "/")
_PATH_PATTERN = re.compile(r"/(?:[A-Za-z0-9._~-]{1,100}(?:/[A-Za-z0-9._~-]{1,100}){0,8}/?)?")
_METRIC_PATTERN = re.compile(
    r'[A-Za-z_:][A-Za-z0-9_:]{0,199}(?:\{[A-Za-z_][A-Za-z0-9_]{0,63}="[\w ./:-]{0,100}"\})?', re.ASCII
)
_FIELD_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,64}(?:\.[A-Za-z0-9_-]{1,64}){0,7}")
_VARIABLE_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_FLAG_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_ADDRESS_PATTERN = re.compile(r"[A-Za-z0-9.:\[\]-]{1,100}")
_NAME_PATTERN = re.compile(r"[^\s\x00-\x1f\x7f]{1,200}")


def _text_check(pattern: re.Pattern[str], expected: str) -> Check:
    def check(value: Any) -> Iterator[Mistake]:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            yield (), f"must be {expected}, got {_format_value(value)}"

    return check


def _number_check(minimum: float, maximum: float, *, integer: bool) -> Check:
    kind = "an integer" if integer else "a number"

    def check(value: Any) -> Iterator[Mistake]:
        if isinstance(value, bool) or not isinstance(value, int if integer else int | float):
            yield (), f"must be {kind}, got {_format_value(value)}"
        elif not minimum <= value <= maximum:
            yield (
                (),
                f"must be {f'at least {minimum:g}' if value < minimum else f'at most {maximum:g}'}, got {_format_value(value)}",
            )

    return check


def _list_check(check: Check, noun: str, maximum: int = MAX_ENTRIES) -> Check:
    def check_list(value: Any) -> Iterator[Mistake]:
        if not isinstance(value, list | tuple):
            yield (), f"must be a list of {noun}, got {_format_value(value)}"
        elif len(value) > maximum:
            yield (), f"must have at most {maximum} entries, got {len(value)}"
        else:
            yield from (((n, *path), reason) for n, entry in enumerate(value) for path, reason in check(entry))

    return check_list


def _mapping_check(keys: Mapping[str, Check], required: tuple[str, ...] = (), *, exactly_one: bool = False) -> Check:
    """Return a check of a mapping. exactly_one: the mapping must have exactly one of the keys."""

    def check(value: Any) -> Iterator[Mistake]:
        if not isinstance(value, Mapping):
            yield (), f"must be a mapping, got {_format_value(value)}"
            return
        for name, entry in value.items():
            if name not in keys:
                yield (str(name),), f"is unknown; known keys: {', '.join(sorted(keys))}"
            else:
                yield from (((str(name), *path), reason) for path, reason in keys[name](entry))
        if missing := next((name for name in required if name not in value), ""):
            yield (), f"needs `{missing}`"
        if exactly_one and len(value) != 1:
            yield (), f"must have exactly one of {' and '.join(keys)}"

    return check


def _check_any_text(value: Any) -> Iterator[Mistake]:
    if not isinstance(value, str) or "\0" in value:
        yield (), f"must be text (quote a number), got {_format_value(value)}"


_check_path = _text_check(_PATH_PATTERN, "a path, such as /health")
_check_served_path = _text_check(
    re.compile(f"(?!{'|'.join(map(re.escape, GATEWAY_PATHS))}$){_PATH_PATTERN.pattern}"),
    "a path of the server's API, such as /v1/audio/speech",
)
_check_optional_path = _text_check(re.compile(f"(?:{_PATH_PATTERN.pattern})?"), "a path, such as /version, or empty")
_check_metric = _text_check(
    _METRIC_PATTERN, 'the name of a metric, such as requests_running or steps_total{mode="decode"}'
)
_check_field = _text_check(_FIELD_PATTERN, "a key in the response, such as max_seq_len or config.max_seq_len")


def _check_added_path(value: Any) -> Iterator[Mistake]:
    """Check an additional path for clients: text, or a mapping that also says where requests name the model."""
    if isinstance(value, Mapping):
        yield from _mapping_check(
            {"path": _check_served_path, "model": _text_check(re.compile("json|form"), "json or form")}, ("path",)
        )(value)
    else:
        yield from _check_served_path(value)


#: checks of the keys that the host needs; these keys are stored in the label
LABEL_CHECKS: Mapping[str, Check] = {
    "port": _number_check(1, 65535, integer=True),
    "health": _check_path,
    "loading": _list_check(_number_check(400, 599, integer=True), "HTTP statuses"),
    "models": _check_path,
    "version": _check_optional_path,
    "settings": _mapping_check({"path": _check_path, **dict.fromkeys(SETTINGS, _check_field)}, ("path",)),
    "metrics": _mapping_check({"path": _check_path, **dict.fromkeys(METRIC_ROLES, _check_metric)}, ("path",)),
    "public": _list_check(_check_path, "paths"),
    "paths": _list_check(_check_added_path, "paths"),
    "key": _mapping_check(
        {
            "env": _text_check(_VARIABLE_PATTERN, "the name of a variable"),
            "file_flag": _text_check(_FLAG_PATTERN, "a flag without its dashes"),
        },
        exactly_one=True,
    ),
}
#: checks of all keys
SECTION_CHECKS: Mapping[str, Check] = {
    "served_name": _text_check(_NAME_PATTERN, "a name without spaces"),
    "command": _list_check(_check_any_text, "words", MAX_COMMAND_WORDS),
    "host": _text_check(_ADDRESS_PATTERN, "an address, such as 0.0.0.0"),
    "context": _number_check(1, 1 << 31, integer=True),
    "memory_gib": _number_check(0.1, 1 << 16, integer=False),
    **LABEL_CHECKS,
}
REQUIRED_KEYS = ("served_name",)


def find_mistakes(section: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield the mistakes in a section, in the order of its keys."""
    return _mapping_check(SECTION_CHECKS, REQUIRED_KEYS)(section)


def render_label(section: Mapping[str, Any]) -> str:
    """Return the container label for a section."""
    return json.dumps({name: section[name] for name in sorted(LABEL_CHECKS) if name in section}, separators=(",", ":"))


@functools.lru_cache(maxsize=16)
def parse_label(label: str) -> Mapping[str, Any]:
    """Return the description in a label; empty if it is invalid."""
    try:
        section = json.loads(label) if len(label) <= MAX_LABEL_CHARS else None
    except (ValueError, RecursionError):
        return {}
    return section if isinstance(section, dict) and not any(_mapping_check(LABEL_CHECKS)(section)) else {}


def _format_value(value: Any) -> str:
    return one_line(repr(value), max_chars=MAX_SHOWN_CHARS)
