"""Readers of the version and the options of the SGLang in an image. Never guessed from the tag. Read in the source, not run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from sparkwright.engines.option_table import SWITCHES, ListedOptions
from sparkwright.engines.sglang import flags

ASK_VERSION = ("sglang", "version")
ASK_OPTIONS = ("sglang", "serve", "--help")
MOST_CHARS = 1 << 21
#: a real list has hundreds of options; a shorter one is from another program
LEAST_OPTIONS = 100
_VERSION = re.compile(r"^sglang version: (\d[\w.+-]{0,40})\s*$", re.M)
_ROW = re.compile(r"^  (--[\w-]+)((?:[ ,].*)?)$", re.M)
_NAME = re.compile(r"(?:^|, )--([\w-]+)")


def version_of(config: Mapping[str, Any]) -> str | None:
    """Return None: no label or variable of its images is known to hold the version."""
    return None


def version_in(text: str) -> str | None:
    """Return the version in the output of `sglang version`, among whatever else its imports print."""
    found = _VERSION.search(text[:MOST_CHARS])
    return found[1] if found else None


def listed(text: str) -> dict[str, str]:
    """Return the options in a help text with the number of words that each takes, 0 or 1 or more; empty if it is not a list of
    options.

    The help for language models comes first, then the one for images and video, with other options.
    """
    text = text[:MOST_CHARS]
    found = {"model-type": "1"} if "--model-type" in text else {}  # in the text around the list, not in it
    for row in _ROW.finditer("usage: ".join(text.split("usage: ", 2)[:2])):
        written = row[1] + row[2].partition("   ")[0]
        names = [name for name in _NAME.findall(written) if not name.startswith("no-")]
        takes = "1" if re.search(r"(?<!\S)--[\w-]{1,99} [^-\s,]", written) else "0"
        found |= {flags.canonical(name): takes for name in names[:1]}
    return found if len(found) >= LEAST_OPTIONS else {}


@lru_cache(maxsize=1)
def usual() -> Mapping[str, str]:
    """Return the options of the release in options.json, with the number of words that each takes."""
    return {name: "0" if option.kind in SWITCHES else "1" for name, option in flags.TABLE.newest.items()}


_KEPT = ListedOptions(flags.SOURCE, usual)
difference, is_current, applied = _KEPT.difference, _KEPT.is_current, _KEPT.applied
