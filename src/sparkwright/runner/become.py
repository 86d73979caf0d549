"""`become: true`: one second process of the same runtime as root, for the tasks that say so.

Requests and answers are JSON lines over its pipes; secrets travel there and nowhere else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from sparkwright.errors import Exit, Failed
from sparkwright.host.machine import Machine
from sparkwright.host.state import StateFolder
from sparkwright.modules.base import Change, Result
from sparkwright.plan.events import Event
from sparkwright.runner.context import RunContext
from sparkwright.secret import Secret

PASSWORD = "BECOME_PASSWORD"
READY = "sparkwright-root-ready"


class Become:
    """Started when the first task asks for it; ends with the play."""

    def __init__(
        self,
        machine: Machine,
        state: StateFolder,
        run_id: str,
        secrets: Mapping[str, Secret],
        emit: Callable[[Event], None],
    ) -> None:
        self._machine = machine
        self._start = {"state": str(state.path), "run_id": run_id}
        self._secrets = secrets
        self._emit = emit
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Become:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait(timeout=30)

    def run(self, module: str, values: dict[str, Any], context: RunContext) -> Result:
        """Run one module as root. Its progress and notes are events of this run."""
        process = self._opened()
        assert process.stdin is not None and process.stdout is not None
        request = {
            "module": module,
            "args": values,
            "check": context.check,
            "facts": context.facts,
            "task": context.task,
        }
        process.stdin.write(json.dumps(request, default=str).encode() + b"\n")
        process.stdin.flush()
        for line in process.stdout:
            said = json.loads(line)
            if "event" in said:
                self._emit(said)
                continue
            said["diff"] = [Change(**change) for change in said["diff"]]
            said["exit"] = Exit(said["exit"]) if said["exit"] is not None else None
            return Result(**said)
        raise Failed("the root process ended without an answer.")

    def _opened(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = self._launch()
        return self._process

    def _launch(self) -> subprocess.Popen[bytes]:
        """sudo without a prompt, or with the password on its standard input; never a terminal."""
        password = self._secrets.get(PASSWORD)
        sudo = [] if os.geteuid() == 0 else ["sudo", "-S", "-p", ""] if password else ["sudo", "-n"]
        serve = f"import sys; sys.path[:0] = {sys.path!r}; from sparkwright.runner import become_server; become_server.serve()"
        words = [*sudo, sys.executable, "-I", "-c", serve]
        env = dict(self._machine.env)
        try:
            process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
            )
        except FileNotFoundError:
            raise Failed("there is no sudo on the host.", fix="Log in as root, or install sudo.") from None
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        first = {
            **self._start,
            "env": {k: v for k, v in env.items() if k in ("HOME", "PATH", "DOCKER_HOST", "SPARKWRIGHT_ROOT")},
        }
        if password and sudo:
            process.stdin.write(password.reveal().encode() + b"\n")
        secrets = {name: secret.reveal() for name, secret in self._secrets.items() if name != PASSWORD}
        try:
            process.stdin.write(json.dumps({**first, "secrets": secrets}).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass
        if process.stdout.readline().strip() != READY.encode():
            said = process.stderr.read().decode(errors="replace").strip().splitlines()
            raise Failed(
                f"sudo refuses: {said[-1] if said else 'no reason given'}.",
                fix=f"Give the user a NOPASSWD rule, or the password as a secret {PASSWORD} (hosts/groups.yml, `secrets`).",
            )
        return process
