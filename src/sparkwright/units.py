"""Format sizes, rates and times, and parse durations. Memory is in GiB, files and transfers are in GB."""

from __future__ import annotations

import re
import time

from sparkwright.errors import Refused

MIB, GIB = 2**20, 2**30
GB = 10**9
MINUTE_FORMAT = "%Y-%m-%d %H:%M"
SECONDS_PER_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
MAX_DURATION_S = 520 * SECONDS_PER_UNIT["w"]
DURATION_PATTERN = re.compile(r"(\d+(?:\.\d+)?)([smhdw]?)")


def format_gib(size_bytes: float) -> str:
    """Format a size in GiB without the unit: 12.3."""
    return f"{size_bytes / GIB:.1f}"


def format_size(size_bytes: float) -> str:
    """Format a size: 12.3 GB."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(size_bytes) >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes:.0f} B"


def format_rate(bytes_per_s: float) -> str:
    """Format a transfer rate: 412 MB/s."""
    return f"{bytes_per_s / 1e6:.0f} MB/s" if bytes_per_s >= 1e6 else f"{bytes_per_s / 1e3:.0f} kB/s"


def format_duration(seconds: float) -> str:
    """Format a duration: 0.4s, 12s, 3m05s, 1h02m."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    if seconds < 60:
        return f"{seconds:.0f}s"
    minutes, remaining_seconds = divmod(round(seconds), 60)
    return f"{minutes}m{remaining_seconds:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


def format_rough_duration(seconds: float) -> str:
    """Format a rounded duration in one unit: 20 s, 5 min, 3 h, 2 days."""
    for unit, factor in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * factor:
            return f"{seconds / factor:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def format_age(seconds: float) -> str:
    """Format a rounded duration for a column: 12s, 5m, 3h, 2d."""
    unit = next((unit for unit in ("d", "h", "m") if seconds >= SECONDS_PER_UNIT[unit]), "s")
    return f"{seconds / SECONDS_PER_UNIT[unit]:.0f}{unit}"


def format_time(time_s: float, pattern: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Format a time, given in seconds since the epoch, in this machine's time zone."""
    return time.strftime(pattern, time.localtime(time_s))


def today() -> str:
    """Return the local date, YYYY-MM-DD."""
    return format_time(time.time(), "%Y-%m-%d")


def parse_duration(text: str, option: str = "", *, min_s: float = 0.0) -> float:
    """Parse 90s, 5m, 1h, 7d, 2w or a number of seconds. Raises Refused if invalid, too short or longer than ten years.

    option: its name in messages.
    """
    match = DURATION_PATTERN.fullmatch(text.strip())
    if not match:
        raise Refused(f"{option}: invalid duration {text!r}.", fix="Write it as 90s, 5m, 1h, 7d or 2w.")
    duration_s = float(match[1]) * SECONDS_PER_UNIT[match[2] or "s"]
    if duration_s > MAX_DURATION_S:
        raise Refused(f"{option} {text} is too long.", fix=f"At most {MAX_DURATION_S / SECONDS_PER_UNIT['w']:g}w.")
    if duration_s < min_s:
        raise Refused(f"{option} {text} is too short.", fix=f"At least {min_s:g}s.")
    return duration_s
