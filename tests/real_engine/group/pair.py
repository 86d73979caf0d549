"""A real group of two on this machine's CPU: each member is a process with the arguments and variables of a host's container.

Each member has its own loopback address, and gloo replaces NCCL. Unlike a fabric, the kernel closes the connections of
a member that exits.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
import yaml

from sparkwright.engines import openai_api
from sparkwright.engines.vllm.http import HTTP
from sparkwright.engines.vllm.parallel import STOP_TIMEOUT_S
from sparkwright.host.containers.container_options import build_create_body, differences
from sparkwright.measure import http_probe, reference, stream
from sparkwright.project import recipe
from sparkwright.project.inventory.inventory import Inventory
from sparkwright.protocol.container import ContainerSpec
from sparkwright.protocol.result import Change
from tests.engines.vllm.group_proof import GroupProof, evaluate_group
from tests.real_engine.engine import VERSION, Engine, start_vllm
from tests.remote.sshd import free_port

#: hosts, in the order of their ranks
HEAD, WORKER = HOSTS = ("one", "two")
MODEL, DIGEST = "dense", "sha256:" + "0" * 64
#: limits for a busy machine
STARTS_WITHIN_S = 500.0
TOKEN_WITHIN_S = 120.0
#: variables of the CPU build for two processes with a single thread each
THREADS = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


def member_specs(
    engine: Engine, folder: Path, split: Mapping[str, int], flags: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the container of each member, as a deploy of this split would create it."""
    for name in ("hosts", "recipes"):
        (folder / name).mkdir()
    for number, name in enumerate(HOSTS, 1):
        fabric = {"interfaces": ["lo"], "address": f"127.0.0.{number}"}
        (folder / f"hosts/{name}.yml").write_text(yaml.safe_dump({"fabric": fabric}))
    cluster = {"recipe": "tiny", "head": HEAD, "port": free_port()}
    (folder / "hosts/groups.yml").write_text(yaml.safe_dump({"pair": {"hosts": list(HOSTS), "cluster": cluster}}))
    place = str(engine.models / MODEL)
    defaults = {"served-model-name": "tiny", "max-model-len": 2048, "host": "127.0.0.1", "port": free_port()}
    stated = {
        "image": f"vllm/vllm-openai:v{VERSION}",
        "model": {"id": "tests/tiny", "dir": place, "mount": place},
        "container": {"name": "tiny", "gpus": ""},
        "parallel": dict(split),
        "vllm": {**defaults, **flags},
    }
    (folder / "recipes/tiny.yml").write_text(yaml.safe_dump(stated))
    image = {"engine_version": VERSION, "digest": DIGEST}
    pinned = {"image": image, "model": {"config": engine.model_config(MODEL)}}
    loaded_recipe, hosts = recipe.load(folder, "tiny"), Inventory.load(folder).hosts
    return {name: dict(recipe.scope(hosts[name], "ops", loaded_recipe, pinned)["container"]) for name in HOSTS}


@dataclass
class Pair:
    """A running group: the container of each member, the started processes, all logs, and the URL of the head."""

    made: Mapping[str, Mapping[str, Any]]
    members: dict[str, subprocess.Popen[bytes]]
    logs: dict[str, Path]
    url: str

    def proof(self) -> GroupProof:
        """Return sparkwright's reading of the logs."""
        return evaluate_group({name: path.read_bytes() for name, path in self.logs.items()}, HOSTS)

    def until(self, met: Callable[[], bool]) -> None:
        """Wait for a condition. Raises TimeoutError with the ends of the logs."""
        deadline_s = time.monotonic() + STARTS_WITHIN_S
        while not met():
            if time.monotonic() > deadline_s or any(member.poll() is not None for member in self.members.values()):
                ends = {name: path.read_text(errors="replace")[-1500:] for name, path in self.logs.items()}
                raise TimeoutError(f"{self.proof().sentence} {ends}")
            time.sleep(0.2)

    def health(self) -> int:
        """Return the status of the head's /health; 0 if nothing listens."""
        return http_probe.send_request(self.url, HTTP.health_path, timeout_s=10).status

    def token(self) -> http_probe.Response:
        """Return the head's answer to a request for a few tokens."""
        body = {"model": "tiny", "prompt": "the sky", "max_tokens": 8, "temperature": 0}
        return http_probe.send_request(self.url, "/v1/completions", body=body, timeout_s=TOKEN_WITHIN_S)

    def texts(self) -> list[reference.GeneratedText]:
        """Return the texts for the reference prompts. Raises reference.Unanswered."""
        target = http_probe.Target(HTTP, self.url, "tiny", timeout_s=TOKEN_WITHIN_S)
        return reference.query_texts(target, with_long_prompt=True)

    def stream(self, on_chunk: Callable[[int], None]) -> str:
        """Stream a long answer. Return the error at its end, or "". on_chunk: called with the number of chunks so far."""
        body = {**openai_api.build_request(HTTP, "tiny", "the sky", 1000), "stream": True, "ignore_eos": True}
        try:
            stream.parse_recording(
                stream.record(self.url, body, cap_s=STARTS_WITHIN_S, timeout_s=TOKEN_WITHIN_S, on_chunk=on_chunk)
            )
        except stream.StreamError as error:
            return str(error)
        return ""

    def drift(self, host: str) -> list[Change]:
        """Return a member's differences from the recipe, by its command line."""
        spec = ContainerSpec.from_json(self.made[host])
        words = psutil.Process(self.members[host].pid).cmdline()
        body = build_create_body(replace(spec, command=tuple(words[words.index("serve") + 1 :])))
        return differences(spec, {"Config": body, "HostConfig": body["HostConfig"]}, {"Id": DIGEST})

    def rank_of(self, host: str) -> int:
        """Return the id of the process of this member's rank, by its title."""
        of_member = psutil.Process(self.members[host].pid).children(recursive=True)
        return next(item.pid for item in of_member if "VLLM::Worker" in " ".join(item.cmdline()))

    def stop(self, host: str) -> int:
        """Send SIGTERM and return the exit code. Raises subprocess.TimeoutExpired when Docker would kill it."""
        self.members[host].terminate()
        return self.members[host].wait(STOP_TIMEOUT_S)


@contextlib.contextmanager
def running(
    engine: Engine,
    folder: Path,
    split: Mapping[str, int],
    hosts: tuple[str, ...] = (WORKER, HEAD),
    worker: Mapping[str, str] = MappingProxyType({}),
    **flags: Any,
) -> Iterator[Pair]:
    """Run these members, workers first, during the `with` block. worker: flags of the worker that differ from the recipe."""
    renamed = {name.replace("_", "-"): value for name, value in flags.items()}
    member_containers = member_specs(engine, folder, split, renamed)
    logs = {name: folder / f"{name}.log" for name in HOSTS}
    for path in logs.values():
        path.touch()
    words = member_containers[HEAD]["command"]
    pair = Pair(member_containers, {}, logs, f"http://127.0.0.1:{words[words.index('--port') + 1]}")
    try:
        for name in hosts:
            changes = worker if name == WORKER else {}
            pair.members[name] = _start_member(engine, member_containers[name], logs[name], changes)
        yield pair
    finally:
        for member in pair.members.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(member.pid, signal.SIGKILL)
            member.wait()


def _start_member(
    engine: Engine, spec: Mapping[str, Any], log: Path, changes: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    words = list(spec["command"])
    for flag, value in changes.items():
        words[words.index(flag) + 1] = value
    with log.open("wb") as output:
        return start_vllm(engine, words, output, {**THREADS, **spec["env"]})
