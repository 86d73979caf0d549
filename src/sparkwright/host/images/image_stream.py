"""Streaming an image between hosts, compressed: the programs on both sides, and the receiving command."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

#: by name, best first: the command to compress, and the command to decompress on the receiving side
PACKERS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "zstd": (("zstd", "-q", "-c", "-1", "-T0"), ("zstd", "-q", "-d", "-c")),
    "pigz": (("pigz", "-c", "-1"), ("gzip", "-d", "-c")),
    "gzip": (("gzip", "-c", "-1"), ("gzip", "-d", "-c")),
}


def tools() -> list[str]:
    """Return the names of the programs that are installed on this host."""
    return [name for name in (*PACKERS, "ssh", "docker") if shutil.which(name)]


def packer(source: list[str], target: list[str]) -> str:
    """Return the best compressor that the source has and the target can decompress."""
    return next(
        name for name, (_, unpack) in PACKERS.items() if name == "gzip" or {name, unpack[0]} <= {*source, *target}
    )


def load_command(name: str, intake: str) -> str:
    """Return the shell command that receives the stream.

    Args:
        intake: the receiving host's `image_archive.command`.
    """
    return f"{' '.join(PACKERS[name][1])} | {intake}"
