"""Limits on input in bytes, depth, seconds and numbers, and the readers that enforce them.

`parse_json` reads JSON, `sanitize` makes control characters visible, and `parse_bounded_json` reads what this tool wrote itself.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from sparkwright.units import MIB
from sparkwright.visible import escape_invisible

#: limits for a model's config.json, which has 2 kB, or 300 kB for quantized models that list every layer
MAX_CONFIG_BYTES, MAX_CONFIG_DEPTH = 4 * MIB, 32
#: size limit for an index of weights, which names every tensor and has 10 MB for the largest models
MAX_INDEX_BYTES = 64 * MIB
#: size limit for answers of a server under test, Ollama or a hub, the largest of which is /metrics with 300 kB
MAX_ANSWER_BYTES = 8 * MIB
MAX_JSON_DEPTH = 100
#: limit on the depth of shown values; Docker's own inspect is 8 deep
MAX_SHOWN_DEPTH = 32
#: limit on the values in a document from a host, which take some 100 MiB as Python objects
MAX_JSON_VALUES = 1_000_000
#: limit on sizes in bytes and token counts
MAX_COUNT = 2**53
#: limit on all numbers from a host, including nanoseconds, which every format and a sum of two can represent
MAX_NUMBER = 2**63


class LimitExceeded(ValueError):
    """Raised if a limit is exceeded. The message is the end of a sentence, such as "has more than 4 MiB"."""


def parse_bounded_json(raw: bytes | str) -> Any:
    """Parse a JSON text whose length is already limited. Raises ValueError if it is invalid or nested too deeply."""
    try:
        return json.loads(raw)
    except RecursionError:
        raise LimitExceeded("is nested too deep") from None


def parse_json(
    raw: bytes | str,
    *,
    max_bytes: int = MAX_ANSWER_BYTES,
    max_depth: int = MAX_JSON_DEPTH,
    max_values: float = math.inf,
) -> Any:
    """Parse a JSON text. Raises ValueError if it is invalid, and TooMuch if it is too large or nested too deeply."""
    if len(raw) > max_bytes:
        raise LimitExceeded(f"has more than {max_bytes / MIB:g} MiB")
    marks = (",", "[", "{") if isinstance(raw, str) else (b",", b"[", b"{")
    if max_values < math.inf and sum(map(raw.count, marks)) > max_values:  # type: ignore[arg-type]
        raise LimitExceeded("has too many parts")
    too_deep = LimitExceeded(f"is nested deeper than {max_depth} levels")
    try:
        value = json.loads(raw)
    except RecursionError:
        raise too_deep from None
    if is_deeper(value, max_depth):
        raise too_deep
    return value


def sanitize(value: Any, max_depth: int = MAX_SHOWN_DEPTH) -> Any:
    """Return a JSON value in which all texts, including keys, are made visible.

    Numbers that are NaN or beyond MAX_NUMBER become null, which means unknown. Values that JSON does not have, such as paths,
    become text.
    """
    if isinstance(value, str):
        return escape_invisible(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return value if abs(value) <= MAX_NUMBER else None  # NaN is not
    if max_depth <= 0:
        raise LimitExceeded("is nested too deep")
    if isinstance(value, dict):
        return {escape_invisible(key): sanitize(item, max_depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [sanitize(item, max_depth - 1) for item in value]
    return escape_invisible(str(value))


def is_deeper(value: Any, max_depth: int) -> bool:
    """Return True if lists and mappings are nested more than max_depth times."""
    layer = [value]
    for _ in range(max_depth + 1):
        layer = [
            child
            for item in layer
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, dict | list)
        ]
        if not layer:
            return False
    return True


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """Read a file. Raises OSError, or TooMuch if it is larger, or is a pipe or device, which may be endless."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise LimitExceeded("is not a regular file")
        raw = file.read(max_bytes + 1)
    if len(raw) > max_bytes:
        raise LimitExceeded(f"has more than {max_bytes / MIB:g} MiB")
    return raw


def read_config(path: Path) -> dict[str, Any]:
    """Read a model's config.json. Raises OSError, and ValueError if it is not a JSON object within the limits."""
    config = parse_json(read_bytes(path, MAX_CONFIG_BYTES), max_bytes=MAX_CONFIG_BYTES, max_depth=MAX_CONFIG_DEPTH)
    if not isinstance(config, dict):
        raise ValueError("is not a JSON object")
    return config


def count_or_none(value: Any, maximum: int = MAX_COUNT) -> int | None:
    """Return a whole number from 0 to maximum, or None, which means unknown, for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= maximum else None


def parse_number(text: str, maximum: float = MAX_COUNT) -> float | None:
    """Parse a finite number between -maximum and maximum, or return None, which means unknown, for anything else."""
    try:
        number = float(text) if len(text) <= 64 else math.nan
    except ValueError:
        return None
    return number if abs(number) <= maximum else None


#: free space below which a disk counts as full, which is enough for a line of a log
MIN_FREE_BYTES = 4096


def describe_os_error(error: BaseException) -> str:
    """Return the place and reason of an operating system error; empty for other errors.

    A failed write does not name the file, so the full disk is looked up.
    """
    if not isinstance(error, OSError) or not error.strerror:
        return ""
    place = error.filename
    if place is None and error.errno in (errno.ENOSPC, errno.EDQUOT):
        import tempfile

        place = find_full_disk([Path.cwd(), Path(os.path.expanduser("~")), Path(tempfile.gettempdir())])  # noqa: PTH111
    return f"{place}: {error.strerror}." if place else f"{error.strerror}."


def find_full_disk(paths: Iterable[Path]) -> Path | None:
    """Return the first folder, or existing parent, whose disk is full, or None."""
    for path in paths:
        existing = next((parent for parent in (path, *path.parents) if parent.exists()), None)
        if existing is None:
            continue
        disk = os.statvfs(existing)
        if disk.f_bavail * disk.f_frsize < MIN_FREE_BYTES:
            return existing
    return None


MAX_PATTERN_CHARS = 1000
#: maximum from which a repeat in a pattern counts as unbounded
UNBOUNDED_REPEATS = 100


def check_pattern(pattern: str) -> str:
    """Return the problem of a pattern for searching logs, such as "is not a regular expression: ..."; empty for none."""
    if len(pattern) > MAX_PATTERN_CHARS:
        return f"has more than {MAX_PATTERN_CHARS} characters"
    try:
        re.compile(pattern)
        nested = _has_nested_repeat(_parser.parse(pattern), inside=False)
    except (re.error, RecursionError, OverflowError) as error:
        return f"is not a regular expression: {error}"
    return "repeats what repeats itself, as (a+)+ does, which can take for ever" if nested else ""


def _has_nested_repeat(nodes: Any, *, inside: bool) -> bool:
    """Return True if an unbounded repeat is inside another one."""
    for kind, of in nodes:
        if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            endless = of[1] is sre.MAXREPEAT or of[1] > UNBOUNDED_REPEATS
            if (endless and inside) or _has_nested_repeat(of[2], inside=inside or endless):
                return True
        elif any(_has_nested_repeat(part, inside=inside) for part in _subpatterns(kind, of)):
            return True
    return False


def _subpatterns(kind: Any, argument: Any) -> list[Any]:
    match kind:
        case sre.SUBPATTERN:
            return [argument[-1]]
        case sre.BRANCH:
            return list(argument[1])
        case sre.ASSERT | sre.ASSERT_NOT:
            return [argument[1]]
        case sre.GROUPREF_EXISTS:
            return [part for part in argument[1:] if part is not None]
    return []  # possessive and atomic groups never backtrack
