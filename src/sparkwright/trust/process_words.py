"""A recipe's process options and limits of a container, in docker's spelling: validated and normalized."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from sparkwright.errors import Refused
from sparkwright.trust import container_words
from sparkwright.units import MIB
from sparkwright.visible import quoted

#: the engine's own limit
LEAST_MEMORY = 6 * MIB
_UNLIMITED = "-1"
#: Linux's signals by their numbers
_SIGNALS = (
    "", "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM",
    "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH",
    "IO", "PWR", "SYS",
)  # fmt: skip
TERM = "SIGTERM"
#: nanoseconds by the units of a duration as Go writes it
_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_STEP = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ns|us|µs|ms|s|m|h)")
#: the parts of a health check by the engine's names for them
_HEALTH = {
    "test": "Test",
    "interval": "Interval",
    "timeout": "Timeout",
    "start_period": "StartPeriod",
    "retries": "Retries",
}
_TIMES = ("interval", "timeout", "start_period")
OFF = "NONE"
_SWITCHES = frozenset(
    ("ro", "rw", "exec", "noexec", "suid", "nosuid", "dev", "nodev", "sync", "async", "atime", "noatime", "relatime")
)
_AMOUNTS = {"size": r"[0-9]{1,15}[kmgKMG%]?", "mode": r"[0-7]{3,4}", "uid": r"[0-9]{1,9}", "gid": r"[0-9]{1,9}",
            "nr_inodes": r"[0-9]{1,15}[kmgKMG]?", "nr_blocks": r"[0-9]{1,15}[kmgKMG]?"}  # fmt: skip
_CPUS = re.compile(r"[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*")
_DRIVER = re.compile(r"[a-zA-Z0-9][\w./:-]{0,127}", re.ASCII)


def memory(text: str) -> str:
    if reason := container_words.size(text):
        return reason
    too_small = bool(text) and container_words.size_bytes(text) < LEAST_MEMORY
    return f"{quoted(text)} is less than 6 MiB, the least that docker takes." if too_small else ""


def memory_swap(text: str) -> str:
    return "" if text == _UNLIMITED else container_words.size(text)


def swap_bytes(text: str) -> int:
    """Parse memory and swap together; -1: as much swap as there is. Raises Refused if it is not a size."""
    return -1 if text == _UNLIMITED else container_words.size_bytes(text)


def cpus(number: float) -> str:
    return "" if number == 0 or 0.01 <= number <= 9999 else "must be from 0.01 to the host's number of CPUs."


def nano_cpus(number: float) -> int:
    return round(number * 10**9)


def cpuset(text: str) -> str:
    return "" if not text or cpuset_alike(text) else f"{quoted(text)} names no CPUs: write 0-9 or 0,2,4."


def cpuset_alike(text: str | None) -> list[int]:
    """Return the CPUs one by one; empty if none is named."""
    if not text or not _CPUS.fullmatch(text):
        return []
    ends = [word.partition("-") for word in text.split(",")]
    return sorted({cpu for first, _, last in ends for cpu in range(int(first), int(last or first) + 1)})


def oom_score_adj(number: int) -> str:
    return "" if -1000 <= number <= 1000 else f"must be from -1000 to 1000, got {number}."


def pid(text: str) -> str:
    """Return why a text is not a valid PID mode; empty if it is.

    `container:NAME` is not: docker keeps it by id, and it would differ at every deploy.
    """
    return "" if text in ("", "host") else f'{quoted(text)} is not a PID mode: write host, or "" for the default.'


def working_dir(text: str) -> str:
    """Return why a text is not a working directory; an empty one is valid and means none."""
    absolute = text.startswith("/") and "\0" not in text
    return "" if not text or absolute else f"{quoted(text)} is not a folder of the container: begin with /."


def working_dir_alike(text: str | None) -> str:
    return container_words.mount_point(text) if text else "/"


def stop_signal(text: str) -> str:
    if not text or _signal(text):
        return ""
    return f"{quoted(text)} is not a signal: write SIGTERM, SIGINT or a number."


def stop_signal_alike(text: str | None) -> str:
    return _signal(text or TERM) or str(text)


def _signal(text: str) -> str:
    """Return a signal by its full name, from any of its spellings; empty if it is not one."""
    name = text.upper().removeprefix("SIG")
    if name.isdecimal() and 0 < int(name) < len(_SIGNALS):
        name = _SIGNALS[int(name)]
    return f"SIG{name}" if name and name in _SIGNALS else ""


# -- health checks -----------------------------------------------------------------------------------------------------


def duration_ns(text: str) -> int:
    """Parse a duration as Go writes it, 1m30s. Raises Refused for anything else."""
    steps = _STEP.findall(text)
    if not steps or "".join(map("".join, steps)) != text:
        raise Refused(f"{quoted(text)} is not a duration: write 30s or 1m30s.")
    return sum(round(float(number) * _UNITS[unit]) for number, unit in steps)


def healthcheck(check: Mapping[str, str]) -> str:
    for part, text in check.items():
        if part not in _HEALTH:
            return f"{quoted(part)} is not a part of a health check: {', '.join(_HEALTH)}."
        if part == "test" and not text.strip():
            return f"`test` must be a command, or {OFF} to turn off the image's."
        if part == "retries" and not re.fullmatch(r"[1-9][0-9]{0,5}", text):
            return f"`retries`: {quoted(text)} is not a number from 1."
        if part in _TIMES and (reason := _not_a_time(text)):
            return f"`{part}`: {reason}"
    return f"`test: {OFF}` turns the check off: remove the rest." if check.get("test") == OFF and len(check) > 1 else ""


def _not_a_time(text: str) -> str:
    try:
        return "" if duration_ns(text) >= _UNITS["ms"] else f"{quoted(text)} is less than 1ms."
    except Refused as refused:
        return refused.message


def health_config(check: Mapping[str, str]) -> dict[str, Any]:
    """Return a health check in the engine's API format."""
    found: dict[str, Any] = {}
    for part, text in check.items():
        if part == "test":
            found["Test"] = [OFF] if text == OFF else ["CMD-SHELL", text]
        else:
            found[_HEALTH[part]] = int(text) if part == "retries" else duration_ns(text)
    return found


