"""Paramiko is imported without the library that reads packages' metadata, and knows its version all the same."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

PROGRAM = """
import sys
from sparkwright.remote.ssh import paramiko_version
with paramiko_version.importing():
    import paramiko
    early = "email" in sys.modules
    from importlib.metadata import {asked}
print(paramiko.__version__, early, {asked}("fabric"))
from importlib import metadata
print(metadata.version("paramiko"))
"""


def told(asked: str) -> list[str]:
    words = [sys.executable, "-c", PROGRAM.format(asked=asked)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()


def test_paramiko_has_its_version_and_nothing_was_read_for_it() -> None:
    version = metadata.version("paramiko")
    assert told("version") == [version, "False", metadata.version("fabric"), version]


def test_what_else_is_asked_of_metadata_is_answered_by_the_real_one() -> None:
    assert told("requires")[:2] == [metadata.version("paramiko"), "False"]
