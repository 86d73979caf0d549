"""Validates and normalizes a recipe's process, network and name options and limits, in Docker's spelling."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sparkwright.errors import Refused
from sparkwright.trust import container_option_rules
from sparkwright.trust.container_option_rules import is_ip_address
from sparkwright.units import MIB
from sparkwright.visible import quote_text

#: Docker's minimum for a memory limit
MIN_MEMORY_BYTES = 6 * MIB
_UNLIMITED = "-1"
#: names of Linux signals, indexed by number
_SIGNALS = (
    "", "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM",
    "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH",
    "IO", "PWR", "SYS",
)  # fmt: skip
DEFAULT_STOP_SIGNAL = "SIGTERM"
#: nanoseconds per unit of Go's durations
_NS_BY_UNIT = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_DURATION_PART_PATTERN = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ns|us|µs|ms|s|m|h)")
#: keys of a health check in a recipe, and the Docker API's names for them
HEALTH_KEYS = {
    "test": "Test",
    "interval": "Interval",
    "timeout": "Timeout",
    "start_period": "StartPeriod",
    "retries": "Retries",
}
_HEALTH_DURATION_KEYS = ("interval", "timeout", "start_period")
HEALTHCHECK_OFF = "NONE"
_TMPFS_SWITCHES = frozenset(
    ("ro", "rw", "exec", "noexec", "suid", "nosuid", "dev", "nodev", "sync", "async", "atime", "noatime", "relatime")
)
_TMPFS_VALUE_PATTERNS = {"size": r"[0-9]{1,15}[kmgKMG%]?", "mode": r"[0-7]{3,4}", "uid": r"[0-9]{1,9}", "gid": r"[0-9]{1,9}",
            "nr_inodes": r"[0-9]{1,15}[kmgKMG]?", "nr_blocks": r"[0-9]{1,15}[kmgKMG]?"}  # fmt: skip
_CPUSET_PATTERN = re.compile(r"[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?){0,255}")
_LOG_DRIVER_PATTERN = re.compile(r"[a-zA-Z0-9][\w./:-]{0,127}", re.ASCII)
HOST_NETWORK, NO_NETWORK, BRIDGE_NETWORK = "host", "none", "bridge"
BUILT_IN_NETWORKS = (HOST_NETWORK, NO_NETWORK, BRIDGE_NETWORK)
HOST_GATEWAY = "host-gateway"
_NETWORK_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_HOSTNAME_PATTERN = re.compile(
    r"(?=.{1,63}$)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*"
)


def check_memory(text: str) -> str:
    if reason := container_option_rules.check_size(text):
        return reason
    is_too_small = bool(text) and container_option_rules.parse_size(text) < MIN_MEMORY_BYTES
    return f"{quote_text(text)} is less than 6 MiB, Docker's minimum." if is_too_small else ""


def check_memory_swap(text: str) -> str:
    return "" if text == _UNLIMITED else container_option_rules.check_size(text)


def parse_swap(text: str) -> int:
    """Parse the size of memory and swap together, where -1 means unlimited swap. Raises Refused if it is invalid."""
    return -1 if text == _UNLIMITED else container_option_rules.parse_size(text)


def check_cpus(number: float) -> str:
    return "" if number == 0 or 0.01 <= number <= 9999 else "must be between 0.01 and the host's number of CPUs."


def nano_cpus(number: float) -> int:
    return round(number * 10**9)


def check_cpuset(text: str) -> str:
    return "" if not text or parse_cpuset(text) else f"{quote_text(text)} is not a set of CPUs: write 0-9 or 0,2,4."


def parse_cpuset(text: str | None) -> list[int]:
    """Return the CPU numbers in a set such as 0-3,8; empty if the text is empty or invalid."""
    if not text or not _CPUSET_PATTERN.fullmatch(text):
        return []
    ranges = [word.partition("-") for word in text.split(",")]
    return sorted({cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1)})


def check_oom_score_adj(number: int) -> str:
    return "" if -1000 <= number <= 1000 else f"must be from -1000 to 1000, got {number}."


def check_pid_mode(text: str) -> str:
    """Check a PID mode. `container:NAME` is invalid, because Docker stores the id, which would differ in every deploy."""
    return "" if text in ("", "host") else f'{quote_text(text)} is not a PID mode: write host, or "" for the default.'


def check_working_dir(text: str) -> str:
    """Check a working directory; an empty text is valid and means the image's."""
    is_absolute = text.startswith("/") and "\0" not in text
    return (
        "" if not text or is_absolute else f"{quote_text(text)} is not a folder in the container: it must begin with /."
    )


