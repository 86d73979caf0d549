"""Patterns for names that become part of a path or command, and paths that stay inside their folder."""

from __future__ import annotations

import os
import re
from pathlib import Path

from sparkwright.errors import Failed
from sparkwright.visible import one_line

#: a path component that sparkwright chooses, for a run, incident or runtime
PATH_COMPONENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
#: a processor as printed by uname
MACHINE = re.compile(r"[a-z0-9_]{1,32}")
PYTHON_VERSION = re.compile(r"3\.[0-9]{1,3}")
#: an absolute path as in sys.executable
PYTHON_PATH = re.compile(r"(?:/[\w.+@~ -]{1,128}){1,24}")
#: a program's version as it prints it: "0.32.0", "0.11.0rc2+cu130"
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,63}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
#: a git commit, which Hugging Face calls a revision
COMMIT = re.compile(r"[0-9a-f]{40}")

#: URL at which a host serves a model to peers, with its IPv4 address and a port
PEER_URL = re.compile(r"http://[0-9]{1,3}(?:\.[0-9]{1,3}){3}:[0-9]{1,5}")
#: platform of an image, such as linux/arm64
PLATFORM = re.compile(r"[a-z0-9]{1,32}/[a-z0-9_]{1,32}")

#: limits on a path component and a path; Linux allows 255 and 4096 bytes (limits.h), including the folder before it
MAX_COMPONENT_BYTES, MAX_PATH_BYTES = 255, 1024


def require_match(pattern: re.Pattern[str], text: object, what: str) -> str:
    """Return a text that matches the whole pattern. Raises Failed, naming WHAT and showing the text."""
    if isinstance(text, str) and pattern.fullmatch(text):
        return text
    raise Failed(f"{what} is not valid: '{one_line(str(text), max_chars=80)}'.")


def expand_home(path: str) -> Path:
    """Return a path with `~` and `~user` expanded; unchanged if there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def check_file_name(name: str) -> str:
    """Return the reason why a text is not a file's name inside a folder, as listed by a model repository; empty if it is.

    Odd names with spaces, commas, brackets or letters of any script are valid. Names that leave the folder or can't be shown
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
    if len(name.encode()) > MAX_PATH_BYTES or any(len(step.encode()) > MAX_COMPONENT_BYTES for step in components):
        return "is too long"
    return ""


def resolve_inside(folder: Path, name: str) -> Path:
    """Return FOLDER/NAME. Raises Failed if a symbolic link leads out of the folder."""
    path = folder / name
    if is_outside(folder, path):
        raise Failed(f"{one_line(str(path), max_chars=200)} leads out of {folder}.")
    return path


def resolve_entry(folder: Path, name: str) -> Path:
    """Return FOLDER/NAME, for renaming a file to it or removing it.

    The parent is inside the folder, and a link with this name is not followed. Raises Failed if a symbolic link leads out of
    the folder.
    """
    path = folder / name
    if is_outside(folder, path.parent):
        fix = "Remove that link, or choose another folder."
        raise Failed(f"{one_line(str(path.parent), max_chars=200)} is a link that leads out of {folder}.", fix=fix)
    return path


def is_outside(folder: Path, path: Path) -> bool:
    """Return True if a path, after following symbolic links, is outside a folder, which may itself be a link."""
    root = os.path.realpath(folder)
    return os.path.commonpath([root, os.path.realpath(path)]) != root
