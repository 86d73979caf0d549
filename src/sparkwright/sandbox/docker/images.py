"""The images in the simulated registry, the programs in them, and the images on the simulated host."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkwright.sandbox import haproxy
from sparkwright.sandbox.http_server import Handler
from sparkwright.sandbox.llama_cpp.api import LlamaApi
from sparkwright.sandbox.llama_cpp.server import LlamaServer
from sparkwright.sandbox.serving.process import Process
from sparkwright.sandbox.sglang import config
from sparkwright.sandbox.sglang.api import SglangApi
from sparkwright.sandbox.sglang.server import SglangServer
from sparkwright.sandbox.vllm import command_line
from sparkwright.sandbox.vllm.api import VllmApi
from sparkwright.sandbox.vllm.command_line import PrintedOutput, ServeCommand
from sparkwright.sandbox.vllm.engine import Engine

LLAMA_SERVER = "/app/llama-server"
#: entry point of NVIDIA's CUDA images, which runs its arguments or else a shell
NVIDIA_ENTRYPOINT = "/opt/nvidia/nvidia_entrypoint.sh"
#: size of each layer, bytes
LAYER_SIZES = (3_400_000_000, 2_900_000_000, 1_800_000_000, 900_000_000, 120_000_000, 31_000_000)
PULL_DURATION_S = 2.0
ARCHIVE_MEMBER = "image.json"


@dataclass(frozen=True)
class ServingProgram:
    """A server program: its process, HTTP handler and arguments."""

    process_class: type[Process]
    handler_class: type[Handler]
    argv: tuple[str, ...]


#: returns what a command line runs under an engine version, or None if the image does not contain the program
ResolveProgram = Callable[[Sequence[str], str], PrintedOutput | ServingProgram | None]


@dataclass(frozen=True)
class Repository:
    """A repository of images, and the program in them."""

    #: engine version by tag
    tags: dict[str, str]
    resolve_program: ResolveProgram
    entrypoint: tuple[str, ...]
    working_dir: str
    #: names of the processes on the host; the last one uses the GPU
    processes: tuple[str, ...]
    #: environment variable with the engine's version; empty if the image sets none
    version_variable: str = ""
    env: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)

    def config(self, tag: str) -> dict[str, Any]:
        """Return the `Config` that `docker image inspect` shows for a tag."""
        version = [f"{self.version_variable}={self.tags[tag]}"] if self.version_variable else []
        return {
            "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", *version, *self.env],
            "Entrypoint": list(self.entrypoint),
            "Cmd": None,
            "Labels": {"org.opencontainers.image.title": "sparkwright sandbox", **self.labels},
            "WorkingDir": self.working_dir,
        }


def _resolve_vllm_program(argv: Sequence[str], version: str) -> PrintedOutput | ServingProgram | None:
    program = command_line.resolve_program(argv, version)
    if isinstance(program, ServeCommand):
        return ServingProgram(Engine, VllmApi, program.argv)
    return program


def _resolve_llama_program(argv: Sequence[str], version: str) -> PrintedOutput | ServingProgram | None:
    if not argv or argv[0] not in (LLAMA_SERVER, "llama-server"):
        return None
    if "--version" in argv:
        return PrintedOutput(f"version: {version.removeprefix('b')} (sandbox)", 0)
    return ServingProgram(LlamaServer, LlamaApi, tuple(argv[1:]))


def _resolve_sglang_program(argv: Sequence[str], version: str) -> PrintedOutput | ServingProgram | None:
    words = list(argv[1:] if argv[:1] == [NVIDIA_ENTRYPOINT] else argv)
    if not words:
        return PrintedOutput("", 0)
    match words:
        case ["sglang", "version"]:
            return PrintedOutput(f"sglang version: {version}\ngit revision: sandbox", 0)
        case ["sglang", "serve", *arguments] | ["python" | "python3", "-m", "sglang.launch_server", *arguments]:
            if not {"-h", "--help"}.isdisjoint(arguments):
                return PrintedOutput(config.help_text(), 0)
            return ServingProgram(SglangServer, SglangApi, tuple(arguments))
    return None


def _resolve_haproxy_program(argv: Sequence[str], version: str) -> PrintedOutput | ServingProgram | None:
    if argv[:1] != ["haproxy"] or not haproxy.find_executable():
        return None
    return ServingProgram(haproxy.Haproxy, haproxy.NoApi, tuple(argv[1:]))


REPOSITORIES = {
    # cu130-nightly has not changed since April 2026
    "vllm/vllm-openai": Repository(
        {"cu130-nightly": "0.19.2rc1.dev134+gsandbox", "v0.32.0": "0.32.0", "latest": "0.32.0", "nightly": "0.32.0"},
        _resolve_vllm_program,
        ("vllm", "serve"),
        "/vllm-workspace",
        ("vllm", "VLLM::EngineCore"),
        "VLLM_VERSION",
    ),
    "ghcr.io/ggml-org/llama.cpp": Repository(
        {"server-cuda13": "b11549", "server-cuda13-b11549": "b11549", "server-cuda13-b10434": "b10434"},
        _resolve_llama_program,
        (LLAMA_SERVER,),
        "/app",
        ("llama-server",),
        env=("LLAMA_ARG_HOST=0.0.0.0",),
    ),
    "lmsysorg/sglang": Repository(
        {"v0.5.23": "0.5.23"},
        _resolve_sglang_program,
        (NVIDIA_ENTRYPOINT,),
        "/sgl-workspace",
        ("sglang::detokenizer", "sglang::scheduler"),
    ),
    "haproxy": Repository(
        {"2.6": "2.6.12"}, _resolve_haproxy_program, ("haproxy",), "/var/lib/haproxy", ("haproxy", "haproxy")
    ),
}
#: repository of each tag; tags are unique across repositories
REPOSITORY_OF_TAG = {tag: name for name, repository in REPOSITORIES.items() for tag in repository.tags}


def digest_of(tag: str, *, moved: bool = False) -> str:
    """Return a tag's digest in the registry: the original one, or the new one if the tag has `moved`."""
    return "sha256:" + hashlib.sha256(f"sandbox {tag} {'moved' if moved else ''}".encode()).hexdigest()


