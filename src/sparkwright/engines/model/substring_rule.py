"""The common rule of thumb for finding recurrent models, kept to report cases where it is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

SUBSTRINGS = ("mamba", "ssm", "deltanet", "state_space", "recurrent")


def by_substrings(config: Mapping[str, Any]) -> bool:
    """Return True if any of the words occurs anywhere in config.json, in a key or a value, nested parts included, in any case.

    This is its most generous variant. Another common one looks at the top-level keys alone; it misses Qwen3.5 as well, whose one
    hit (mamba_ssm_dtype) is in text_config.
    """
    written = json.dumps(config, default=str).lower()
    return any(word in written for word in SUBSTRINGS)
