"""Secrets of a deploy over a real sshd: the hub's token and a server's key are used, and visible nowhere.

The host's engine, Ollama and hub are the sandbox's; the connection, the runner and all its children are real.
"""

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from sparkwright.sandbox import control
from tests.remote.conftest import SshLab
from tests.remote.sshd import free_port
from tests.watching import ProcessWatcher, find_files_with_secret

TOP = Path(__file__).parent.parent.parent
COMMAND = "from sparkwright.cli import main; main()"


@pytest.fixture
def project(lab: SshLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with a host behind the sshd, whose recipe has a gated model."""
    monkeypatch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    folder = Path(tempfile.mkdtemp(prefix="gated-"))  # short: a unix socket's path has a limit
    for name in ("recipes", "playbooks", "templates"):
        shutil.copytree(TOP / name, folder / name)
    for recipe in (folder / "recipes").glob("*.yml"):
        recipe.write_text(re.sub(r"(?m)^  load: .*\n", "", recipe.read_text()))
    for playbook in (folder / "playbooks").rglob("*.yml"):
        playbook.write_text(re.sub(r"( smoke_test:\n)( +)", r"\1\2tokens: 24\n\2", playbook.read_text()))
    services, port = control.up(folder / ".sandbox"), free_port()
    (folder / ".sandbox/serve_port").write_text(str(port))
    address = {"address": "127.0.0.1", "port": lab.sshd.port}
    host = {**address, "recipe": "llama-3.1-8b", "serve_port": port, "env": services}
    (folder / "hosts").mkdir()
    (folder / "hosts/spark1.yml").write_text(yaml.safe_dump(host))
    yield folder
    control.down(folder / ".sandbox")
    shutil.rmtree(folder, ignore_errors=True)


def deploy(project: Path, source: dict[str, object], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    groups = {"all": {"secrets": {"HF_TOKEN": source}, "vars": {"ollama": "unload", "reserve_gib": 4}}}
    (project / "hosts/groups.yml").write_text(yaml.safe_dump(groups))
    return subprocess.run(
        [sys.executable, "-c", COMMAND, "deploy", "--host", "spark1", "--json"],
        cwd=project,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_server_key_is_only_in_its_file(lab: SshLab, project: Path) -> None:
    key = "spk-" + secrets.token_hex(20)
    name = project / "recipes/qwen3.5-35b.yml"
    name.write_text(name.read_text().replace("publish: loopback", f"server_key: {{command: [cat, {project}.key]}}"))
    host = project / "hosts/spark1.yml"
    host.write_text(host.read_text().replace("llama-3.1-8b", "qwen3.5-35b"))
    file = Path(f"{project}.key")
    file.write_text(key)
    try:
        with ProcessWatcher(key) as watch:
            result = deploy(project, {"env": "HF_TOKEN"}, {})
    finally:
        file.unlink()
    assert result.returncode in (0, 4), result.stdout[-2000:] + result.stderr  # 4: this machine was too busy to measure
    assert watch.saw_command("sshd:") and watch.leaks == set()
    assert key not in result.stdout + result.stderr
    (key_file,) = find_files_with_secret(key, lab.folder, project)
    assert re.search(r"/server_keys/qwen35-[0-9a-f]{16}\.yaml$", key_file)


def test_missing_token_message_names_the_license_and_the_unset_variable(project: Path) -> None:
    result = deploy(project, {"env": "HF_TOKEN"}, {})
    assert result.returncode in (1, 5)
    message = json.loads(result.stdout.splitlines()[-1])["msg"]
    assert "meta-llama/Llama-3.1-8B-Instruct is gated. Accept its license at " in message
    assert "(hosts/groups.yml:3: the environment variable HF_TOKEN is not set)" in message


@pytest.mark.parametrize("source", ["env", "file", "command"])
def test_hub_token_downloads_the_model_and_is_stored_nowhere(lab: SshLab, project: Path, source: str) -> None:
    token = "hf_" + secrets.token_hex(20)
    with tempfile.TemporaryDirectory() as token_folder:
        (Path(token_folder) / "token").write_text(token + "\n")
        sources = {"env": "HF_TOKEN", "file": f"{token_folder}/token", "command": ["cat", f"{token_folder}/token"]}
        with ProcessWatcher(token) as watch:
            result = deploy(project, {source: sources[source]}, {"HF_TOKEN": token} if source == "env" else {})
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr
    assert watch.saw_command("sparkwright.host.models.transfer_process") and watch.saw_command("sshd:")
    # the laptop's processes inherit a variable that its user exported
    allowed = (COMMAND, "ssh -F", "ssh -G", "ssh-keygen -F") if source == "env" else ()
    for line, where in watch.leaks:
        assert where == "environment" and any(words in line for words in allowed), (line, where)
    assert token not in result.stdout + result.stderr
    assert find_files_with_secret(token, lab.folder, project) == []
