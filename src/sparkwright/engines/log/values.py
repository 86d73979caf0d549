"""Conversion of words of a log to numbers and times; None (unknown) for other words."""

from __future__ import annotations

import re
from datetime import datetime, timedelta


def integer(text: str) -> int | None:
    """Return a count, with or without commas between its thousands."""
    digits = text.replace(",", "")
    return int(digits) if 0 < len(digits) < 20 else None


def number(text: str) -> float | None:
    """Return a number of digits and at most one point."""
    return float(text) if text.count(".") < 2 and text != "." else None


def clock(line: str, pattern: re.Pattern[str]) -> datetime | None:
    """Return the time of a line, in a leap year: few engines log the year.

    pattern: with groups of these names: month, day, hour, minute, second, milli. A clock that begins with the process has no day,
    and its minutes may be more than 59.
    """
    found = pattern.search(line)
    if found is None:
        return None
    part = {name: int(text or 0) for name, text in found.groupdict().items()}
    try:
        day = datetime(2024, part.get("month", 1), part.get("day", 1), part.get("hour", 0))
    except ValueError:
        return None
    return day + timedelta(
        minutes=part.get("minute", 0), seconds=part.get("second", 0), milliseconds=part.get("milli", 0)
    )


def seconds_between(begin: datetime, end: datetime) -> float:
    """Return the seconds between two times without a year; an end before the begin is in the next year."""
    if end < begin - timedelta(days=180):
        end += timedelta(days=366)
    return max(0.0, round((end - begin).total_seconds(), 3))
