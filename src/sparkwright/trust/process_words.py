"""Validation and normalization of a recipe's process, network and name options and limits, in Docker's spelling."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sparkwright.errors import Refused
from sparkwright.trust import container_words
from sparkwright.trust.container_words import is_address
from sparkwright.units import MIB
from sparkwright.visible import quoted

#: the engine's minimum for a memory limit
LEAST_MEMORY = 6 * MIB
_UNLIMITED = "-1"
#: Linux's signals, by number
_SIGNALS = (
    "", "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM",
    "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH",
    "IO", "PWR", "SYS",
)  # fmt: skip
TERM = "SIGTERM"
#: nanoseconds by the units of Go's durations
_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_STEP = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ns|us|µs|ms|s|m|h)")
#: the engine's names for the parts of a health check
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
    """Parse a size for memory and swap together, where -1 means unlimited swap. Raises Refused if it is not a size."""
    return -1 if text == _UNLIMITED else container_words.size_bytes(text)


def cpus(number: float) -> str:
    return "" if number == 0 or 0.01 <= number <= 9999 else "must be from 0.01 to the host's number of CPUs."


def nano_cpus(number: float) -> int:
    return round(number * 10**9)


def cpuset(text: str) -> str:
    return "" if not text or cpuset_alike(text) else f"{quoted(text)} names no CPUs: write 0-9 or 0,2,4."


def cpuset_alike(text: str | None) -> list[int]:
    """Return the numbers of the CPUs; empty if there are none."""
    if not text or not _CPUS.fullmatch(text):
        return []
    ends = [word.partition("-") for word in text.split(",")]
    return sorted({cpu for first, _, last in ends for cpu in range(int(first), int(last or first) + 1)})


def oom_score_adj(number: int) -> str:
    return "" if -1000 <= number <= 1000 else f"must be from -1000 to 1000, got {number}."


def pid(text: str) -> str:
    """Return the reason why a text is not a valid PID mode; empty if it is valid.

    `container:NAME` is invalid, because Docker stores the id, which would differ in every deploy.
    """
    return "" if text in ("", "host") else f'{quoted(text)} is not a PID mode: write host, or "" for the default.'


def working_dir(text: str) -> str:
    """Return the reason why a text is not a working directory; an empty text is valid and means none."""
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
    """Return a signal's full name from any of its spellings; empty if it is not a signal."""
    name = text.upper().removeprefix("SIG")
    if name.isdecimal() and 0 < int(name) < len(_SIGNALS):
        name = _SIGNALS[int(name)]
    return f"SIG{name}" if name and name in _SIGNALS else ""


# -- health checks -----------------------------------------------------------------------------------------------------


def duration_ns(text: str) -> int:
    """Parse a duration in Go's format, such as 1m30s. Raises Refused for anything else."""
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
    """Normalize a health check as stored by the engine, without defaults."""
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
    """Return folders with their options, in the engine's format."""
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


HOST, NONE, BRIDGE = "host", "none", "bridge"
BUILT_IN = (HOST, NONE, BRIDGE)
GATEWAY = "host-gateway"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_HOSTNAME = re.compile(r"(?=.{1,63}$)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*")


def parts(text: str) -> tuple[str, list[str]]:
    """Parse NAME, or Docker's longer form name=NAME,alias=ALIAS, to a network's name and the container's aliases in it."""
    if "=" not in text:
        return text, []
    pairs = [word.partition("=")[::2] for word in text.split(",")]
    return next((value for key, value in pairs if key == "name"), ""), [value for key, value in pairs if key == "alias"]


def spelled(name: str, aliases: Iterable[str]) -> str:
    """Return the inverse of `parts`, with the aliases in a fixed order."""
    names = sorted(set(aliases))
    return ",".join([f"name={name}", *(f"alias={item}" for item in names)]) if names else name


def network(text: str) -> str:
    """Return the reason why a text is not a valid network; empty if it is valid.

    `container:NAME` is invalid, because Docker stores the id, which would differ in every deploy.
    """
    if not text:
        return ""
    name, aliases = parts(text)
    keys = {word.partition("=")[0] for word in text.split(",")} if "=" in text else set()
    if not _NAME.fullmatch(name) or keys - {"name", "alias"} or not all(map(_NAME.fullmatch, aliases)):
        return f"{quoted(text)} is not a network: write host, a network's name, or name=NETWORK,alias=NAME."
    if name in (*BUILT_IN, "default") and aliases:
        return f"{quoted(text)}: only networks made with `docker network create` know aliases."
    return f"{quoted(text)} is not a network: leave it out for docker's own." if name == "default" else ""


def further_network(text: str) -> str:
    name = parts(text)[0]
    if name in (HOST, NONE) or not text:
        return f"{quoted(text)} is not a network that can be joined beside another."
    return network(text)


def own_names(texts: Iterable[str]) -> list[str]:
    """Return the networks that are not built in and that the user has to create."""
    return [name for name in dict.fromkeys(parts(text)[0] for text in texts if text) if name not in BUILT_IN]


def hostname(text: str) -> str:
    message = f"{quoted(text)} is not a host name: letters, digits, hyphens and dots, at most 63."
    return "" if not text or _HOSTNAME.fullmatch(text) else message


def _host_and_address(text: str) -> tuple[str, str]:
    """Split NAME:ADDRESS, or NAME=ADDRESS, which Docker accepts since version 25."""
    split = min((at for at in (text.find(":"), text.find("=")) if at >= 0), default=len(text))
    return text[:split], text[split + 1 :].removeprefix("[").removesuffix("]")


def extra_host(text: str) -> str:
    name, address = _host_and_address(text)
    if _HOSTNAME.fullmatch(name) and (address == GATEWAY or is_address(address)):
        return ""
    return f"{quoted(text)} is not a host: write NAME:ADDRESS or NAME:{GATEWAY}."


def extra_hosts(texts: Sequence[str]) -> list[str]:
    return [":".join(_host_and_address(text)) for text in texts]


def extra_hosts_alike(texts: Iterable[str] | None) -> list[str]:
    return sorted(set(extra_hosts(list(texts or ()))))


def dns(text: str) -> str:
    return "" if is_address(text) and "[" not in text else f"{quoted(text)} is not a name server's IP address."


def dns_alike(texts: Iterable[str] | None) -> list[str]:
    """Normalize DNS servers, keeping their order, in which they are queried."""
    return [str(ipaddress.ip_address(text)) if is_address(text) else text for text in texts or ()]