class Images:
    """The images of the simulated host and their registry.

    Args:
        fault: returns the name of the active fault.
        instant: pull without delay.
    """

    def __init__(self, fault: Callable[[], str], *, instant: bool) -> None:
        self._fault = fault
        self._instant = instant
        self._mutex = threading.Lock()
        self.local: dict[str, str] = {}  # digest -> tag
        self.tags: dict[str, str] = {}  # "repository:tag" -> digest

    def resolve(self, reference: str) -> tuple[str, str] | None:
        """Return the tag and digest of a reference, or None if it is not in the registry."""
        name, _, digest = reference.partition("@")
        repository, _, tag = name.rpartition(":") if ":" in name.rsplit("/", 1)[-1] else (name, "", "")
        repository = repository.removeprefix("docker.io/")
        if repository not in REPOSITORIES:
            return None
        tags = REPOSITORIES[repository].tags
        if digest:
            tag_of_digest = {digest_of(tag, moved=moved): tag for tag in tags for moved in (False, True)}
            return (tag_of_digest[digest], digest) if digest in tag_of_digest else None
        if (tag or "latest") not in tags:
            return None
        return tag or "latest", digest_of(tag or "latest", moved=self._fault() == "moved-tag")

    def distribution(self, reference: str) -> dict[str, Any] | None:
        """Return the body of /distribution/REFERENCE/json, or None if the reference is not in the registry."""
        tag_and_digest = self.resolve(reference)
        if tag_and_digest is None:
            return None
        architectures = ["amd64"] if self._fault() == "wrong-arch" else ["amd64", "arm64"]
        media_type = "application/vnd.oci.image.index.v1+json"
        return {
            "Descriptor": {"mediaType": media_type, "digest": tag_and_digest[1], "size": 1609},
            "Platforms": [{"architecture": architecture, "os": "linux"} for architecture in architectures],
        }

    def pull(self, reference: str) -> Iterator[dict[str, Any]]:
        """Pull an image, yielding the progress. The reference must be in the registry."""
        tag_and_digest = self.resolve(reference)
        assert tag_and_digest is not None
        tag, digest = tag_and_digest
        yield {"status": f"Pulling from {REPOSITORY_OF_TAG[tag]}", "id": digest}
        if digest not in self.local:
            layer_ids = [hashlib.sha256(f"{digest}{n}".encode()).hexdigest()[:12] for n in range(len(LAYER_SIZES))]
            steps = 1 if self._instant else 20
            for step in range(1, steps + 1):
                for layer_id, size in zip(layer_ids, LAYER_SIZES, strict=True):
                    detail = {"current": size * step // steps, "total": size}
                    yield {"status": "Downloading", "progressDetail": detail, "id": layer_id}
                if self._fault() == "no-space":
                    yield _error_line(
                        f"failed to register layer: write /usr/lib/{layer_ids[0]}: no space left on device"
                    )
                    return
                time.sleep(0 if self._instant else PULL_DURATION_S / steps)
            for layer_id in layer_ids:
                yield {"status": "Pull complete", "progressDetail": {}, "id": layer_id}
        with self._mutex:
            self.local[digest] = tag
            if "@" not in reference:
                self.tags[_with_tag(reference)] = digest
        yield {"status": f"Digest: {digest}"}
        yield {"status": f"Status: Downloaded newer image for {reference}"}

    def save_archive(self, digest: str) -> Iterator[bytes]:
        """Yield the tar archive of a local image, with its digest and tag but no layers."""
        data = json.dumps({"digest": digest, "tag": self.local[digest]}).encode()
        info, archive_file = tarfile.TarInfo(ARCHIVE_MEMBER), io.BytesIO()
        info.size = len(data)
        with tarfile.open(fileobj=archive_file, mode="w") as archive:
            archive.addfile(info, io.BytesIO(data))
        yield archive_file.getvalue()

    def load(self, archive: bytes) -> Iterator[dict[str, Any]]:
        """Load an archive from `save_archive`, and yield the progress."""
        try:
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                metadata = json.load(tar.extractfile(ARCHIVE_MEMBER) or io.BytesIO())
            tag, digest = str(metadata["tag"]), str(metadata["digest"])
            REPOSITORY_OF_TAG[tag]
        except (ValueError, LookupError, TypeError, tarfile.TarError):
            yield _error_line("invalid tar header")
            return
        if self._fault() == "no-space":
            yield _error_line("write /var/lib/docker/tmp: no space left on device")
            return
        with self._mutex:
            self.local[digest] = tag
        yield {"stream": f"Loaded image ID: {image_id(digest)}\n"}

    def find(self, reference: str) -> str | None:
        """Return the digest of a local image, named by repository@digest, repository:tag, digest or id, or None."""
        with self._mutex:
            for digest in self.local:
                if reference.endswith(f"@{digest}") or reference in (digest, image_id(digest)):
                    return digest
            return self.tags.get(_with_tag(reference)) if "@" not in reference else None

    def untag(self, name: str) -> list[dict[str, str]]:
        """Remove one of an image's names. Return the lines that `docker rmi` shows."""
        with self._mutex:
            self.tags.pop(name)
        return [{"Untagged": name}]

    def delete(self, digest: str) -> list[dict[str, str]]:
        """Remove an image and all its names. Return the lines that `docker rmi` shows."""
        names = [name for name, target in self.tags.items() if target == digest]
        untagged_rows = [line for name in names for line in self.untag(name)]
        with self._mutex:
            tag = self.local.pop(digest)
        return [*untagged_rows, {"Untagged": f"{REPOSITORY_OF_TAG[tag]}@{digest}"}, {"Deleted": image_id(digest)}]

    def repository(self, digest: str) -> Repository:
        """Return the repository of a local image."""
        return REPOSITORIES[REPOSITORY_OF_TAG[self.local[digest]]]

    def inspect(self, digest: str) -> dict[str, Any]:
        """Return the output of `docker image inspect` for a local image."""
        tag = self.local[digest]
        names = [name for name, target in self.tags.items() if target == digest]
        return {
            "Id": image_id(digest),
            "RepoTags": names,
            "RepoDigests": [f"{REPOSITORY_OF_TAG[tag]}@{digest}"],
            "Created": "2026-04-22T03:11:09Z",
            "Architecture": "arm64",
            "Os": "linux",
            "Size": sum(LAYER_SIZES) * 2,
            "Config": REPOSITORIES[REPOSITORY_OF_TAG[tag]].config(tag),
        }


def image_id(digest: str) -> str:
    """Return an image's id, which differs from its digest, as with the overlay2 storage driver."""
    return "sha256:" + hashlib.sha256(digest.encode()).hexdigest()


def _with_tag(reference: str) -> str:
    """Return a reference as Docker stores it: with a tag, and without docker.io/."""
    name = reference.removeprefix("docker.io/")
    return name if ":" in name.rsplit("/", 1)[-1] else f"{name}:latest"


def _error_line(message: str) -> dict[str, Any]:
    return {"errorDetail": {"message": message}, "error": message}
