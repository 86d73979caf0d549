"""A local host, and the sandbox: the same runner in a subprocess of the same Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from sparkwright.errors import Unreachable
from sparkwright.inventory.host import Host
from sparkwright.plan.events import Event
from sparkwright.plan.received import Received
from sparkwright.secret import Secret

CHUNK_BYTES = 64 * 1024


class LocalLink:
    """host: with connection local or sandbox."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._processes: list[subprocess.Popen[bytes]] = []

    def request(self, header: dict[str, Any], secrets: Mapping[str, Secret]) -> Iterator[Event]:
        """See `Link.request`."""
        process = subprocess.Popen(
            [sys.executable, "-m", "sparkwright.runner.main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**self._inherited(), **self._environment()},
            start_new_session=True,  # Ctrl-C is for the laptop's side, which asks what to do
        )
        self._processes.append(process)
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        request = {**header, "secrets": {name: secret.reveal() for name, secret in secrets.items()}}
        process.stdin.write(json.dumps(request, default=str).encode() + b"\n")
        process.stdin.close()
        received = Received()
        while data := process.stdout.read1(CHUNK_BYTES):  # type: ignore[attr-defined]
            yield from received.feed(data)
        yield from received.end()
        if process.wait() != 0:
            said = process.stderr.read().decode(errors="replace").strip().splitlines()
            raise Unreachable(f"the runner ended with {process.returncode}: {said[-1] if said else 'no reason given'}.")

    def ready(self) -> None:
        """See `Link.ready`: it is this machine."""

    def close(self) -> None:
        """See `Link.close`."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()

    def _inherited(self) -> dict[str, str]:
        """The laptop's environment without what `secrets` takes from it: those come over standard input, as over ssh."""
        own = {self._host.key_variable, *(source.env for source in self._host.secret_sources.values())}
        return {name: value for name, value in os.environ.items() if name not in own}

    def _environment(self) -> dict[str, str]:
        if self._host.connection != "sandbox":
            return {}
        from sparkwright.sandbox import control

        folder = control.default_folder()
        found = control.up(folder)
        if self._host.serve_port:
            (folder / "serve_port").write_text(str(self._host.serve_port))
        return found
