"""Commands in messages begin with the program that the user started: `sparkwright`, `invoke` or `inv`."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkwright import program
from sparkwright.project import starter
from sparkwright.sandbox import control
from tests import commands
from tests.remote.sshd import free_port


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    starter.write_starter(tmp_path)
    host = tmp_path / "hosts/sandbox.yml"
    host.write_text(f"{host.read_text()}\n".replace("serve_port: 18471", f"serve_port: {free_port()}"))
    yield tmp_path
    control.down(tmp_path / ".sandbox")


@pytest.mark.parametrize("program_name", ["sparkwright", "invoke", "inv"])
def test_messages_name_commands_of_the_started_program(folder: Path, program_name: str) -> None:
    def run_command(line: str) -> str:
        completed = commands.run(*line.split(), cwd=folder, program=program_name)
        return completed.stdout + completed.stderr

    laptop_output = run_command("sandbox.fault frobnicate")
    host_output = run_command("verify --host sandbox")
    host_json = run_command("verify --host sandbox --json")
    table = run_command("doctor --host sandbox")
    assert f"`{program_name} sandbox.fault`" in laptop_output
    assert f"`{program_name} deploy --host sandbox`" in host_output
    assert f"`{program_name} deploy --host sandbox`" in json.loads(host_json.splitlines()[-1])["msg"]
    others = {"sparkwright", "invoke", "inv"} - {program_name}
    for output in (laptop_output, host_output, host_json, table):
        assert not [other for other in others for sign in ("`", "→ ") if f"{sign}{other} " in output], output


def test_only_commands_are_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/x/invoke/__main__.py"])
    program.name.cache_clear()
    try:
        assert program.rewrite_commands("`sparkwright plan` shows it, `inv deploy --host a` does") == (
            "`invoke plan` shows it, `invoke deploy --host a` does"
        )
        for text in ("sparkwright is a tool", "they invoke it", "`sparkwright` alone", "/opt/sparkwright plan"):
            assert program.rewrite_commands(text) == text
    finally:
        program.name.cache_clear()
