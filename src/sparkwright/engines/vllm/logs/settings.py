"""The settings of vLLM's config dump, by name."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sparkwright.engines.log import dump
from sparkwright.engines.vllm.logs import log_lines

#: flags that have another name in the dump. real, 0.32.0; chunked_prefill_enabled until 0.11.0 (source)
NAMES: Mapping[str, tuple[str, ...]] = {
    "enable-chunked-prefill": ("enable_chunked_prefill", "chunked_prefill_enabled"),
    "max-model-len": ("max_seq_len",),
}
#: settings that are a path or a time, not a behaviour
PLACES = re.compile(r"'(?:\w+_)?(?:cache_dir|dump_path)': (?:'[^']*'|None),? ?")


def of_line(line: str) -> dict[str, str] | None:
    """Return the settings of a config dump by name; None for any other line."""
    found = log_lines.CONFIG_DUMP.match(line)
    return dict(dump.pairs(PLACES.sub("", found.group("config")))) if found else None
