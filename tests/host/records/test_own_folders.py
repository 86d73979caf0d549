"""The sizes of sparkwright's own folders."""

from pathlib import Path

import pytest

from sparkwright.host.records import own_folders


def test_a_folder_with_too_many_files_has_an_unknown_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(b"x" * 5000)
    size_bytes = own_folders.find_disk_bytes(tmp_path)
    assert size_bytes == own_folders.disk_bytes(tmp_path)
    monkeypatch.setattr(own_folders, "MAX_ENTRIES", 2)
    assert own_folders.find_disk_bytes(tmp_path) is None
    assert 0 < own_folders.disk_bytes(tmp_path) < (size_bytes or 0)
