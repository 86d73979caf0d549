"""Two starts of an engine held against each other: every setting of their config dumps, and what a flag did to them.

The dump is the engine's own word on its settings. Not all flags show in it: of one that does not, equal dumps prove nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

from sparkwright.engines.vllm.flags import flags
from sparkwright.engines.vllm.logs import log_lines

Verdict = Literal["differs", "same", "not shown"]

#: flags that have another name in the dump. real, 0.32.0; chunked_prefill_enabled until 0.11.0 (source)
NAMES: Mapping[str, tuple[str, ...]] = {
    "enable-chunked-prefill": ("enable_chunked_prefill", "chunked_prefill_enabled"),
    "max-model-len": ("max_seq_len",),
}
#: settings that name a place or a moment, not a behaviour
PLACES = re.compile(r"'(?:\w+_)?(?:cache_dir|dump_path)': (?:'[^']*'|None),? ?")
OPENING, CLOSING = "([{<", ")]}>"


def of_line(line: str) -> dict[str, str] | None:
    """The settings of a config dump by name; None for a line that is none."""
    found = log_lines.CONFIG_DUMP.match(line)
    return dict(_pairs(PLACES.sub("", found.group("config")))) if found else None


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """Settings that are not the same, with both values."""
    names = [*one, *(name for name in other if name not in one)]
    return {name: (one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name)}


def compared(one: Mapping[str, str], other: Mapping[str, str], changed: Collection[str]) -> Verdict:
    """Whether two starts run with the same settings. changed: the flags in which their commands differ.

    "same" is proved: all these flags show in the dumps, and nothing there differs.
    """
    if differences(one, other):
        return "differs"
    return "same" if one and all(_shown(flag, one) for flag in changed) else "not shown"


def _shown(flag: str, settings: Mapping[str, str]) -> bool:
    name = flags.canonical(flag)
    return any(known in settings for known in NAMES.get(name, (name.replace("-", "_"),)))


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """name=value, separated by commas outside of brackets and quotes."""
    for part in _parts(text):
        name, equals, value = part.strip().partition("=")
        if equals and name.isidentifier():
            yield name, value


def _parts(text: str) -> Iterator[str]:
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


def judged(against: dict[str, Any] | None, found: dict[str, str], changed: list[str]) -> dict[str, Any]:
    """Verdict, and what differs, of two dumps."""
    if not against:
        return {"verdict": "", "same": False, "differs": {}}
    verdict = compared(against, found, changed)
    differs = {name: list(values) for name, values in differences(against, found).items()}
    return {"verdict": verdict, "same": verdict == "same", "differs": differs}
