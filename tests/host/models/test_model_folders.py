"""The models on a host: verification, removal, and restoring the files of an earlier revision."""

import os
from pathlib import Path
from typing import Any

import pytest

from sparkwright.errors import Exit, Failed
from sparkwright.host.models import model_folders
from sparkwright.host.models.manifest import Manifest
from sparkwright.modules.model.model_files import VerifyModel
from sparkwright.modules.storage import Models, RemoveModel
from sparkwright.protocol.result import Result
from tests.modules.context import RecordingContext
from tests.modules.loopback_hub import COMMIT, MODEL, LoopbackHub

FILES = {"config.json": b"{}", "model.safetensors": b"weights" * 1000}


class FakeDocker:
    """A Docker client that lists containers with their mounts."""

    def __init__(self, mounts: dict[str, str]) -> None:
        self.mounts = mounts
        self.api = self

    def containers(self, all: bool = False) -> list[dict[str, Any]]:
        return [{"Id": name, "Names": [f"/{name}"]} for name in self.mounts]

    def inspect_container(self, name: str) -> dict[str, Any]:
        return {"Mounts": [{"Source": self.mounts[name]}]}


@pytest.fixture
def context(tmp_path: Path, hub: LoopbackHub) -> RecordingContext:
    recording = RecordingContext(tmp_path, hub_url=hub.url)
    (tmp_path / "m").mkdir()
    for path, data in FILES.items():
        (tmp_path / "m" / path).write_bytes(data)
    verify_model(recording, hub)
    set_mounts(recording, {})
    return recording


def set_mounts(context: RecordingContext, mounts: dict[str, str]) -> None:
    context.docker = lambda: FakeDocker(mounts)  # type: ignore[method-assign, assignment, return-value]


def verify_model(context: RecordingContext, hub: LoopbackHub, *, deep: bool = False) -> Result:
    args = VerifyModel.Args(id=MODEL, commit=COMMIT, files=hub.lock_entries(), dir="~/m", deep=deep)
    return VerifyModel().run(args, context)


def flip_byte(context: RecordingContext) -> None:
    """Change a byte of the weights in place, and restore the file's times."""
    path = context.machine.home / "m/model.safetensors"
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_file_changed_in_place_with_restored_times_is_found(context: RecordingContext, hub: LoopbackHub) -> None:
    assert verify_model(context, hub).data["wrong"] == []
    flip_byte(context)
    assert [item.changed_files() for item in Manifest.load_all(context.state)] == [["model.safetensors"]]
    assert verify_model(context, hub).data["wrong"] == ["model.safetensors"]


def test_a_bit_flip_on_the_disk_is_found_only_by_a_deep_verification(
    context: RecordingContext, hub: LoopbackHub
) -> None:
    flip_byte(context)
    manifest = Manifest.load(context.state, context.machine.home / "m")
    manifest.mark_verified(hub.row("model.safetensors"))  # a bit flip does not change the times
    manifest.save()
    assert verify_model(context, hub).data["wrong"] == []
    assert verify_model(context, hub, deep=True).data["wrong"] == ["model.safetensors"]
    assert verify_model(context, hub).data["wrong"] == ["model.safetensors"], "remembered"


def test_a_file_verified_by_an_earlier_version_is_verified_again(context: RecordingContext, hub: LoopbackHub) -> None:
    (manifest,) = Manifest.load_all(context.state)
    manifest.rows = {path: [*row[:3], row[-1]] for path, row in manifest.rows.items()}
    manifest.save()
    (stored,) = Manifest.load_all(context.state)
    assert stored.rows and stored.changed_files() == []
    assert not any(stored.is_verified(file) for file in hub.lock_entries())
    assert verify_model(context, hub).data["wrong"] == []
    (verified,) = Manifest.load_all(context.state)
    assert all(verified.is_verified(file) for file in hub.lock_entries())


def test_models_are_listed_with_the_containers_that_use_them(context: RecordingContext) -> None:
    set_mounts(context, {"qwen35-previous": str(context.machine.home)})
    (row,) = Models().run(Models.Args(), context).data["models"]
    assert (row["id"], row["commit"], row["changed"]) == (MODEL, COMMIT, [])
    assert row["used_by"] == ["qwen35-previous"]


