"""Validates a recipe's container options, in Docker's spelling, before they reach an engine.

Each `check_` function returns the reason why a string is invalid; empty if it is valid. The checks refuse everything that Docker
refuses, while the running server is still untouched. They also refuse a few spellings that Docker accepts, because Docker would
choose a random port or report the value in another form; tests/project/docker_words.py lists them all.
"""

from __future__ import annotations

import ipaddress
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from sparkwright.errors import Refused
from sparkwright.visible import quote_text

#: a size in Docker's format (go-units RAMInBytes): 64gb, 512m, 1.5GiB, 1024
_SIZE_PATTERN = re.compile(r"([0-9]{1,15}(?:\.[0-9]{0,9})?|\.[0-9]{1,9}) ?(?:([kmgtp])(?:i?b)?|b)?", re.I)
MAX_INT64 = 2**63 - 1
_PORT_PATTERN = re.compile(r"[1-9][0-9]{0,4}")
_GPUS_PATTERN = re.compile(r"(?:all|[1-9][0-9]{0,2}|device=[\w.:/=-]+(?:,[\w.:/=-]+)*)?", re.ASCII)
_LIMIT_PATTERN = re.compile(r"-1|[0-9]{1,19}")
IPC_MODES = ("", "host", "private", "shareable", "none")
#: ulimits that Docker supports (go-units), without the address space (`as`)
LIMIT_NAMES = (
    "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss", "rtprio", "rttime",
    "sigpending", "stack",
)  # fmt: skip
VOLUME_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]+")
#: options of any mount, at most one from each group
MOUNT_MODES = (("ro", "rw"), ("z", "Z"), ("cached", "consistent", "delegated"))
#: options of a mounted host folder, at most one
PROPAGATION_MODES = ("shared", "rshared", "slave", "rslave", "private", "rprivate")
#: options of a named volume
COPY_MODES = ("nocopy",)
MAX_PORT = 65535
PROTOCOLS = ("tcp", "udp", "sctp")


def check_size(text: str) -> str:
    """Return the reason why a string is not a size; an empty string is valid and means that no size is set."""
    if not text:
        return ""
    try:
        return "" if parse_size(text) <= MAX_INT64 else f"{quote_text(text)} is too large."
    except Refused as refused:
        return refused.message


def parse_size(text: str) -> int:
    """Parse a size in Docker's format, where 1k is 1024, to bytes. Raises Refused for anything else."""
    match = _SIZE_PATTERN.fullmatch(text)
    if match is None:
        raise Refused(f"{quote_text(text)} is not a size: write 64gb, 512m or 1024.")
    return int(float(match[1]) * 2 ** (10 * " kmgtp".index((match[2] or " ").lower())))


def check_port(text: str) -> str:
    without_protocol, _, protocol = text.partition("/")
    *address, host_port, container_port = (
        without_protocol.rsplit(":", 2) if without_protocol.count(":") > 1 else ("", *without_protocol.split(":"))[-2:]
    )
    if "/" in text and protocol not in PROTOCOLS:
        return f"{quote_text(text)}: the protocol must be {', '.join(PROTOCOLS)}."
    if without_protocol.count(":") == 0 or host_port in ("", "0"):
        return f"{quote_text(text)} does not set the host's port: write HOST:CONTAINER, such as 8000:8000."
    if re.fullmatch(r"[0-9]+-[0-9]+", host_port) or re.fullmatch(r"[0-9]+-[0-9]+", container_port):
        return f"{quote_text(text)} is a range: write an entry for each port, HOST:CONTAINER."
    if address and not is_ip_address(address[0]):
        message = f"{quote_text(address[0])} is not an IP address"
        return f"{quote_text(text)}: {message}: write HOST:CONTAINER or 127.0.0.1:8000:8000."
    for port in (host_port, container_port):
        if not _PORT_PATTERN.fullmatch(port) or int(port) > MAX_PORT:
            message = f"{quote_text(port)} is not a port (1 to {MAX_PORT})"
            return f"{quote_text(text)} is not a published port: {message}; write HOST:CONTAINER, such as 8000:8000."
    return ""


