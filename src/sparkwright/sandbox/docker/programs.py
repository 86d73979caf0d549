"""The images of the simulated registry, each with the program that its containers run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkwright.sandbox import haproxy
from sparkwright.sandbox.llama_cpp.api import LlamaApi
from sparkwright.sandbox.llama_cpp.server import LlamaServer
from sparkwright.sandbox.serving.process import Process
from sparkwright.sandbox.sglang import config
from sparkwright.sandbox.sglang.api import SglangApi
from sparkwright.sandbox.sglang.server import SglangServer
from sparkwright.sandbox.vllm.api import VllmApi
from sparkwright.sandbox.vllm.command_line import cli
from sparkwright.sandbox.vllm.engine import Engine
from sparkwright.sandbox.web import Handler

LLAMA = "/app/llama-server"
#: entry point of NVIDIA's CUDA images: it runs its arguments, or a shell
NVIDIA = "/opt/nvidia/nvidia_entrypoint.sh"


@dataclass(frozen=True)
class Printed:
    """A program that prints a text and exits."""

    #: its output
    text: str
    #: its exit code
    code: int


@dataclass(frozen=True)
class Served:
    """A program that serves: its process, its HTTP handler and its arguments."""

    process: type[Process]
    api: type[Handler]
    argv: tuple[str, ...]


#: returns the outcome of a whole command line in a version, or None if the image has no such program
Program = Callable[[Sequence[str], str], Printed | Served | None]


@dataclass(frozen=True)
class Repository:
    """The images of one name, with the program that they run."""

    #: engine version by tag
    tags: dict[str, str]
    program: Program
    entrypoint: tuple[str, ...]
    working_dir: str
    #: process names as the host lists them; the last one holds the GPU
    processes: tuple[str, ...]
    #: environment variable that holds the engine's version; empty for none
    version: str = ""
    env: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)

    def config(self, tag: str) -> dict[str, Any]:
        """Return the Config of an image."""
        version = [f"{self.version}={self.tags[tag]}"] if self.version else []
        return {
            "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", *version, *self.env],
            "Entrypoint": list(self.entrypoint),
            "Cmd": None,
            "Labels": {"org.opencontainers.image.title": "sparkwright sandbox", **self.labels},
            "WorkingDir": self.working_dir,
        }


def _vllm(argv: Sequence[str], version: str) -> Printed | Served | None:
    program = cli.program(argv, version)
    if isinstance(program, cli.Serve):
        return Served(Engine, VllmApi, program.argv)
    return Printed(program.text, program.code) if program is not None else None


def _llama(argv: Sequence[str], version: str) -> Printed | Served | None:
    if not argv or argv[0] not in (LLAMA, "llama-server"):
        return None
    if "--version" in argv:
        return Printed(f"version: {version.removeprefix('b')} (sandbox)", 0)
    return Served(LlamaServer, LlamaApi, tuple(argv[1:]))


def _sglang(argv: Sequence[str], version: str) -> Printed | Served | None:
    words = list(argv[1:] if argv[:1] == [NVIDIA] else argv)
    if not words:
        return Printed("", 0)
    match words:
        case ["sglang", "version"]:
            return Printed(f"sglang version: {version}\ngit revision: sandbox", 0)
        case ["sglang", "serve", *rest] | ["python" | "python3", "-m", "sglang.launch_server", *rest]:
            if not {"-h", "--help"}.isdisjoint(rest):
                return Printed(config.help_text(), 0)
            return Served(SglangServer, SglangApi, tuple(rest))
    return None


def _haproxy(argv: Sequence[str], version: str) -> Printed | Served | None:
    if argv[:1] != ["haproxy"] or not haproxy.program():
        return None
    return Served(haproxy.Haproxy, haproxy.NoApi, tuple(argv[1:]))


REPOSITORIES = {
    # the nightly stopped moving in April 2026
    "vllm/vllm-openai": Repository(
        {"cu130-nightly": "0.19.2rc1.dev134+gsandbox", "v0.32.0": "0.32.0", "latest": "0.32.0", "nightly": "0.32.0"},
        _vllm,
        ("vllm", "serve"),
        "/vllm-workspace",
        ("vllm", "VLLM::EngineCore"),
        "VLLM_VERSION",
    ),
    "ghcr.io/ggml-org/llama.cpp": Repository(
        {"server-cuda13": "b11549", "server-cuda13-b11549": "b11549", "server-cuda13-b10434": "b10434"},
        _llama,
        (LLAMA,),
        "/app",
        ("llama-server",),
        env=("LLAMA_ARG_HOST=0.0.0.0",),
    ),
    "lmsysorg/sglang": Repository(
        {"v0.5.23": "0.5.23"},
        _sglang,
        (NVIDIA,),
        "/sgl-workspace",
        ("sglang::detokenizer", "sglang::scheduler"),
    ),
    "haproxy": Repository({"2.6": "2.6.12"}, _haproxy, ("haproxy",), "/var/lib/haproxy", ("haproxy", "haproxy")),
}
#: repository of each tag; no tag is in two
OF_TAG = {tag: name for name, repository in REPOSITORIES.items() for tag in repository.tags}
