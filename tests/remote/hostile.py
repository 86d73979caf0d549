"""A hostile host: a real sshd on which every command prints a given answer and records its input."""

import json
from typing import Any

from sparkwright.protocol.events import Event
from sparkwright.remote.ssh.ssh_link import SshLink
from tests.remote.conftest import SshLab, run_request


class HostileHost:
    """The lab's first host, made hostile. project: a project with two names for it."""

    def __init__(self, lab: SshLab) -> None:
        self.lab = lab
        self.project = lab.create_project(lab.folder / "project", "spark2")
        self.folder = lab.folder / "hostile"
        self.folder.mkdir()
        # The input of a command goes to sent.PID. The file is opened before the answer is sent, because
        # the script ends when a client closes the connection.
        self.write_script(f'exec 3> "{self.folder}/sent.$$"\ncat "{self.folder}/answer"\nexec cat >&3')
        lab.sshd.stop()
        lab.sshd.forced = str(self.folder / "answer.sh")

    def write_script(self, commands: str) -> None:
        """Set the program that runs instead of each command."""
        script = self.folder / "answer.sh"
        script.write_text(f"#!/bin/sh\n{commands}\n")
        script.chmod(0o755)

    def start(self, *answers: dict[str, Any] | bytes) -> None:
        """Start it with an answer of events or raw bytes. `ready` is sent first, unless the answer is that it can't start."""
        first = answers[0].get("event") if answers and isinstance(answers[0], dict) else ""
        answers = answers if first in ("runtime_missing", "no_python") else ({"event": "ready"}, *answers)
        lines = [answer if isinstance(answer, bytes) else json.dumps(answer).encode() + b"\n" for answer in answers]
        (self.folder / "answer").write_bytes(b"".join(lines))
        self.lab.sshd.start()

    @property
    def sent(self) -> list[bytes]:
        return [path.read_bytes() for path in sorted(self.folder.glob("sent.*"))]

    def query(self, header: dict[str, Any] | None = None) -> list[Event]:
        """Send a request and return the events. header: by default an empty run."""
        link = SshLink(self.lab.host())
        try:
            return list(link.request(header or run_request(), {}))
        finally:
            link.close()


def task_finished(**fields: Any) -> dict[str, Any]:
    """Return a `task_finished` event like an honest host's, with some fields changed."""
    defaults = {"task": "t1", "name": "look", "module": "command", "status": "ok", "msg": "", "fix": "", "diff": []}
    return {"event": "task_finished", "time": 1.0, **defaults, "data": {}, "seconds": 0.1, **fields}


def recap(**fields: Any) -> dict[str, Any]:
    """Return a `recap` like an honest host's, with some fields changed."""
    counts = {"ok": 1, "changed": 0, "failed": 0, "skipped": 0, "unreachable": 0}
    return {"event": "recap", "time": 1.0, "host": "spark1", **counts, "exit": 0, "seconds": 0.1, "msg": "", **fields}
