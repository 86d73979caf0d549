"""A gated model onto a pretend Spark: its token is in no process of laptop and host, in no file, journal or log."""

import secrets
import subprocess
from pathlib import Path

import pytest

from tests.bed.conftest import BedProject
from tests.watching import ProcessWatcher, find_files_with_secret

pytestmark = pytest.mark.bed

#: words come on standard input, so that looking for a secret does not spread it
FIND_IN_FILES = (
    'read -r word; printf %s "$word" | sudo grep -rlF -D skip --exclude-dir={proc,sys,dev} -f - / 2>/dev/null'
)
FIND_IN_LOGS = (
    "read -r word; { sudo journalctl --no-pager; sudo dmesg; docker inspect $(docker ps -aq); "
    'docker logs qwen35; printenv; } 2>&1 | grep -F "$word"'
)


def run_with_input(lab: BedProject, script: str, token: str) -> str:
    completed = subprocess.run(
        ["ssh", "spark1", script],
        input=token + "\n",
        env=lab.env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return completed.stdout.strip()


def test_token_of_a_gated_model_is_stored_nowhere(bare: BedProject, tmp_path: Path) -> None:
    token = "hf_" + secrets.token_hex(20)
    token_file = tmp_path / "kept"
    token_file.mkdir()
    (token_file / "token").write_text(token + "\n")
    groups = bare.root / "hosts/groups.yml"
    groups.write_text(
        groups.read_text().replace("all:\n", f"all:\n  secrets: {{HF_TOKEN: {{file: {token_file}/token}}}}\n")
    )
    bare.recipe("Qwen/Qwen3.5-35B-A3B-FP8", "meta-llama/Llama-3.1-8B-Instruct")
    bare.recipe("  reasoning-parser: qwen3\n", "")
    bare.recipe("tool-call-parser: qwen3_coder", "tool-call-parser: llama3_json")
    with ProcessWatcher(token) as watch:
        result = bare.run_apart("deploy", "--host", "spark1", "--json")
    assert result.code == 0, result.out[-3000:] + result.err
    assert (
        watch.saw_command("sparkwright.host.models.transfer_process")
        and watch.saw_command("sshd:")
        and watch.saw_command("dockerd")
    )
    assert watch.leaks == set()
    assert token not in result.out + result.err
    assert run_with_input(bare, FIND_IN_FILES, token) == ""
    assert run_with_input(bare, FIND_IN_LOGS, token) == ""
    token_file.joinpath("token").unlink()
    assert find_files_with_secret(token, tmp_path, bare.root) == []