def test_a_model_that_a_container_mounts_is_not_removed(context: RecordingContext) -> None:
    link = context.machine.home / "link"
    link.symlink_to(context.machine.home / "m")
    set_mounts(context, {"qwen35-previous": str(link)})
    with pytest.raises(Failed, match=r"is in use by qwen35-previous") as excinfo:
        RemoveModel().run(RemoveModel.Args(dir="~/m"), context)
    assert excinfo.value.exit is Exit.REFUSED
    assert (context.machine.home / "m/config.json").exists()


def test_removing_a_model_keeps_foreign_files(context: RecordingContext) -> None:
    folder = context.machine.home / "m"
    (folder / "notes.txt").write_text("mine")
    (folder / ".cache/huggingface/download").mkdir(parents=True)
    (folder / ".cache/huggingface/download/x.incomplete").write_bytes(b"half")
    result = RemoveModel().run(RemoveModel.Args(dir="~/m"), context)
    assert result.changed and result.data["left"] == 1
    assert [path.name for path in folder.rglob("*")] == ["notes.txt"]
    assert Models().run(Models.Args(), context).data["models"] == []
    assert not RemoveModel().run(RemoveModel.Args(dir="~/m"), context).changed


def test_check_mode_removes_nothing(context: RecordingContext) -> None:
    context.check = True
    assert RemoveModel().run(RemoveModel.Args(dir="~/m"), context).changed
    assert (context.machine.home / "m/config.json").exists()


@pytest.mark.parametrize(
    ("source", "used"), [("~/m", True), ("~", True), ("~/m/sub", True), ("~/mm", False), ("/elsewhere", False)]
)
def test_a_mount_of_a_parent_or_subfolder_uses_the_model(tmp_path: Path, source: str, used: bool) -> None:
    home = str(tmp_path)
    assert model_folders.overlaps(tmp_path / "m", Path(source.replace("~", home))) is used


# Files of an earlier revision are kept during a change, and restored after a failure.


OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name, text in {"config.json": "old", "sub/shard": "old", "same": "same"}.items():
        replace_file(tmp_path / name, text)
    return tmp_path


def replace_file(path: Path, text: str) -> None:
    """Replace a file atomically, as a transfer does."""
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    temporary.replace(path)


def read_folder(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_replaced_files_are_restored_and_added_files_removed(model: Path) -> None:
    before = read_folder(model)
    model_folders.keep_files(model, ["config.json", "sub/shard", "added"], OLD)
    assert model_folders.kept_commit(model) == OLD
    for name in ("config.json", "sub/shard", "added"):
        replace_file(model / name, "new")
    assert model_folders.restore_kept(model) == 3
    assert read_folder(model) == before


def test_the_verified_revision_is_restored_after_two_unverified_ones(model: Path) -> None:
    before = read_folder(model)
    model_folders.keep_files(model, ["config.json", "added"], OLD)
    for name in ("config.json", "added"):
        replace_file(model / name, "new")
    model_folders.keep_files(model, ["config.json", "sub/shard", "added"], NEW)
    for name in ("config.json", "sub/shard", "added"):
        replace_file(model / name, "newest")
    model_folders.restore_kept(model)
    assert read_folder(model) == before


def test_kept_files_are_dropped_when_another_revision_is_verified(model: Path) -> None:
    model_folders.keep_files(model, ["config.json"], OLD)
    replace_file(model / "config.json", "new")
    model_folders.forget_kept(model)
    assert (model_folders.kept_commit(model), model_folders.restore_kept(model)) == ("", 0)
    assert (model / "config.json").read_text() == "new"


def test_files_behind_a_link_are_not_restored(model: Path) -> None:
    """A container with write access could create the link, and read the keys after a rollback."""
    keys = model.parent / f"{model.name}-keys"
    keys.mkdir()
    (keys / "id_ed25519").write_text("mine")
    (model / model_folders.KEPT_FOLDER).symlink_to(keys)
    before = read_folder(model)
    assert model_folders.restore_kept(model) == 0
    assert (read_folder(model), read_folder(keys)) == (before, {"id_ed25519": "mine"})
