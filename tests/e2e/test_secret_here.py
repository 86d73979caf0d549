"""A deploy to this machine: no other process inherits the token of the user's shell."""

import secrets

import pytest

from tests.e2e.conftest import SandboxProject
from tests.watching import ProcessWatcher, find_files_with_secret


def test_the_runner_and_the_sandbox_do_not_inherit_the_token_of_the_shell(
    project: SandboxProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = "hf_" + secrets.token_hex(20)
    monkeypatch.setenv("HF_TOKEN", token)
    project.edit("hosts/sandbox.yml", r"recipe: \S+", "recipe: llama-3.1-8b")
    with ProcessWatcher(token) as watch:
        result = project.run_apart("deploy", "--host", "sandbox", "--json", "--tags", "image,model")
    assert result.code == 0, result.out[-2000:] + result.err
    assert watch.saw_command("sparkwright.host.models.transfer_process") and watch.saw_command(
        "sparkwright.sandbox serve"
    )
    assert [line for line, _ in watch.leaks if "sparkwright.cli" not in line] == []
    assert token not in result.out + result.err
    assert find_files_with_secret(token, project.root) == []
