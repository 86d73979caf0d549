"""Models from a loopback hub with the real huggingface_hub and hf_transfer: whole, or named and not green."""

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
from sparkwright.modules.model import model_files
from sparkwright.modules.model.hf_model import HfModel
from sparkwright.modules.model.model_files import RestoreModelFiles
from sparkwright.modules.spark_lock import LockModel
from sparkwright.sandbox.http_server import Server
from sparkwright.sandbox.hub import MOVED_PATHS, Hub, HubApi
from sparkwright.secret import Secret
from tests.modules.context import RecordingContext

MODEL = "Qwen/Qwen3.5-35B-A3B-FP8"
FAST_RETRY = RetryPolicy(tries=3, pauses_s=(0.0,), hub_retries=0)
SHARD = "model-00003-of-00014.safetensors"


class FlakyHub(Hub):
    """A hub that fails.

    Attributes:
        cuts: number of further large answers that end half-way.
        down: whether everything is refused.
    """

    cuts = 0

    def __init__(self) -> None:
        super().__init__(self._cut)
        self.asked = 0

    def _cut(self) -> bool:
        self.asked += 1
        self.cuts -= 1
        return self.cuts >= 0


@pytest.fixture
def hub() -> Iterator[tuple[FlakyHub, Server]]:
    value = FlakyHub()
    server = Server(0, HubApi, value)
    server.start()
    yield value, server
    server.shutdown()
    server.server_close()


@pytest.fixture
def context(tmp_path: Path, hub: tuple[FlakyHub, Server]) -> RecordingContext:
    return RecordingContext(tmp_path, hub_url=f"http://127.0.0.1:{hub[1].port}")


