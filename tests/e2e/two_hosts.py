"""Two simulated Sparks that serve one model behind a gateway."""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from sparkwright.sandbox import control
from tests import published
from tests.e2e.conftest import SandboxProject
from tests.remote.sshd import free_port
from tests.waiting import wait_until

HOSTS = ("side1", "side2")  # each name ends in a number, so each host is a separate simulated Spark
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
        box = {"hosts": list(HOSTS), "gateway": gateway, "vars": {"drain_s": 20}}
        (folder / "hosts/groups.yml").write_text(json.dumps({"lab": {}, "box": box}))

    def states(self) -> dict[str, str]:
        """Return the state of each host in the gateway."""
        out = self.run("gateway.status", "--host", "box", "--json").out
        assert published.check_output("gateway.status", out) == []
        status = json.loads(out)
        return {server["host"]: server["state"] for server in status["models"][0]["servers"]}

    def running(self, host: str) -> int:
        """Return the number of requests that the host is answering."""
        status = json.loads(self.run("gateway.status", "--host", "box", "--json").out)
        return next(int(server["running"]) for server in status["models"][0]["servers"] if server["host"] == host)

    def wait(self, **states: str) -> None:
        wait_until(lambda: states.items() <= self.states().items(), f"states {states}")


@contextlib.contextmanager
def undeployed_two_host_project() -> Iterator[TwoHostProject]:
    """Yield the project before its first deploy. Its path is short: that of pytest's `tmp_path` is too long for the sockets."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        project = TwoHostProject(Path(folder))
        try:
            yield project
        finally:
            for name in HOSTS:
                control.down(project.sandbox / "hosts" / name)


@contextlib.contextmanager
def two_host_project() -> Iterator[TwoHostProject]:
    """Yield both hosts deployed, with their gateway."""
    with patch.dict(os.environ, {"SPARKWRIGHT_SANDBOX_SPEED": "instant"}), undeployed_two_host_project() as project:
        result = project.run("deploy", "--host", "box", "--serial", "1", "--json", timeout_s=300)
        assert result.code in (0, 4), result.out[-3000:] + result.err
        result = project.run("gateway.deploy", "--host", "box", "--json")
        assert result.code == 0, result.out[-3000:] + result.err
        yield project