def health_alike(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Normalize a health check as the engine keeps it, without its defaults."""
    found = {name: config[name] for name in _HEALTH.values() if config and config.get(name)}
    return {"Test": [OFF]} if found.get("Test") == [OFF] else found


# -- tmpfs, log --------------------------------------------------------------------------------------------------------


def tmpfs(text: str) -> str:
    folder, colon, rest = text.partition(":")
    if reason := container_words.target(folder):
        return reason
    for word in rest.split(",") if colon else ():
        name, equals, value = word.partition("=")
        if word not in _SWITCHES and not (equals and re.fullmatch(_AMOUNTS.get(name, "(?!)"), value)):
            return f"{quoted(text)}: {quoted(word)} is not an option of a tmpfs, as size=64m or noexec."
    return ""


def tmpfs_rows(texts: Iterable[str]) -> dict[str, str]:
    """Return folders with their options, as the engine keeps them."""
    return {folder: rest for folder, _, rest in (text.partition(":") for text in texts)}


def tmpfs_alike(rows: Mapping[str, str] | None) -> dict[str, str]:
    """Normalize options: in a fixed order, and without the default `rw`."""
    return {
        container_words.mount_point(folder): ",".join(sorted({*rest.split(",")} - {"", "rw"}))
        for folder, rest in (rows or {}).items()
    }


def log_driver(text: str) -> str:
    return "" if not text or _DRIVER.fullmatch(text) else f"{quoted(text)} is not a log driver's name."


def log_options(options: Mapping[str, str]) -> str:
    bad = next((name for name in options if not name or re.search(r"[\s=\0]", name)), None)
    return "" if bad is None else f"{quoted(bad)} is not a log option's name."