def find_port_conflict(ports: Sequence[str]) -> str:
    """Return the first published port that conflicts with an earlier one; empty if there is no conflict."""
    all_addresses = ("", "0.0.0.0", "::")
    earlier_ports: list[tuple[str, str, str]] = []
    for published_port in ports:
        without_protocol, _, protocol = published_port.partition("/")
        *prefix, host_port, _ = (
            without_protocol.rsplit(":", 2) if without_protocol.count(":") > 1 else ("", *without_protocol.split(":"))
        )
        address, protocol = prefix[0].strip("[]"), protocol or "tcp"
        for other_address, other_port, other_protocol in earlier_ports:
            has_overlap = address == other_address or address in all_addresses or other_address in all_addresses
            if has_overlap and (host_port, protocol) == (other_port, other_protocol):
                return published_port
        earlier_ports.append((address, host_port, protocol))
    return ""


def check_gpus(text: str) -> str:
    message = f'{quote_text(text)} is not a choice of GPUs: write "all", a number, "device=0,1", or "" for no GPU.'
    return "" if _GPUS_PATTERN.fullmatch(text) else message


def check_ipc_mode(text: str) -> str:
    """Check an IPC mode. `container:NAME` is invalid, because Docker stores the id, which would differ in every deploy."""
    message = f'{quote_text(text)} is not an IPC mode: write {", ".join(IPC_MODES[1:])}, or "" for the default.'
    return "" if text in IPC_MODES else message


def check_limit_name(name: str) -> str:
    return "" if name in LIMIT_NAMES else f"{quote_text(name)} is not one of Docker's limits: {', '.join(LIMIT_NAMES)}."


def check_ulimit(text: str) -> str:
    limits = text.split(":")
    if len(limits) > 2 or not all(_LIMIT_PATTERN.fullmatch(limit) and int(limit) <= MAX_INT64 for limit in limits):
        return f"{quote_text(text)} is not a limit: write NUMBER or SOFT:HARD; -1 is unlimited."
    soft, hard = (float("inf") if int(limit) < 0 else int(limit) for limit in (limits[0], limits[-1]))
    return "" if soft <= hard else f"{quote_text(text)}: the soft limit is above the hard limit."


def check_volume(text: str) -> str:
    parts = text.split(":")
    if len(parts) not in (2, 3):
        return f"{quote_text(text)} is not a mount: write /host:/container or /host:/container:ro."
    if reason := check_volume_source(parts[0]) or check_mount_target(parts[1]):
        return f"{quote_text(text)}: {reason}"
    unmatched_modes = parts[2].split(",") if len(parts) == 3 else []
    for group in (*MOUNT_MODES, COPY_MODES if VOLUME_NAME_PATTERN.fullmatch(parts[0]) else PROPAGATION_MODES):
        matching_modes = [mode for mode in unmatched_modes if mode in group]
        if len(matching_modes) == 1:
            unmatched_modes.remove(matching_modes[0])
    message = f"{quote_text(text)}: {quote_text(','.join(unmatched_modes))} is not a mount option: ro, rw, z, Z."
    return message if unmatched_modes else ""


def check_volume_source(text: str) -> str:
    """Check a folder on the host, or the name of a volume."""
    if ":" in text or "\0" in text:
        return f"{quote_text(text)} has a colon or NUL, which Docker can't mount."
    if text.startswith(("/", "~/")) or VOLUME_NAME_PATTERN.fullmatch(text):
        return ""
    return _describe_relative_folder(text)


def check_model_folder(text: str) -> str:
    """Check a model's folder on the host, which is neither a volume nor the root, the user's home or a folder above it."""
    if VOLUME_NAME_PATTERN.fullmatch(text):
        return _describe_relative_folder(text)
    folder = posixpath.normpath(text)
    if text.startswith(("/", "~/")) and (not folder.strip("/~") or not folder.startswith(("/", "~/"))):
        return f"{quote_text(text)} is more than a model's folder: use a folder of its own, such as ~/models/NAME."
    return check_volume_source(text)


def _describe_relative_folder(text: str) -> str:
    return f"{quote_text(text)} is not a folder on the host: it must begin with / or ~/."


def check_mount_target(text: str) -> str:
    if ":" in text or "\0" in text:
        return f"{quote_text(text)} has a colon or NUL, which Docker can't mount."
    if not text.startswith("/"):
        return f"{quote_text(text)} is not a folder in the container: it must begin with /."
    return "" if normalize_mount_point(text) != "/" else f"{quote_text(text)} is the root of the container."


