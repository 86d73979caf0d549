"""`init` and `hosts.*` against a real sshd.

An unknown key is confirmed on a terminal and refused without a terminal, the facts and the models on disk are written to the
files, and an interrupted command leaves nothing.
"""

import json
import os
from pathlib import Path

import pytest
import yaml

from sparkwright.project.inventory.inventory import Inventory
from tests import commands, published
from tests.on_a_terminal import open_screen
from tests.remote.conftest import SshLab

#: small enough for any machine
MODEL, RECIPE = "Qwen/Qwen3-Embedding-0.6B", "qwen3-embedding-0.6b"


@pytest.fixture
def laptop(lab: SshLab, tmp_path: Path) -> dict[str, str]:
    """A user's environment, with an alias for the lab's sshd and an empty known_hosts."""
    lab.known_hosts.write_text("")
    lab.write_config(f"Host spark-1a2b\n  HostName 127.0.0.1\n  Port {lab.sshd.port}\n")
    home = tmp_path / "laptop"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/config").write_text("Include more\nHost github.com *.corp\n")
    (home / ".ssh/more").write_text("Host spark-1a2b\n")
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return {"HOME": str(home), "XDG_CACHE_HOME": cache, "PATH": os.environ["PATH"]}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def put_model(lab: SshLab) -> Path:
    """Put a model into the host's ~/models, as a user may have done."""
    folder = lab.sshd.home / "models" / MODEL.rpartition("/")[2]
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"w" * 1000)
    return folder


def test_init_asks_three_questions_and_finds_the_model_on_disk(
    lab: SshLab, laptop: dict[str, str], project: Path
) -> None:
    model = put_model(lab)
    with open_screen("init", cwd=project, env=laptop) as terminal:
        assert "spark-1a2b" in terminal.wait_for("Which host?").split("github.com")[0]
        terminal.type("1\n")
        options = terminal.wait_for("(yes/no)")
        assert lab.fingerprint() in options
        terminal.type("yes\n")
        output = terminal.wait_for("Which recipe?")
        assert f"1  {RECIPE} " in output and str(model) in output
        terminal.type("\n")
        terminal.wait_for("[Y/n]")
        assert not any(project.iterdir())
        terminal.type("\n")
        assert terminal.wait_for_exit() == 0
    host = Inventory.load(project).hosts["spark-1a2b"]
    assert (host.address, host.groups, host.recipe) == ("spark-1a2b", ("lab",), RECIPE)
    assert yaml.safe_load((project / f"recipes/{RECIPE}.yml").read_text())["model"]["dir"] == str(model)
    assert "of memory" in (project / "hosts/spark-1a2b.yml").read_text()
    assert not (project / "hosts/spark1.yml").exists()
    assert lab.known_hosts.read_text().split()[1:] == lab.sshd.known_hosts_line().split()[1:]
    second_run = commands.run("hosts.check", "--host", "spark-1a2b", "--json", cwd=project, env=laptop)
    row = json.loads(second_run.stdout)
    assert (row["host"], row["models"][0]["dir"]) == ("spark-1a2b", str(model)) and row["memory_bytes"] > 0


def test_jump_host_with_the_key_of_the_host_is_confirmed_separately(
    lab: SshLab, laptop: dict[str, str], project: Path
) -> None:
    address = f"HostName 127.0.0.1\n  Port {lab.sshd.port}"
    lab.write_config(
        f"Host spark-1a2b\n  {address}\n  ProxyJump hop\n  HostKeyAlias spark\nHost hop\n  {address}\n  HostKeyAlias hop\n"
    )
    with open_screen("init", cwd=project, env=laptop) as terminal:
        terminal.wait_for("Which host?")
        terminal.type("1\n")
        for name in ("'hop'", "'spark'"):
            terminal.wait_for(name)
            terminal.wait_for("(yes/no)")
            terminal.type("yes\n")
        terminal.wait_for("Which recipe?")
    assert [line.split()[0] for line in lab.known_hosts.read_text().splitlines()] == ["hop", "spark"]


def test_init_is_refused_if_the_accepted_key_cannot_be_saved(
    lab: SshLab, laptop: dict[str, str], project: Path
) -> None:
    lab.known_hosts.unlink()
    lab.known_hosts.mkdir()
    with open_screen("init", cwd=project, env=laptop) as terminal:
        terminal.wait_for("Which host?")
        terminal.type("1\n")
        terminal.wait_for("(yes/no)")
        terminal.type("yes\n")
        output = terminal.wait_for("Make the file writable.")
        assert terminal.wait_for_exit() == 5
    assert "could not be saved in" in output and "was accepted" not in output
    assert not any(project.iterdir())


