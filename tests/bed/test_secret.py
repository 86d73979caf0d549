"""Secrets on a simulated Spark: the hub's token is in no process, file, journal or log, a server's key only in its file."""

import re
import secrets
from pathlib import Path

from tests.bed.conftest import BedProject
from tests.watching import ProcessWatcher, find_files_with_secret

#: the secret is read from standard input, so that it is on no command line
FIND_ANYWHERE = (
    'read -r word; printf %s "$word" | sudo grep -rlF -D skip --exclude-dir={proc,sys,dev} -f - / 2>/dev/null'
)
FIND_IN_LOGS = (
    "read -r word; { sudo journalctl --no-pager; sudo dmesg; docker inspect $(docker ps -aq); "
    'docker logs qwen35; printenv; } 2>&1 | grep -F "$word"'
)
#: searches the folders to which sparkwright, Docker and the system write
FIND_IN_FOLDERS = (
    'read -r word; printf %s "$word" | sudo grep -rlF -D skip -f - '
    "/home /root /etc /run /tmp /var/log /var/lib/docker/containers 2>/dev/null"
)
QUERY_COMMAND = "curl -s -o /dev/null -w '%{http_code}' -H @- http://127.0.0.1:8000/v1/models"


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
    for script in (FIND_ANYWHERE, FIND_IN_LOGS):
        assert bare.on("spark1", script, token + "\n") == ""
    token_file.unlink()
    assert find_files_with_secret(token, tmp_path, bare.root) == []


def query_status(lab: BedProject, key: str) -> str:
    return lab.on("spark1", QUERY_COMMAND, f"Authorization: Bearer {key}\n")


def test_server_key_changes_and_rollback_restores_it(bare: BedProject, tmp_path: Path) -> None:
    first, second = ("spk-" + secrets.token_hex(20) for _ in range(2))
    file = tmp_path / "key"
    bare.recipe("vllm:\n", f"server_key: {{file: {file}}}\n\nvllm:\n")
    for key in (first, second):
        file.write_text(key + "\n")
        with ProcessWatcher(key) as watch:
            result = bare.run_separately("deploy", "--host", "spark1", "--json")
        assert result.code == 0, result.output
        assert watch.saw_command("dockerd") and watch.leaks == set()
        assert key not in result.out + result.err
        assert bare.on("spark1", FIND_IN_LOGS, key + "\n") == ""
    assert (query_status(bare, first), query_status(bare, second)) == ("401", "200")
    second_run = bare.deploy()
    assert (second_run.code, second_run.recap["changed"]) == (0, 0)
    file.unlink()
    assert bare.run("health", "--host", "spark1").code == 0
    assert bare.run("rollback", "--host", "spark1", "--json").code == 0
    assert (query_status(bare, first), query_status(bare, second)) == ("200", "401")
    for key in (first, second):
        key_files = bare.on("spark1", FIND_IN_FOLDERS, key + "\n").splitlines()
        assert all(re.search(r"/server_keys/qwen35-[0-9a-f]{16}\.yaml$", path) for path in key_files), key_files
        assert find_files_with_secret(key, bare.root) == []
    modes = "stat -c %a .local/state/sparkwright/server_keys .local/state/sparkwright/server_keys/qwen35-*.yaml"
    assert bare.on("spark1", modes).split() == ["700", "600"]
