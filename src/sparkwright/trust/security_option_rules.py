"""Validates and normalizes a recipe's security options, in Docker's spelling."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from sparkwright.visible import quote_text

#: capabilities of the kernel, without the prefix CAP_
CAPABILITIES = (
    "AUDIT_CONTROL", "AUDIT_READ", "AUDIT_WRITE", "BLOCK_SUSPEND", "BPF", "CHECKPOINT_RESTORE", "CHOWN", "DAC_OVERRIDE",
    "DAC_READ_SEARCH", "FOWNER", "FSETID", "IPC_LOCK", "IPC_OWNER", "KILL", "LEASE", "LINUX_IMMUTABLE", "MAC_ADMIN",
    "MAC_OVERRIDE", "MKNOD", "NET_ADMIN", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_RAW", "PERFMON", "SETFCAP",
    "SETGID", "SETPCAP", "SETUID", "SYS_ADMIN", "SYS_BOOT", "SYS_CHROOT", "SYS_MODULE", "SYS_NICE", "SYS_PACCT",
    "SYS_PTRACE", "SYS_RAWIO", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "SYSLOG", "WAKE_ALARM",
)  # fmt: skip
ALL_CAPABILITIES = "ALL"
_ACCOUNT_PATTERN = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
_USER_PATTERN = re.compile(rf"{_ACCOUNT_PATTERN}(:{_ACCOUNT_PATTERN})?")
_GROUP_PATTERN = re.compile(_ACCOUNT_PATTERN)
#: kernel settings of a container (Docker's list); settings of a single interface belong to its network
_IPC_SYSCTL_PATTERN = re.compile(
    r"kernel\.(msgmax|msgmnb|msgmni|sem|shmall|shmmax|shmmni|shm_rmid_forced)|fs\.mqueue\.[\w.-]+"
)
_NETWORK_SYSCTL_PATTERN = re.compile(r"net\.[\w./-]+")
_INTERFACE_SYSCTL_PATTERN = re.compile(r"net\.(ipv4|ipv6|mpls)\.(conf|neigh)\.(?!all\.|default\.)")


def check_capability(text: str) -> str:
    is_valid = capability_name(text) in (ALL_CAPABILITIES, *CAPABILITIES)
    return "" if is_valid else f"{quote_text(text)} is not a capability, such as SYS_PTRACE or ALL."


def capability_name(text: str) -> str:
    return text.upper().removeprefix("CAP_")


def normalize_capabilities(names: Iterable[str] | None) -> list[str]:
    return sorted(set(map(capability_name, names or ())))


def docker_capabilities(names: Iterable[str]) -> list[str]:
    """Return capabilities in the format of Docker's client."""
    return [
        capability if capability == ALL_CAPABILITIES else f"CAP_{capability}"
        for capability in normalize_capabilities(names)
    ]


def check_security_opt(text: str) -> str:
    name, value = _split_option(text)
    if name == "seccomp" and value not in ("unconfined", "builtin"):
        return f"{quote_text(text)}: a profile file is not supported: write seccomp=unconfined."
    is_valid_value = {
        "no-new-privileges": value in ("true", "false"),
        "seccomp": True,
        "apparmor": bool(value),
        "label": value == "disable" or re.fullmatch(r"(user|role|type|level|filetype):\S+", value) is not None,
    }
    if is_valid_value.get(name, False):
        return ""
    examples = "no-new-privileges, seccomp=unconfined, apparmor=PROFILE, label=disable"
    return f"{quote_text(text)} is not a security option: {examples}."


def normalize_security_opts(texts: Iterable[str] | None) -> list[str]:
    """Return security options as NAME=VALUE, sorted and without defaults."""
    normalized = {"=".join(_split_option(text)) for text in texts or ()}
    return sorted(normalized - {"no-new-privileges=false", "seccomp=builtin"})


def _split_option(text: str) -> tuple[str, str]:
    """Split NAME=VALUE, or Docker's old form NAME:VALUE."""
    name, _, value = text.partition("=") if "=" in text else text.partition(":")
    return name, value if value or name != "no-new-privileges" else "true"


def check_device(text: str) -> str:
    parts = text.split(":")
    message = f"{quote_text(text)} is not a device: write /dev/NAME, /dev/NAME:/dev/NAME or /dev/NAME:/dev/NAME:rwm."
    if len(parts) > 3 or not parts[0].startswith("/") or "\0" in text:
        return message
    if len(parts) == 3 and not _is_device_access(parts[2]):
        return f"{quote_text(text)}: the permissions of a device are r, w and m, each at most once."
    return (
        ""
        if len(parts) == 1 or parts[1].startswith("/") or (len(parts) == 2 and _is_device_access(parts[1]))
        else message
    )


def _is_device_access(text: str) -> bool:
    """Return True if a string is a device's permissions: r (read), w (write) and m (mknod), each at most once."""
    return 0 < len(text) <= len({*text} & {*"rwm"})


def device_mapping(text: str) -> dict[str, str]:
    """Convert HOST[:CONTAINER][:ACCESS] to the Docker API's format."""
    host_path, *remaining_parts = text.split(":")
    access = remaining_parts.pop() if remaining_parts and not remaining_parts[-1].startswith("/") else "rwm"
    return {
        "PathOnHost": host_path,
        "PathInContainer": remaining_parts[0] if remaining_parts else host_path,
        "CgroupPermissions": access,
    }


def device_mappings(texts: Iterable[str]) -> list[dict[str, str]]:
    return [device_mapping(text) for text in texts]


def normalize_devices(rows: Iterable[Mapping[str, Any]] | None) -> list[str]:
    """Return devices as HOST:CONTAINER:ACCESS, sorted."""
    normalized = []
    for row in rows or ():
        access = "".join(char for char in "rwm" if char in str(row.get("CgroupPermissions") or "rwm"))
        normalized.append(f"{row.get('PathOnHost')}:{row.get('PathInContainer')}:{access}")
    return sorted(normalized)


def check_user(text: str) -> str:
    message = f"{quote_text(text)} is not a user: write NAME, UID, NAME:GROUP or UID:GID."
    return "" if not text or _USER_PATTERN.fullmatch(text) else message


def check_group(text: str) -> str:
    return "" if _GROUP_PATTERN.fullmatch(text) else f"{quote_text(text)} is not a group: write its name or its number."


def check_sysctls(settings: Mapping[str, str]) -> str:
    for name, value in settings.items():
        if _INTERFACE_SYSCTL_PATTERN.match(name):
            return f"{quote_text(name)} is a setting of one interface: use net.*.all or net.*.default."
        if not _NETWORK_SYSCTL_PATTERN.fullmatch(name) and not _IPC_SYSCTL_PATTERN.fullmatch(name):
            return (
                f"{quote_text(name)} can't be set for a container: use net.*, fs.mqueue.*, kernel.shm* or kernel.msg*."
            )
        if not value or "\0" in value or "\n" in value:
            return f"{quote_text(name)} needs a value."
    return ""


def is_network_sysctl(sysctl: str) -> bool:
    """Return True for a kernel setting of the network, False for one of shared memory or message queues."""
    return _NETWORK_SYSCTL_PATTERN.fullmatch(sysctl) is not None


# -- options that disable confinement --------------------------------------------------------------


def unconfined_options(options: Iterable[str]) -> list[str]:
    return [option for option in options if _split_option(option)[1] in ("unconfined", "disable")]
