"""`become: true`: a second process of the same runtime as root, for the tasks that require it.

Requests and answers are JSON lines over its pipes; secrets are sent there and nowhere else, and only after root's side has
answered.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sparkwright
from sparkwright.errors import Exit, Failed
from sparkwright.host import root_runtime
from sparkwright.host.machine import ROOT_PATH, Machine
from sparkwright.host.runs.context import RunContext
from sparkwright.host.state import StateFolder
from sparkwright.protocol.events import Event
from sparkwright.protocol.result import Change, Result
from sparkwright.runner.root.sudo import PASSWORD, Root, Sudo
from sparkwright.secret import Secret

READY = "sparkwright-root-ready"
#: variables of the user's environment for root's side: folders, and the network
PASSED_ON = (
    *("HOME", "DOCKER_HOST", "OLLAMA_HOST", "HF_ENDPOINT", "SPARKWRIGHT_ROOT", "SPARKWRIGHT_ARCHITECTURE"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
)
#: it imports from beside this very package, or from root's own runtime of it, and what that Python finds by itself: never from
#: a folder of the user's choice
SERVE = "import sys; sys.path.insert(0, sys.argv[1]); from sparkwright.runner.root import become_server; become_server.serve()"


@dataclass
class Become:
    """The process that runs tasks as root: started by the first task that requires it, ended with the play."""

    machine: Machine
    state: StateFolder
    run_id: str
    secrets: Mapping[str, Secret]
    emit: Callable[[Event], None]
    #: its name, for messages
    host: str = "the host"
    _process: Root | None = None

    def __enter__(self) -> Become:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=30)

    def run(self, module: str, values: dict[str, Any], context: RunContext) -> Result:
        """Run one module as root. Its progress and notes are events of this run."""
        process = self._process = self._process or self._launch()
        assert process.stdout is not None
        about = {"check": context.check, "facts": context.facts, "task": context.task}
        _send(process, {"module": module, "args": values, **about})
        while line := process.stdout.readline():
            answer = json.loads(line)
            if "event" in answer:
                self.emit(answer)
                continue
            answer["diff"] = [Change(**change) for change in answer["diff"]]
            answer["exit"] = Exit(answer["exit"]) if answer["exit"] is not None else None
            return Result(**answer)
        raise Failed("the root process exited without a response.")

    def _launch(self) -> Root:
        machine = self.machine
        path = machine.env.get("PATH", ROOT_PATH) if machine.sandbox else ROOT_PATH
        sudo = Sudo(self.host, self.secrets.get(PASSWORD), path=path)
        library = root_runtime.library() if not machine.sandbox else Path(sparkwright.__file__).parents[1]
        process = sudo.start([sys.executable, "-I", "-B", "-c", SERVE, str(library)], READY.encode())
        secrets = {name: secret.reveal() for name, secret in self.secrets.items() if name != PASSWORD}
        env = {name: machine.env[name] for name in PASSED_ON if name in machine.env}
        _send(
            process,
            {
                "state": str(self.state.path),
                "server": self.state.server,
                "run_id": self.run_id,
                "env": {**env, "PATH": path},
                "secrets": secrets,
            },
        )
        return process


def _send(process: Root, message: Mapping[str, Any]) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(message, default=str).encode() + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        raise Failed("the root process has exited.") from None
