"""The settings of vLLM's config dump, by name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from sparkwright.engines.vllm.logs import log_lines

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
