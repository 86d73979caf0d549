"""Names that become a path or a command: each kind has a pattern, and a path made of one stays inside its folder."""

from __future__ import annotations

import os
import re
from pathlib import Path

from sparkwright.errors import Failed
from sparkwright.visible import one_line

#: one step of a path that sparkwright chooses: a run, an incident, a runtime
STEP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
#: as uname prints it
MACHINE = re.compile(r"[a-z0-9_]{1,32}")
PYTHON_VERSION = re.compile(r"3\.[0-9]{1,3}")
#: an absolute path as sys.executable has it
PYTHON_PATH = re.compile(r"(?:/[\w.+@~ -]{1,128}){1,24}")
#: version of a program, as it prints it: "0.32.0", "0.11.0rc2+cu130"
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,63}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
#: a git commit, as Hugging Face names a revision
COMMIT = re.compile(r"[0-9a-f]{40}")

#: the address at which a host serves a model to peers: its IPv4 address and a port
PEER_URL = re.compile(r"http://[0-9]{1,3}(?:\.[0-9]{1,3}){3}:[0-9]{1,5}")
#: the platform of an image, as linux/arm64
PLATFORM = re.compile(r"[a-z0-9]{1,32}/[a-z0-9_]{1,32}")

#: Linux allows 255 bytes a step and 4096 a path (limits.h); the folder before it needs room too
STEP_BYTES, PATH_BYTES = 255, 1024


def matched(pattern: re.Pattern[str], text: object, what: str) -> str:
    """Return a text that matches the whole pattern. Raises Failed that names WHAT and shows the text."""
    if isinstance(text, str) and pattern.fullmatch(text):
        return text
    raise Failed(f"{what} is not valid: '{one_line(str(text), at_most=80)}'.")


def below_home(written: str) -> Path:
    """Return a path with `~` and `~user` expanded; unchanged if there is no such user."""
    try:
        return Path(written).expanduser()
    except RuntimeError:
        return Path(written)


def why_not_a_file(name: str) -> str:
    """Return why this is not the name of a file inside a folder, as a model repository lists it; empty if it is.

    Odd names are legal: spaces, commas, brackets, letters of any script. A name that leaves the folder or can't be shown is not.
    """
    if not name:
        return "is empty"
    if name != one_line(name):
        return "has a control character"
    if "\\" in name:
        return "has a backslash"
    steps = name.split("/")
    if name.startswith("/") or ".." in steps:
        return "leaves its folder"
    if "" in steps or "." in steps:
        return "is not in its shortest form"
    if len(name.encode()) > PATH_BYTES or any(len(step.encode()) > STEP_BYTES for step in steps):
        return "is too long"
    return ""


def inside(folder: Path, name: str) -> Path:
    """Return FOLDER/NAME. Raises Failed if a symbolic link leads out of the folder."""
    path = folder / name
    if leads_out(folder, path):
        raise Failed(f"{one_line(str(path), at_most=200)} leads out of {folder}.")
    return path


def place(folder: Path, name: str) -> Path:
    """Return FOLDER/NAME, to rename onto or to remove: its parent is inside the folder, and a link with its name is not followed.

    Raises Failed if a symbolic link leads out of the folder.
    """
    path = folder / name
    if leads_out(folder, path.parent):
        fix = "Remove that link, or choose another folder."
        raise Failed(f"{one_line(str(path.parent), at_most=200)} is a link that leads out of {folder}.", fix=fix)
    return path


def leads_out(folder: Path, path: Path) -> bool:
    """Return True if a path, with its symbolic links followed, is outside a folder, which may be a link itself."""
    root = os.path.realpath(folder)
    return os.path.commonpath([root, os.path.realpath(path)]) != root
