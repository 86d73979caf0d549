"""Read the version and options of an image's SGLang from the program's output, not from the image's tag.

Source: 0.5.23; not tested with a real image.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from sparkwright.engines.option_table import SWITCH_KINDS, ListedOptions
from sparkwright.engines.sglang import flags

VERSION_COMMAND = ("sglang", "version")
HELP_COMMAND = ("sglang", "serve", "--help")
MAX_HELP_CHARS = 1 << 21
#: SGLang's list has hundreds of options; a shorter one is from another program
MIN_OPTIONS = 100
_VERSION_PATTERN = re.compile(r"^sglang version: (\d[\w.+-]{0,40})\s*$", re.M)
_OPTION_LINE_PATTERN = re.compile(r"^  (--[\w-]+)((?:[ ,].*)?)$", re.M)
_NAME_PATTERN = re.compile(r"(?:^|, )--([\w-]+)")


def version_of(config: Mapping[str, Any]) -> str | None:
    """Return None: no label or variable of the images is known to contain the version."""
    return None


def parse_version(text: str) -> str | None:
    """Return the version in the output of `sglang version`, which may include output of its imports; None if there is none."""
    match = _VERSION_PATTERN.search(text[:MAX_HELP_CHARS])
    return match[1] if match else None


def parse_options(text: str) -> dict[str, str]:
    """Return "0" for each switch in a help text and "1" for each other option, by name; empty if the text is not a list of options.

    The text begins with the options for language models. The options for image and video models follow, and are ignored.
    """
    text = text[:MAX_HELP_CHARS]
    options = {"model-type": "1"} if "--model-type" in text else {}  # only mentioned outside of the list
    for row in _OPTION_LINE_PATTERN.finditer("usage: ".join(text.split("usage: ", 2)[:2])):
        invocation = row[1] + row[2].partition("   ")[0]
        names = [name for name in _NAME_PATTERN.findall(invocation) if not name.startswith("no-")]
        value_count = "1" if re.search(r"(?<!\S)--[\w-]{1,99} [^-\s,]", invocation) else "0"
        options |= {flags.canonical(name): value_count for name in names[:1]}
    return options if len(options) >= MIN_OPTIONS else {}


@lru_cache(maxsize=1)
def reference_shapes() -> Mapping[str, str]:
    """Return the options of the release in options.json, in the format of `parse_options`."""
    return {name: "0" if option.kind in SWITCH_KINDS else "1" for name, option in flags.TABLE.newest_options.items()}


_STORED_OPTIONS = ListedOptions(flags.SOURCE_RELEASE, reference_shapes)
difference, is_current, restore_options = (
    _STORED_OPTIONS.difference,
    _STORED_OPTIONS.is_current,
    _STORED_OPTIONS.restore_options,
)
