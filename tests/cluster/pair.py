"""A project with a cluster of two hosts on this machine, each with its own Docker Engine, home and fabric address.

The containers use the host network, like those of any cluster; each host has its own loopback address. The engine is the
sandbox's vLLM, whose ranks connect over TCP.
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
        engines: DOCKER_HOST of each host, the head's first; empty for this machine's engine.
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
        shortened = rf"\1\2{SHORTENED_TASKS['smoke_test']}\n\2"
        for playbook in (self.root / "playbooks").rglob("*.yml"):
            playbook.write_text(re.sub(r"( smoke_test:\n)( +)", shortened, playbook.read_text()))
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
            variables = {"ollama": "leave", "reserve_gib": 0.1}
            fabric = {"interfaces": ["lo"], "address": f"127.0.0.{n}"}
            self.write_host(name, {**host, "vars": variables, "fabric": fabric})
        self.ports = {"port": free_port(), "barrier_port": free_port()}
        self.write_groups()
        self.recipe()

    def home(self, name: str) -> Path:
        """Return the home folder of a host or the laptop."""
        folder = self.folder / f"home-{name}"
        folder.mkdir(exist_ok=True)
        return folder

    def write_groups(self) -> None:
        cluster = {"recipe": "served", "head": "one", **self.ports}
        text = yaml.safe_dump({"pair": {"hosts": list(self.names), "cluster": cluster}})
        (self.root / "hosts/groups.yml").write_text(text)

    def read_host(self, name: str) -> dict[str, Any]:
        """Return the content of a host's file."""
        return dict(yaml.safe_load((self.root / f"hosts/{name}.yml").read_text()))

    def write_host(self, name: str, host: dict[str, Any]) -> None:
        (self.root / f"hosts/{name}.yml").write_text(yaml.safe_dump(host))

    def recipe(self, fault: str = "", **flags: Any) -> None:
        """Write the cluster's recipe for the next deploy.

        Args:
            fault: of the sandbox.
            flags: in addition to the defaults, with `_` for `-`.
        """
        vllm = {"host": "127.0.0.1", "port": self.port, "served-model-name": self.model}
        vllm |= {"max-model-len": 8192, "gpu-memory-utilization": 0.1}
        vllm |= {key.replace("_", "-"): value for key, value in flags.items()}
        env = {**INSTANT_SANDBOX, "SANDBOX_FAULT": fault}
        container = {"name": self.name, "volumes": needed_mounts(), "env": env}
        recipe = {
            "image": self.images.name("vllm-openai:v0.32.0"),
            "model": {"dir": "~/models/glm", "mount": "/models/tiny", "id": VLLM_REPO},
            "container": {**container, "gpus": "", "ulimits": {"nofile": "1024"}},
            "parallel": {"tensor": 2},
            "vllm": vllm,
            "expect": {"ready_s": 60},
        }
        self.write_recipe(recipe)

    def write_recipe(self, recipe: dict[str, Any]) -> None:
        """Write the given recipe for the next deploy."""
        (self.root / "recipes/served.yml").write_text(yaml.safe_dump(recipe, sort_keys=False))

    def fail_worker_before(self, task: str) -> None:
        """Insert a task that fails on the worker before each task of this name in the playbooks of clusters."""
        name_line, count = re.compile(rf"(?m)^( *)- name: {re.escape(task)}\n"), 0
        inserted = "{name: Break, fail: {msg: broken for a test}, when: not head}"
        for path in (self.root / "playbooks/cluster").rglob("*.yml"):
            text, replaced = name_line.subn(rf"\1- {inserted}\n\n\g<0>", path.read_text())
            path.write_text(text)
            count += replaced
        assert count, f"no task {task}"

    def run(self, *words: str) -> CommandResult:
        completed = commands.run(*words, cwd=self.root, env=self.env, timeout_s=self.timeout_s)
        return CommandResult(completed.returncode, completed.stdout, completed.stderr)

    def run_json(self, command: str, *options: str) -> CommandResult:
        """Run a command for the cluster with --json."""
        return self.run(command, "--host", "pair", "--json", *options)

    def run_proved(self, command: str) -> CommandResult:
        """Run a command for the cluster with --json, and check that it succeeded."""
        result = self.run_json(command)
        assert result.proved, "\n".join(map(str, failures(result))) + result.out[-3000:] + result.err
        return result

    def deployed(self) -> CommandResult:
        """Deploy, and check that it succeeded."""
        return self.run_proved("deploy")

    def deploy(self, *options: str) -> CommandResult:
        return self.run_json("deploy", *options)

    def docker(self, host: str, *words: str, check: bool = True) -> str:
        """Run docker on the host's engine."""
        env = {**os.environ, **({"DOCKER_HOST": self.engines[host]} if self.engines[host] else {})}
        completed = subprocess.run(
            ["docker", *words], env=env, capture_output=True, text=True, timeout=120, check=False
        )
        assert not check or completed.returncode == 0, completed.stderr
        return completed.stdout.strip()

    def container(self, host: str) -> dict[str, Any]:
        """Return the attributes of the member's container; empty without a container."""
        inspected = self.docker(host, "inspect", self.name, check=False)
        rows = json.loads(inspected) if inspected else []
        return dict(rows[0]) if rows else {}

    def running(self) -> dict[str, str]:
        """Return the Id of each host's running container."""
        containers = {name: self.container(name) for name in self.names}
        return {name: value["Id"] for name, value in containers.items() if value and value["State"]["Running"]}

    def start_times(self) -> dict[str, str]:
        return {host: str(self.container(host)["State"]["StartedAt"]) for host in self.names}

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
