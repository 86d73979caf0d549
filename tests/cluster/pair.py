"""A user's project with a cluster of two hosts, each with a Docker Engine, a home and a fabric address of its own on this machine.

The containers are on the host's network, as a cluster's are; both hosts share this machine's loopback, where each has an address.
The engine is the sandbox's vLLM, which meets its other ranks over real TCP.
"""

import json
import os
import re
import secrets
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests import commands
from tests.e2e.conftest import SHORTENED_TASKS, CommandResult
from tests.real_llama.container_desk import VLLM_REPO, ImageNames, disable_cache_dropping, needed_mounts
from tests.remote.sshd import free_port

TOP = Path(__file__).parents[2]
INSTANT_SANDBOX = {"SPARKWRIGHT_SANDBOX_SPEED": "instant"}


class ClusterPair:
    """A project with a cluster of two hosts.

    Args:
        engines: DOCKER_HOST of each host, the head's first; empty: this machine's own.
    """

    names = ("one", "two")
    model = "glm"
    timeout_s, token_s = 240.0, 30.0

    def __init__(self, folder: Path, images: ImageNames, hub: str, engines: tuple[str, str]) -> None:
        self.root, self.images, self.folder = folder / "project", images, folder
        self.port, self.engines = free_port(), dict(zip(self.names, engines, strict=True))
        self.name = f"cluster-{secrets.token_hex(4)}"
        for name in ("playbooks", "templates"):
            shutil.copytree(TOP / name, self.root / name)
        for name in ("hosts", "recipes"):
            (self.root / name).mkdir()
        for playbook in (self.root / "playbooks").rglob("*.yml"):
            playbook.write_text(
                re.sub(r"( smoke_test:\n)( +)", rf"\1\2{SHORTENED_TASKS['smoke_test']}\n\2", playbook.read_text())
            )
        disable_cache_dropping(self.root / "playbooks")
        self.env = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "SPARKWRIGHT_"))},
            "HOME": str(self.home("laptop")),
            "PYTHONPATH": str(TOP / "src"),
        }
        for n, name in enumerate(self.names, 1):
            env = {"HF_ENDPOINT": hub, "HOME": str(self.home(name))}
            env |= {"DOCKER_HOST": self.engines[name]} if self.engines[name] else {}
            host = {"connection": "local", "home": env["HOME"], "env": env}
            host["vars"] = {"ollama": "leave", "reserve_gib": 0.1}
            host["fabric"] = {"interfaces": ["lo"], "address": f"127.0.0.{n}"}
            (self.root / f"hosts/{name}.yml").write_text(yaml.safe_dump(host))
        self.ports = {"port": free_port(), "barrier_port": free_port()}
        self.group()
        self.recipe()

    def home(self, name: str) -> Path:
        """Return the home folder of a host or the laptop."""
        folder = self.folder / f"home-{name}"
        folder.mkdir(exist_ok=True)
        return folder

    def group(self, recipe: str = "served") -> None:
        """Write groups.yml."""
        cluster = {"recipe": recipe, "head": "one", **self.ports}
        text = yaml.safe_dump({"pair": {"hosts": list(self.names), "cluster": cluster}})
        (self.root / "hosts/groups.yml").write_text(text)

    def recipe(self, fault: str = "", **flags: Any) -> None:
        """Write the cluster's recipe for the next deploy.

        Args:
            fault: of the sandbox.
            flags: in addition to the usual ones, with `_` for `-`.
        """
        usual = {
            "served-model-name": self.model,
            "max-model-len": 8192,
            "gpu-memory-utilization": 0.1,
            "port": self.port,
        }
        usual |= {key.replace("_", "-"): value for key, value in flags.items()}
        stated = {
            "image": self.images.name("vllm-openai:v0.32.0"),
            "model": {"dir": "~/models/glm", "mount": "/models/tiny", "id": VLLM_REPO},
            "container": {
                "name": self.name,
                "gpus": "",
                "volumes": needed_mounts(),
                "env": {**INSTANT_SANDBOX, "SANDBOX_FAULT": fault},
                "ulimits": {"nofile": "1024"},
            },
            "parallel": {"tensor": 2},
            "vllm": {"host": "127.0.0.1", **usual},
            "expect": {"ready_s": 60},
        }
        self.write_recipe(stated)

    def write_recipe(self, stated: dict[str, Any]) -> None:
        """Write the given recipe for the next deploy."""
        (self.root / "recipes/served.yml").write_text(yaml.safe_dump(stated, sort_keys=False))

    def before(self, task: str, inserted: str) -> None:
        """Put a task before the one of this name, in the cluster's playbooks."""
        paths = [
            path for path in (self.root / "playbooks/cluster").rglob("*.yml") if f"- name: {task}\n" in path.read_text()
        ]
        for path in paths:
            name_line = re.compile(rf"(?m)^( *)- name: {re.escape(task)}\n")
            path.write_text(name_line.sub(lambda at: f"{at[1]}- {inserted}\n\n{at[0]}", path.read_text()))
        assert paths, task

    def run(self, *words: str) -> CommandResult:
        completed = commands.run(*words, cwd=self.root, env=self.env, timeout_s=self.timeout_s)
        return CommandResult(completed.returncode, completed.stdout, completed.stderr)

    def deployed(self) -> CommandResult:
        """Deploy, and check that it succeeded."""
        answer = self.deploy()
        assert answer.proved, "\n".join(map(str, failures(answer))) + answer.out[-3000:] + answer.err
        return answer

    def deploy(self, *words: str) -> CommandResult:
        return self.run("deploy", "--host", "pair", "--json", *words)

    def docker(self, host: str, *words: str, check: bool = True) -> str:
        """Run docker on the host's own engine."""
        env = {**os.environ, **({"DOCKER_HOST": self.engines[host]} if self.engines[host] else {})}
        completed = subprocess.run(
            ["docker", *words], env=env, capture_output=True, text=True, timeout=120, check=False
        )
        assert not check or completed.returncode == 0, completed.stderr
        return completed.stdout.strip()

    def container(self, host: str) -> dict[str, Any]:
        """Return the inspect of the member's container; empty without one."""
        inspected = self.docker(host, "inspect", self.name, check=False)
        rows = json.loads(inspected) if inspected else []
        return dict(rows[0]) if rows else {}

    def running(self) -> dict[str, str]:
        """Return the Id of each host's running container."""
        containers = {name: self.container(name) for name in self.names}
        return {name: value["Id"] for name, value in containers.items() if value and value["State"]["Running"]}

    def generates(self) -> bool:
        """Return True if a client gets a token from the head."""
        body = json.dumps({"model": self.model, "prompt": "1", "max_tokens": 2}).encode()
        url = f"http://127.0.0.1:{self.port}/v1/completions"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=self.token_s) as answer:
            return bool(json.load(answer)["choices"][0]["text"])

    def history(self, host: str) -> list[dict[str, Any]]:
        """Return the history of a member's server, newest first."""
        result = self.run("history", "--host", host, "--json")
        return [json.loads(line) for line in result.out.splitlines()]

    def close(self) -> None:
        for host in self.names:
            for name in (self.name, f"{self.name}-previous"):
                self.docker(host, "rm", "-fv", name, check=False)


def failures(answer: CommandResult) -> Iterator[tuple[str, str, str]]:
    """Yield host, task and message of each failed task."""
    for event in answer.events():
        if event["event"] == "task_finished" and event["status"] == "failed":
            yield event["host"], event["name"], event["msg"]
