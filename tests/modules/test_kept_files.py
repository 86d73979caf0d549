"""The older revision's files are there again after a failure, byte for byte, and nothing of the newer one is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkwright.host.models import model_folders

OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name, text in {"config.json": "old", "sub/shard": "old", "same": "same"}.items():
        write(tmp_path / name, text)
    return tmp_path


def write(path: Path, text: str) -> None:
    """As a transfer does: beside it, then in its place in one step."""
    path.parent.mkdir(exist_ok=True)
    extra = path.with_suffix(".come")
    extra.write_text(text)
    extra.replace(path)


def content(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_what_was_replaced_comes_back_and_what_was_added_goes(model: Path) -> None:
    before = content(model)
    model_folders.keep(model, ["config.json", "sub/shard", "added"], OLD)
    assert model_folders.commit_of(model) == OLD
    for name in ("config.json", "sub/shard", "added"):
        write(model / name, "new")
    assert model_folders.restore_kept(model) == 3
    assert content(model) == before


def test_a_third_revision_does_not_take_the_place_of_the_verified_one(model: Path) -> None:
    before = content(model)
    model_folders.keep(model, ["config.json", "added"], OLD)
    write(model / "config.json", "new")
    write(model / "added", "new")
    model_folders.keep(model, ["config.json", "sub/shard", "added"], NEW)
    for name in ("config.json", "sub/shard", "added"):
        write(model / name, "newest")
    model_folders.restore_kept(model)
    assert content(model) == before


def test_nothing_is_kept_once_another_revision_is_verified(model: Path) -> None:
    model_folders.keep(model, ["config.json"], OLD)
    write(model / "config.json", "new")
    model_folders.forget(model)
    assert (model_folders.commit_of(model), model_folders.restore_kept(model)) == ("", 0)
    assert (model / "config.json").read_text() == "new"


def test_a_link_where_files_are_kept_gives_nothing_of_another_folder_away(model: Path) -> None:
    """A container that may write in the folder lays it there; a roll back would carry the keys to where it reads them."""
    keys = model.parent / f"{model.name}-keys"
    keys.mkdir()
    (keys / "id_ed25519").write_text("mine")
    (model / model_folders.FOLDER).symlink_to(keys)
    before = content(model)
    assert model_folders.restore_kept(model) == 0
    assert (content(model), content(keys)) == (before, {"id_ed25519": "mine"})