def normalize_mount_point(text: str) -> str:
    """Return a mount point in its shortest form, as Docker compares mount points."""
    components: list[str] = []
    for component in PurePosixPath(text).parts[1:]:
        components = components[:-1] if component == ".." else [*components, component]
    return "/" + "/".join(components)


def is_below(folder: str, outer: str) -> bool:
    """Return True if a folder on the host is below another one. `~` is below `/`."""
    inner, outer = posixpath.normpath(folder), posixpath.normpath(outer)
    return inner != "/" if outer == "/" else inner.startswith(f"{outer}/")


def check_variable(name: str, value: str) -> str:
    if name and "=" not in name and "\0" not in name + value:
        return ""
    return f"{quote_text(name)} can't be an environment variable: its name is empty or has =, or its name or value has NUL."


def check_label_name(name: str) -> str:
    if not name:
        return "a label needs a name."
    return (
        f"{quote_text(name)} is not a label's name: spaces and = are not allowed."
        if re.search(r"[\s=\0]", name)
        else ""
    )


def is_ip_address(text: str) -> bool:
    bare_address = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        return "%" not in bare_address and bool(ipaddress.ip_address(bare_address))
    except ValueError:
        return False


# -- conversion to the Docker API's format, and normal forms for comparison ------------------------------------------------


def device_requests(gpus: str) -> list[dict[str, Any]]:
    """Convert "all", a number of GPUs or "device=0,1" to device requests; "" means no GPU."""
    if not gpus:
        return []
    ids = sorted(gpus[7:].split(",")) if gpus.startswith("device=") else None
    count = 0 if ids else -1 if gpus == "all" else int(gpus)
    return [{"Driver": "", "Count": count, "DeviceIDs": ids, "Capabilities": [["gpu"]], "Options": {}}]


def normalize_device_requests(rows: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    return [
        {**row, "Driver": "", "Options": {}, "DeviceIDs": sorted(row.get("DeviceIDs") or ()) or None}
        for row in rows or ()
    ]


def port_bindings(ports: Iterable[str]) -> dict[str, list[dict[str, str]]]:
    """Convert ports such as "127.0.0.1:8000:8000/tcp" to the API's format."""
    bindings: dict[str, list[dict[str, str]]] = {}
    for port in ports:
        *address, host_port, container_port = port.rsplit(":", 2) if port.count(":") > 1 else ["", *port.split(":")]
        key = container_port if "/" in container_port else f"{container_port}/tcp"
        binding = {"HostIp": address[0].strip("[]") if address else "", "HostPort": host_port}
        bindings.setdefault(key, []).append(binding)
    return bindings


def normalize_port_bindings(bindings: Mapping[str, Any] | None) -> dict[str, list[dict[str, str]]]:
    normalized = {}
    for container_port, rows in (bindings or {}).items():
        pairs = sorted((row.get("HostIp") or "", row["HostPort"]) for row in rows or [])
        normalized[container_port] = [{"HostIp": address, "HostPort": host_port} for address, host_port in pairs]
    return normalized


def normalize_binds(binds: list[str] | None) -> list[str]:
    """Remove trailing slashes and the default mode `rw` from mounts, and sort them."""
    normalized = []
    for bind in binds or ():
        parts = bind.split(":")
        folders = [part.rstrip("/") or "/" for part in parts[:2]]
        modes = sorted(mode for mode in ",".join(parts[2:]).split(",") if mode not in ("", "rw"))
        normalized.append(":".join([*folders, *([",".join(modes)] if modes else [])]))
    return sorted(normalized)


def ulimit_rows(limits: Mapping[str, str]) -> list[dict[str, Any]]:
    """Convert limits such as {"memlock": "-1", "nofile": "1024:65536"} to the API's format."""
    limit_parts = ((name, *text.partition(":")) for name, text in sorted(limits.items()))
    return [{"Name": name, "Soft": int(soft), "Hard": int(hard or soft)} for name, soft, _, hard in limit_parts]


def normalize_ulimits(rows: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    return sorted(rows or (), key=lambda row: str(row["Name"]))
