"""A deploy with the umask 000: other users may not enter, read or write its state."""

import os
from pathlib import Path

import pytest

from tests.e2e.conftest import SandboxProject

FOLDER, FILE = 0o700, 0o600


def find_open_paths(top: Path) -> list[str]:
    """Return the paths that other users may access. Sockets are protected by their folder, and links by their target."""
    open_paths = []
    for path in (top, *top.rglob("*")):
        status = path.lstat()
        allowed = FOLDER if path.is_dir() else FILE
        if not path.is_symlink() and status.st_mode & 0o777 & ~allowed:
            open_paths.append(f"{path} {status.st_mode & 0o777:04o}")
    return open_paths


def test_state_and_caches_are_private_at_umask_000(project: SandboxProject, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, state = project.root / "cache", project.sandbox / "home/.local/state/sparkwright"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    (cache / "sparkwright").mkdir(parents=True)
    (cache / "sparkwright").chmod(0o777)  # as an earlier version left it
    before = os.umask(0)
    try:
        result = project.deploy()
        assert result.proved, result.out[-3000:] + result.err
        project.run("health.check", "--host", "sandbox")
        project.edit("recipes/qwen3.5-35b.yml", "max-num-seqs: 8", "max-num-seqs: 4")
        project.before("Measure throughput", "fail: {msg: enough}")
        failed = project.deploy()
        assert failed.code == 1, failed.out[-3000:]
        assert project.run("incident", "--host", "sandbox").code == 0
    finally:
        os.umask(before)
    kept = {path.relative_to(state).parts[0] for path in state.rglob("*")}
    assert {"lock", "runs", "verified.json", "history.jsonl", "incidents", "baselines"} <= kept, kept
    assert find_open_paths(state) == []
    assert find_open_paths(cache / "sparkwright") == []
    assert project.sandbox.stat().st_mode & 0o777 == FOLDER
    models = project.sandbox / "home/models"
    assert any(models.rglob("*.safetensors"))
    writable = [str(path) for path in models.rglob("*") if path.lstat().st_mode & 0o022 and not path.is_symlink()]
    assert writable == []


def test_the_next_run_closes_files_that_an_earlier_version_left_open(project: SandboxProject) -> None:
    project.deploy("--tags", "image")
    state = project.sandbox / "home/.local/state/sparkwright"
    for path in (state, *state.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    project.deploy("--tags", "image")
    assert find_open_paths(state) == []
