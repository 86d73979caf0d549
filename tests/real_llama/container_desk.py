"""A user's project on this machine's Docker Engine: images in a registry and a model on a hub, all on loopback.

The images only contain an entry point. The machine's programs, its Python and this checkout are mounted read-only, because
no base image can be pulled without a network. One image runs the real llama-server, the other the sandbox's vLLM.
"""

import contextlib
import io
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import pytest
import yaml

from tests import commands
from tests.e2e.conftest import SHORTENED_TASKS, CommandResult
from tests.registry.server import PROGRAM, Registry
from tests.remote.sshd import free_port

TOP = Path(__file__).parents[2]
GGUF_REPO, VLLM_REPO = "tests/tiny-GGUF", "zai-org/GLM-4.7-Flash"
GOOD, BROKEN = "tiny-llama.gguf", "broken-llama.gguf"
#: top-level links of a merged /usr
LINKS = {name: f"usr/{name}" for name in ("bin", "lib", "lib64", "sbin") if Path("/", name).is_symlink()}
PROGRAMS = {
    "app/llama-server": "tests.real_llama.llama_server --threads 1 --threads-http 4",
    "app/vllm": "sparkwright.sandbox.vllm",
}
ENTRIES = {"llama.cpp:server-b11549": ["/app/llama-server"], "vllm-openai:v0.32.0": ["/app/vllm", "serve"]}
SERVES = ("--ctx-size", "8192", "--parallel", "2", "--metrics", "--host", "0.0.0.0")
#: llama-server's HTTP interface, in the form of a recipe
DESCRIPTION = {
    "port": 8080,
    "health": "/health",
    "loading": [503],
    "settings": {"path": "/props", "max_model_len": "default_generation_settings.n_ctx", "version": "build_info"},
    "metrics": {
        "path": "/metrics",
        "generated": "llamacpp:tokens_predicted_total",
        "heartbeat": "llamacpp:n_decode_total",
        "running": "llamacpp:requests_processing",
        "waiting": "llamacpp:requests_deferred",
    },
}


def needed_mounts() -> list[str]:
    """Return the read-only mounts that the entry points need from this machine, without duplicates."""
    needed = sorted({"/usr", sys.base_prefix, sys.prefix, str(TOP)})
    outer = [item for item in needed if not any(item.startswith(f"{other}/") for other in needed)]
    return [f"{item}:{item}:ro" for item in outer]


def build_rootfs(salt: str) -> bytes:
    """Return an image as a tar: links into the mounted /usr, writable folders, the entry points.

    salt: makes the layer unique to this image, because an engine does not pull a layer that a killed run left behind.
    """
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:

        def add(name: str, content: bytes = b"", **attributes: Any) -> None:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for attribute, value in attributes.items():
                setattr(info, attribute, value)
            archive.addfile(info, io.BytesIO(content))

        add("salt", salt.encode())
        for name in ("usr", "tmp", "etc"):
            add(name, type=tarfile.DIRTYPE, mode=0o777 if name == "tmp" else 0o755)
        for name, target in LINKS.items():
            add(name, type=tarfile.SYMTYPE, linkname=target)
        for name, module in PROGRAMS.items():
            path = f"PYTHONPATH={TOP}:{TOP}/src PYTHONDONTWRITEBYTECODE=1"
            add(name, f'#!/bin/sh\n{path} exec {sys.executable} -m {module} "$@"\n'.encode(), mode=0o755)
    return out.getvalue()


def disable_cache_dropping(playbooks: Path) -> None:
    """Disable dropping: as root it empties the page cache of the whole machine, and slows down everything else that runs."""
    pattern = re.compile(
        r"( page_cache:\n)( +)(model_dir: .*\n(?: +models: .*\n)?)(?: +(?:policy|utilization|needs_bytes|engine_memory|reserve_gib): .*\n)*"
    )
    for book in playbooks.rglob("*.yml"):
        text = book.read_text()
        if "page_cache:" in text:
            book.write_text(pattern.sub(r"\1\2\3\2policy: fit\n\2utilization: 0.01\n\2reserve_gib: 0\n", text))


def run_docker(*words: str, stdin: bytes | None = None, check: bool = True) -> str:
    result = subprocess.run(["docker", *words], input=stdin, capture_output=True, timeout=120, check=False)
    assert not check or result.returncode == 0, result.stderr.decode()
    return result.stdout.decode().strip()


@dataclass
class Images:
    """The images in a registry, by their short names."""

    registry: str
    repository: str = field(default_factory=lambda: f"test-{secrets.token_hex(4)}")

    def make(self) -> None:
        content = build_rootfs(self.repository)
        for short, entry in ENTRIES.items():
            run_docker("import", "--change", f"ENTRYPOINT {json.dumps(entry)}", "-", self.name(short), stdin=content)
            run_docker("push", "-q", self.name(short))

    def name(self, short: str) -> str:
        return f"{self.registry}/{self.repository}/{short}"

    def remove(self) -> None:
        rows = run_docker("images", "--digests", "--format", "{{.Repository}} {{.ID}}").splitlines()
        for image in {row.split()[1] for row in rows if f"/{self.repository}/" in row}:
            run_docker("rmi", "-f", image, check=False)


