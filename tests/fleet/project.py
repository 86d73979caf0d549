"""A project whose hosts are this machine, each with its own HOME; the commands and the runners are real."""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import commands

PROGRAM = [sys.executable, "-c", "from sparkwright.cli import main; main()"]


@dataclass
class PlayResult:
    code: int
    out: str
    err: str

    def events(self, kind: str) -> list[dict[str, Any]]:
        rows = [json.loads(line) for line in self.out.splitlines()]
        return [row for row in rows if row["event"] == kind]

    @property
    def ran(self) -> list[str]:
        """The hosts of which tasks ran, in the order of the run."""
        return list(dict.fromkeys(event["host"] for event in self.events("task_finished")))

    @property
    def rolled(self) -> dict[str, Any]:
        return self.events("rolled")[-1]

    @property
    def hosts_by_outcome(self) -> tuple[list[str], list[str], list[str]]:
        """The hosts that were done, failed and were not started."""
        return self.rolled["done"], self.rolled["failed"], self.rolled["not_begun"]


class HostsProject:
    """A project with hosts s1, s2 ... over connection local. A file `broken` in a host's home makes its task in roll.yml fail."""

    def __init__(self, root: Path, hosts: int) -> None:
        self.root = root
        for folder in ("hosts", "playbooks", "homes"):
            (root / folder).mkdir()
        for n in range(1, hosts + 1):
            self.host(f"s{n}", f"connection: local\ngroups: [lab]\nenv: {{HOME: {self.home(f's{n}')}}}\n")
        self.playbook(
            "roll",
            "  serial: 1\n  tasks:\n    - command: {argv: [sh, -c, 'test ! -e ~/broken']}\n      changed_when: false",
        )

    def home(self, host: str) -> Path:
        folder = self.root / "homes" / host
        folder.mkdir(exist_ok=True)
        return folder

    def host(self, name: str, text: str) -> None:
        (self.root / f"hosts/{name}.yml").write_text(text)

    def playbook(self, name: str, text: str) -> None:
        (self.root / f"playbooks/{name}.yml").write_text(f"- hosts: all\n{text}\n")

    def run(self, *words: str) -> PlayResult:
        completed = commands.run(*words, cwd=self.root)
        return PlayResult(completed.returncode, completed.stdout, completed.stderr)

    def start(self, *words: str, wrapper: Sequence[str] = ()) -> subprocess.Popen[str]:
        """Start a command and leave it running. wrapper: a program that runs the command."""
        pipe, command = subprocess.PIPE, [*wrapper, *PROGRAM, *words]
        return subprocess.Popen(command, cwd=self.root, stdout=pipe, stderr=pipe, stdin=subprocess.DEVNULL, text=True)

    def interrupt_at(self, event: str, *words: str) -> None:
        """Send Ctrl-C to a rolling play after an event, and check that the play can be resumed."""
        process = self.start("play", "roll", "--host", "lab", "--json", *words)
        assert process.stdout is not None
        next(line for line in process.stdout if f'"{event}"' in line)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 4, err
        assert "`sparkwright play roll --resume` continues with the rest" in err

    def roll(self, *words: str) -> PlayResult:
        return self.run("play", "roll", "--json", *words)