@pytest.mark.parametrize(
    "answers", [["1", "no"], ["1", "yes", "", "n"], ["1", "yes", "\x03"], ["\x04"], ["\x03"]], ids=repr
)
def test_cancelled_init_writes_nothing(lab: SshLab, laptop: dict[str, str], project: Path, answers: list[str]) -> None:
    with open_screen("init", cwd=project, env=laptop) as terminal:
        for question, answer in zip(("Which host?", "(yes/no)", "Which recipe?", "[Y/n]"), answers, strict=False):
            terminal.wait_for(question)
            terminal.wait_for(": ")
            if answer == "\x03":
                terminal.interrupt()
            else:
                terminal.type(answer if answer == "\x04" else f"{answer}\n")
        code = terminal.wait_for_exit()
    assert not any(project.iterdir())
    assert code == {"no": 3, "n": 0}.get(answers[-1], 4)
    assert bool(lab.known_hosts.read_text()) == ("yes" in answers)


def test_init_without_a_terminal_requires_a_known_key(lab: SshLab, laptop: dict[str, str], project: Path) -> None:
    command = ("init", "--address", "spark-1a2b", "--groups", "night")
    refused = commands.run(*command, cwd=project, env=laptop)
    assert (refused.returncode, list(project.iterdir())) == (3, [])
    assert "is not known yet: SHA256:" in refused.stderr and not lab.known_hosts.read_text()
    lab.trust(lab.sshd)
    completed = commands.run(*command, cwd=project, env=laptop)
    assert completed.returncode == 0, completed.stderr
    assert Inventory.load(project).groups["night"] == ("spark-1a2b",)
    add_host = ("hosts.add", "spark2", "--address", f"root@127.0.0.1:{lab.sshd.port}", "--recipe", RECIPE)
    added = commands.run(*add_host, "--json", cwd=project, env=laptop)
    assert published.check_output("hosts.add", added.stdout) == []
    assert (added.returncode, json.loads(added.stdout)["files"]) == (0, ["hosts/spark2.yml"]), added.stderr
    host = Inventory.load(project).hosts["spark2"]
    assert (host.user, host.port, host.recipe) == ("root", lab.sshd.port, RECIPE)
    second_add = commands.run(*add_host, cwd=project, env=laptop)
    assert second_add.returncode == 5 and "a host named spark2 already exists" in second_add.stderr


def test_unreachable_host_is_a_row_and_exit_code_3(lab: SshLab, laptop: dict[str, str], project: Path) -> None:
    init = ("init", "--address", "127.0.0.1:1", "--name", "spark1", "--offline")
    completed = commands.run(*init, cwd=project, env=laptop)
    assert completed.returncode == 0, completed.stderr
    checked = commands.run("hosts.check", "--host", "spark1", cwd=project, env=laptop)
    assert checked.returncode == 3 and "refuses connections" in checked.stderr and "unreachable" in checked.stdout


def test_host_that_cannot_store_the_runtime_is_not_called_unreachable(
    lab: SshLab, laptop: dict[str, str], project: Path
) -> None:
    lab.trust(lab.sshd)
    init = ("init", "--address", f"root@127.0.0.1:{lab.sshd.port}", "--name", "spark1", "--offline")
    assert commands.run(*init, cwd=project, env=laptop).returncode == 0
    (lab.sshd.home / ".local").write_text("a file in place of the folder")
    checked = commands.run("hosts.check", "--host", "spark1", cwd=project, env=laptop)
    assert checked.returncode == 5 and "cannot install the runtime" in checked.stderr
    assert "no survey, see above" in checked.stdout and "unreachable" not in checked.stdout


def test_login_without_a_key_is_not_called_rejected(lab: SshLab, laptop: dict[str, str], project: Path) -> None:
    lab.trust(lab.sshd)
    lab.base = lab.base.replace(f"{lab.folder}/id", f"{lab.folder}/missing")
    lab.write_config("")
    init = ("init", "--address", f"root@127.0.0.1:{lab.sshd.port}", "--name", "spark1")
    refused = commands.run(*init, cwd=project, env=laptop)
    assert refused.returncode == 3 and "there is no key to offer" in refused.stderr
    assert "`ssh-keygen`" in refused.stderr and "rejected" not in refused.stderr