@contextlib.contextmanager
def published(folder: Path) -> Iterator[Images]:
    """Serve the images from a registry that stores them in this folder. Skips the test without a registry or an engine."""
    if PROGRAM is None:
        pytest.skip("no docker-registry (Debian's package of that name)")
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        pytest.skip("no Docker Engine answers")
    registry = Registry(folder)
    registry.start()
    images = Images(registry.address)
    try:
        images.make()
        yield images
    finally:
        images.remove()
        registry.stop()


class ImageNames(Protocol):
    """A lookup of the images' full names."""

    def name(self, short: str) -> str:
        """REGISTRY/REPOSITORY:TAG."""


class Project:
    """A project with a single host, `here`, which is this machine. Its container has a unique name.

    haste: additional arguments of modules in the playbooks, which shorten waits.
    """

    haste: ClassVar[dict[str, str]] = SHORTENED_TASKS
    timeout_s = 240.0

    def __init__(self, folder: Path, images: ImageNames, hub: str) -> None:
        self.root, self.images, self.port = folder / "project", images, free_port()
        self.name = f"real-{secrets.token_hex(4)}"
        home = folder / "home"
        home.mkdir()
        for name in ("playbooks", "templates"):
            shutil.copytree(TOP / name, self.root / name)
        for name in ("hosts", "recipes"):
            (self.root / name).mkdir()
        for book in (self.root / "playbooks").rglob("*.yml"):
            for module, shorter in self.haste.items():
                book.write_text(re.sub(rf"( {module}:\n)( +)", rf"\1\2{shorter}\n\2", book.read_text()))
        disable_cache_dropping(self.root / "playbooks")
        self.env = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "SPARKWRIGHT_"))},
            "HOME": str(home),
            "PYTHONPATH": str(TOP / "src"),
        }
        host = {"connection": "local", "home": str(home), "recipe": "served", "env": {"HF_ENDPOINT": hub}}
        host["vars"] = {"ollama": "leave", "reserve_gib": 0.1}
        (self.root / "hosts/here.yml").write_text(yaml.safe_dump(host))

    def write_engine_recipe(
        self,
        short: str,
        engine: str,
        model: dict[str, Any],
        flags: dict[str, Any],
        keys: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Write the recipe for the next deploy. keys: further keys of the recipe. options: further keys of its container."""
        ports = [f"127.0.0.1:{self.port}:{8000 if engine == 'vllm' else 8080}"]
        recipe = {
            "engine": engine,
            "image": self.images.name(short),
            "model": {"dir": f"~/models/{engine}", "mount": "/models/tiny", **model},
            "container": {"name": self.name, "gpus": "", "ports": ports, "volumes": needed_mounts(), **options},
            "publish": "loopback",
            engine: flags,
            "expect": {"ready_s": 60, "answers": "any"},
            **(keys or {}),
        }
        self.serves(recipe)

    def serves(self, recipe: dict[str, Any]) -> None:
        """Write the host's recipe for the next deploy."""
        (self.root / "recipes/served.yml").write_text(yaml.safe_dump(recipe, sort_keys=False))

    def serve_llama(self, *, file: str = GOOD, **flags: Any) -> Self:
        """Write a recipe for the real llama-server. flags: additional ones, with `_` for `-`."""
        given = {key.replace("_", "-"): value for key, value in flags.items()}
        all_flags = {"alias": "tiny", "ctx-size": 8192, "parallel": 2, **given}
        self.write_engine_recipe("llama.cpp:server-b11549", "llama_cpp", {"id": GGUF_REPO, "file": file}, all_flags)
        return self

    def serve_described(self, *words: str, keys: dict[str, Any] | None = None, **section: Any) -> Self:
        """Write a recipe that describes llama-server as an unknown engine. words: added to its command."""
        flags = {
            "served_name": "tiny",
            "command": ["-m", f"/models/tiny/{GOOD}", "--alias", "tiny", *SERVES, "--port", "8080", *words],
            "memory_gib": 0.1,
            **DESCRIPTION,
            **section,
        }
        model = {"id": GGUF_REPO, "allow": [GOOD]}
        self.write_engine_recipe(
            "llama.cpp:server-b11549", "openai", model, flags, keys, entrypoint=["/app/llama-server"]
        )
        return self

    def serve_vllm(self) -> Self:
        """Write a recipe for the sandbox's vLLM, without simulated delays."""
        flags = {"served-model-name": "glm", "max-model-len": 8192, "gpu-memory-utilization": 0.1}
        env = {"SPARKWRIGHT_SANDBOX_SPEED": "instant"}
        self.write_engine_recipe("vllm-openai:v0.32.0", "vllm", {"id": VLLM_REPO}, flags, env=env)
        return self

    def run(self, *words: str) -> CommandResult:
        """Run a command without earlier baselines: the rate of a tiny model depends on the load of this machine."""
        for folder in (Path(self.env["HOME"]) / ".local/state/sparkwright").rglob("baselines"):
            shutil.rmtree(folder)
        result = commands.run(*words, cwd=self.root, env=self.env, timeout_s=self.timeout_s)
        return CommandResult(result.returncode, result.stdout, result.stderr)

    def deploy(self) -> CommandResult:
        return self.run("deploy", "--host", "here", "--json")

    def container(self) -> dict[str, Any]:
        return dict(json.loads(run_docker("inspect", self.name))[0])

    def status(self, path: str, body: bytes | None = None) -> int:
        """Return the status of the server's answer to a request without a key."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", body, timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def close(self) -> None:
        for name in (self.name, f"{self.name}-previous"):
            run_docker("rm", "-fv", name, check=False)
