"""Models downloaded from a hub on the loopback with the real huggingface_hub and hf_transfer."""

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines.model.chat_template import validate_entry
from sparkwright.errors import Failed
from sparkwright.health import snapshot
from sparkwright.host.models import manifest, model_folders
from sparkwright.host.models.manifest import Manifest
from sparkwright.host.models.transfer import RetryPolicy
from sparkwright.host.records import verified_states
from sparkwright.host.records.verified_states import ModelRecord, VerifiedState
from sparkwright.modules.model import model_files
from sparkwright.modules.model.hf_model import HfModel
from sparkwright.modules.model.model_files import RestoreModelFiles
from sparkwright.modules.spark_lock import LockModel
from sparkwright.sandbox.http_server import Server
from sparkwright.sandbox.hub import MOVED_PATHS, Hub, HubApi
from sparkwright.secret import Secret
from tests.modules.context import RecordingContext

MODEL = "Qwen/Qwen3.5-35B-A3B-FP8"
FAST_RETRY = RetryPolicy(max_tries=3, pauses_s=(0.0,), hub_retries=0)
SHARD = "model-00003-of-00014.safetensors"


class FlakyHub(Hub):
    """A hub that counts requests for large files, and ends the next `cuts` answers half-way."""

    cuts = 0
    url = ""

    def __init__(self) -> None:
        super().__init__(self._cut)
        self.request_count = 0

    def _cut(self) -> bool:
        self.request_count += 1
        self.cuts -= 1
        return self.cuts >= 0


@pytest.fixture
def hub() -> Iterator[FlakyHub]:
    value = FlakyHub()
    server = Server(0, HubApi, value)
    server.start()
    value.url = f"http://127.0.0.1:{server.port}"
    yield value
    server.shutdown()
    server.server_close()


@pytest.fixture
def context(tmp_path: Path, hub: FlakyHub) -> RecordingContext:
    return RecordingContext(tmp_path, hub_url=hub.url)


@pytest.fixture
def folder(context: RecordingContext) -> Path:
    """Return the folder of the model."""
    return context.machine.home / "m"


