"""A gated model on a simulated Spark: its token is in no process of laptop and host, and in no file, journal or log."""

import secrets
from pathlib import Path

import pytest

from tests.bed.conftest import BedProject
from tests.watching import ProcessWatcher, find_files_with_secret

pytestmark = pytest.mark.bed

#: the secret is read from standard input, so that it is on no command line
FIND_IN_FILES = (
    'read -r word; printf %s "$word" | sudo grep -rlF -D skip --exclude-dir={proc,sys,dev} -f - / 2>/dev/null'
)
FIND_IN_LOGS = (
    "read -r word; { sudo journalctl --no-pager; sudo dmesg; docker inspect $(docker ps -aq); "
    'docker logs qwen35; printenv; } 2>&1 | grep -F "$word"'
)


def test_token_of_a_gated_model_is_stored_nowhere(bare: BedProject, tmp_path: Path) -> None:
    token = "hf_" + secrets.token_hex(20)
    token_file = tmp_path / "token"
    token_file.write_text(token + "\n")
    bare.edit("hosts/groups.yml", "all:\n", f"all:\n  secrets: {{HF_TOKEN: {{file: {token_file}}}}}\n")
    bare.recipe("Qwen/Qwen3.5-35B-A3B-FP8", "meta-llama/Llama-3.1-8B-Instruct")
    bare.recipe("  reasoning-parser: qwen3\n", "")
    bare.recipe("tool-call-parser: qwen3_coder", "tool-call-parser: llama3_json")
    with ProcessWatcher(token) as watch:
        result = bare.run_separately("deploy", "--host", "spark1", "--json")
    assert result.code == 0, result.output
    for command in ("sparkwright.host.models.transfer_process", "sshd:", "dockerd"):
        assert watch.saw_command(command), command
    assert watch.leaks == set()
    assert token not in result.out + result.err
    for script in (FIND_IN_FILES, FIND_IN_LOGS):
        assert bare.on("spark1", script, token + "\n") == ""
    token_file.unlink()
    assert find_files_with_secret(token, tmp_path, bare.root) == []
