"""Build the files of a release in dist/, and check them: `make dist` runs this with the locked builder.

1. sdist and wheel are built twice, the second time under different conditions: from the unpacked sdist, in another folder, with
   another umask and time zone. The results must be identical, byte for byte.
2. The wheel is installed into an empty environment from locked wheels, without an index, and deploys to the sandbox
   without a network.
3. An SBOM (CycloneDX) lists the packages that were installed there and those of the hosts' runtime, and SHA256SUMS has the
   hashes of all files.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

TOP = Path(__file__).parent.parent
DIST, WHEELS = TOP / "dist", TOP / ".release/wheels"
LOCKS = (TOP / "release-requirements.txt", TOP / "src/sparkwright/remote/runtime-requirements.txt")
#: the commands that check an installed wheel
COMMANDS = (("init", "demo"), ("deploy", "--host", "sandbox"), ("deploy", "--host", "sandbox"), ("sandbox.down",))


def main() -> int:
    if changed := git("status", "--porcelain"):
        print(f"uncommitted changes: a release is built from a commit.\n{changed}", file=sys.stderr)
        return 1
    epoch = git("log", "-1", "--format=%ct")
    with tempfile.TemporaryDirectory() as folder:
        sdist, wheel = build(TOP, DIST, epoch, umask=0o022, zone="UTC")
        unpacked = unpack(sdist, Path(folder))
        again = build(unpacked, Path(folder) / "again", epoch, umask=0o077, zone="Asia/Tokyo")
        for first, second in zip((sdist, wheel), again, strict=True):
            if first.read_bytes() != second.read_bytes():
                print(f"{first.name} is not reproducible: {sha256(first)}, then {sha256(second)}.", file=sys.stderr)
                return 1
        clean = install(wheel, Path(folder) / "clean")
        deploy(clean, Path(folder))
        name = wheel.name.partition("-py3")[0]
        bom = json.dumps(sbom(clean, name.partition("-")[2]), indent=1, sort_keys=True)
    (DIST / f"{name}.cdx.json").write_text(bom + "\n")
    files = sorted(path for path in DIST.iterdir() if path.name != "SHA256SUMS")
    (DIST / "SHA256SUMS").write_text("".join(f"{sha256(path)}  {path.name}\n" for path in files))
    print((DIST / "SHA256SUMS").read_text(), end="")
    return 0


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=TOP, capture_output=True, text=True, check=True).stdout.strip()


def build(source: Path, to: Path, epoch: str, umask: int, zone: str) -> tuple[Path, Path]:
    """Return the sdist and the wheel of a source tree."""
    env = {**os.environ, "SOURCE_DATE_EPOCH": epoch, "TZ": zone}
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(to)], cwd=source, env=env, umask=umask, check=True
    )
    ((sdist,), (wheel,)) = to.glob("*.tar.gz"), to.glob("*.whl")
    return sdist, wheel


def unpack(sdist: Path, folder: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return folder / sdist.name.removesuffix(".tar.gz")


def install(wheel: Path, folder: Path) -> Path:
    """Create an environment with the wheel and its dependencies from the locked wheels, without an index. Return its folder."""
    venv.create(folder, with_pip=True)
    words = ["-m", "pip", "install", "--quiet", "--no-index", "--find-links", str(WHEELS), str(wheel)]
    subprocess.run([str(folder / "bin/python"), *words], check=True)
    return folder


def deploy(clean: Path, folder: Path) -> None:
    """Run a first deploy and one without changes, if the kernel allows it in a network namespace that has only loopback."""
    isolated = ["unshare", "--map-root-user", "--net", "sh", "-ec", 'ip link set lo up; exec "$@"', "sh"]
    if not shutil.which("unshare") or subprocess.run([*isolated, "true"], capture_output=True).returncode:
        print("no network namespaces here: the deploy is tried with the network on", file=sys.stderr)
        isolated = []
    script = "\n".join(
        " ".join([str(clean / "bin/sparkwright"), *words]) + ("\ncd demo" if words[0] == "init" else "")
        for words in COMMANDS
    )
    home = folder / "home"
    home.mkdir()
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8"}
    result = subprocess.run([*isolated, "sh", "-exc", script], cwd=folder, env=env, stdin=subprocess.DEVNULL)
    if result.returncode:
        sys.exit(f"the installed wheel does not deploy to the sandbox: exit code {result.returncode}")


def sbom(clean: Path, version: str) -> dict[str, Any]:
    """Return a CycloneDX document; the same packages give the same text."""
    found = list(distributions(path=[str(path) for path in clean.glob("lib/python3*/site-packages")]))
    installed = {
        canonicalize_name(package.name): package for package in found if package.name not in ("pip", "setuptools")
    }
    product = installed.pop(canonicalize_name("sparkwright"))
    pins = [pins_of(lock) for lock in LOCKS]
    wanted = {(name, package.version) for name, package in installed.items()} | set(pins[1])
    refs = {name: purl(name, package.version) for name, package in installed.items()}
    main_component = {"type": "application", "bom-ref": "sparkwright", "name": "sparkwright", "version": version}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**main_component, "licenses": [{"license": {"id": "Apache-2.0"}}]}},
        "components": [component(name, number, pins) for name, number in sorted(wanted)],
        "dependencies": [
            {"ref": "sparkwright", "dependsOn": needs(product, refs)},
            *({"ref": refs[name], "dependsOn": needs(package, refs)} for name, package in sorted(installed.items())),
        ],
    }


def component(name: str, version: str, pins: list[dict[tuple[str, str], list[str]]]) -> dict[str, Any]:
    hashes = sorted({digest for lock in pins for digest in lock.get((name, version), [])})
    sides = [side for side, lock in zip(("laptop", "host"), pins, strict=True) if (name, version) in lock]
    properties = [{"name": "sparkwright:side", "value": side} for side in sides]
    properties += [{"name": "sparkwright:wheel:sha256", "value": digest} for digest in hashes]
    found = {
        "type": "library",
        "bom-ref": purl(name, version),
        "name": name,
        "version": version,
        "purl": purl(name, version),
    }
    return {**found, "properties": properties}


def needs(package: Distribution, refs: Mapping[NormalizedName, str]) -> list[str]:
    """Return the references of a package's installed dependencies."""
    wanted = [Requirement(text) for text in package.requires or ()]
    names = {canonicalize_name(need.name) for need in wanted if not need.marker or need.marker.evaluate({"extra": ""})}
    return sorted(refs[name] for name in names if name in refs)


def pins_of(lock: Path) -> dict[tuple[str, str], list[str]]:
    """Return the hashes of each pinned package in a requirements file."""
    text = lock.read_text().replace("\\\n", " ")
    lines = re.findall(r"^([\w.-]+)==([^\s;]+)(.*)$", text, re.M)
    return {(canonicalize_name(name), version): re.findall(r"sha256:(\w+)", rest) for name, version, rest in lines}


def purl(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
