"""The runtime: sparkwright's host side with its wheels, for one processor and Python, named by its content.

Built once on the laptop, kept in its cache, shipped only where it is absent. The host needs neither internet nor root for it.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from sparkwright import host_side
from sparkwright.errors import Failed

REQUIREMENTS = Path(__file__).with_name("runtime-requirements.txt")
#: manylinux tags that every wheel of the requirements has; a Spark is aarch64 with glibc 2.39
MANYLINUX = ("2_28", "2_27", "2_26", "2_24", "2_17", "2_12", "2_5")


@functools.lru_cache(maxsize=1)
def content_hash() -> str:
    """Names the runtime: of the sources and the pinned requirements."""
    return hashlib.sha256(REQUIREMENTS.read_bytes() + host_side.content_hash().encode()).hexdigest()[:20]


def archive(python: str, machine: str) -> Path:
    """The runtime for a Python ("3.12") and processor ("aarch64") as a .tar.gz of the laptop's cache, built if need be.

    Raises Failed when the wheels can't be had.
    """
    path = _cache() / f"{content_hash()}-{python}-{machine}.tar.gz"
    if not path.exists():
        wheels = _wheels(python, machine)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as beside:
            _pack(wheels, f"{python}-{machine}\n", beside)
        Path(beside.name).replace(path)
    return path


def _wheels(python: str, machine: str) -> Path:
    """A folder with the unpacked wheels, for the host's platform."""
    text = REQUIREMENTS.read_text()
    folder = _cache() / f"wheels-{hashlib.sha256(text.encode()).hexdigest()[:16]}-{python}-{machine}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=folder.parent))
    platforms = [f"--platform=manylinux_{tag}_{machine}" for tag in MANYLINUX] + [f"--platform=manylinux2014_{machine}"]
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--only-binary=:all:"]
    words += ["--implementation=cp", f"--python-version={python}", *platforms]
    words += ["--target", str(beside), "--requirement", str(REQUIREMENTS), "--disable-pip-version-check"]
    said = subprocess.run(words, capture_output=True, text=True, check=False)
    if said.returncode:
        shutil.rmtree(beside, ignore_errors=True)
        last = (said.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise Failed(
            f"the runtime for {machine}, Python {python} can't be built: {last}", fix="Does pip reach an index?"
        )
    _trim(beside)
    try:
        beside.rename(folder)
    except OSError:
        shutil.rmtree(beside, ignore_errors=True)
    return folder


def _trim(folder: Path) -> None:
    """Drop what a host never imports."""
    for path in list(folder.rglob("*")):
        if path.is_dir() and path.name in ("tests", "test", "bin", "__pycache__"):
            shutil.rmtree(path, ignore_errors=True)


def _pack(wheels: Path, tag: str, out: Any) -> None:
    """Everything in one archive, the same bytes for the same content; first of all what there is, its size and its SHA-256."""
    files = {
        f"lib/{path.relative_to(wheels)}": path.read_bytes() for path in sorted(wheels.rglob("*")) if path.is_file()
    }
    files |= {f"lib/sparkwright/{name}": data for name, data in host_side.sources()}
    files["tag"] = tag.encode()
    manifest = {name: [len(data), hashlib.sha256(data).hexdigest()] for name, data in files.items()}
    with (
        gzip.GzipFile(filename="", fileobj=out, mode="wb", mtime=0, compresslevel=6) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        _add(tar, "manifest.json", json.dumps(manifest).encode())
        for name, data in files.items():
            _add(tar, name, data)


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o644
    tar.addfile(info, io.BytesIO(data))


def _cache() -> Path:
    return host_side.cache() / "runtime"
