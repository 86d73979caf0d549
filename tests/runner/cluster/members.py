"""Real runs of a cluster's members: detached runners, each with its own HOME, over sockets of this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkwright.host.runs import journal, lock
from sparkwright.host.state import StateFolder
from sparkwright.protocol.cluster import TOKEN_SECRET, Cluster
from sparkwright.protocol.events import Event, decode
from sparkwright.protocol.plan import Block, Plan, Step, Task
from tests.remote.sshd import free_port
from tests.waiting import wait_until

SECRET = "5e" * 32
#: longer than any step takes
TIMEOUT_S = 60


def shell_task(name: str, script: str, **fields: Any) -> Task:
    return Task(name, name, "command", {"argv": ["sh", "-c", script]}, **fields)


def prepare_task() -> Task:
    """Return a task that runs until `Member.let_prepare`."""
    return shell_task("Prepare", "touch preparing; until [ -e ready ]; do sleep 0.05; done")


def write_task(word: str) -> Task:
    """Return a task that writes a word, which `Member.written` returns."""
    return shell_task(f"Write {word}", f"echo {word} >> written")


def barrier_task(name: str, **args: Any) -> Task:
    fields = {key: args.pop(key) for key in ("open", "register", "ignore_errors", "become") if key in args}
    return Task(f"b-{name}", f"Meet at {name}", "barrier", {"name": name, **args}, **fields)


def swap_block(*tasks: Task, rescue: tuple[Task, ...]) -> Block:
    return Block("swap", "Swap", tasks, rescue=rescue)


@dataclass
class Member:
    """One host's run. Its tasks write into `home`."""

    home: Path
    name: str
    process: subprocess.Popen[bytes] | None = None
    events: list[Event] = field(default_factory=list)
    _reader: threading.Thread | None = None

    @property
    def state(self) -> StateFolder:
        return StateFolder.in_home(self.home)

    def start(self, plan: Plan, token: str = SECRET) -> Member:
        request = {"verb": "run", "plan": plan.to_json(), "secrets": {TOKEN_SECRET: token}}
        self.process = self._ask(request)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def _ask(self, request: dict[str, Any]) -> subprocess.Popen[bytes]:
        self.home.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "sparkwright.runner.main"]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen(command, **pipes, env={**os.environ, "HOME": str(self.home)}, cwd=self.home)
        assert process.stdin is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.close()
        return process

    def wait_for_note(self, text: str) -> str:
        """Wait for a note with a text, and return the note."""
        return str(
            wait_until(lambda: next((note for note in self.notes() if text in note), ""), f"{self.name}: {text}")
        )

    def wait_until_preparing(self) -> None:
        wait_until((self.home / "preparing").exists, f"{self.name} is preparing")

    def let_prepare(self) -> None:
        (self.home / "ready").touch()

    def _read(self) -> None:
        assert self.process is not None and self.process.stdout is not None
        self.events.extend(decode(line) for line in self.process.stdout)

    def kill_laptop(self) -> None:
        """Kill the process that follows the run for the laptop."""
        assert self.process is not None
        self.process.kill()

    def stop(self) -> None:
        process = self._ask({"verb": "stop"})
        assert process.stdout is not None
        assert b"will stop at the next safe point" in process.stdout.read()
        process.wait()

    def pid(self) -> int:
        owner = wait_until(lambda: lock.inspect(self.state)[0], f"{self.name} has its lock")
        return int(owner.pid)

    def kill(self, how: signal.Signals) -> None:
        os.kill(self.pid(), how)

    @property
    def locked(self) -> bool:
        return lock.inspect(self.state)[1]

    def recap(self) -> Event:
        """Wait for the end and return the recap, from the journal if the laptop is gone."""
        folder = wait_until(lambda: next(iter(self.state.runs()), None), f"{self.name} has started")
        wait_until(lambda: not journal.is_running(folder), f"{self.name} has ended")
        recap = journal.read_recap(folder)
        if recap is None:
            assert self._reader is not None
            self._reader.join(TIMEOUT_S)
            recap = self.events[-1]
        return recap

    def journal_events(self) -> list[Event]:
        return [decode(line) for folder in self.state.runs() for line in _lines(folder / "events.jsonl")]

    def notes(self) -> list[str]:
        return [item["text"] for item in self.journal_events() if item["event"] == "note"]

    def finished(self, task: str) -> Event | None:
        events = (item for item in self.journal_events() if item["event"] == "task_finished")
        return next((item for item in events if item["name"] == task), None)

    def outcome(self, task: str) -> tuple[str, str]:
        """Return status and message of a task; ("", "") before its end."""
        event = self.finished(task) or {"status": "", "msg": ""}
        return event["status"], event["msg"]

    def written(self) -> str:
        path = self.home / "written"
        return path.read_text() if path.exists() else ""


@dataclass
class Group:
    """Hosts, and plans for them."""

    folder: Path
    world: int = 2
    port: int = field(default_factory=free_port)
    name: str = "pair"
    join_s: float = TIMEOUT_S
    beat_s: float = 5.0

    def __post_init__(self) -> None:
        self.hosts = tuple(f"spark{n + 1}" for n in range(self.world))
        self.members = [Member(self.folder / host, host) for host in self.hosts]

    def cluster(self, rank: int, **fields: Any) -> Cluster:
        settings: dict[str, Any] = {"join_s": self.join_s, "beat_s": self.beat_s, "port": self.port, **fields}
        return Cluster(self.name, rank, self.hosts, "127.0.0.1", **settings)

    def plan(self, rank: int, *steps: Step, cluster: dict[str, Any] | None = None, **fields: Any) -> Plan:
        run = f"{self.name}-{rank}"
        value = self.cluster(rank, **(cluster or {}))
        return Plan(run, self.hosts[rank], "Test", steps, secrets=(TOKEN_SECRET,), cluster=value, who="a@b", **fields)

    def start(self, *steps: Step, **fields: Any) -> list[Member]:
        """Start the same steps on every member."""
        return [self.begin(rank, *steps, **fields) for rank in range(self.world)]

    def exit_codes(self) -> list[int]:
        """Wait for the end of all members and return their exit codes."""
        return [member.recap()["exit"] for member in self.members]

    def begin(self, rank: int, *steps: Step, **fields: Any) -> Member:
        return self.members[rank].start(self.plan(rank, *steps, **fields))

    def end(self) -> None:
        for member in self.members:
            owner, alive = lock.inspect(member.state) if member.home.exists() else (None, False)
            if alive and owner is not None:
                os.kill(owner.pid, signal.SIGKILL)
            if member.process is not None:
                member.process.wait(TIMEOUT_S)


@contextmanager
def running_group(folder: Path, **fields: Any) -> Iterator[Group]:
    value = Group(folder, **fields)
    try:
        yield value
    finally:
        value.end()


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines() if path.exists() else []
