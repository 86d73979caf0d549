"""A user's folder whose hosts are this machine, each with a home of its own; the commands and the runners are real."""

import json
import os
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
    """The result of a command."""

    code: int
    out: str
    err: str

    def events(self, kind: str) -> list[dict[str, Any]]:
        rows = [json.loads(line) for line in self.out.splitlines()]
        return [row for row in rows if row["event"] == kind]

    @property
    def ran(self) -> list[str]:
        """Return the hosts whose tasks ran, in their order."""
        return list(dict.fromkeys(event["host"] for event in self.events("task_finished")))

    @property
    def rolled(self) -> dict[str, Any]:
        return self.events("rolled")[-1]


class HostsProject:
    """hosts: s1, s2 ... with connection local. A file `broken` in a host's home makes its task of roll.yml fail."""

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

    def run(self, *words: str, env: dict[str, str] | None = None, under: Sequence[str] = ()) -> PlayResult:
        """Run a command and return its result. under: a program that runs it."""
        if not under:
            completed = commands.run(*words, cwd=self.root, env={**os.environ, **(env or {})})
            return PlayResult(completed.returncode, completed.stdout, completed.stderr)
        completed = subprocess.run(
            [*under, *PROGRAM, *words],
            cwd=self.root,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        return PlayResult(completed.returncode, completed.stdout, completed.stderr)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command and leave it running."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*PROGRAM, *words], cwd=self.root, stdout=pipe, stderr=pipe, stdin=subprocess.DEVNULL, text=True
        )

    def roll(self, *words: str) -> PlayResult:
        return self.run("play", "roll", "--json", *words)
