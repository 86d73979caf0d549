"""Commands that work only over ssh, with a real sshd whose programs answer nonsense of the right structure.

One host is honest, another one hostile. Whatever the runner, `docker save`, `docker load` and sudo of the hostile host
answer, the command must exit with a documented code and without a traceback, and must print the row of the honest host.
"""

import hashlib
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sparkwright.errors import Exit
from sparkwright.project import lockfile
from sparkwright.project.inventory.inventory import Inventory
from sparkwright.protocol.events import Event
from sparkwright.remote import runtime
from tests import commands
from tests.fuzz import recording
from tests.fuzz.harness import ROUNDS, SEED
from tests.fuzz.recording import CommandResult
from tests.fuzz.test_commands import OVER_SSH, corrupt_events
from tests.remote.conftest import SshLab, ssh_lab
from tests.remote.hostile import recap, task_finished
from tests.remote.sshd import Sshd

pytestmark = pytest.mark.ssh

TOP = Path(__file__).parents[2]
IMAGE = "example.org/vllm:v1"
DIGEST, IMAGE_ID = "sha256:" + "d" * 64, "sha256:" + "1" * 64
#: runs of each command
ROUNDS_EACH = max(1, ROUNDS // 100)
#: honest receiver, hostile receiver, honest sender, hostile sender
GOOD, BAD = "side1", "side2"
SENDER, LIAR = "side3", "side4"
PEERS = f"{GOOD},{BAD}"

#: the forced command of a host: the output, errors and exit code of each program are in files
ANSWER = """#!/bin/sh
case "$SSH_ORIGINAL_COMMAND" in
  *sudo*) name=sudo ;;
  *'docker save'*) name=save ;;
  *image_archive*) name=load ;;
  *00000000000000000000*) name=python ;;
  *)
    cat "{folder}/greeting"
    IFS= read -r request
    name=${{request##*'"module": "'}}
    name=${{name%%'"'*}} ;;
esac
[ -e "{folder}/$name.reads" ] && cat > /dev/null
cat "{folder}/$name"
cat "{folder}/$name.errors" >&2 2> /dev/null
exit "$(cat "{folder}/$name.code" 2> /dev/null || echo 0)"
"""
FOUND_IMAGE = {
    "present": True, "impostor": "", "id": IMAGE_ID, "digests": [DIGEST], "platform": "linux/arm64",
    "layers": ["sha256:" + "2" * 64, "sha256:" + "3" * 64], "size_bytes": 10**9, "host_platform": "linux/arm64",
    "free_bytes": 10**12, "tools": ["gzip", "ssh", "docker"], "addresses": ["10.0.0.7"],
    "names": {"tags": {"other:v1": IMAGE_ID}, "nameless": [], "at": "1790000000.5"},
    "intake": "python3 -m sparkwright.host.images.image_archive 1000",
}  # fmt: skip
SURVEY = {
    "user": "ops", "hostname": "spark-1a2b", "architecture": "aarch64", "os": "Ubuntu 24.04", "sandbox": False,
    "memory_bytes": 128 * 10**9, "memory_available_bytes": 120 * 10**9, "disk_free_bytes": 10**12,
    "gpu": {"name": "NVIDIA GB10", "driver": "580.95.05"}, "ollama": {"reachable": True, "models": ["qwen3:8b"]},
    "docker": {"reachable": True, "version": "28.5.1", "error": None},
    "servers": [
        {"name": "qwen", "image": IMAGE, "model_dir": "/m", "engine": "vllm", "port": 8000, "models": ["q"], "verified": False}
    ],
    "models": [{"id": "Qwen/Qwen3-Embedding-0.6B", "dir": "/home/ops/models/q", "place": "folder", "size_bytes": 10**9}],
}  # fmt: skip
PYTHON = {"event": "runtime_missing", "path": "/usr/bin/python3", "python": "3.12", "machine": "x86_64"}


def build_unreachable_events() -> list[Event]:
    """Return the answer of a sender that cannot reach the receiver."""
    failure = {"status": "failed", "exit": int(Exit.UNREACHABLE), "msg": "cannot reach the other host from here."}
    return [task_finished(task="send_image", module="send_image", **failure), recap(exit=3, failed=1, ok=0)]


@dataclass
class HostPrograms:
    """The answers of one host's programs, in a folder."""

    folder: Path

    def write(self, rng: random.Random | None, *, sends: bool, connected: bool) -> None:
        """Write the answers of all programs. rng: makes them nonsense; None for an honest host."""
        for path in self.folder.glob("[a-z]*"):
            if path.name != "answer.sh":
                path.unlink()
        data_by_module: dict[str, dict[str, Any]] = {
            "inspect_image": {**FOUND_IMAGE, "present": sends, "id": IMAGE_ID if sends else ""},
            "send_image": {"address": "10.0.0.7:22"},
            "adopt_image": {"id": IMAGE_ID, "undone": []},
            "undo_load": {"undone": []},
            "copy_key": {},
            "survey": SURVEY,
        }
        answers: dict[str, list[Event]] = {
            module: [task_finished(task=module, module=module, data=data), recap()]
            for module, data in data_by_module.items()
        }
        if not connected:
            answers["send_image"] = build_unreachable_events()
        answers |= {"python": [PYTHON], "sudo": [{"event": "shipped"}]}
        greeting: list[Event] = [{"event": "ready"}]
        if rng is not None:
            answers = {name: corrupt_events(events, rng) for name, events in answers.items()}
            greeting = corrupt_events(greeting, rng) if rng.random() < 0.1 else greeting
        for name, events in {**answers, "greeting": greeting}.items():
            (self.folder / name).write_bytes(recording.encode_events(events))
        self._write_programs(rng)

    def _write_programs(self, rng: random.Random | None) -> None:
        """Write the results of programs other than the runner, with any exit code and errors on a hostile host."""
        errors = [
            "Sorry, user ops may not run sudo.",
            "no space left on device",
            "\x1b]52;c;aGk=\x07",
            "",
            "x" * 70_000,
        ]
        (self.folder / "save").write_bytes(b"archive" * 1000)
        (self.folder / "load").write_text("Loaded image: in:v1\n")
        for name in ("load", "sudo"):
            if rng is None or rng.random() < 0.8:
                (self.folder / f"{name}.reads").touch()
        if rng is None:
            return
        outputs = (b"", b"\0" * 300_000, b"[" * 5000, b'{"event":1}\n[]\n7\n')
        for name in ("save", "load", "sudo", "python"):
            if rng.random() < 0.3:
                (self.folder / name).write_bytes(rng.choice(outputs))
            (self.folder / f"{name}.errors").write_text(f"{rng.choice(errors)}\n{rng.choice(errors)}")
            (self.folder / f"{name}.code").write_text(str(rng.choice((0, 0, 1, 3, 137, 255))))


@dataclass
class Fleet:
    """A project with the hosts, and the programs of each host."""

    root: Path
    programs: dict[str, HostPrograms]
    port: int

    def write_answers(self, rng: random.Random | None) -> None:
        """Write the answers of all hosts. rng: makes those of the hostile hosts nonsense; None for honest answers."""
        connected = rng is None or rng.random() < 0.5
        for name, programs in self.programs.items():
            hostile = rng if name in (BAD, LIAR) else None
            programs.write(hostile, sends=name in (SENDER, LIAR), connected=connected)

    def run(self, words: list[str]) -> CommandResult:
        """Run a command in a new process, because threads of other tests do not survive a fork."""
        env = {**os.environ, "XDG_CACHE_HOME": str(self.root.with_name("cache"))}
        try:
            result = commands.run(*words, cwd=self.root, env=env, timeout_s=recording.TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            texts: Any = (error.stdout, error.stderr)  # `commands.run` reads text; the library's types say bytes
            return CommandResult(None, "".join(texts))
        return CommandResult(result.returncode, result.stdout + result.stderr)

    def cache_runtime(self) -> None:
        """Put a runtime for the hosts into the laptop's cache, so that none is built."""
        folder = self.root.with_name("cache") / "sparkwright/runtime"
        folder.mkdir(parents=True)
        archive = folder / f"{runtime.content_hash()}-{PYTHON['python']}-{PYTHON['machine']}.tar.gz"
        archive.write_bytes(b"a runtime")
        archive.with_name(f"{archive.name}.sha256").write_text(hashlib.sha256(b"a runtime").hexdigest())


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    with pytest.MonkeyPatch.context() as patch:
        yield from _fleet(folder, ssh_lab(folder, patch))


def _fleet(folder: Path, labs: Iterator[SshLab]) -> Iterator[Fleet]:
    for lab in labs:
        lab.sshd.stop()
        root, programs = folder / "project", dict[str, HostPrograms]()
        (root / "hosts").mkdir(parents=True)
        for name in ("recipes", "playbooks"):
            shutil.copytree(TOP / name, root / name)
        for name in (GOOD, BAD, SENDER, LIAR):
            answers = folder / f"answers-{name}"
            answers.mkdir()
            (answers / "answer.sh").write_text(ANSWER.format(folder=answers))
            (answers / "answer.sh").chmod(0o755)
            sshd = Sshd(folder / f"sshd-{name}", folder / f"home-{name}", forced=str(answers / "answer.sh"))
            lab.started.append(sshd)
            sshd.start()
            lab.trust(sshd)
            (root / f"hosts/{name}.yml").write_text(f"address: 127.0.0.1\nport: {sshd.port}\nrecipe: qwen3.5-35b\n")
            programs[name] = HostPrograms(answers)
        (root / "hosts/groups.yml").write_text("all:\n  vars: {}\n")
        entry = {"digest": DIGEST, "platforms": ["linux/arm64"], "manifests": []}
        lockfile.Lock().with_image(IMAGE, entry).save(root)
        fleet = Fleet(root, programs, lab.started[2].port)
        fleet.cache_runtime()
        yield fleet


def test_every_command_over_ssh_is_tested() -> None:
    assert {words[0] for words in COMMANDS.values()} == OVER_SSH


COPY = ["images.copy", "--to", PEERS, "--image", IMAGE]
COMMANDS: dict[str, list[str]] = {
    "images.copy": [*COPY, "--from", SENDER],
    "images.copy of a liar": [*COPY, "--from", LIAR],
    "runtime.install": ["runtime.install", "--host", PEERS],
    "hosts.add": ["hosts.add", "new", "--yes"],
    "hosts.add as JSON": ["hosts.add", "new", "--json"],
}


def assert_contained(fleet: Fleet, name: str, result: CommandResult, context: str) -> None:
    details = f"{name} {context}: exit {result.code}\n{result.out[-3000:]}"
    assert result.code in list(Exit), details
    assert "Traceback" not in result.out and "internal error" not in result.out, details
    assert not {"\x1b", "\x07"} & set(result.out), details
    if name.startswith("hosts.add"):
        written = fleet.root / "hosts/new.yml"
        assert written.exists() == (result.code == 0), details
        assert set(Inventory.load(fleet.root).hosts) - {"new"} == {GOOD, BAD, SENDER, LIAR}, details
        written.unlink(missing_ok=True)
    else:
        assert f"{GOOD}: " in result.out, details


@pytest.mark.parametrize("name", COMMANDS)
def test_nonsense_from_one_host_breaks_no_command_over_ssh(name: str, fleet: Fleet) -> None:
    words = COMMANDS[name] + (["--address", f"127.0.0.1:{fleet.port}"] if name.startswith("hosts.add") else [])
    fleet.write_answers(None)
    honest = fleet.run(words)
    assert honest.code == 0, honest.out
    assert_contained(fleet, name, honest, "honest")
    for seed in range(ROUNDS_EACH):
        fleet.write_answers(random.Random(f"{SEED}:{name}:{seed}"))
        assert_contained(fleet, name, fleet.run(words), f"seed {SEED}:{name}:{seed}")
