"""Limits on input in bytes, depth, seconds and numbers, and the readers that enforce them.

`json_of` reads JSON, `clean` makes control characters visible, and `parsed` reads JSON that this tool wrote itself.
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
from sparkwright.visible import visible

#: limits for a model's config.json, which has 2 kB, or 300 kB for quantized models that list every layer
CONFIG_BYTES, CONFIG_DEPTH = 4 * MIB, 32
#: size limit for an index of weights, which names every tensor and has 10 MB for the largest models
INDEX_BYTES = 64 * MIB
#: size limit for answers of a server under test, Ollama or a hub, the largest of which is /metrics with 300 kB
ANSWER_BYTES = 8 * MIB
JSON_DEPTH = 100
#: limit on the depth of shown values; Docker's own inspect is 8 deep
SHOWN_DEPTH = 32
#: limit on the values in a document from a host, which take some 100 MiB as Python objects
PARTS = 1_000_000
#: limit on sizes in bytes and token counts
MOST_NUMBER = 2**53
#: limit on all numbers from a host, including nanoseconds, which every format and a sum of two can represent
LARGEST = 2**63


class TooMuch(ValueError):
    """Raised if a limit is exceeded. The message is the end of a sentence, such as "has more than 4 MiB"."""


def parsed(raw: bytes | str) -> Any:
    """Parse a JSON text whose length is already limited. Raises ValueError if it is invalid or nested too deeply."""
    try:
        return json.loads(raw)
    except RecursionError:
        raise TooMuch("is nested too deep") from None


def json_of(
    raw: bytes | str, *, most_bytes: int = ANSWER_BYTES, depth: int = JSON_DEPTH, most_parts: float = math.inf
) -> Any:
    """Parse a JSON text. Raises ValueError if it is invalid, and TooMuch if it is too large or nested too deeply."""
    if len(raw) > most_bytes:
        raise TooMuch(f"has more than {most_bytes / MIB:g} MiB")
    marks = (",", "[", "{") if isinstance(raw, str) else (b",", b"[", b"{")
    if most_parts < math.inf and sum(map(raw.count, marks)) > most_parts:  # type: ignore[arg-type]
        raise TooMuch("has too many parts")
    too_deep = TooMuch(f"is nested deeper than {depth} levels")
    try:
        found = json.loads(raw)
    except RecursionError:
        raise too_deep from None
    if is_deeper(found, depth):
        raise too_deep
    return found


def clean(value: Any, depth: int = SHOWN_DEPTH) -> Any:
    """Return a JSON value in which all texts, including keys, are made visible.

    Numbers that are NaN or beyond LARGEST become null, which means unknown. Values that JSON does not have, such as paths,
    become text.
    """
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return value if abs(value) <= LARGEST else None  # NaN is not
    if depth <= 0:
        raise TooMuch("is nested too deep")
    if isinstance(value, dict):
        return {visible(key): clean(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item, depth - 1) for item in value]
    return visible(str(value))


def is_deeper(value: Any, depth: int) -> bool:
    """Return True if lists and mappings are nested more than DEPTH times."""
    layer = [value]
    for _ in range(depth + 1):
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


def bytes_of(path: Path, most_bytes: int) -> bytes:
    """Read a file. Raises OSError, or TooMuch if it is larger, or is a pipe or device, which may be endless."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise TooMuch("is not a regular file")
        raw = file.read(most_bytes + 1)
    if len(raw) > most_bytes:
        raise TooMuch(f"has more than {most_bytes / MIB:g} MiB")
    return raw


def config_of(path: Path) -> dict[str, Any]:
    """Read a model's config.json. Raises OSError, and ValueError if it is not a JSON object within the limits."""
    found = json_of(bytes_of(path, CONFIG_BYTES), most_bytes=CONFIG_BYTES, depth=CONFIG_DEPTH)
    if not isinstance(found, dict):
        raise ValueError("is not a JSON object")
    return found


def count_of(value: Any, most: int = MOST_NUMBER) -> int | None:
    """Return a whole number from 0 to MOST, or None, which means unknown, for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most else None


def number_of(text: str, most: float = MOST_NUMBER) -> float | None:
    """Parse a finite number between -MOST and MOST, or return None, which means unknown, for anything else."""
    try:
        found = float(text) if len(text) <= 64 else math.nan
    except ValueError:
        return None
    return found if abs(found) <= most else None


#: free space below which a disk counts as full, which is enough for a line of a log
ROOM_BYTES = 4096


def sentence(error: BaseException) -> str:
    """Return the place and reason of an operating system error; empty for other errors.

    A failed write does not name the file, so the full disk is looked up.
    """
    if not isinstance(error, OSError) or not error.strerror:
        return ""
    place = error.filename
    if place is None and error.errno in (errno.ENOSPC, errno.EDQUOT):
        import tempfile

        place = full([Path.cwd(), Path(os.path.expanduser("~")), Path(tempfile.gettempdir())])  # noqa: PTH111
    return f"{place}: {error.strerror}." if place else f"{error.strerror}."


def full(places: Iterable[Path]) -> Path | None:
    """Return the first folder, or existing parent, whose disk is full, or None."""
    for place in places:
        there = next((parent for parent in (place, *place.parents) if parent.exists()), None)
        if there is None:
            continue
        found = os.statvfs(there)
        if found.f_bavail * found.f_frsize < ROOM_BYTES:
            return there
    return None


PATTERN_CHARS = 1000
#: maximum from which a repeat in a pattern counts as unbounded
ENDLESS = 100


def why_not(pattern: str) -> str:
    """Return the problem of a pattern for searching logs, such as "is not a regular expression: ..."; empty for none."""
    if len(pattern) > PATTERN_CHARS:
        return f"has more than {PATTERN_CHARS} characters"
    try:
        re.compile(pattern)
        nested = _nested(_parser.parse(pattern), inside=False)
    except (re.error, RecursionError, OverflowError) as error:
        return f"is not a regular expression: {error}"
    return "repeats what repeats itself, as (a+)+ does, which can take for ever" if nested else ""


def _nested(nodes: Any, *, inside: bool) -> bool:
    """Return True if an unbounded repeat is inside another one."""
    for kind, of in nodes:
        if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            endless = of[1] is sre.MAXREPEAT or of[1] > ENDLESS
            if (endless and inside) or _nested(of[2], inside=inside or endless):
                return True
        elif any(_nested(part, inside=inside) for part in _parts(kind, of)):
            return True
    return False


def _parts(kind: Any, of: Any) -> list[Any]:
    match kind:
        case sre.SUBPATTERN:
            return [of[-1]]
        case sre.BRANCH:
            return list(of[1])
        case sre.ASSERT | sre.ASSERT_NOT:
            return [of[1]]
        case sre.GROUPREF_EXISTS:
            return [part for part in of[1:] if part is not None]
    return []  # possessive and atomic groups never backtrack