def normalize_working_dir(text: str | None) -> str:
    return container_option_rules.normalize_mount_point(text) if text else "/"


def check_stop_signal(text: str) -> str:
    if not text or _signal_name(text):
        return ""
    return f"{quote_text(text)} is not a signal: write SIGTERM, SIGINT or a number."


def normalize_stop_signal(text: str | None) -> str:
    return _signal_name(text or DEFAULT_STOP_SIGNAL) or str(text)


def _signal_name(text: str) -> str:
    """Return the full name of a signal, such as SIGTERM, from TERM, sigterm or 15; empty if it is invalid."""
    name = text.upper().removeprefix("SIG")
    if name.isdecimal() and 0 < int(name) < len(_SIGNALS):
        name = _SIGNALS[int(name)]
    return f"SIG{name}" if name and name in _SIGNALS else ""


# -- health checks -----------------------------------------------------------------------------------------------------


def parse_duration_ns(text: str) -> int:
    """Parse a duration in Go's format, such as 1m30s, to nanoseconds. Raises Refused for anything else."""
    parts = _DURATION_PART_PATTERN.findall(text)
    if not parts or "".join(map("".join, parts)) != text:
        raise Refused(f"{quote_text(text)} is not a duration: write 30s or 1m30s.")
    return sum(round(float(number) * _NS_BY_UNIT[unit]) for number, unit in parts)


def format_duration(duration_ns: int) -> str:
    """Format nanoseconds for `parse_duration_ns`, in the largest unit, up to seconds, that needs no fraction."""
    unit = next(unit for unit in ("s", "ms", "us", "ns") if duration_ns % _NS_BY_UNIT[unit] == 0)
    return f"{duration_ns // _NS_BY_UNIT[unit]}{unit}"


def check_healthcheck(healthcheck: Mapping[str, str]) -> str:
    for key, text in healthcheck.items():
        if key not in HEALTH_KEYS:
            return f"{quote_text(key)} is not a key of a health check: {', '.join(HEALTH_KEYS)}."
        if key == "test" and not text.strip():
            return f"`test` must be a command, or {HEALTHCHECK_OFF} to disable the image's health check."
        if key == "retries" and not re.fullmatch(r"[1-9][0-9]{0,5}", text):
            return f"`retries` must be a whole number from 1, got {quote_text(text)}."
        if key in _HEALTH_DURATION_KEYS and (reason := _check_duration(text)):
            return f"`{key}`: {reason}"
    if healthcheck.get("test") == HEALTHCHECK_OFF and len(healthcheck) > 1:
        return f"`test: {HEALTHCHECK_OFF}` disables the health check: remove its other keys."
    return ""


def _check_duration(text: str) -> str:
    try:
        return "" if parse_duration_ns(text) >= _NS_BY_UNIT["ms"] else f"{quote_text(text)} is less than 1ms."
    except Refused as refused:
        return refused.message


def health_config(healthcheck: Mapping[str, str]) -> dict[str, Any]:
    """Return a health check in the Docker API's format."""
    config: dict[str, Any] = {}
    for key, text in healthcheck.items():
        if key == "test":
            config["Test"] = [HEALTHCHECK_OFF] if text == HEALTHCHECK_OFF else ["CMD-SHELL", text]
        else:
            config[HEALTH_KEYS[key]] = int(text) if key == "retries" else parse_duration_ns(text)
    return config


