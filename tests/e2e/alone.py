"""A simulated Spark that is the only server of a small model behind a gateway."""

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any

from tests.e2e.conftest import CommandResult, SandboxProject, sandbox_project
from tests.remote.sshd import free_port

RECIPE = MODEL = CONTAINER = "qwen3-1.7b"
INTERIM = f"{CONTAINER}-interim"


class SingleServer:
    """A project with one server and its gateway."""

    def __init__(self, project: SandboxProject) -> None:
        self.project, self.port, self.max_num_seqs = project, free_port(), 4
        host = project.root / "hosts/sandbox.yml"
        host.write_text(re.sub(r"(?m)^recipe: .*", f"recipe: {RECIPE}", host.read_text()))
        self.recipe = project.root / f"recipes/{RECIPE}.yml"
        self.write_group()

    def write_group(self, **variables: Any) -> None:
        gateway = {"host": "sandbox", "port": self.port, "tls": "none", "limits": {"check_s": 1}}
        box = {"hosts": ["sandbox"], "gateway": gateway, "vars": {"drain_s": 20, **variables}}
        (self.project.root / "hosts/groups.yml").write_text(json.dumps({"lab": {}, "box": box}))

    def change_recipe(self) -> None:
        """Change the number of sequences, so that the next deploy replaces the server."""
        self.max_num_seqs += 1
        self.project.edit(f"recipes/{RECIPE}.yml", r"max-num-seqs: \d+", f"max-num-seqs: {self.max_num_seqs}")

    def deploy(self, *words: str) -> CommandResult:
        return self.project.run("deploy", "--host", "sandbox", "--json", *words, timeout_s=300)

    def containers(self) -> dict[str, str]:
        """Return the state of each container except the gateway's."""
        rows = self.project.docker().api.containers(all=True)
        states = {row["Names"][0].lstrip("/"): str(row["State"]) for row in rows}
        return {name: state for name, state in states.items() if name.startswith(CONTAINER)}

    def id(self) -> str:
        return str(self.project.container(CONTAINER)["Id"])

    def servers(self) -> dict[str, str]:
        """Return the state of each host's server in the gateway."""
        status = json.loads(self.project.run("gateway.status", "--host", "box", "--json").out)
        return {server["host"]: server["state"] for server in status["models"][0]["servers"]}


@contextlib.contextmanager
def single_server() -> Iterator[SingleServer]:
    """Yield a deployed server with its gateway."""
    with sandbox_project() as project:
        server = SingleServer(project)
        assert (result := server.deploy()).code in (0, 4), result.out[-3000:] + result.err
        result = project.run("gateway.deploy", "--host", "box", "--json")
        assert result.code == 0, result.out[-3000:] + result.err
        yield server
