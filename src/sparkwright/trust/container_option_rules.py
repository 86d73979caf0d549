"""Validation of a recipe's container options, in Docker's spelling, before they reach an engine.

Each check is named after the kind of value, and returns the reason why a text is invalid; empty if it is valid. Everything that
Docker refuses is refused here, before the running server is touched. A few spellings that Docker accepts are refused too, because
they would leave a port to chance or be read back differently; tests/project/docker_words.py lists them all.
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

#: a size as parsed by Docker (go-units RAMInBytes): 64gb, 512m, 1.5GiB, 1024
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{0,9})?|\.[0-9]{1,9}) ?(?:([kmgtp])(?:i?b)?|b)?", re.I)
MAX_INT64 = 2**63 - 1
_NUMBER = re.compile(r"[1-9][0-9]{0,4}")
_GPUS = re.compile(r"(?:all|[1-9][0-9]{0,2}|device=[\w.:/=-]+(?:,[\w.:/=-]+)*)?", re.ASCII)
_LIMIT = re.compile(r"-1|[0-9]{1,19}")
IPC_MODES = ("", "host", "private", "shareable", "none")
#: limits that an engine supports (go-units), which do not include the address space (`as`)
LIMIT_NAMES = (
    "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss", "rtprio", "rttime",
    "sigpending", "stack",
)  # fmt: skip
VOLUME_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]+")
#: options of a mount, at most one per row; the last two rows are only for the host's folders and for named volumes
MOUNT_MODES = (("ro", "rw"), ("z", "Z"), ("cached", "consistent", "delegated"))
PROPAGATION_MODES = ("shared", "rshared", "slave", "rslave", "private", "rprivate")
COPY_MODES = ("nocopy",)
MAX_PORT = 65535
PROTOCOLS = ("tcp", "udp", "sctp")


def check_size(text: str) -> str:
    """Return the reason why a text is not a size; an empty text is valid and means none."""
    if not text:
        return ""
    try:
        return "" if parse_size(text) <= MAX_INT64 else f"{quote_text(text)} is more than any machine has."
    except Refused as refused:
        return refused.message


def parse_size(text: str) -> int:
    """Parse a size in Docker's spelling, with binary units, to bytes. Raises Refused for anything else."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise Refused(f"{quote_text(text)} is not a size: write 64gb, 512m or 1024.")
    return int(float(match[1]) * 2 ** (10 * " kmgtp".index((match[2] or " ").lower())))


def check_port(text: str) -> str:
    plain, _, protocol = text.partition("/")
    *address, host_port, container_port = plain.rsplit(":", 2) if plain.count(":") > 1 else ("", *plain.split(":"))[-2:]
    if "/" in text and protocol not in PROTOCOLS:
        return f"{quote_text(text)}: the protocol must be {', '.join(PROTOCOLS)}."
    if plain.count(":") == 0 or host_port in ("", "0"):
        return f"{quote_text(text)} leaves the host's port to chance: write HOST:CONTAINER, as 8000:8000."
    if re.fullmatch(r"[0-9]+-[0-9]+", host_port) or re.fullmatch(r"[0-9]+-[0-9]+", container_port):
        return f"{quote_text(text)} is a range: write an entry for each port, HOST:CONTAINER."
    if address and not is_ip_address(address[0]):
        message = f"{quote_text(address[0])} is not an IP address"
        return f"{quote_text(text)}: {message}: write HOST:CONTAINER or 127.0.0.1:8000:8000."
    for number in (host_port, container_port):
        if not _NUMBER.fullmatch(number) or int(number) > MAX_PORT:
            message = f"{quote_text(number)} is not a port (1 to {MAX_PORT})"
            return f"{quote_text(text)} is not a published port: {message}; write HOST:CONTAINER, as 8000:8000."
    return ""


def find_port_conflict(ports: Sequence[str]) -> str:
    """Return the first published port that conflicts with an earlier one; empty if there is none."""
    seen: list[tuple[str, str, str]] = []
    for item in ports:
        plain, _, protocol = item.partition("/")
        *address, host_port, _ = plain.rsplit(":", 2) if plain.count(":") > 1 else ("", *plain.split(":"))
        binding = (address[0].strip("[]"), host_port, protocol or "tcp")
        any_address = ("", "0.0.0.0", "::")
        if any(
            binding[1:] == was[1:] and (binding[0] == was[0] or binding[0] in any_address or was[0] in any_address)
            for was in seen
        ):
            return item
        seen.append(binding)
    return ""


def check_gpus(text: str) -> str:
    message = f'{quote_text(text)} names no GPUs: write "all", a number, "device=0,1", or "" for none.'
    return "" if _GPUS.fullmatch(text) else message


def check_ipc_mode(text: str) -> str:
    """Return the reason why a text is not a valid IPC mode; empty if it is valid.

    `container:NAME` is invalid, because Docker stores the id, which would differ in every deploy.
    """
    message = f'{quote_text(text)} is not an IPC mode: write {", ".join(IPC_MODES[1:])}, or "" for the default.'
    return "" if text in IPC_MODES else message


def check_limit_name(name: str) -> str:
    return (
        "" if name in LIMIT_NAMES else f"{quote_text(name)} is not a limit that docker knows: {', '.join(LIMIT_NAMES)}."
    )


