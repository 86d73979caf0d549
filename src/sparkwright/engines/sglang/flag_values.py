"""Validation of values for SGLang's options by the table, before SGLang validates them."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from packaging.version import Version

from sparkwright.engines.option_history import OptionHistory
from sparkwright.engines.sglang import option_history, options
from sparkwright.visible import one_line

SHOWN_CHARS = 60
_INT = re.compile(r"[+-]?\d{1,12}")
_FLOAT = re.compile(r"[+-]?(\d{1,12}\.?\d{0,20}|\.\d{1,20})(e[+-]?\d{1,3})?", re.I)
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(k|M|G|T)|(\d{1,12})(Ki|Mi|Gi|Ti)")
_UNITS = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
#: kinds that need no word after them
SWITCHES = ("switch", "both")


@functools.lru_cache(maxsize=1)
def kinds() -> Mapping[str, str]:
    """Return the kind of each option, by its own name."""
    return {name: kind for kind, names in options.KINDS.items() for name in names.split()}


#: options by release
HISTORY = OptionHistory(option_history.RELEASES, option_history.ROWS, kinds, Version, options.SUCCESSOR_VALUES)


def kind_of(name: str) -> str:
    """Return the kind of an option of any release; "" for an unknown option."""
    span = HISTORY.spans.get(name)
    return kinds().get(name) or (span.kind if span else "")


def number(value: Any) -> int | None:
    """Return a whole number, given as a number, as digits or as SGLang's 128k; None for anything else."""
    text = "" if isinstance(value, bool) else str(value).strip()
    if _INT.fullmatch(text):
        return int(text)
    found = _SIZE.fullmatch(text)
    return int(Decimal(found[1] or found[3]) * _UNITS[found[2] or found[4]]) if found else None


def misfit(name: str, value: Any) -> str:
    """Return the problem with a value, as "must be a whole number, got '128q'"; "" if nothing is known against it."""
    kind = kind_of(name)
    if not kind or value is None:
        return ""
    if kind in SWITCHES:
        return "" if isinstance(value, bool) else f"is a switch and takes no value, got {_shown(value)}"
    if isinstance(value, bool):
        return f"needs a value, got {str(value).lower()}"
    if isinstance(value, list | tuple) and kind not in ("list", "json", "text"):
        return f"takes one value, got {_shown(value)}"
    return _of_word(name, kind, value)


def word_of(value: Any) -> str:
    """Return the word for a single value."""
    return json.dumps(value, separators=(",", ":")) if isinstance(value, Mapping | list | tuple) else str(value)


def _of_word(name: str, kind: str, value: Any) -> str:
    word, got = word_of(value), f"got {_shown(value)}"
    if kind in ("int", "size"):
        return _of_number(name, kind, word, got)
    if kind == "float":
        return _of_share(name, word, got)
    if kind == "json":
        return "" if _is_json(word) else f"must be a mapping, as YAML or as JSON, {got}"
    allowed = options.CHOICES.get(name, ())
    return f"must be one of {', '.join(allowed)}, {got}" if allowed and word not in allowed else ""


def _of_number(name: str, kind: str, word: str, got: str) -> str:
    found = number(word) if kind == "size" or _INT.fullmatch(word.strip()) else None
    if found is None:
        return f"must be a whole number{', as 131072 or 128Ki' if kind == 'size' else ''}, {got}"
    least, most = options.AT_LEAST.get(name), options.AT_MOST.get(name)
    if least is not None and found < least:
        return f"must be at least {least}, {got}"
    return f"must be at most {most}, {got}" if most is not None and found > most else ""


def _of_share(name: str, word: str, got: str) -> str:
    if not _FLOAT.fullmatch(word.strip()):
        return f"must be a number, {got}"
    return f"must be above 0 and below 1, {got}" if name in options.SHARES and not 0 < float(word) < 1 else ""


def _is_json(word: str) -> bool:
    try:
        json.loads(word)
    except (ValueError, RecursionError):
        return False
    return True


def _shown(value: Any) -> str:
    return one_line(repr(value), at_most=SHOWN_CHARS)
