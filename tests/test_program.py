"""Commands in messages are those that the user would type: `sparkwright ...`, or `invoke ...` where it was started so."""

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


@pytest.mark.parametrize("started", ["sparkwright", "invoke", "inv"])
def test_every_command_in_a_message_is_one_that_can_be_typed(folder: Path, started: str) -> None:
    def run_command(line: str) -> str:
        completed = commands.run(*line.split(), cwd=folder, program=started)
        return completed.stdout + completed.stderr

    of_the_laptop = run_command("sandbox.fault frobnicate")
    of_the_host = run_command("verify --host sandbox")
    of_the_host_as_json = run_command("verify --host sandbox --json")
    of_a_table = run_command("doctor --host sandbox")
    recap = json.loads(of_the_host_as_json.splitlines()[-1])
    assert f"`{started} sandbox.fault`" in of_the_laptop
    assert f"`{started} deploy --host sandbox`" in of_the_host
    assert f"`{started} deploy --host sandbox`" in recap["msg"]
    others = {"sparkwright", "invoke", "inv"} - {started}
    for item in (of_the_laptop, of_the_host, of_the_host_as_json, of_a_table):
        assert not [other for other in others for sign in ("`", "→ ") if f"{sign}{other} " in item], item


def test_only_commands_are_put_in_our_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/x/invoke/__main__.py"])
    program.name.cache_clear()
    try:
        assert program.rewrite_commands("`sparkwright plan` shows it, `inv deploy --host a` does") == (
            "`invoke plan` shows it, `invoke deploy --host a` does"
        )
        for same in ("sparkwright is a tool", "they invoke it", "`sparkwright` alone", "/opt/sparkwright plan"):
            assert program.rewrite_commands(same) == same
    finally:
        program.name.cache_clear()
