"""`become: true`: a second process of the same runtime, which runs as root through sudo for the tasks that require it.

A separate sudo process verifies the password. Requests and answers are JSON lines over the root process's pipes; secrets are sent
only there, and only after it has written its first line. Programs that run as root get a fixed PATH and a small environment, so
that root never runs or imports anything from the user's folders or settings.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import sparkwright
from sparkwright.errors import Exit, Failed, Refused
from sparkwright.host import root_runtime
from sparkwright.host.machine import ROOT_PATH, Machine
from sparkwright.host.runs.context import RunContext
from sparkwright.host.state import StateFolder
from sparkwright.protocol.events import Event
from sparkwright.protocol.result import Change, Result
from sparkwright.ready import wait_for_readable
from sparkwright.secret import Secret
from sparkwright.trust.secret_names import BECOME_PASSWORD
from sparkwright.visible import one_line

#: PAM waits 2 s after a wrong password, and a directory server even longer
SUDO_TIMEOUT_S = 60.0
#: maximum size of the error output that is read from sudo and its modules
MAX_OUTPUT_BYTES = 64 * 2**10
#: messages of sudo for a rejected password (sudo 1.8 to 1.9, sudo-rs)
_WRONG_PASSWORD_MESSAGES = (
    "incorrect password",
    "incorrect authentication",
    "sorry, try again",
    "no password was provided",
)
_PASSWORD_REQUIRED_MESSAGES = ("a password is required", "interactive authentication is required")

#: first line that the root process writes
READY_LINE = "sparkwright-root-ready"
#: variables of the user's environment that are passed to the root process, for folders and the network
PASSED_VARIABLES = (
    *("HOME", "DOCKER_HOST", "OLLAMA_HOST", "HF_ENDPOINT", "SPARKWRIGHT_ROOT", "SPARKWRIGHT_ARCHITECTURE"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
)
#: the root process's program, which imports only from the folder in argv[1] and from Python's own folders
SERVER_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); from sparkwright.runner import become_server; become_server.serve()"
)

RootProcess = subprocess.Popen[bytes]
#: a process, and the file with its error output
_ProcessAndErrors = tuple[RootProcess, IO[bytes]]


class Sudo:
    """Starts programs as root through sudo.

    Args:
        host: name of the host for messages.
        path: PATH for sudo and the program; differs in the sandbox.
        timeout_s: time limit for sudo.
    """

    def __init__(
        self, host: str, password: Secret | None, *, path: str = ROOT_PATH, timeout_s: float = SUDO_TIMEOUT_S
    ) -> None:
        self._host = host
        self._password = password.reveal() if password else ""
        self._path = path
        self._timeout_s = timeout_s

    def start(self, argv: Sequence[str], ready_line: bytes) -> RootProcess:
        """Start a program as root, with pipes, and return once it has written the line `ready_line`.

        If sudo did not need the password, the program's standard input begins with the line that contains it.

        Raises:
            Refused: sudo denied the start; the message quotes sudo's own.
        """
        if os.geteuid() == 0:
            return self._wait_until_ready(self._open([], argv), ready_line)
        sudo_path = shutil.which("sudo", path=self._path)
        if sudo_path is None:
            raise Refused(f"sudo is not installed on {self._host}.", fix="Log in as root, or install sudo.")
        try:
            return self._wait_until_ready(self._open([sudo_path, "-n"], argv), ready_line)
        except _SudoRefusal as refusal:
            if not self._password or not refusal.contains_any(_PASSWORD_REQUIRED_MESSAGES):
                raise self._sudo_error(refusal) from None
        if "\n" in self._password:
            raise Refused(f"the secret {BECOME_PASSWORD} has more than one line.")
        sudo_command = [sudo_path, "-S", "-p", ""]
        try:
            # the pipe is closed after the password, so that sudo neither waits for a second password nor reads requests as one
            self._wait_until_ready(self._open([*sudo_command, "-v"], [], f"{self._password}\n"), b"")
            return self._wait_until_ready(self._open(sudo_command, argv, f"{self._password}\n"), ready_line)
        except _SudoRefusal as refusal:
            raise self._sudo_error(refusal) from None

    def _open(self, sudo_argv: Sequence[str], argv: Sequence[str], stdin_text: str = "") -> _ProcessAndErrors:
        error_output = tempfile.TemporaryFile()  # noqa: SIM115 - an unread pipe would fill up
        env = {"PATH": self._path, "LC_ALL": "C", "LANG": "C"}
        process = subprocess.Popen(
            [*sudo_argv, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=error_output, env=env
        )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(stdin_text.encode())
            process.stdin.flush()
            if not argv:
                process.stdin.close()
        return process, error_output

    def _wait_until_ready(self, process_and_errors: _ProcessAndErrors, ready_line: bytes) -> RootProcess:
        """Wait for the line `ready_line`, or for the exit if it is empty.

        Raises:
            _SudoRefusal: The process exited with an error, or wrote another line.
            Refused: The time limit expired.
        """
        process, error_output = process_and_errors
        assert process.stdout is not None
        received, deadline_s = b"", time.monotonic() + self._timeout_s
        while b"\n" not in received:
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0 or not wait_for_readable([process.stdout], remaining_s):
                _close_process(process)
                raise Refused(f"sudo on {self._host} did not answer within {self._timeout_s:g} s.")
            data = os.read(process.stdout.fileno(), 1)  # byte by byte, because later lines belong to the caller
            if not data:
                break
            received += data
        if ready_line and received.strip() == ready_line:
            error_output.close()
            return process
        _close_process(process)
        with error_output:
            error_output.seek(0)
            message = error_output.read(MAX_OUTPUT_BYTES).decode(errors="replace")
        if process.poll() == 0 and not ready_line:
            return process
        raise _SudoRefusal(message)

    def _sudo_error(self, refusal: _SudoRefusal) -> Refused:
        user = getpass.getuser()
        if self._password and refusal.contains_any(_WRONG_PASSWORD_MESSAGES):
            fix = f"Correct the secret {BECOME_PASSWORD} (hosts/groups.yml, `secrets`)."
            return Refused(f"sudo rejected the password for {user} on {self._host}.", fix=fix)
        fix = (
            f"Give {user} a NOPASSWD rule, or the password as a secret {BECOME_PASSWORD} (hosts/groups.yml, `secrets`)."
        )
        if refusal.contains_any(_PASSWORD_REQUIRED_MESSAGES):
            return Refused(f"sudo on {self._host} needs a password for {user}.", fix=fix)
        return Refused(f"sudo on {self._host} denied {user}: {refusal.last_line}.", fix=fix)


class _SudoRefusal(Exception):
    """Raised if sudo exited early, with its error output."""

    def contains_any(self, messages: Sequence[str]) -> bool:
        text = str(self).lower()
        return any(message in text for message in messages)

    @property
    def last_line(self) -> str:
        lines = str(self).strip().splitlines()
        return one_line(lines[-1].removeprefix("sudo: ").rstrip("."), max_chars=200) if lines else "no reason given"


def _close_process(process: RootProcess) -> None:
    """Close the pipes, which ends the process; the user may not be allowed to kill root's processes."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    with contextlib.suppress(PermissionError):
        if process.poll() is None:
            process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=5)


