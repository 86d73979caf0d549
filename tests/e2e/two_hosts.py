"""Two simulated Sparks that serve one model behind a gateway."""

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sparkwright.sandbox import control
from tests import published
from tests.e2e.conftest import SandboxProject
from tests.remote.sshd import free_port

HOSTS = ("side1", "side2")  # a number at the end: a simulated Spark of its own
MODEL = "qwen3.5-35b"


class TwoHostProject(SandboxProject):
    """A group `box` of two hosts that serve one model, behind a gateway on the first."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.gateway = free_port()
        for name in HOSTS:
            text = f"connection: sandbox\nuser: spark\nrecipe: {MODEL}\nserve_port: {free_port()}\n"
            (folder / f"hosts/{name}.yml").write_text(text)
        (folder / "hosts/sandbox.yml").unlink()
        gateway = {"host": HOSTS[0], "port": self.gateway, "tls": "none", "limits": {"check_s": 1}}
        self.groups: dict[str, Any] = {
            "lab": {},
            "box": {"hosts": list(HOSTS), "gateway": gateway, "vars": {"drain_s": 20}},
        }
        self.write()

    def write(self) -> None:
        (self.root / "hosts/groups.yml").write_text(json.dumps(self.groups))

    def home(self, host: str) -> Path:
        return self.sandbox / "hosts" / host / "home/.local/state/sparkwright"

    def states(self) -> dict[str, str]:
        """Return the state of each host in the gateway."""
        out = self.run("gateway.status", "--host", "box", "--json").out
        assert published.check_output("gateway.status", out) == []
        status = json.loads(out)
        return {server["host"]: server["state"] for server in status["models"][0]["servers"]}

    def served(self, host: str) -> int:
        """Return the number of requests that the host answers now."""
        status = json.loads(self.run("gateway.status", "--host", "box", "--json").out)
        return next(int(server["running"]) for server in status["models"][0]["servers"] if server["host"] == host)

    def wait(self, **states: str) -> None:
        deadline_s = time.monotonic() + 30
        while (current := self.states()) != {**current, **states}:
            assert time.monotonic() < deadline_s, current


@contextlib.contextmanager
def two_host_project() -> Iterator[TwoHostProject]:
    """Yield both hosts deployed, with their gateway."""
    speed = patch.dict(os.environ, {"SPARKWRIGHT_SANDBOX_SPEED": "instant"})
    with speed, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        project = TwoHostProject(Path(folder))
        try:
            result = project.run("deploy", "--host", "box", "--serial", "1", "--json", timeout_s=300)
            assert result.code in (0, 4), result.out[-3000:] + result.err
            result = project.run("gateway.deploy", "--host", "box", "--json")
            assert result.code == 0, result.out[-3000:] + result.err
            yield project
        finally:
            for name in HOSTS:
                control.down(project.sandbox / "hosts" / name)