@pytest.fixture
def no_container(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the host appear to run no container."""
    monkeypatch.setattr(model_files, "_is_replaced", lambda context: False)


def lock_model(context: RecordingContext, model: str = MODEL) -> dict[str, Any]:
    return dict(LockModel().run(LockModel.Args(id=model), context).data)


def fetch_model(context: RecordingContext, transfer: Any = "plain", **fields: Any) -> Any:
    entry = fields if "commit" in fields else {**lock_model(context), **fields}
    return HfModel(FAST_RETRY).run(
        HfModel.Args(
            id=MODEL,
            commit=entry["commit"],
            files=entry["files"],
            dir="~/m",
            transfer=transfer,
            chat=validate_entry(entry.get("chat")),
        ),
        context,
    )


@pytest.mark.parametrize("transfer", ["plain", "hf_transfer"])
def test_model_is_fetched_once_and_completely(
    context: RecordingContext, hub: tuple[FlakyHub, Server], transfer: str
) -> None:
    first = fetch_model(context, transfer)
    assert (first.changed, len(first.data["fetched"])) == (True, 19)
    entry = lock_model(context)
    options = hub[0].asked
    second = fetch_model(context, transfer, **entry)
    assert (second.changed, second.data["fetched"]) == (False, [])
    assert hub[0].asked == options


def test_file_with_a_wrong_byte_is_fetched_again(context: RecordingContext) -> None:
    fetch_model(context)
    path = context.machine.home / "m" / SHARD
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    result = fetch_model(context)
    assert result.data["fetched"] == [SHARD]
    assert path.read_bytes() != data


def test_file_missing_in_the_new_revision_is_removed_and_files_of_the_user_stay(
    context: RecordingContext,
) -> None:
    fetch_model(context)
    folder = context.machine.home / "m"
    (folder / "notes.txt").write_text("mine")
    entry = lock_model(context)
    fewer = [file for file in entry["files"] if file["path"] != "README.md"]
    context.check = True
    assert [item.field for item in fetch_model(context, commit="b" * 40, files=fewer).diff] == ["README.md"]
    assert (folder / "README.md").exists()
    context.check = False
    result = fetch_model(context, commit="b" * 40, files=fewer)
    assert (result.changed, result.data["fetched"]) == (True, [])
    assert not (folder / "README.md").exists()
    assert (folder / "notes.txt").exists()
    assert not fetch_model(context, commit="b" * 40, files=fewer).changed


def test_removed_file_of_the_verified_revision_is_restored(context: RecordingContext) -> None:
    fetch_model(context)
    entry, folder = lock_model(context), context.machine.home / "m"
    model = {"id": MODEL, "commit": entry["commit"], "dir": "~/m"}
    verified_states.save_verified(context.state, {"spec": {"name": "qwen35"}, "model": model})
    fewer = [file for file in entry["files"] if file["path"] != "README.md"]
    assert fetch_model(context, commit="b" * 40, files=fewer).changed
    assert not (folder / "README.md").exists()
    assert model_folders.restore_kept(folder) == 1
    assert (folder / "README.md").exists()
    assert not model_folders.kept_commit(folder)
    assert not fetch_model(context, **entry).changed


def save_verified(context: RecordingContext, commit: str) -> None:
    model = {"id": MODEL, "commit": commit, "dir": "~/m"}
    verified_states.save_verified(context.state, {"spec": {"name": "qwen35"}, "model": model})


def restore_model(context: RecordingContext) -> None:
    RestoreModelFiles().run(RestoreModelFiles.Args(), context)


def test_different_files_of_the_same_commit_are_rolled_back(context: RecordingContext, no_container: None) -> None:
    """As one quantisation of a GGUF repository after another."""
    entry, folder = lock_model(context), context.machine.home / "m"
    value, other = ([file for file in entry["files"] if file["path"] != left_out] for left_out in ("README.md", SHARD))
    value = [file for file in value if not file["path"].endswith("index.json")]
    other = [file for file in other if not file["path"].endswith("index.json")]
    fetch_model(context, commit=entry["commit"], files=value)
    save_verified(context, entry["commit"])
    assert fetch_model(context, commit=entry["commit"], files=other).data["fetched"] == ["README.md"]
    assert not (folder / SHARD).exists()
    restore_model(context)
    assert (folder / SHARD).exists()
    assert not (folder / "README.md").exists()
    assert snapshot.list_changed_files(context, verified_states.load_last(context.state)) == []
    assert not fetch_model(context, commit=entry["commit"], files=value).changed


def test_rolled_back_revision_is_not_drift(
    context: RecordingContext, hub: tuple[FlakyHub, Server], no_container: None
) -> None:
    fetch_model(context)
    old = lock_model(context)
    save_verified(context, old["commit"])
    hub[0].moved = lambda: True
    assert fetch_model(context).data["fetched"] == sorted(MOVED_PATHS)
    restore_model(context)
    assert snapshot.list_changed_files(context, verified_states.load_last(context.state)) == []
    options = hub[0].asked
    assert not fetch_model(context, **old).changed
    assert hub[0].asked == options


def test_revision_that_turns_thinking_off_is_reported_before_the_download(
    context: RecordingContext, hub: tuple[FlakyHub, Server]
) -> None:
    fetch_model(context)
    assert not any("chat template" in item.field for item in fetch_model(context, **lock_model(context)).diff)
    hub[0].moved, context.check = lambda: True, True
    message = {item.field: (item.before, item.after) for item in fetch_model(context).diff}
    assert set(message) == {*MOVED_PATHS, "chat template: thinking"}
    assert [text.split(" by default")[0] for text in message["chat template: thinking"]] == ["on", "off"]


def test_truncated_file_with_its_old_time_is_found(context: RecordingContext) -> None:
    fetch_model(context)
    path = context.machine.home / "m" / SHARD
    old = path.stat()
    path.write_bytes(path.read_bytes()[:1000])
    os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))
    assert fetch_model(context).data["fetched"] == [SHARD]


def test_check_mode_lists_missing_files_and_fetches_nothing(context: RecordingContext) -> None:
    context.check = True
    result = fetch_model(context)
    assert (result.changed, len(result.diff)) == (True, 19)
    assert not (context.machine.home / "m").exists()


def test_copy_verified_in_check_mode_is_not_hashed_again(
    context: RecordingContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch_model(context)
    entry = lock_model(context)
    Manifest.load(context.state, context.machine.home / "m").forget()
    context.check = True
    assert not fetch_model(context, **entry).changed
    assert Manifest.load(context.state, context.machine.home / "m").rows  # and nothing was written:
    assert not list(context.state.path.glob("model-*.json"))
    context.check = False
    monkeypatch.setattr(manifest, "hash_file", lambda *args, **more: pytest.fail("hashed again"))
    assert not fetch_model(context, **entry).changed
    assert list(context.state.path.glob("model-*.json"))


@pytest.mark.parametrize("transfer", ["plain", "hf_transfer"])
def test_interrupted_transfers_are_retried(
    context: RecordingContext, hub: tuple[FlakyHub, Server], transfer: str
) -> None:
    hub[0].cuts = 2
    assert len(fetch_model(context, transfer).data["fetched"]) == 19


def test_transfer_that_is_always_interrupted_fails_without_a_partial_file(
    context: RecordingContext, hub: tuple[FlakyHub, Server]
) -> None:
    entry = lock_model(context)
    hub[0].cuts = 10**6
    with pytest.raises(Failed, match="interrupted"):
        fetch_model(context, files=[file for file in entry["files"] if file["path"] == SHARD])
    assert not (context.machine.home / "m" / SHARD).exists()


def test_hash_mismatch_names_the_file(context: RecordingContext) -> None:
    files = [{**file, "sha256": "0" * 64} if file["path"] == SHARD else file for file in lock_model(context)["files"]]
    with pytest.raises(Failed, match=f"hash mismatch twice: {SHARD}"):
        fetch_model(context, files=files)


def test_full_disk_is_refused_before_the_download(context: RecordingContext) -> None:
    files = [{**lock_model(context)["files"][0], "size_bytes": 10**18}]
    with pytest.raises(Failed, match="not enough disk space"):
        fetch_model(context, files=files)


def test_complete_model_needs_no_hub(context: RecordingContext) -> None:
    entry = lock_model(context)
    fetch_model(context)
    context.machine = dataclasses.replace(context.machine, hub_url="http://127.0.0.1:1")
    args = HfModel.Args(id=MODEL, commit=entry["commit"], files=entry["files"], dir="~/m")
    assert not HfModel().run(args, context).changed
    with pytest.raises(Failed, match="does not answer"):
        lock_model(context)


def disconnect_hub(context: RecordingContext) -> None:
    context.machine = dataclasses.replace(context.machine, hub_url="http://127.0.0.1:1")


def test_complete_copy_is_locked_if_the_hub_is_down(context: RecordingContext) -> None:
    options = lock_model(context)
    fetch_model(context, **options)
    disconnect_hub(context)
    assert LockModel().run(LockModel.Args(id=MODEL, or_here=True), context).data == options
    folder = context.machine.home / "m"
    result = f"does not answer. Using the complete copy on this host: {folder}, commit {options['commit']}."
    assert any(result in item.get("text", "") for item in context.events)


@pytest.mark.parametrize("harm", ["gone", "half", "another commit", "never whole"])
def test_incomplete_copy_is_not_locked_if_the_hub_is_down(context: RecordingContext, harm: str) -> None:
    options = lock_model(context)
    if harm == "never whole":
        rows = [file for file in options["files"] if file["path"] == SHARD]
        given = [
            {**file, "sha256": "0" * 64} if file not in rows and file["sha256"] else file for file in options["files"]
        ]
        with pytest.raises(Failed):
            fetch_model(context, commit=options["commit"], files=given)
    else:
        fetch_model(context, **options)
    path = context.machine.home / "m" / SHARD
    {"gone": path.unlink, "half": lambda: os.truncate(path, 1000)}.get(harm, lambda: None)()
    disconnect_hub(context)
    revision = "f" * 40 if harm == "another commit" else "main"
    with pytest.raises(Failed, match="does not answer"):
        LockModel().run(LockModel.Args(id=MODEL, revision=revision, or_here=True), context)


@pytest.mark.parametrize(
    ("model", "revision", "result"),
    [
        ("Qwen/Nothing", "main", "has no model Qwen/Nothing"),
        ("Qwen", "main", "has no model Qwen"),
        (MODEL, "v9", "has no revision 'v9'"),
        ("meta-llama/Llama-3.1-8B-Instruct", "main", "is gated. Accept its license at .*/meta-llama/Llama-3.1-8B-Instruct"),
    ],
)  # fmt: skip
def test_refusals_of_the_hub_are_explained(context: RecordingContext, model: str, revision: str, result: str) -> None:
    with pytest.raises(Failed) as excinfo:
        LockModel().run(LockModel.Args(id=model, revision=revision), context)
    import re

    assert re.search(result, str(excinfo.value))


def test_gated_model_is_locked_with_a_token(context: RecordingContext) -> None:
    context.secrets = {"HF_TOKEN": Secret("hf_x")}
    assert lock_model(context, "meta-llama/Llama-3.1-8B-Instruct")["files"]


def test_patterns_select_files(context: RecordingContext) -> None:
    args = LockModel.Args(id=MODEL, allow=["*.safetensors"], ignore=["*00001*"])
    files = LockModel().run(args, context).data["files"]
    assert len(files) == 13
