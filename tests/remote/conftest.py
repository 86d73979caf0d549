"""Real sshds on loopback, and a wrapper on the PATH that calls the real `ssh` with the lab's configuration."""

import contextlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkwright.project.inventory.host import Host
from sparkwright.protocol.plan import Plan, Task
from sparkwright.remote import runtime
from sparkwright.remote.ssh import ssh_config
from tests.remote.sshd import SSHD, Sshd

PYTHON, MACHINE = f"{sys.version_info[0]}.{sys.version_info[1]}", platform.machine()


def pytest_itemcollected(item: pytest.Item) -> None:
    if {"lab", "bench"} & set(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.ssh)


class SshLab:
    """Hosts on loopback, and a folder with the user's keys, known_hosts and ssh configuration. sshd: the first host."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "id")], check=True)
        self.known_hosts = folder / "known_hosts"
        self.known_hosts.touch()
        self.config = folder / "ssh_config"
        self.base = (
            f"IdentityFile {folder}/id\nIdentitiesOnly yes\nIdentityAgent none\nUserKnownHostsFile {self.known_hosts}\n"
        )
        self.write_config("")
        self.started: list[Sshd] = []
        self.sshd = self.start_sshd("one")

    def start_sshd(self, name: str) -> Sshd:
        value = Sshd(self.folder / name, self.folder / f"home-{name}")
        self.started.append(value)
        value.start()
        self.trust(value)
        return value

    def trust(self, sshd: Sshd) -> None:
        with self.known_hosts.open("a") as file:
            file.write(sshd.known_hosts_line())

    def fingerprint(self) -> str:
        command = ["ssh-keygen", "-lf", str(self.sshd.host_key.with_suffix(".pub"))]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[1]

    def write_config(self, text: str) -> None:
        """Write the user's configuration, before the defaults for all hosts."""
        self.config.write_text(f"{text}\nHost *\n" + "".join(f"  {line}\n" for line in self.base.splitlines()))
        ssh_config._resolve_in_background.cache_clear()

    def host(self, **fields: object) -> Host:
        defaults = {"name": "spark1", "address": "127.0.0.1", "port": self.sshd.port, "connection": "ssh"}
        return Host(**{**defaults, **fields})  # type: ignore[arg-type]

    def create_project(self, root: Path, *names: str) -> Path:
        """Create a project with spark1 and further names for the first host."""
        for folder in ("hosts", "recipes", "playbooks"):
            (root / folder).mkdir(parents=True)
        for name in ("spark1", *names):
            (root / f"hosts/{name}.yml").write_text(f"address: 127.0.0.1\nport: {self.sshd.port}\n")
        return root


def run_request(*tasks: Task, run_id: str = "run-1", **fields: Any) -> dict[str, Any]:
    return {"verb": "run", "plan": Plan(run_id=run_id, host="spark1", play="Test", steps=tasks, **fields).to_json()}


def command_task(*argv: str) -> Task:
    return Task(id="t1", name="say", module="command", args={"argv": list(argv)})


def pack_runtime(path: Path) -> None:
    """Pack a runtime with only the wheels that plays need: ten times as fast, and only Docker's client is missing."""
    wheels = runtime.fetch_wheels(PYTHON, MACHINE)
    parts = [path for path in wheels if path.name.lower().startswith(("jinja2-", "markupsafe-"))]
    with path.open("wb") as out:
        runtime._pack(parts, f"{PYTHON}-{MACHINE}\n", out)


@contextlib.contextmanager
def mount_tmpfs(folder: Path, options: str) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def small_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a small archive the runtime, for links with the need "light"."""
    path = tmp_path / "small.tar.gz"
    pack_runtime(path)
    monkeypatch.setattr(runtime, "ensure_archive", lambda python, machine: path)
    return path


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshLab]:
    yield from ssh_lab(tmp_path, monkeypatch)


def ssh_lab(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[SshLab]:
    if SSHD is None:
        pytest.skip("no sshd here (Debian: openssh-server)")
    if os.geteuid() != 0:
        pytest.skip("an sshd with its own HOME needs root")
    value = SshLab(folder)
    wrapper = folder / "bin" / "ssh"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F "{value.config}" "$@"\n')
    wrapper.chmod(0o755)
    patch.setenv("PATH", f"{wrapper.parent}{os.pathsep}{os.environ['PATH']}")
    yield value
    for sshd in value.started:
        sshd.stop()
