"""Regenerate the hashes of the runtime's wheels: `make runtime-lock`.

To update a package, first change its version in src/sparkwright/remote/runtime-requirements.txt. pip resolves every line for
each processor and Python version that a host may have. It is an error if one of these packages requires another that has no
line. Nothing is installed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sparkwright.remote import runtime


def main() -> int:
    """Rewrite the file. Return 1 if a package is missing from it."""
    text = runtime.REQUIREMENTS_FILE.read_text()
    head = "".join(f"{line}\n" for line in text.splitlines() if line.startswith("#"))
    pinned = runtime.pinned_requirements(text)
    hashes: dict[str, set[str]] = defaultdict(set)
    missing: set[str] = set()
    for machine in runtime.MACHINES:
        for python in runtime.PYTHON_VERSIONS:
            print(f"{machine}, Python {python}", file=sys.stderr)
            for package in resolve(machine, python, [f"{name}=={pin.version}" for name, pin in pinned.items()]):
                name = canonicalize_name(package["metadata"]["name"])
                hashes[name].add(package["download_info"]["archive_info"]["hashes"]["sha256"])
                missing |= unpinned(package["metadata"], pinned, machine, python)
    if missing:
        print("\n".join(sorted(missing)), file=sys.stderr)
        return 1
    lines = (runtime.format_pin(name, pinned[name].version, hashes[name]) for name in sorted(pinned))
    runtime.REQUIREMENTS_FILE.write_text(head + "".join(lines))
    return 0


def resolve(machine: str, python: str, pins: list[str]) -> list[dict[str, Any]]:
    """Return the packages that pip would install on this platform, from its installation report."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pins.txt").write_text("\n".join(pins))
        report = Path(folder) / "report.json"
        words = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps"]
        words += ["--report", str(report), "--target", folder, "--requirement", str(Path(folder) / "pins.txt")]
        subprocess.run([*words, *runtime.platform_options(machine, python)], check=True)
        packages: list[dict[str, Any]] = json.loads(report.read_text())["install"]
    return packages


def unpinned(metadata: dict[str, Any], pinned: dict[str, runtime.Pin], machine: str, python: str) -> set[str]:
    """Return a package's requirements on this platform that the file does not pin, or pins at an incompatible version."""
    marker_values = {"platform_machine": machine, "python_version": python, "python_full_version": f"{python}.0"}
    marker_values |= {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "extra": ""}
    marker_values |= {"implementation_name": "cpython", "platform_python_implementation": "CPython"}
    requirements = [Requirement(text) for text in metadata.get("requires_dist", [])]
    applicable = [item for item in requirements if item.marker is None or item.marker.evaluate(marker_values)]
    return {
        f"{metadata['name']} on {machine}, Python {python}: needs {requirement}"
        for requirement in applicable
        if (pin := pinned.get(canonicalize_name(requirement.name))) is None
        or not requirement.specifier.contains(pin.version)
    }


if __name__ == "__main__":
    sys.exit(main())
