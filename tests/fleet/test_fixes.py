"""A host's messages are completed with what only the laptop knows."""

import os
from pathlib import Path

import pytest

from sparkwright.errors import Refused
from sparkwright.fleet import fixes
from sparkwright.host.models.hub import TOKEN_HINT
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.inventory import Inventory
from sparkwright.runner.become import Sudo


@pytest.fixture
def spark1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPARK1_SUDO", raising=False)
    Path("hosts").mkdir()
    Path("hosts/spark1.yml").write_text("secrets:\n  BECOME_PASSWORD: {env: SPARK1_SUDO}\n")
    Path("hosts/groups.yml").write_text("all:\n  secrets:\n    HF_TOKEN: {file: missing-token}\n")
    return Inventory.load(tmp_path).hosts["spark1"]


def refuse_by_sudo(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the advice for a sudo that needs a password."""
    program = folder / "sudo"
    program.write_text("#!/bin/sh\necho 'sudo: a password is required' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Refused) as refusal:
        Sudo("spark1", None, path=str(folder)).start(["/usr/bin/true"], b"ready")
    return refusal.value.fix


def test_the_advice_names_the_missing_variable_of_a_defined_secret(
    spark1: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix = refuse_by_sudo(tmp_path, monkeypatch)
    assert fix.endswith("as a secret BECOME_PASSWORD (hosts/groups.yml, `secrets`).")
    event = fixes.complete_event({"event": "task_finished", "fix": fix}, spark1)
    location = "hosts/spark1.yml:2: the environment variable SPARK1_SUDO is not set"
    assert event["fix"].endswith(f"as a secret BECOME_PASSWORD ({location}).")
    monkeypatch.setenv("SPARK1_SUDO", "correct horse")
    assert "BECOME_PASSWORD (hosts/spark1.yml:2)." in fixes.complete_event({"fix": fix}, spark1)["fix"]


def test_the_advice_names_the_missing_file_of_a_defined_token(spark1: Host) -> None:
    text = fixes.locate_secrets(TOKEN_HINT, spark1)
    assert text.endswith("HF_TOKEN (hosts/groups.yml:3: the file missing-token does not exist)")
