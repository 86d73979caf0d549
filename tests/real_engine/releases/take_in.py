"""Adds a release of vLLM: installs it, runs the cases, stores its report, and prints the changes since the previous release.

    PYTHONPATH=src python -m tests.real_engine.releases.take_in 0.33.0        # make engine-release VERSION=0.33.0

It uses the release's build for a CPU; if there is none, its Python files over the kernels of the newest release that has one
(install.py); if that fails, only its wheel, for options, architectures and variables without running a case (wheel.py).

Exit code 0: the tables agree with it. 1: they do not (the errors are printed), or it cannot be installed.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.real_engine.releases import compare, page, sources, tables, wheel
from tests.real_engine.releases.install import EngineMissing, ensure_installed, run_quietly
from tests.real_engine.releases.kept import DATA, Report, load_report

TESTS = Path(__file__).parents[1] / "test_agreement.py"


def main(version: str) -> int:
    """Add a release. Return the exit code."""
    try:
        if "SPARKWRIGHT_ENGINE" not in os.environ:
            ensure_installed(version, lambda text: print(text, flush=True))
    except EngineMissing as error:
        print(error, file=sys.stderr)
        return _from_source(version)
    path = DATA / f"{version}.json"
    before = _written_ns(path)
    ran = _run_cases(version)
    if ran not in (0, 1) or _written_ns(path) == before:
        print(f"the cases of {version} could not be run (pytest: exit code {ran})", file=sys.stderr)
        return _from_source(version)
    return _print_changes(load_report(path)) or ran


def _from_source(version: str) -> int:
    """Store the names in a release's wheel. A stored report of a run is not changed."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps"]
            run_quietly([*pip, "--only-binary", ":all:", "--dest", folder, f"vllm=={version}"])
            source = wheel.read_wheel(next(Path(folder).glob("*.whl")))
    except (EngineMissing, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"the source of {version} alone was read: no case was run, and no report of a run is changed", flush=True)
    sources.add_sources({version: source})
    page.DOCUMENT.write_text(page.render_page())
    return _print_changes(source.report(version, ""))


def _written_ns(path: Path) -> int:
    """Return the modification time of a report; 0 if there is none."""
    return path.stat().st_mtime_ns if path.exists() else 0


def _run_cases(version: str) -> int:
    """Run the cases. Return pytest's exit code: 1 if a case differs."""
    line = [sys.executable, "-m", "pytest", "-m", "engine", "-q", "--tb=line", "-p", "no:xdist", str(TESTS)]
    return subprocess.run(line, env={**os.environ, "SPARKWRIGHT_ENGINE_VERSION": version}, check=False).returncode


def _print_changes(new: Report) -> int:
    """Print the changes and the errors in the tables. Return 1 if there are errors."""
    old = compare.previous_report(new.version, sources.all_reports())
    print(f"\n# vLLM {new.version}" + (f" after {old.version}" if old else ": no older release is kept"))
    for heading, lines in compare.describe_changes(old, new).items() if old else ():
        print(f"\n## {heading} ({len(lines)})\n")
        print("\n".join(f"- {line}" for line in lines))
    wrong = tables.disagreements(new)
    print(f"\n## what sparkwright's tables have wrong ({len(wrong)})\n")
    print("\n".join(f"- {line}" for line in wrong) or "nothing")
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("which release? make engine-release VERSION=0.33.0")
    sys.exit(main(sys.argv[1]))
