"""A host with records of an older or newer sparkwright."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparkwright.host import state
from sparkwright.version import __version__
from tests.fleet.project import HostsProject

NEWER_RECORDS = (
    f"the records on this host were written by sparkwright 7.0 (format 9), and this is {__version__} (format 1)."
)


def state_folder(project: HostsProject) -> Path:
    return project.home("s1") / ".local/state/sparkwright"


@pytest.fixture
def project(tmp_path: Path) -> HostsProject:
    value = HostsProject(tmp_path, 2)
    state_folder(value).mkdir(parents=True)
    return value


@pytest.fixture
def newer(project: HostsProject) -> HostsProject:
    """A host with records of a much newer sparkwright."""
    (state_folder(project) / "format.json").write_text(json.dumps({"format": 9, "version": "7.0", "more": 1}))
    return project


def read_state(project: HostsProject) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in state_folder(project).rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "words",
    [("play", "roll"), ("status",), ("history",), ("runs",), ("health.check",), ("unlock",), ("report",)],
    ids=" ".join,
)
def test_older_sparkwright_asks_for_an_upgrade_and_changes_nothing(words: tuple[str, ...], newer: HostsProject) -> None:
    before = read_state(newer)
    result = newer.run(*words, "--host", "s1")
    assert NEWER_RECORDS in result.out + result.err
    assert result.code == 5, result.out + result.err
    assert read_state(newer) == before


def test_older_health_check_asks_for_a_reinstall(newer: HostsProject) -> None:
    script = Path(state.__file__).parents[1] / "runner/scheduled_checks.py"
    env = {**os.environ, "HOME": str(newer.home("s1"))}
    completed = subprocess.run([sys.executable, "-I", script], env=env, capture_output=True, text=True, timeout=60)
    assert completed.returncode == 75
    assert completed.stdout == f"{NEWER_RECORDS} Run `sparkwright health.install` again\n"


@pytest.mark.parametrize("text", [None, '{"format": 1, "version": "0.0.1"}', "no JSON", '{"format": "9"}'])
def test_newer_sparkwright_adopts_the_records(text: str | None, project: HostsProject) -> None:
    if text is not None:
        (state_folder(project) / "format.json").write_text(text)
    assert project.roll("--host", "s1").code == 0
    assert json.loads((state_folder(project) / "format.json").read_text()) == {"format": 1, "version": __version__}


def test_lock_file_of_a_newer_version_asks_for_an_upgrade(project: HostsProject) -> None:
    (project.root / "recipes").mkdir()
    (project.root / "spark.lock").write_text("schema: 2\nimages: {}\nthings: {}\n")
    result = project.run("lint")
    assert result.code == 5
    assert result.err.startswith("spark.lock:1: ") and "newer than this sparkwright" in result.err
    assert result.err.endswith("Upgrade sparkwright here.\n")
