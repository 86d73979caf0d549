"""Foreign links and notes in a model's folder: nothing is written, moved or removed at their targets."""

import json
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
FAST_RETRY = RetryPolicy(tries=2, pauses_s=(0.0,), hub_retries=0)
OWN_KEY = "ssh-ed25519 AAAA mine"


@pytest.fixture
def context(tmp_path: Path, hub: LoopbackHub) -> RecordingContext:
    value = RecordingContext(tmp_path, hub_url=hub.url)
    (tmp_path / "m").mkdir()
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys/authorized_keys").write_text(OWN_KEY)
    set_mounts(value, {})
    return value


def fetch_model(context: RecordingContext, hub: LoopbackHub) -> Result:
    args = HfModel.Args(id=MODEL, commit=COMMIT, files=hub.lock_entries(), dir="~/m", transfer="plain")
    return HfModel(FAST_RETRY).run(args, context)


def is_untouched(context: RecordingContext) -> bool:
    keys = context.machine.home / "keys"
    return [path.name for path in keys.rglob("*")] == ["authorized_keys"] and (
        (keys / "authorized_keys").read_text() == OWN_KEY
    )


@pytest.mark.parametrize("link", ["sub", model_folders.STAGING_FOLDER, ".cache"])
def test_a_transfer_does_not_write_through_a_folder_that_is_a_link(
    context: RecordingContext, hub: LoopbackHub, link: str
) -> None:
    place = context.machine.home / "m" / link
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(context.machine.home / "keys")
    try:
        fetch_model(context, hub)
    except Failed as error:
        assert "a link that leads out of" in error.message
    assert is_untouched(context)


def test_a_partial_file_that_is_a_link_is_not_gone_on_with(context: RecordingContext, hub: LoopbackHub) -> None:
    hub.files["config.json"] = json.dumps({"keys": "of somebody else"}).encode()
    waiting, mine = context.machine.home / "m" / model_folders.STAGING_FOLDER, context.machine.home / "mine"
    mine.write_text("{")
    file_transfer.prepare_folder(waiting, "plain")
    partial = file_transfer.partial_path(waiting, hub.row("config.json"))
    partial.parent.mkdir(parents=True, exist_ok=True)
    partial.symlink_to(mine)
    fetch_model(context, hub)
    assert mine.read_text() == "{"
    assert (context.machine.home / "m/config.json").read_bytes() == hub.files["config.json"]


def test_a_file_that_is_a_link_is_replaced_and_not_written_through(context: RecordingContext, hub: LoopbackHub) -> None:
    place = context.machine.home / "m/config.json"
    place.symlink_to(context.machine.home / "keys/authorized_keys")
    fetch_model(context, hub)
    assert is_untouched(context)
    assert place.read_bytes() == b"{}" and not place.is_symlink()


def test_a_folder_that_is_a_link_itself_is_the_users_choice(context: RecordingContext, hub: LoopbackHub) -> None:
    (context.machine.home / "m").rmdir()
    (context.machine.home / "disk").mkdir()
    (context.machine.home / "m").symlink_to(context.machine.home / "disk")
    fetch_model(context, hub)
    assert (context.machine.home / "disk/sub/authorized_keys").exists()


def test_removing_a_model_leaves_what_links_lead_to(context: RecordingContext, hub: LoopbackHub) -> None:
    fetch_model(context, hub)
    home = context.machine.home
    (home / ".cache/huggingface/download").mkdir(parents=True)
    (home / ".cache/huggingface/download/x.incomplete").write_text("of another program")
    for path in (home / "m/sub").iterdir():
        path.unlink()
    (home / "m/sub").rmdir()
    (home / "m/sub").symlink_to(home / "keys")
    (home / "m/.cache").rmdir()
    (home / "m/.cache").symlink_to(home / ".cache")
    RemoveModel().run(RemoveModel.Args(dir="~/m"), context)
    assert is_untouched(context)
    assert (home / ".cache/huggingface/download/x.incomplete").exists()
    assert not (home / "m/config.json").exists()


def test_a_name_that_an_older_version_noted_is_not_removed(context: RecordingContext, hub: LoopbackHub) -> None:
    fetch_model(context, hub)
    manifest = Manifest.load(context.state, context.machine.home / "m")
    manifest.rows["../keys/authorized_keys"] = [1, 1, 1, "a" * 64]
    manifest.about["paths"].append("../keys/authorized_keys")
    manifest.save()
    assert "../keys/authorized_keys" not in [
        entry["path"] for entry in Manifest.load(context.state, manifest.folder).entries()
    ]
    hub.files.pop("config.json")
    fetch_model(context, hub)
    RemoveModel().run(RemoveModel.Args(dir="~/m"), context)
    assert is_untouched(context)


@pytest.mark.parametrize(
    "new", [["../keys/authorized_keys"], ["sub/authorized_keys"], [{}, 7, None], "../keys/authorized_keys", {"a": 1}]
)
def test_a_note_in_the_folder_removes_nothing_elsewhere(context: RecordingContext, new: object) -> None:
    folder = context.machine.home / "m"
    (folder / model_folders.KEPT_FOLDER).mkdir()
    (folder / "sub").symlink_to(context.machine.home / "keys")
    (folder / model_folders.KEPT_FOLDER / model_folders.KEPT_RECORD).write_text(
        json.dumps({"commit": COMMIT, "new": new})
    )
    try:
        model_folders.restore_kept(folder)
    except Failed as error:
        assert "a link that leads out of" in error.message
    assert is_untouched(context)


def test_kept_files_go_neither_through_links_nor_come_back_through_them(context: RecordingContext) -> None:
    folder, keys = context.machine.home / "m", context.machine.home / "keys"
    (folder / "config.json").write_text("old")
    (folder / model_folders.KEPT_FOLDER).symlink_to(keys)
    model_folders.keep_files(folder, ["config.json"], COMMIT)
    assert is_untouched(context)
    (folder / model_folders.KEPT_FOLDER / "sub").mkdir()
    (folder / model_folders.KEPT_FOLDER / "sub/authorized_keys").write_text("of somebody else")
    (folder / "sub").symlink_to(keys)
    with pytest.raises(Failed, match="a link that leads out of"):
        model_folders.restore_kept(folder)
    assert is_untouched(context)


@pytest.mark.parametrize("name", ["a\x00b", "../../etc/passwd", "\x1b]52;c;aGk=\x07"])
def test_an_index_names_its_shards_and_no_more(context: RecordingContext, hub: LoopbackHub, name: str) -> None:
    hub.files["x.safetensors.index.json"] = json.dumps({"weight_map": {"a": name, "b": 7, "c": None}}).encode()
    with pytest.raises(Failed, match="names missing files") as excinfo:
        fetch_model(context, hub)
    assert excinfo.value.message.isprintable()
