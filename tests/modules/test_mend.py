"""The few things that doctor may set right, done on a host whose programs write down how they were called."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkwright.errors import Failed, Refused
from sparkwright.modules.system.host_inspection import Fix
from tests.modules.context import RecordingContext


def host(folder: Path, program: str, script: str, *, check: bool = False, sandbox: bool = False) -> RecordingContext:
    path = folder / "bin" / program
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return RecordingContext(folder, check=check, sandbox=sandbox, env={"PATH": str(path.parent)})


def test_it_runs_the_command_that_was_shown(tmp_path: Path) -> None:
    context = host(tmp_path, "loginctl", 'echo "$@" > "$0.called"')
    done = Fix().run(Fix.Args("linger", "o p"), context)
    assert done.changed
    assert done.data["command"] == "loginctl enable-linger 'o p'"
    assert (tmp_path / "bin/loginctl.called").read_text() == "enable-linger o p\n"


def test_check_mode_runs_nothing(tmp_path: Path) -> None:
    context = host(tmp_path, "loginctl", 'echo "$@" > "$0.called"', check=True)
    assert Fix().run(Fix.Args("linger", "ops"), context).changed
    assert not (tmp_path / "bin/loginctl.called").exists()


def test_a_command_that_fails_is_told_in_its_own_words(tmp_path: Path) -> None:
    context = host(tmp_path, "timedatectl", "echo 'NTP not supported' >&2; exit 1")
    with pytest.raises(Failed, match="NTP not supported"):
        Fix().run(Fix.Args("clock", "ops"), context)


def test_a_name_that_is_not_in_the_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="unknown fix 'reboot'"):
        Fix().run(Fix.Args("reboot", "ops"), host(tmp_path, "reboot", "exit 0"))


def test_the_sandbox_is_left_alone(tmp_path: Path) -> None:
    """Its programs are the laptop's own."""
    context = host(tmp_path, "loginctl", 'echo "$@" > "$0.called"', sandbox=True)
    with pytest.raises(Refused, match="sandbox"):
        Fix().run(Fix.Args("linger", "ops"), context)
    assert not (tmp_path / "bin/loginctl.called").exists()
