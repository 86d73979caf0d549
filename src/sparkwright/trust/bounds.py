"""Limits on the size and depth of input and on the numbers in it, and the readers that enforce them.

Use `parse_bounded_json` only for files that this tool wrote, and `parse_json` for all other JSON.
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

#: limits on a model's config.json, which is usually 2 kB; up to 300 kB for quantized models that list every layer
MAX_CONFIG_BYTES, MAX_CONFIG_DEPTH = 4 * MIB, 32
#: size limit of a weight index, which lists every tensor: 10 MB for the largest models
MAX_INDEX_BYTES = 64 * MIB
#: size limit of responses from model servers and hubs; the largest, /metrics, is about 300 kB
MAX_ANSWER_BYTES = 8 * MIB
MAX_JSON_DEPTH = 100
#: depth limit of displayed values; Docker's inspect output is 8 deep
MAX_SHOWN_DEPTH = 32
#: limit on the number of values in a host's document; this many take about 100 MiB as Python objects
MAX_JSON_VALUES = 1_000_000
#: limit on sizes in bytes and token counts
MAX_COUNT = 2**53
#: limit on numbers from a host, high enough for nanoseconds; the sum of two still fits every format
MAX_NUMBER = 2**63
#: free space below which a disk counts as full; enough for a log line
MIN_FREE_BYTES = 4096
MAX_PATTERN_CHARS = 1000
#: a pattern's repeat with a higher maximum counts as unbounded
MAX_BOUNDED_REPEATS = 100


class LimitExceeded(ValueError):
    """Raised if input exceeds a limit. The message is a predicate, such as "has more than 4 MiB"."""


def parse_bounded_json(raw: bytes | str) -> Any:
    """Parse a JSON text of limited length. Raises ValueError if it is invalid or nested too deeply."""
    try:
        return json.loads(raw)
    except RecursionError:
        raise LimitExceeded("is nested too deeply") from None


def parse_json(
    raw: bytes | str,
    *,
    max_bytes: int = MAX_ANSWER_BYTES,
    max_depth: int = MAX_JSON_DEPTH,
    max_values: float = math.inf,
) -> Any:
    """Parse a JSON text. Raises ValueError if it is invalid, and LimitExceeded if it is too large or nested too deeply."""
    if len(raw) > max_bytes:
        raise LimitExceeded(f"has more than {max_bytes / MIB:g} MiB")
    separators = (",", "[", "{") if isinstance(raw, str) else (b",", b"[", b"{")
    if max_values < math.inf and sum(map(raw.count, separators)) > max_values:  # type: ignore[arg-type]
        raise LimitExceeded("has too many values")
    depth_error = LimitExceeded(f"is nested deeper than {max_depth} levels")
    try:
        value = json.loads(raw)
    except RecursionError:
        raise depth_error from None
    if is_deeper(value, max_depth):
        raise depth_error
    return value


def sanitize(value: Any, max_depth: int = MAX_SHOWN_DEPTH) -> Any:
    """Return a JSON value with invisible characters escaped in all strings, including keys.

    NaN and numbers beyond MAX_NUMBER become null, which means unknown. Types that JSON lacks, such as paths, become text.
    """
    if isinstance(value, str):
        return escape_invisible(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return value if abs(value) <= MAX_NUMBER else None  # false for NaN
    if max_depth <= 0:
        raise LimitExceeded("is nested too deeply")
    if isinstance(value, dict):
        return {escape_invisible(key): sanitize(item, max_depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [sanitize(item, max_depth - 1) for item in value]
    return escape_invisible(str(value))


def is_deeper(value: Any, max_depth: int) -> bool:
    """Return True if lists and mappings are nested more than max_depth levels deep."""
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
    """Read a regular file. Raises OSError, and LimitExceeded if it is too large, or is a pipe or device, which may be endless."""
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
    """Return the value if it is a whole number from 0 to maximum, or None, which means unknown."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= maximum else None


def parse_number(text: str, maximum: float = MAX_COUNT) -> float | None:
    """Parse a number between -maximum and maximum; None, which means unknown, for any other text."""
    try:
        number = float(text) if len(text) <= 64 else math.nan
    except ValueError:
        return None
    return number if abs(number) <= maximum else None


def describe_os_error(error: BaseException) -> str:
    """Return the path and reason of an operating system error; empty for other errors.

    The error of a failed write names no file, so for a full disk the usual folders are checked.
    """
    if not isinstance(error, OSError) or not error.strerror:
        return ""
    path = error.filename
    if path is None and error.errno in (errno.ENOSPC, errno.EDQUOT):
        import tempfile

        path = find_full_disk([Path.cwd(), Path(os.path.expanduser("~")), Path(tempfile.gettempdir())])  # noqa: PTH111
    return f"{path}: {error.strerror}." if path else f"{error.strerror}."


def find_full_disk(paths: Iterable[Path]) -> Path | None:
    """Return the first folder on a full disk, or its nearest existing parent; None if no disk is full."""
    for path in paths:
        existing_folder = next((parent for parent in (path, *path.parents) if parent.exists()), None)
        if existing_folder is None:
            continue
        disk = os.statvfs(existing_folder)
        if disk.f_bavail * disk.f_frsize < MIN_FREE_BYTES:
            return existing_folder
    return None


def check_pattern(pattern: str) -> str:
    """Return what is wrong with a pattern for logs, such as "is not a regular expression: ..."; empty if it is valid."""
    if len(pattern) > MAX_PATTERN_CHARS:
        return f"has more than {MAX_PATTERN_CHARS} characters"
    try:
        re.compile(pattern)
        has_nested_repeat = _has_nested_repeat(_parser.parse(pattern), inside=False)
    except (re.error, RecursionError, OverflowError) as error:
        return f"is not a regular expression: {error}"
    return "has nested unbounded repeats, as in (a+)+, which can take forever to match" if has_nested_repeat else ""


def _has_nested_repeat(nodes: Any, *, inside: bool) -> bool:
    """Return True if an unbounded repeat is inside another one. inside: True if the nodes are inside an unbounded repeat."""
    for kind, argument in nodes:
        if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            _, maximum, repeated_nodes = argument
            is_unbounded = maximum is sre.MAXREPEAT or maximum > MAX_BOUNDED_REPEATS
            if (is_unbounded and inside) or _has_nested_repeat(repeated_nodes, inside=inside or is_unbounded):
                return True
        elif any(_has_nested_repeat(subpattern, inside=inside) for subpattern in _subpatterns(kind, argument)):
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
            return [branch for branch in argument[1:] if branch is not None]
    return []  # possessive and atomic groups never backtrack
