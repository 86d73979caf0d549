"""Foreign links and records in a model's folder: nothing is written, moved or removed at their targets."""

import json
import shutil
from pathlib import Path

import pytest

from sparkwright.errors import Failed
from sparkwright.host.models import file_transfer, model_folders
from sparkwright.host.models.manifest import Manifest
from sparkwright.host.models.transfer import RetryPolicy
from sparkwright.modules.model.hf_model import HfModel
from sparkwright.modules.storage import RemoveModel
from sparkwright.protocol.result import Result
from tests.host.models.test_model_folders import set_mounts
from tests.modules.context import RecordingContext
from tests.modules.loopback_hub import COMMIT, MODEL, LoopbackHub

FILES = {"config.json": b"{}", "sub/authorized_keys": b"ssh-ed25519 AAAA of somebody else"}
FAST_RETRY = RetryPolicy(max_tries=2, pauses_s=(0.0,), hub_retries=0)
OWN_KEY = "ssh-ed25519 AAAA mine"


@pytest.fixture
def context(tmp_path: Path, hub: LoopbackHub) -> RecordingContext:
    recording = RecordingContext(tmp_path, hub_url=hub.url)
    (tmp_path / "m").mkdir()
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys/authorized_keys").write_text(OWN_KEY)
    set_mounts(recording, {})
    return recording


@pytest.fixture
def folder(context: RecordingContext) -> Path:
    """The model's folder."""
    return context.machine.home / "m"


def fetch_model(context: RecordingContext, hub: LoopbackHub) -> Result:
    args = HfModel.Args(id=MODEL, commit=COMMIT, files=hub.lock_entries(), dir="~/m", transfer="plain")
    return HfModel(FAST_RETRY).run(args, context)


def check_keys(context: RecordingContext) -> None:
    """Check that nothing changed in the foreign folder."""
    keys = context.machine.home / "keys"
    assert {path.name: path.read_text() for path in keys.rglob("*")} == {"authorized_keys": OWN_KEY}


@pytest.mark.parametrize("link", ["sub", model_folders.STAGING_FOLDER, ".cache"])
def test_a_transfer_does_not_write_through_a_linked_folder(
    context: RecordingContext, hub: LoopbackHub, folder: Path, link: str
) -> None:
    (folder / link).parent.mkdir(exist_ok=True)
    (folder / link).symlink_to(context.machine.home / "keys")
    try:
        fetch_model(context, hub)
    except Failed as error:
        assert "a link that leads out of" in error.message
    check_keys(context)


def test_a_partial_file_that_is_a_link_is_not_continued(
    context: RecordingContext, hub: LoopbackHub, folder: Path
) -> None:
    hub.files["config.json"] = json.dumps({"keys": "of somebody else"}).encode()
    staging, foreign = folder / model_folders.STAGING_FOLDER, context.machine.home / "foreign"
    foreign.write_text("{")
    file_transfer.prepare_folder(staging, "plain")
    partial = file_transfer.partial_path(staging, hub.row("config.json"))
    partial.parent.mkdir(parents=True, exist_ok=True)
    partial.symlink_to(foreign)
    fetch_model(context, hub)
    assert foreign.read_text() == "{"
    assert (folder / "config.json").read_bytes() == hub.files["config.json"]


def test_a_link_in_place_of_a_file_is_replaced(context: RecordingContext, hub: LoopbackHub, folder: Path) -> None:
    file = folder / "config.json"
    file.symlink_to(context.machine.home / "keys/authorized_keys")
    fetch_model(context, hub)
    check_keys(context)
    assert file.read_bytes() == b"{}" and not file.is_symlink()


def test_a_linked_model_folder_is_used(context: RecordingContext, hub: LoopbackHub, folder: Path) -> None:
    """The user may keep models on another disk."""
    folder.rmdir()
    disk = context.machine.home / "disk"
    disk.mkdir()
    folder.symlink_to(disk)
    fetch_model(context, hub)
    assert (disk / "sub/authorized_keys").exists()


def test_removing_a_model_does_not_follow_links(context: RecordingContext, hub: LoopbackHub, folder: Path) -> None:
    fetch_model(context, hub)
    home = context.machine.home
    foreign = home / ".cache/huggingface/download/x.incomplete"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("of another program")
    shutil.rmtree(folder / "sub")
    (folder / "sub").symlink_to(home / "keys")
    (folder / ".cache").rmdir()
    (folder / ".cache").symlink_to(home / ".cache")
    RemoveModel().run(RemoveModel.Args(dir="~/m"), context)
    check_keys(context)
    assert foreign.exists() and not (folder / "config.json").exists()


def test_an_outside_path_in_an_old_record_is_not_removed(
    context: RecordingContext, hub: LoopbackHub, folder: Path
) -> None:
    fetch_model(context, hub)
    manifest = Manifest.load(context.state, folder)
    manifest.rows["../keys/authorized_keys"] = [1, 1, 1, "a" * 64]
    manifest.about["paths"].append("../keys/authorized_keys")
    manifest.save()
    paths = [entry["path"] for entry in Manifest.load(context.state, folder).entries()]
    assert "../keys/authorized_keys" not in paths
    hub.files.pop("config.json")
    fetch_model(context, hub)
    RemoveModel().run(RemoveModel.Args(dir="~/m"), context)
    check_keys(context)


@pytest.mark.parametrize(
    "new", [["../keys/authorized_keys"], ["sub/authorized_keys"], [{}, 7, None], "../keys/authorized_keys", {"a": 1}]
)
def test_a_record_in_the_folder_removes_no_files_elsewhere(
    context: RecordingContext, folder: Path, new: object
) -> None:
    kept = folder / model_folders.KEPT_FOLDER
    kept.mkdir()
    (folder / "sub").symlink_to(context.machine.home / "keys")
    (kept / model_folders.KEPT_RECORD_FILE).write_text(json.dumps({"commit": COMMIT, "new": new}))
    try:
        model_folders.restore_kept(folder)
    except Failed as error:
        assert "a link that leads out of" in error.message
    check_keys(context)


def test_files_are_not_kept_or_restored_through_links(context: RecordingContext, folder: Path) -> None:
    kept, keys = folder / model_folders.KEPT_FOLDER, context.machine.home / "keys"
    (folder / "config.json").write_text("old")
    kept.symlink_to(keys)
    model_folders.keep_files(folder, ["config.json"], COMMIT)
    check_keys(context)
    (kept / "sub").mkdir()
    (kept / "sub/authorized_keys").write_text("of somebody else")
    (folder / "sub").symlink_to(keys)
    with pytest.raises(Failed, match="a link that leads out of"):
        model_folders.restore_kept(folder)
    check_keys(context)


@pytest.mark.parametrize("name", ["a\x00b", "../../etc/passwd", "\x1b]52;c;aGk=\x07"])
def test_invalid_shard_names_in_an_index_are_refused(context: RecordingContext, hub: LoopbackHub, name: str) -> None:
    hub.files["x.safetensors.index.json"] = json.dumps({"weight_map": {"a": name, "b": 7, "c": None}}).encode()
    with pytest.raises(Failed, match="names missing files") as excinfo:
        fetch_model(context, hub)
    assert excinfo.value.message.isprintable()