def normalize_health_config(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a health check from the Docker API without empty settings."""
    normalized = {name: config[name] for name in HEALTH_KEYS.values() if config and config.get(name)}
    return {"Test": [HEALTHCHECK_OFF]} if normalized.get("Test") == [HEALTHCHECK_OFF] else normalized


# -- tmpfs, log --------------------------------------------------------------------------------------------------------


def check_tmpfs(text: str) -> str:
    folder, colon, options = text.partition(":")
    if reason := container_option_rules.check_mount_target(folder):
        return reason
    for option in options.split(",") if colon else ():
        name, equals, value = option.partition("=")
        if option not in _TMPFS_SWITCHES and not (
            equals and re.fullmatch(_TMPFS_VALUE_PATTERNS.get(name, "(?!)"), value)
        ):
            return f"{quote_text(text)}: {quote_text(option)} is not a tmpfs option, such as size=64m or noexec."
    return ""


def tmpfs_rows(texts: Iterable[str]) -> dict[str, str]:
    """Convert FOLDER:OPTIONS to the Docker API's format."""
    return {folder: options for folder, _, options in (text.partition(":") for text in texts)}


def normalize_tmpfs(rows: Mapping[str, str] | None) -> dict[str, str]:
    """Sort the options of each tmpfs and remove the default `rw`."""
    return {
        container_option_rules.normalize_mount_point(folder): ",".join(sorted({*options.split(",")} - {"", "rw"}))
        for folder, options in (rows or {}).items()
    }


def check_log_driver(text: str) -> str:
    return "" if not text or _LOG_DRIVER_PATTERN.fullmatch(text) else f"{quote_text(text)} is not a log driver's name."


def check_log_options(options: Mapping[str, str]) -> str:
    invalid_name = next((name for name in options if not name or re.search(r"[\s=\0]", name)), None)
    return "" if invalid_name is None else f"{quote_text(invalid_name)} is not a log option's name."


def parse_network(text: str) -> tuple[str, list[str]]:
    """Parse NAME or name=NAME,alias=ALIAS to the network's name and the container's aliases."""
    if "=" not in text:
        return text, []
    pairs = [word.partition("=")[::2] for word in text.split(",")]
    return next((value for key, value in pairs if key == "name"), ""), [value for key, value in pairs if key == "alias"]


def format_network(name: str, aliases: Iterable[str]) -> str:
    """Format a network for `parse_network`, with sorted aliases."""
    unique_aliases = sorted(set(aliases))
    return ",".join([f"name={name}", *(f"alias={alias}" for alias in unique_aliases)]) if unique_aliases else name


def check_network(text: str) -> str:
    """Check a network. `container:NAME` is invalid, because Docker stores the id, which would differ in every deploy."""
    if not text:
        return ""
    name, aliases = parse_network(text)
    keys = {word.partition("=")[0] for word in text.split(",")} if "=" in text else set()
    if (
        not _NETWORK_NAME_PATTERN.fullmatch(name)
        or keys - {"name", "alias"}
        or not all(map(_NETWORK_NAME_PATTERN.fullmatch, aliases))
    ):
        return f"{quote_text(text)} is not a network: write host, a network's name, or name=NETWORK,alias=NAME."
    if name in (*BUILT_IN_NETWORKS, "default") and aliases:
        return f"{quote_text(text)}: only networks made with `docker network create` support aliases."
    return f"{quote_text(text)} is not a network: leave it out for Docker's default." if name == "default" else ""


def check_additional_network(text: str) -> str:
    name = parse_network(text)[0]
    if name in (HOST_NETWORK, NO_NETWORK) or not text:
        return f"{quote_text(text)} can't be used as an additional network."
    return check_network(text)


def user_networks(texts: Iterable[str]) -> list[str]:
    """Return the names of the networks that the user has to create, without duplicates."""
    names = dict.fromkeys(parse_network(text)[0] for text in texts if text)
    return [name for name in names if name not in BUILT_IN_NETWORKS]


def check_hostname(text: str) -> str:
    message = f"{quote_text(text)} is not a host name: letters, digits, hyphens and dots, at most 63."
    return "" if not text or _HOSTNAME_PATTERN.fullmatch(text) else message


def _split_extra_host(text: str) -> tuple[str, str]:
    """Split NAME:ADDRESS, or NAME=ADDRESS, which Docker has accepted since version 25."""
    name, *address = re.split("[:=]", text, maxsplit=1)
    return name, "".join(address).removeprefix("[").removesuffix("]")


def check_extra_host(text: str) -> str:
    name, address = _split_extra_host(text)
    if _HOSTNAME_PATTERN.fullmatch(name) and (address == HOST_GATEWAY or is_ip_address(address)):
        return ""
    return f"{quote_text(text)} is not a host: write NAME:ADDRESS or NAME:{HOST_GATEWAY}."


def format_extra_hosts(texts: Sequence[str]) -> list[str]:
    return [":".join(_split_extra_host(text)) for text in texts]


def normalize_extra_hosts(texts: Iterable[str] | None) -> list[str]:
    return sorted(set(format_extra_hosts(list(texts or ()))))


def check_dns_server(text: str) -> str:
    return "" if is_ip_address(text) and "[" not in text else f"{quote_text(text)} is not a name server's IP address."


def normalize_dns_servers(texts: Iterable[str] | None) -> list[str]:
    """Return DNS servers with IP addresses in their normal form. Their order is kept, because it is the order of queries."""
    return [str(ipaddress.ip_address(text)) if is_ip_address(text) else text for text in texts or ()]
