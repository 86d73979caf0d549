"""Patterns for names that become part of a path or command, and functions that keep paths inside a folder."""

from __future__ import annotations

import os
import re
from pathlib import Path

from sparkwright.errors import Failed
from sparkwright.visible import one_line

#: a path component chosen by sparkwright, for a run, incident or runtime
PATH_COMPONENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
#: a processor architecture as printed by uname
MACHINE = re.compile(r"[a-z0-9_]{1,32}")
PYTHON_VERSION = re.compile(r"3\.[0-9]{1,3}")
#: an absolute path as in sys.executable
PYTHON_PATH = re.compile(r"(?:/[\w.+@~ -]{1,128}){1,24}")
#: a program's version: "0.32.0", "0.11.0rc2+cu130"
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,63}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
#: a git commit id, full length
COMMIT = re.compile(r"[0-9a-f]{40}")

#: URL from which peers download a host's model, with an IPv4 address and a port
PEER_URL = re.compile(r"http://[0-9]{1,3}(?:\.[0-9]{1,3}){3}:[0-9]{1,5}")
#: platform of an image, such as linux/arm64
PLATFORM = re.compile(r"[a-z0-9]{1,32}/[a-z0-9_]{1,32}")

#: limits on a path component and on a path below a folder; Linux allows 255 and, for the whole path, 4096 bytes (limits.h)
MAX_COMPONENT_BYTES, MAX_PATH_BYTES = 255, 1024


def require_match(pattern: re.Pattern[str], text: object, subject: str) -> str:
    """Return a string if it matches the whole pattern. Raises Failed otherwise. subject: begins the error message."""
    if isinstance(text, str) and pattern.fullmatch(text):
        return text
    raise Failed(f"{subject} is not valid: '{one_line(str(text), max_chars=80)}'.")


def expand_home(path: str) -> Path:
    """Return a path with `~` and `~user` expanded; unchanged if there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def check_file_name(name: str) -> str:
    """Return the reason why a string is not a relative file name as listed by a model repository; empty if it is valid.

    Names with spaces, commas, brackets or letters of any script are valid. Names that leave the folder or have control characters
    are not.
    """
    if not name:
        return "is empty"
    if name != one_line(name):
        return "has a control character"
    if "\\" in name:
        return "has a backslash"
    components = name.split("/")
    if name.startswith("/") or ".." in components:
        return "leaves its folder"
    if "" in components or "." in components:
        return "is not in its shortest form"
    if len(name.encode()) > MAX_PATH_BYTES or any(len(part.encode()) > MAX_COMPONENT_BYTES for part in components):
        return "is too long"
    return ""


def resolve_inside(folder: Path, name: str) -> Path:
    """Return FOLDER/NAME. Raises Failed if a symbolic link leads out of the folder."""
    path = folder / name
    if is_outside(folder, path):
        raise Failed(f"{one_line(str(path), max_chars=200)} leads out of {folder}.")
    return path


def resolve_entry(folder: Path, name: str) -> Path:
    """Return FOLDER/NAME as the target of a rename or removal. If NAME itself is a link, it is not followed.

    Raises Failed if a symbolic link leads its parent out of the folder.
    """
    path = folder / name
    if is_outside(folder, path.parent):
        fix = "Remove the link, or choose another folder."
        raise Failed(f"{one_line(str(path.parent), max_chars=200)} is a link that leads out of {folder}.", fix=fix)
    return path


def is_outside(folder: Path, path: Path) -> bool:
    """Return True if a path, after following symbolic links, is outside a folder, which may itself be a link."""
    root = os.path.realpath(folder)
    return os.path.commonpath([root, os.path.realpath(path)]) != root