@pytest.fixture
def no_container(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the host appear to run no container."""
    monkeypatch.setattr(model_files, "_is_replaced", lambda context: False)


def lock_model(context: RecordingContext, model: str = MODEL) -> dict[str, Any]:
    return dict(LockModel().run(LockModel.Args(id=model), context).data)


def fetch_model(context: RecordingContext, transfer: Any = "plain", **fields: Any) -> Any:
    entry = fields if "commit" in fields else {**lock_model(context), **fields}
    chat = validate_entry(entry.get("chat"))
    args = HfModel.Args(id=MODEL, commit=entry["commit"], files=entry["files"], dir="~/m", transfer=transfer, chat=chat)
    return HfModel(FAST_RETRY).run(args, context)


def files_without(entry: dict[str, Any], *paths: str) -> list[dict[str, Any]]:
    return [file for file in entry["files"] if file["path"] not in paths]


def save_verified(context: RecordingContext, commit: str) -> None:
    model: ModelRecord = {"id": MODEL, "commit": commit, "dir": "~/m"}
    verified_states.save_verified(context.state, VerifiedState({"name": "qwen35"}, model))


def restore_model(context: RecordingContext) -> None:
    RestoreModelFiles().run(RestoreModelFiles.Args(), context)


@pytest.mark.parametrize("transfer", ["plain", "hf_transfer"])
def test_model_is_fetched_once_and_completely(context: RecordingContext, hub: FlakyHub, transfer: str) -> None:
    first = fetch_model(context, transfer)
    assert (first.changed, len(first.data["fetched"])) == (True, 19)
    entry = lock_model(context)
    request_count = hub.request_count
    second = fetch_model(context, transfer, **entry)
    assert (second.changed, second.data["fetched"], hub.request_count) == (False, [], request_count)


@pytest.mark.parametrize("damage", ["wrong byte", "truncated"])
def test_damaged_file_with_its_old_time_is_fetched_again(context: RecordingContext, folder: Path, damage: str) -> None:
    fetch_model(context)
    path = folder / SHARD
    data, old = path.read_bytes(), path.stat()
    path.write_bytes(data[:1000] if damage == "truncated" else bytes([data[0] ^ 1]) + data[1:])
    os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))
    assert fetch_model(context).data["fetched"] == [SHARD]
    assert path.read_bytes() == data


def test_file_missing_in_a_new_revision_is_removed_and_user_files_stay(context: RecordingContext, folder: Path) -> None:
    fetch_model(context)
    (folder / "notes.txt").write_text("mine")
    files = files_without(lock_model(context), "README.md")
    context.check = True
    assert [item.field for item in fetch_model(context, commit="b" * 40, files=files).diff] == ["README.md"]
    assert (folder / "README.md").exists()
    context.check = False
    result = fetch_model(context, commit="b" * 40, files=files)
    assert (result.changed, result.data["fetched"]) == (True, [])
    assert not (folder / "README.md").exists()
    assert (folder / "notes.txt").exists()
    assert not fetch_model(context, commit="b" * 40, files=files).changed


def test_removed_file_of_the_verified_revision_is_restored(context: RecordingContext, folder: Path) -> None:
    fetch_model(context)
    entry = lock_model(context)
    save_verified(context, entry["commit"])
    assert fetch_model(context, commit="b" * 40, files=files_without(entry, "README.md")).changed
    assert not (folder / "README.md").exists()
    assert model_folders.restore_kept(folder) == 1
    assert (folder / "README.md").exists()
    assert not model_folders.kept_commit(folder)
    assert not fetch_model(context, **entry).changed


def test_other_files_of_a_commit_are_rolled_back(context: RecordingContext, folder: Path, no_container: None) -> None:
    """For example another quantisation of a GGUF repository."""
    entry = lock_model(context)
    index = "model.safetensors.index.json"
    first, second = files_without(entry, index, "README.md"), files_without(entry, index, SHARD)
    fetch_model(context, commit=entry["commit"], files=first)
    save_verified(context, entry["commit"])
    assert fetch_model(context, commit=entry["commit"], files=second).data["fetched"] == ["README.md"]
    assert not (folder / SHARD).exists()
    restore_model(context)
    assert (folder / SHARD).exists()
    assert not (folder / "README.md").exists()
    assert snapshot.list_changed_files(context, verified_states.load_last(context.state)) == []
    assert not fetch_model(context, commit=entry["commit"], files=first).changed


def test_rolled_back_revision_is_not_drift(context: RecordingContext, hub: FlakyHub, no_container: None) -> None:
    fetch_model(context)
    old = lock_model(context)
    save_verified(context, old["commit"])
    hub.is_moved = lambda: True
    assert fetch_model(context).data["fetched"] == sorted(MOVED_PATHS)
    restore_model(context)
    assert snapshot.list_changed_files(context, verified_states.load_last(context.state)) == []
    request_count = hub.request_count
    assert not fetch_model(context, **old).changed
    assert hub.request_count == request_count


def test_revision_that_turns_thinking_off_is_reported_before_download(context: RecordingContext, hub: FlakyHub) -> None:
    fetch_model(context)
    assert not any("chat template" in item.field for item in fetch_model(context, **lock_model(context)).diff)
    hub.is_moved, context.check = lambda: True, True
    diff = {item.field: (item.before, item.after) for item in fetch_model(context).diff}
    assert set(diff) == {*MOVED_PATHS, "chat template: thinking"}
    assert [text.split(" by default")[0] for text in diff["chat template: thinking"]] == ["on", "off"]


def test_check_mode_lists_missing_files_and_fetches_nothing(context: RecordingContext, folder: Path) -> None:
    context.check = True
    result = fetch_model(context)
    assert (result.changed, len(result.diff), folder.exists()) == (True, 19, False)


def test_copy_verified_in_check_mode_is_not_hashed_again(
    context: RecordingContext, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch_model(context)
    entry = lock_model(context)
    Manifest.load(context.state, folder).forget()
    context.check = True
    assert not fetch_model(context, **entry).changed
    assert Manifest.load(context.state, folder).rows
    assert not list(context.state.path.glob("model-*.json")), "check mode writes nothing"
    context.check = False
    monkeypatch.setattr(manifest, "hash_file", lambda *args, **more: pytest.fail("hashed again"))
    assert not fetch_model(context, **entry).changed
    assert list(context.state.path.glob("model-*.json"))


@pytest.mark.parametrize("transfer", ["plain", "hf_transfer"])
def test_interrupted_transfers_are_retried(context: RecordingContext, hub: FlakyHub, transfer: str) -> None:
    hub.cuts = 2
    assert len(fetch_model(context, transfer).data["fetched"]) == 19


def test_interrupted_transfer_leaves_no_partial_file(context: RecordingContext, hub: FlakyHub, folder: Path) -> None:
    files = [file for file in lock_model(context)["files"] if file["path"] == SHARD]
    hub.cuts = 10**6
    with pytest.raises(Failed, match="interrupted"):
        fetch_model(context, files=files)
    assert not (folder / SHARD).exists()


def test_hash_mismatch_names_the_file(context: RecordingContext) -> None:
    files = [{**file, "sha256": "0" * 64} if file["path"] == SHARD else file for file in lock_model(context)["files"]]
    with pytest.raises(Failed, match=f"hash mismatch twice: {SHARD}"):
        fetch_model(context, files=files)


def test_full_disk_is_refused_before_the_download(context: RecordingContext) -> None:
    files = [{**lock_model(context)["files"][0], "size_bytes": 10**18}]
    with pytest.raises(Failed, match="not enough disk space"):
        fetch_model(context, files=files)


def disconnect_hub(context: RecordingContext) -> None:
    context.machine = dataclasses.replace(context.machine, hub_url="http://127.0.0.1:1")


def test_complete_model_needs_no_hub(context: RecordingContext) -> None:
    entry = lock_model(context)
    fetch_model(context)
    disconnect_hub(context)
    assert not fetch_model(context, **entry).changed
    with pytest.raises(Failed, match="does not answer"):
        lock_model(context)


def test_complete_copy_is_locked_if_the_hub_is_down(context: RecordingContext, folder: Path) -> None:
    entry = lock_model(context)
    fetch_model(context, **entry)
    disconnect_hub(context)
    assert LockModel().run(LockModel.Args(id=MODEL, or_here=True), context).data == entry
    note = f"does not answer. Using the complete copy on this host: {folder}, commit {entry['commit']}."
    assert any(note in item.get("text", "") for item in context.events)


@pytest.mark.parametrize("damage", ["removed", "truncated", "other revision", "never completed"])
def test_incomplete_copy_is_not_locked_if_the_hub_is_down(context: RecordingContext, folder: Path, damage: str) -> None:
    entry = lock_model(context)
    if damage == "never completed":
        files = [
            {**file, "sha256": "0" * 64} if file["path"] != SHARD and file["sha256"] else file
            for file in entry["files"]
        ]
        with pytest.raises(Failed):
            fetch_model(context, commit=entry["commit"], files=files)
    else:
        fetch_model(context, **entry)
    if damage == "removed":
        (folder / SHARD).unlink()
    if damage == "truncated":
        os.truncate(folder / SHARD, 1000)
    disconnect_hub(context)
    revision = "f" * 40 if damage == "other revision" else "main"
    with pytest.raises(Failed, match="does not answer"):
        LockModel().run(LockModel.Args(id=MODEL, revision=revision, or_here=True), context)


LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.mark.parametrize(
    ("model", "revision", "message"),
    [
        ("Qwen/Nothing", "main", "has no model Qwen/Nothing"),
        ("Qwen", "main", "has no model Qwen"),
        (MODEL, "v9", "has no revision 'v9'"),
        (LLAMA, "main", f"is gated. Accept its license at .*/{LLAMA}"),
    ],
)
def test_refusals_of_the_hub_are_explained(context: RecordingContext, model: str, revision: str, message: str) -> None:
    with pytest.raises(Failed, match=message):
        LockModel().run(LockModel.Args(id=model, revision=revision), context)


def test_gated_model_is_locked_with_a_token(context: RecordingContext) -> None:
    context.secrets = {"HF_TOKEN": Secret("hf_x")}
    assert lock_model(context, LLAMA)["files"]


def test_patterns_select_files(context: RecordingContext) -> None:
    args = LockModel.Args(id=MODEL, allow=["*.safetensors"], ignore=["*00001*"])
    assert len(LockModel().run(args, context).data["files"]) == 13
