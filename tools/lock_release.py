"""Lock the packages with which `make release` builds and tests, by hash: `make release-lock`.

The laptop's dependencies have upper bounds only where there is a reason. So release-requirements.txt lists the versions with
which a release was tested, for each processor and Python version on which a release can be built under Linux. Nothing is
installed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from sparkwright.remote import runtime

TOP = Path(__file__).parent.parent
LOCK = TOP / "release-requirements.txt"
HEAD = "# The packages with which `make release` builds and tests; `make release-lock` regenerates this file.\n"
#: build tools, in addition to the dependencies and the tests' group of pyproject.toml
BUILD = ("hatchling",)


def main() -> int:
    """Rewrite the file. Return 1 if a package has different versions for different Python versions."""
    wanted = requirements(tomllib.loads((TOP / "pyproject.toml").read_text()))
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    pythons: dict[str, set[str]] = defaultdict(set)
    for python in runtime.PYTHON_VERSIONS:
        for machine in runtime.MACHINES:
            print(f"{machine}, Python {python}", file=sys.stderr)
            pins = [f"{name}=={version}" for name, versions in found.items() for version in versions]
            for package in resolve(machine, python, wanted, pins):
                name = canonicalize_name(package["metadata"]["name"])
                sha256 = package["download_info"]["archive_info"]["hashes"]["sha256"]
                found[name][package["metadata"]["version"]].add(sha256)
                pythons[name].add(python)
    if ambiguous := sorted(name for name, versions in found.items() if len(versions) > 1):
        print(f"not the same version for each Python: {', '.join(ambiguous)}", file=sys.stderr)
        return 1
    LOCK.write_text(HEAD + "".join(line(name, found[name], pythons[name]) for name in sorted(found)))
    return 0


def requirements(project: dict[str, Any]) -> list[str]:
    """Return the requirements of the package with its extras, and of its tests."""
    extras = [package for group in project["project"]["optional-dependencies"].values() for package in group]
    return [*BUILD, *project["project"]["dependencies"], *extras, *project["dependency-groups"]["test"]]


def line(name: str, versions: dict[str, set[str]], pythons: set[str]) -> str:
    """Return a requirement with its hashes, limited to the Python versions that need it."""
    ((version, hashes),) = versions.items()
    text = runtime.format_pin(name, version, hashes)
    if pythons == set(runtime.PYTHON_VERSIONS):
        return text
    newest = max(pythons, key=runtime.PYTHON_VERSIONS.index)
    return text.replace(f"=={version} ", f"=={version} ; python_version <= '{newest}' ", 1)


def resolve(machine: str, python: str, wanted: list[str], pins: list[str]) -> list[dict[str, Any]]:
    """Return the packages that pip would install on this platform, from its installation report."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "wanted.txt").write_text("\n".join(wanted))
        (Path(folder) / "pins.txt").write_text("\n".join(pins))
        report = Path(folder) / "report.json"
        words = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--dry-run",
            "--ignore-installed",
            "--report",
            str(report),
        ]
        words += ["--target", folder, "--requirement", f"{folder}/wanted.txt", "--constraint", f"{folder}/pins.txt"]
        subprocess.run([*words, *runtime.platform_options(machine, python)], check=True)
        packages: list[dict[str, Any]] = json.loads(report.read_text())["install"]
    return packages


if __name__ == "__main__":
    sys.exit(main())
