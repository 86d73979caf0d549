"""The runtime: sparkwright's host side with its wheels, for one processor and Python, named by its content.

Built once on the laptop, kept in its cache, uploaded only if the host does not have it. The host needs neither internet nor root
for it.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkwright import host_side
from sparkwright.remote import wheels
from sparkwright.trust.names import MACHINE, PYTHON_VERSION, inside, matched

if TYPE_CHECKING:
    import tarfile

#: files of a wheel that are installed beside its packages (PEP 427); scripts, headers and data are left out
_BESIDE = re.compile(r"(?<![^/])[^/]{1,255}\.data/(?:purelib|platlib)/(.+)")
#: folders that a host never imports
_LEFT_OUT = {"tests", "test", "bin", "__pycache__"}


@functools.lru_cache(maxsize=1)
def content_hash() -> str:
    """Return the name of the runtime: the hash of the sources and of the requirements, which hold the wheels' hashes."""
    return hashlib.sha256(wheels.REQUIREMENTS.read_bytes() + host_side.content_hash().encode()).hexdigest()[:20]


def archive(python: str, machine: str, progress: wheels.Progress = lambda done, total, name: None) -> Path:
    """Return the runtime for a Python ("3.12") and processor ("aarch64") as a .tar.gz of the laptop's cache, built if necessary.

    A damaged one is built again. progress: see `wheels.fetched`. Raises Failed if a wheel is not available, or a name that came
    from a host is not valid.
    """
    made_for = f"{matched(PYTHON_VERSION, python, 'the Python')}-{matched(MACHINE, machine, 'the processor')}"
    path = inside(host_side.cache() / "runtime", f"{content_hash()}-{made_for}.tar.gz")
    if not _as_built(path):
        parts = wheels.fetched(python, machine, progress)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as temporary:
            _pack(parts, f"{made_for}\n", temporary)
        _seal(path).write_text(hashlib.sha256(Path(temporary.name).read_bytes()).hexdigest())
        Path(temporary.name).replace(path)
    return path


def _as_built(path: Path) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == _seal(path).read_text()
    except OSError:
        return False


def _seal(path: Path) -> Path:
    """Return the file with the archive's own sha256."""
    return path.with_name(f"{path.name}.sha256")


def _pack(parts: list[Path], tag: str, out: Any) -> None:
    """Pack everything into one archive, the same bytes for the same content; first the manifest, with sizes and SHA-256."""
    import gzip
    import tarfile

    files = {f"lib/{name}": data for wheel in parts for name, data in _files(wheel)}
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


def _files(wheel: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files that a wheel installs, with their content."""
    import zipfile

    with zipfile.ZipFile(wheel) as packed:
        for name in sorted(packed.namelist()):
            inside = _BESIDE.fullmatch(name)
            target = inside[1] if inside else name
            folders = target.split("/")[:-1]
            if name.endswith("/") or _LEFT_OUT & set(folders) or (folders and folders[0].endswith(".data")):
                continue
            yield target, packed.read(name)


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    import tarfile

    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o644
    tar.addfile(info, io.BytesIO(data))
