"""Validates a model's id and revision, and the names, sizes and hashes of its files, from a lock, hub or folder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from sparkwright.errors import Failed
from sparkwright.trust.names import COMMIT, check_file_name
from sparkwright.visible import one_line

#: a model's id on the hub: OWNER/NAME, or only NAME for the oldest models
_MODEL_ID_PATTERN = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9._-]{0,95}/)?[A-Za-z0-9_][A-Za-z0-9._-]{0,95}")
#: substrings that git refuses in the names of branches and tags (git-check-ref-format)
_INVALID_REF_PATTERN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|//|@\{|^[-/.]|[/.]$")
MAX_REVISION_CHARS = 255
SHA256 = re.compile(r"[0-9a-f]{64}")

#: limits far above the largest known repository (2,000 files, 2 TB)
MAX_FILES, MAX_FILE_BYTES = 20_000, 2**60
#: maximum length of a file name: Hugging Face's client appends .metadata, and Linux allows 255 bytes
MAX_COMPONENT_BYTES = 255 - len(".metadata")
#: folders that sparkwright and Hugging Face's client create in a model's folder
RESERVED_FOLDERS = (".before", ".cache/huggingface", ".cache/sparkwright")
#: subfolder of a host's state folder with the files of recipes, named by the SHA-256 of their content
RECIPE_FILES_FOLDER = "recipe_files"
#: paths of the kernel, Docker, the loader and logins; a file mounted there would change more than a server's settings
SYSTEM_PATHS = (
    "/dev", "/proc", "/sys", "/boot", "/bin", "/sbin", "/lib", "/lib64", "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib64",
    "/run", "/var/run", "/root/.ssh", "/etc/passwd", "/etc/shadow", "/etc/group", "/etc/gshadow", "/etc/sudoers",
    "/etc/sudoers.d", "/etc/ld.so.preload", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.cache", "/etc/pam.d",
    "/etc/hosts", "/etc/hostname", "/etc/resolv.conf",
)  # fmt: skip
_CONTAINER_PATH_PATTERN = re.compile(r"(?:/[A-Za-z0-9._@+~-]{1,200}){1,20}")


def check_model_id(text: str) -> str:
    """Return the reason why a string is not a model's id on a hub; empty if it is valid."""
    if ".." in text or "--" in text or not _MODEL_ID_PATTERN.fullmatch(text):
        return "is not a model's name on the hub, OWNER/NAME: letters, digits, `.`, `_` and `-`"
    return ""


def check_revision(text: str) -> str:
    """Return the reason why a string is not a branch, tag or commit; empty if it is valid."""
    if not text or len(text) > MAX_REVISION_CHARS or text != one_line(text) or _INVALID_REF_PATTERN.search(text):
        return "is not a valid git branch, tag or commit"
    return ""


def check_model_file(name: str) -> str:
    """Return the reason why a model's file can't have this name; empty if the name is valid."""
    reason = check_file_name(name)
    if reason:
        return reason
    if any(name == folder or name.startswith(f"{folder}/") for folder in RESERVED_FOLDERS):
        return "is in a folder reserved for sparkwright and the hub's client"
    return "is too long" if any(len(part.encode()) > MAX_COMPONENT_BYTES for part in name.split("/")) else ""


def check_file_set(names: Iterable[str]) -> str:
    """Return the reason why a folder can't contain these files; empty if it can.

    The reason follows "has": too many files, a duplicate, or a name that is also used as a folder.
    """
    sorted_names = sorted(names, key=lambda name: name.replace("/", "\0"))
    if len(sorted_names) > MAX_FILES:
        return f"{len(sorted_names)} files; at most {MAX_FILES} are read"
    for name, next_name in pairwise(sorted_names):
        if name == next_name:
            return f"the file '{_quote_value(name)}' twice"
        if next_name.startswith(f"{name}/"):
            return f"'{_quote_value(name)}' as a file and as a folder"
    return ""


def check_file_row(row: Mapping[str, Any]) -> str:
    """Return the invalid or missing field of a row (path, size_bytes, and sha256 or blob_id); empty if the row is valid."""
    size, sha256, blob_id = (row.get(key) for key in ("size_bytes", "sha256", "blob_id"))
    if type(size) is not int or not 0 <= size <= MAX_FILE_BYTES:
        return f"a size of {_quote_value(size)} bytes"
    if sha256 is None and blob_id is None:
        return "no hash"
    if sha256 is not None and not _matches(SHA256, sha256):
        return f"the sha256 {_quote_value(sha256)}"
    return f"the git id {_quote_value(blob_id)}" if blob_id is not None and not _matches(COMMIT, blob_id) else ""


def check_files(rows: Sequence[Any], source: str, *, fix: str = "") -> list[dict[str, Any]]:
    """Return the rows of a model's files. Raises Failed for the first invalid one. source: their origin, for the message."""
    for row in rows:
        name = row.get("path") if isinstance(row, Mapping) else None
        reason = check_model_file(name) if isinstance(name, str) else "is not text"
        if reason:
            raise Failed(f"{source} has a file '{_quote_value(name)}' that {reason}.", fix=fix)
        reason = check_file_row(row)
        if reason:
            raise Failed(f"{source} has the file '{_quote_value(name)}' with {reason}.", fix=fix)
    reason = check_file_set(row["path"] for row in rows)
    if reason:
        raise Failed(f"{source} has {reason}.", fix=fix)
    return list(rows)


def _matches(pattern: re.Pattern[str], text: object) -> bool:
    return isinstance(text, str) and pattern.fullmatch(text) is not None


def _quote_value(value: object) -> str:
    is_huge = isinstance(value, int) and abs(value) >= 10**40
    return "more than 10**40" if is_huge else one_line(str(value), max_chars=80)


def check_container_path(path: str) -> str:
    """Return the reason why a file can't be mounted at a path, beginning with "must"; empty if it can."""
    if not _CONTAINER_PATH_PATTERN.fullmatch(path):
        return "must be a path in the container, such as /etc/engine/options.yml, of letters, digits and . _ - @ + ~"
    if {"..", "."} & {*path.split("/")}:
        return "must not contain `.` or `..`"
    system_path = next((outer for outer in SYSTEM_PATHS if path == outer or path.startswith(f"{outer}/")), "")
    return f"must not be in {system_path}, which belongs to the system" if system_path else ""