def check_ulimit(text: str) -> str:
    parts = text.split(":")
    if len(parts) > 2 or not all(_LIMIT.fullmatch(part) and int(part) <= MAX_INT64 for part in parts):
        return f"{quote_text(text)} is not a limit: write NUMBER or SOFT:HARD; -1 is unlimited."
    soft, hard = (float("inf") if int(part) < 0 else int(part) for part in (parts[0], parts[-1]))
    return "" if soft <= hard else f"{quote_text(text)}: the soft limit is above the hard one."


def check_volume(text: str) -> str:
    parts = text.split(":")
    if len(parts) not in (2, 3):
        return f"{quote_text(text)} is not a mount: write /host:/container or /host:/container:ro."
    if reason := check_volume_source(parts[0]) or check_mount_target(parts[1]):
        return f"{quote_text(text)}: {reason}"
    is_name = VOLUME_NAME.fullmatch(parts[0]) is not None
    rows = (*MOUNT_MODES, COPY_MODES if is_name else PROPAGATION_MODES)
    unknown = parts[2].split(",") if len(parts) == 3 else []
    for row in rows:
        matching = [mode for mode in unknown if mode in row]
        unknown = [mode for mode in unknown if mode not in matching[:1]] if len(matching) == 1 else unknown
    return (
        f"{quote_text(text)}: {quote_text(','.join(unknown))} is not a mount's option: ro, rw, z, Z." if unknown else ""
    )


def check_volume_source(text: str) -> str:
    """Return the reason why a text is neither a folder of the host nor a volume's name; empty if it is one."""
    if ":" in text:
        return f"{quote_text(text)} has a colon, which docker can't mount."
    if text.startswith(("/", "~/")) or VOLUME_NAME.fullmatch(text):
        return "" if "\0" not in text else "a path can't hold a NUL."
    return f"{quote_text(text)} is not a folder of the host: begin with / or ~/."


def check_mount_target(text: str) -> str:
    """Return the reason why a text is not a valid mount point; empty if it is valid."""
    if ":" in text or "\0" in text:
        return f"{quote_text(text)} has a colon, which docker can't mount."
    if not text.startswith("/"):
        return f"{quote_text(text)} is not a folder of the container: begin with /."
    return "" if normalize_mount_point(text) != "/" else f"{quote_text(text)} is the whole container."


def normalize_mount_point(text: str) -> str:
    """Return a mount point in its shortest form, in which Docker compares them."""
    steps: list[str] = []
    for step in PurePosixPath(text).parts[1:]:
        steps = steps[:-1] if step == ".." else [*steps, step]
    return "/" + "/".join(steps)


def is_below(folder: str, outer: str) -> bool:
    """Return True if a folder of the host is below another, by their names. The home folder is below the root folder."""
    inside, above = posixpath.normpath(folder), posixpath.normpath(outer)
    if above == "/":
        return inside != "/"
    return inside.startswith(f"{above}/")


def check_variable(name: str, value: str) -> str:
    """Return the reason why an environment variable is impossible; empty if it is possible."""
    if name and "=" not in name and "\0" not in name + value:
        return ""
    return f"{quote_text(name)} can't be an environment variable: a name is not empty and has no =, and neither part has a NUL."


def check_label_name(name: str) -> str:
    if not name:
        return "a label needs a name."
    return f"{quote_text(name)} is not a label's name: no spaces and no =." if re.search(r"[\s=\0]", name) else ""


def is_ip_address(text: str) -> bool:
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        return "%" not in bare and bool(ipaddress.ip_address(bare))
    except ValueError:
        return False


# -- how the engine spells these values: in a request, and in one normal form that two of them are compared in ----------


def device_requests(gpus: str) -> list[dict[str, Any]]:
    """Convert "all" or "device=0,1" to the engine's device requests; "" means none."""
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
    """Convert ports such as "127.0.0.1:8000:8000/tcp" to the engine's format."""
    bindings: dict[str, list[dict[str, str]]] = {}
    for port in ports:
        *address, host, inside = port.rsplit(":", 2) if port.count(":") > 1 else ["", *port.split(":")]
        key = inside if "/" in inside else f"{inside}/tcp"
        bindings.setdefault(key, []).append({"HostIp": address[0].strip("[]") if address else "", "HostPort": host})
    return bindings


def normalize_port_bindings(bindings: Mapping[str, Any] | None) -> dict[str, list[dict[str, str]]]:
    rows = {
        k: [{"HostIp": b.get("HostIp") or "", "HostPort": b["HostPort"]} for b in v or []]
        for k, v in (bindings or {}).items()
    }
    return {k: sorted(v, key=lambda b: (b["HostIp"], b["HostPort"])) for k, v in rows.items()}


def normalize_binds(binds: list[str] | None) -> list[str]:
    """Normalize mounts: without a trailing slash, and without `rw`, which is the default."""
    normalized = []
    for bind in binds or ():
        parts = bind.split(":")
        folders = [part.rstrip("/") or "/" for part in parts[:2]]
        modes = sorted(mode for mode in ",".join(parts[2:]).split(",") if mode not in ("", "rw"))
        normalized.append(":".join([*folders, *([",".join(modes)] if modes else [])]))
    return sorted(normalized)


def ulimit_rows(limits: Mapping[str, str]) -> list[dict[str, Any]]:
    """Convert limits such as "memlock": "-1" or "soft:hard" to the engine's format."""
    bounds = ((name, *text.partition(":")) for name, text in sorted(limits.items()))
    return [{"Name": name, "Soft": int(soft), "Hard": int(hard or soft)} for name, soft, _, hard in bounds]


def normalize_ulimits(rows: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    return sorted(rows or (), key=lambda row: str(row["Name"]))
