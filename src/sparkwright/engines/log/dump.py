"""Settings dumps as Python programs print them: their parser, and the comparison of two starts."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

from sparkwright.engines.engine import Engine

OPENING, CLOSING = "([{<", ")]}>"
#: levels of nested objects that are read; no real dump has more than four
MOST_DEPTH = 6
_KEY = re.compile(r"""^\s*(?:'(?P<key>[^']{1,200})'|"(?P<text>[^"]{1,200})")\s*:(?P<value>.*)$""", re.DOTALL)
_PAIR = re.compile(r"^\s*(?P<key>[A-Za-z_]\w{0,199})=(?P<value>.*)$", re.DOTALL)
_OBJECT = re.compile(r"^(?:[A-Za-z_][\w.]{0,199})?\((?P<inside>.*)\)$", re.DOTALL)
_MAPPING = re.compile(r"^\{(?P<inside>.*)\}$", re.DOTALL)

Nested = str | dict[str, "Nested"]


def parts(text: str) -> Iterator[str]:
    """Yield the parts of a text between commas that are outside of brackets and quotes."""
    depth, quote, start = 0, "", 0
    for at, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in OPENING:
            depth += 1
        elif sign in CLOSING:
            depth -= 1
        elif sign == "," and depth <= 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def pairs(text: str) -> Iterator[tuple[str, str]]:
    """Yield the pairs of `name=value, ...` or `'name': value, ...`."""
    for part in parts(text):
        found = _PAIR.match(part) or _KEY.match(part)
        if found:
            named = found.groupdict()
            yield named["key"] or named.get("text") or "", found["value"].strip()


def nested(value: str, depth: int = MOST_DEPTH) -> Nested:
    """Return an object or a dictionary as a mapping, any other value as its text."""
    value = value.strip()
    found = _OBJECT.match(value) or _MAPPING.match(value)
    inside = dict(pairs(found["inside"])) if found and depth else {}
    if not inside:
        return value
    return {name: nested(text, depth - 1) for name, text in inside.items()}


def leaf(value: str) -> tuple[str, ...]:
    """Return the spellings of a printed value: without quotes, an enumeration by its name and its number."""
    value = value.strip()
    member = re.match(r"^<[\w.]{0,200}?(\w+): (.{1,200})>$", value)
    if member:
        return member[1], member[2].strip("'\"")
    return (value.strip("'\"").removeprefix("torch."),)


# Comparison of two starts of an engine: every setting of their config dumps, and the effect of a flag.
#
# The dump is the engine's own report of its settings. Not all flags appear in it: for a flag that does not, equal dumps prove
# nothing.

Verdict = Literal["differs", "same", "not shown"]


def differences(first: Mapping[str, str], other: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """Return the settings that differ, with both values."""
    names = [*first, *(name for name in other if name not in first)]
    return {name: (first.get(name), other.get(name)) for name in names if first.get(name) != other.get(name)}


def compared(first: Mapping[str, str], other: Mapping[str, str], changed: Collection[str], engine: Engine) -> Verdict:
    """Return the verdict on two starts' settings. changed: the flags in which their commands differ.

    "same" is proof: all these flags show in the dumps, and the dumps do not differ.
    """
    if differences(first, other):
        return "differs"
    return "same" if first and all(_shown(flag, first, engine) for flag in changed) else "not shown"


def _shown(flag: str, settings: Mapping[str, str], engine: Engine) -> bool:
    name = engine.flags.canonical(flag)
    usual = (name.replace("-", "_"),)
    return any(known in settings for known in engine.log.setting_names.get(name, usual))


def judged(against: dict[str, Any] | None, found: dict[str, str], changed: list[str], engine: Engine) -> dict[str, Any]:
    """Return the verdict on two dumps, with the differences."""
    if not against:
        return {"verdict": "", "same": False, "differs": {}}
    verdict = compared(against, found, changed, engine)
    differs = {name: list(values) for name, values in differences(against, found).items()}
    return {"verdict": verdict, "same": verdict == "same", "differs": differs}
