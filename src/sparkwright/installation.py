"""Detect how this program was installed, and build the command that adds an optional package to the same environment.

The command names sparkwright itself only by the file, folder or repository that it was installed from, because a package index
might have an unrelated package of this name.
"""

from __future__ import annotations

import json
import sys
from enum import Enum
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from sparkwright import shell

PACKAGE_NAME = "sparkwright"
#: packages of each extra, as in pyproject.toml; a test compares the two
EXTRAS = {"mcp": ("mcp>=2.3,<3",)}


class Installer(Enum):
    """The installer that created the environment. Comments name the file or folder by which it is recognized."""

    UV_TOOL = "uv tool"  # uv-receipt.toml
    PIPX = "pipx"  # pipx_metadata.json
    UVX = "uvx"  # a temporary environment in uv's cache
    PIP = "pip"
    UV = "uv"  # any other environment without pip


def detect_installer(prefix: Path) -> Installer:
    if (prefix / "uv-receipt.toml").is_file():
        return Installer.UV_TOOL
    if (prefix / "pipx_metadata.json").is_file():
        return Installer.PIPX
    if prefix.parent.name.startswith(("archive-v", "environments-v", "builds-v")):
        return Installer.UVX
    return Installer.PIP if find_spec("pip") else Installer.UV


def install_command(extra: str, prefix: Path | None = None, package: Distribution | None = None) -> str:
    """Return the shell command that installs the packages of an extra.

    Args:
        extra: a key of EXTRAS.
        prefix: root of the environment; by default, that of this process.
        package: metadata of the installed sparkwright; by default, that of this process.
    """
    prefix, packages = prefix or Path(sys.prefix), EXTRAS[extra]
    with_options = [word for name in packages for word in ("--with", name)]
    source = _package_source(package)
    match detect_installer(prefix):
        case Installer.UV_TOOL if source:
            return shell.join(["uv", "tool", "install", *with_options, source])
        case Installer.PIPX:
            return shell.join(["pipx", "inject", prefix.name, *packages])
        case Installer.UVX if source:
            return f"{shell.join(['uvx', *with_options, '--from', source, PACKAGE_NAME])} ..."
        case Installer.PIP:
            return shell.join([sys.executable, "-m", "pip", "install", *packages])
    return shell.join(["uv", "pip", "install", "--python", prefix, *packages])


def _package_source(package: Distribution | None) -> str:
    """Return the file, folder or URL that the package was installed from; empty if it came from an index."""
    try:
        text = (package or distribution(PACKAGE_NAME)).read_text("direct_url.json")
    except PackageNotFoundError:  # run from its source
        return ""
    origin = json.loads(text or "{}")
    url = str(origin.get("url", ""))
    return f"{origin['vcs_info'].get('vcs', 'git')}+{url}" if "vcs_info" in origin else url
