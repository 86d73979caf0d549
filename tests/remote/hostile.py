"""A hostile host: a real sshd on which every command prints a given file and records its input."""

import json
from pathlib import Path
from typing import Any

from tests.remote.conftest import SshLab


class HostileHost:
    """A wrapper that turns the lab's sshd into a hostile host."""

    def __init__(self, lab: SshLab) -> None:
        self.lab = lab
        self.folder = lab.folder / "hostile"
        self.folder.mkdir()
        script = self.folder / "answer.sh"
        # executed for each command; its input goes to sent.PID, which is created before the answer,
        # because a client that hangs up on the answer ends this script
        script.write_text(f'#!/bin/sh\nexec 3> "{self.folder}/sent.$$"\ncat "{self.folder}/answer"\nexec cat >&3\n')
        script.chmod(0o755)
        lab.sshd.stop()
        lab.sshd.forced = str(script)

    def says(self, *answers: dict[str, Any] | bytes) -> None:
        """Set its answer: events, or raw bytes. It sends `ready` first, unless the answer is that it can't start."""
        first = answers[0].get("event") if answers and isinstance(answers[0], dict) else ""
        answers = answers if first in ("runtime_missing", "no_python") else ({"event": "ready"}, *answers)
        lines = [answer if isinstance(answer, bytes) else json.dumps(answer).encode() + b"\n" for answer in answers]
        (self.folder / "answer").write_bytes(b"".join(lines))
        self.lab.sshd.start()

    @property
    def sent(self) -> list[bytes]:
        """Return the received input of each command."""
        return [path.read_bytes() for path in sorted(self.folder.glob("sent.*"))]

    def project(self, root: Path, *more: str) -> Path:
        """Create a project with this machine as host spark1. more: further host names for the same machine."""
        (root / "hosts").mkdir(parents=True)
        (root / "recipes").mkdir()
        (root / "playbooks").mkdir()
        for name in ("spark1", *more):
            text = f"address: 127.0.0.1\nport: {self.lab.sshd.port}\n"
            (root / "hosts" / f"{name}.yml").write_text(text)
        return root


def task_finished(**fields: Any) -> dict[str, Any]:
    """Return a `task_finished` event like an honest host's, with these fields changed."""
    defaults = {"task": "t1", "name": "look", "module": "command", "status": "ok", "msg": "", "fix": "", "diff": []}
    return {"event": "task_finished", "time": 1.0, **defaults, "data": {}, "seconds": 0.1, **fields}


def recap(**fields: Any) -> dict[str, Any]:
    """Return a `recap` like an honest host's, with these fields changed."""
    counts = {"ok": 1, "changed": 0, "failed": 0, "skipped": 0, "unreachable": 0}
    return {"event": "recap", "time": 1.0, "host": "spark1", **counts, "exit": 0, "seconds": 0.1, "msg": "", **fields}