@dataclass
class Become:
    """Runs tasks as root, in one process that is started by the first of these tasks and ends with the play."""

    machine: Machine
    state: StateFolder
    run_id: str
    secrets: Mapping[str, Secret]
    emit: Callable[[Event], None]
    #: name of the host for messages
    host: str = "the host"
    _process: RootProcess | None = None

    def __enter__(self) -> Become:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=30)

    def run(self, module: str, values: dict[str, Any], context: RunContext) -> Result:
        """Run a module as root, with its progress and notes as events of this run."""
        process = self._process = self._process or self._launch()
        assert process.stdout is not None
        settings = {"check": context.check, "facts": context.facts, "task": context.task}
        _send(process, {"module": module, "args": values, **settings})
        while line := process.stdout.readline():
            message = json.loads(line)
            if "event" in message:
                self.emit(message)
                continue
            message["diff"] = [Change(**change) for change in message["diff"]]
            message["exit"] = Exit(message["exit"]) if message["exit"] is not None else None
            return Result(**message)
        raise Failed("the root process exited without a response.")

    def _launch(self) -> RootProcess:
        machine = self.machine
        path = machine.env.get("PATH", ROOT_PATH) if machine.sandbox else ROOT_PATH
        sudo = Sudo(self.host, self.secrets.get(BECOME_PASSWORD), path=path)
        library = root_runtime.resolve_library() if not machine.sandbox else Path(sparkwright.__file__).parents[1]
        process = sudo.start([sys.executable, "-I", "-B", "-c", SERVER_PROGRAM, str(library)], READY_LINE.encode())
        secrets = {name: secret.reveal() for name, secret in self.secrets.items() if name != BECOME_PASSWORD}
        env = {name: machine.env[name] for name in PASSED_VARIABLES if name in machine.env}
        fields = {"state": str(self.state.path), "server": self.state.server, "run_id": self.run_id}
        _send(process, {**fields, "env": {**env, "PATH": path}, "secrets": secrets})
        return process


def _send(process: RootProcess, message: Mapping[str, Any]) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(message, default=str).encode() + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        raise Failed("the root process has exited.") from None
