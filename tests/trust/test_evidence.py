"""Files from a host are written into a new folder, and nowhere else."""

import stat
from pathlib import Path

import pytest

from sparkwright.errors import Failed, Refused
from sparkwright.trust import private


def test_missing_folder_is_created(tmp_path: Path) -> None:
    private.write_files(tmp_path / "incidents/spark1/run", {"about.json": "{}", "dmesg.txt": "ü\ud800"})
    folder = tmp_path / "incidents/spark1/run"
    assert (folder / "dmesg.txt").read_text() == "ü?"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_empty_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    private.write_files(tmp_path / "mine", {"about.json": "{}"})
    assert (tmp_path / "mine/about.json").read_text() == "{}"


def test_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refused, match="already exists"):
        private.write_files(tmp_path / "run", {"about.json": "{}"})
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("name", ["../x", "a/b", "/etc/passwd", "", ".bashrc"])
def test_name_with_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Failed, match="the name of a file is not valid"):
        private.write_files(tmp_path / "run", {name: ""})
    assert not list(tmp_path.iterdir())
