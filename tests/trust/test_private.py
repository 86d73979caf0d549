"""Folders and files that only their user can access, with any umask."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkwright.host.state import StateFolder
from sparkwright.trust import private


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def format_mode(path: Path) -> str:
    return f"{path.lstat().st_mode & 0o7777:04o}"


def test_new_folders_are_private_and_existing_ones_unchanged(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    private.create_folder(home / ".local/state/sparkwright")
    assert [format_mode(home / name) for name in ("", ".local", ".local/state/sparkwright")] == ["0755", "0700", "0700"]


def test_tree_is_made_private_without_following_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("")
    outside.chmod(0o666)
    state = StateFolder(tmp_path / "state")
    (state.path / "runs/r1").mkdir(parents=True)
    (state.path / "lock").write_text("")
    (state.path / "runs/r1/events.jsonl").write_text("")
    (state.path / "runs/r1/link").symlink_to(outside)
    state.restrict_access()
    assert format_mode(state.path) == format_mode(state.path / "runs") == format_mode(state.path / "runs/r1") == "0700"
    assert format_mode(state.path / "lock") == format_mode(state.path / "runs/r1/events.jsonl") == "0600"
    assert format_mode(outside) == "0666"


def test_stored_files_are_private(tmp_path: Path) -> None:
    state = StateFolder(tmp_path / "state")
    state.write("baselines/x", {"a": 1})
    assert format_mode(state.path / "baselines") == "0700" and format_mode(state.path / "baselines/x.json") == "0600"


def test_hard_links_are_not_changed_by_root(tmp_path: Path) -> None:
    """A hard link to /etc/passwd in a folder of root must not make /etc/passwd private."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    system, folder = tmp_path / "passwd", tmp_path / "state"
    system.write_text("root")
    system.chmod(0o644)
    folder.mkdir(mode=0o755)
    (folder / "trap").hardlink_to(system)
    (folder / "own").write_text("x")
    (folder / "own").chmod(0o644)
    private.restrict_tree(folder)
    assert system.stat().st_mode & 0o777 == 0o644
    assert (folder / "own").stat().st_mode & 0o777 == 0o600
