"""Write the hashes of everything that `make release` builds and tests with: `make release-lock`.

The laptop's own dependencies have no upper bounds without a reason, so what a release was tested with is written down:
release-requirements.txt, for each processor and Python of Linux that a release may be made on. Nothing is installed.
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
HEAD = "# What `make release` builds and tests with; `make release-lock` writes it anew.\n"
#: build tools, in addition to the dependencies and the tests' group of pyproject.toml
BUILD = ("hatchling",)


def main() -> int:
    """Rewrite the file. Return 1 if a package has different versions for different Python versions."""
    asked = requirements(tomllib.loads((TOP / "pyproject.toml").read_text()))
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    places: dict[str, set[str]] = defaultdict(set)
    for python in runtime.PYTHON_VERSIONS:
        for machine in runtime.MACHINES:
            print(f"{machine}, Python {python}", file=sys.stderr)
            pins = [f"{name}=={version}" for name, versions in found.items() for version in versions]
            for one in resolved(machine, python, asked, pins):
                name = canonicalize_name(one["metadata"]["name"])
                found[name][one["metadata"]["version"]].add(one["download_info"]["archive_info"]["hashes"]["sha256"])
                places[name].add(python)
    if several := sorted(name for name, versions in found.items() if len(versions) > 1):
        print(f"not the same version for each Python: {', '.join(several)}", file=sys.stderr)
        return 1
    LOCK.write_text(HEAD + "".join(line(name, found[name], places[name]) for name in sorted(found)))
    return 0


def requirements(project: dict[str, Any]) -> list[str]:
    """Return the requirements of the package with its extras, and of its tests."""
    extras = [one for several in project["project"]["optional-dependencies"].values() for one in several]
    return [*BUILD, *project["project"]["dependencies"], *extras, *project["dependency-groups"]["test"]]


def line(name: str, versions: dict[str, set[str]], pythons: set[str]) -> str:
    """Return a requirement with its hashes, limited to the Python versions that need it."""
    ((version, hashes),) = versions.items()
    text = runtime.format_pin(name, version, hashes)
    if pythons == set(runtime.PYTHON_VERSIONS):
        return text
    newest = max(pythons, key=runtime.PYTHON_VERSIONS.index)
    return text.replace(f"=={version} ", f"=={version} ; python_version <= '{newest}' ", 1)


def resolved(machine: str, python: str, asked: list[str], pins: list[str]) -> list[dict[str, Any]]:
    """Return what pip would install there, from its installation report."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "asked.txt").write_text("\n".join(asked))
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
        words += ["--target", folder, "--requirement", f"{folder}/asked.txt", "--constraint", f"{folder}/pins.txt"]
        subprocess.run([*words, *runtime.platform_options(machine, python)], check=True)
        found: list[dict[str, Any]] = json.loads(report.read_text())["install"]
    return found


if __name__ == "__main__":
    sys.exit(main())
