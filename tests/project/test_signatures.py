"""Signatures of modules are cached on the laptop, and used only while the modules are unchanged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sparkwright import host_side
from sparkwright.modules import registry
from sparkwright.project.playbook import compiler
from sparkwright.protocol import signature

HEAVY = (
    "import sys; from sparkwright.project.playbook import compiler; assert compiler.takes('hf_model')['id'].required; "
)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiler._kept.cache_clear()
    return tmp_path / "sparkwright/signatures.json"


def takes_anew(module: str) -> signature.Signature:
    compiler._kept.cache_clear()
    return compiler.takes(module)


def test_a_second_command_imports_no_module(kept: Path) -> None:
    for item in ("True", "False"):
        program = HEAVY + "print('sparkwright.modules.model.hf_model' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout.strip() == item, done.stderr


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"of": "another", "modules": {"file": {}}}', "null"])
def test_what_is_damaged_or_old_is_made_anew(kept: Path, text: str) -> None:
    kept.parent.mkdir()
    kept.write_text(text)
    assert takes_anew("file") == signature.of(registry.load("file").Args)
    assert json.loads(kept.read_text())["of"] == host_side.content_hash()


def test_a_cache_that_cannot_be_written_costs_time_and_nothing_else(kept: Path) -> None:
    kept.parent.write_text("a file where the folder should be")
    assert takes_anew("file") == signature.of(registry.load("file").Args)
