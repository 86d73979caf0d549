"""The link to a local host or a sandbox: it starts the runner in a subprocess, with the same Python."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import IO, Any

from sparkwright.errors import Unreachable
from sparkwright.project.inventory.host import Host
from sparkwright.protocol.event_reader import EventReader
from sparkwright.protocol.events import Event
from sparkwright.secret import Secret

CHUNK_BYTES = 64 * 1024
#: number of chunks kept from the end of a runner's standard error
MAX_ERROR_CHUNKS = 2
ERROR_OUTPUT_TIMEOUT_S = 2.0


class LocalLink:
    """A link to this machine, for a host whose connection is local or sandbox."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._processes: list[subprocess.Popen[bytes]] = []

    def request(self, header: dict[str, Any], secrets: Mapping[str, Secret]) -> Iterator[Event]:
        """See `Link.request`."""
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sparkwright.runner.main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**self._inherited_environment(), **self._sandbox_environment()},
            start_new_session=True,  # Ctrl-C must interrupt only the command, which asks the user what to do
        )
        self._processes.append(process)
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        request = {**header, "secrets": {name: secret.reveal() for name, secret in secrets.items()}}
        error_chunks: deque[bytes] = deque(maxlen=MAX_ERROR_CHUNKS)
        error_reader = threading.Thread(target=_read_errors, args=(process.stderr, error_chunks), daemon=True)
        error_reader.start()
        # a runner that exits immediately closes its input, and reports the reason in its output
        with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(json.dumps(request, default=str).encode() + b"\n")
        event_reader = EventReader()
        with process.stdout as stdout:
            while data := stdout.read1(CHUNK_BYTES):  # type: ignore[attr-defined]
                yield from event_reader.feed(data)
        yield from event_reader.end()
        if process.wait() != 0:
            error_reader.join(ERROR_OUTPUT_TIMEOUT_S)
            error_lines = b"".join(error_chunks).decode(errors="replace").strip().splitlines()
            reason = error_lines[-1] if error_lines else "no reason given"
            raise Unreachable(f"the runner exited with {process.returncode}: {reason}.")

    def wait_until_connected(self) -> None:
        """Do nothing: this machine is always connected. See `Link.wait_until_connected`."""

    def close(self) -> None:
        """See `Link.close`."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()

    def _inherited_environment(self) -> dict[str, str]:
        """Return the environment without secrets, which are sent over standard input as they are over ssh."""
        secret_names = {self._host.key_variable, *(source.env for source in self._host.secret_sources.values())}
        return {name: value for name, value in os.environ.items() if name not in secret_names}

    def _sandbox_environment(self) -> dict[str, str]:
        if self._host.connection != "sandbox":
            return {}
        from sparkwright.sandbox import control

        folder = control.folder_of(self._host.machine)
        environment = control.up(folder)
        if control.ran_out_of_memory(folder):
            fix = "`invoke sandbox.fault none` reboots it."
            raise Unreachable(f"{self._host.machine} does not answer: it ran out of memory.", fix=fix)
        if self._host.serve_port:
            (folder / "serve_port").write_text(str(self._host.serve_port))
        return environment


def _read_errors(pipe: IO[bytes], chunks: deque[bytes]) -> None:
    """Read the output as it is written: a full pipe would block the runner forever."""
    with pipe:
        while data := pipe.read1(CHUNK_BYTES):  # type: ignore[attr-defined]
            chunks.append(data)
