"""The second models of a server, such as a drafter: fetched, verified, kept for a rollback, and part of its drift."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkwright.errors import Failed
from sparkwright.health import snapshot
from sparkwright.host.models import model_folders
from sparkwright.host.records import verified_states
from sparkwright.host.records.verified_states import VerifiedState
from sparkwright.modules.model import model_files
from sparkwright.modules.model.hf_model import SecondModels
from sparkwright.modules.model.model_files import RestoreModelFiles, VerifyModel
from sparkwright.modules.server.container import ContainerState
from sparkwright.modules.server.container import find_drift as container_drift
from sparkwright.protocol.container import ContainerSpec
from tests.modules.context import RecordingContext
from tests.modules.loopback_hub import COMMIT, MODEL, LoopbackHub

FILES = {"config.json": b"{}", "draft.safetensors": b"w" * 5000, "README.md": b"#"}


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    value = LoopbackHub(FILES, lfs=lambda path: path.endswith(".safetensors"))
    yield value
    value.close()


@pytest.fixture
def context(tmp_path: Path, hub: LoopbackHub) -> RecordingContext:
    (tmp_path / "home").mkdir()
    return RecordingContext(tmp_path / "home", hub_url=hub.url)


@pytest.fixture
def folder(context: RecordingContext) -> Path:
    """Return the folder of the drafter."""
    return context.machine.home / "draft"


def draft_entry(hub: LoopbackHub, *, commit: str = COMMIT, without: tuple[str, ...] = ()) -> dict[str, Any]:
    fields = {"role": "draft", "id": MODEL, "dir": "~/draft", "transfer": "plain"}
    return {**fields, "commit": commit, "files": hub.lock_entries(without=without)}


def fetch_models(context: RecordingContext, *models: dict[str, Any]) -> Any:
    return SecondModels().run(SecondModels.Args(models=list(models)), context)


def test_model_is_fetched_once_with_its_hashes(context: RecordingContext, hub: LoopbackHub, folder: Path) -> None:
    first = fetch_models(context, draft_entry(hub))
    assert first.changed and "draft: 3 files downloaded" in first.msg
    assert (folder / "draft.safetensors").read_bytes() == FILES["draft.safetensors"]
    request_count = len(hub.requests)
    second = fetch_models(context, draft_entry(hub))
    assert (second.changed, len(hub.requests)) == (False, request_count)


def test_wrong_byte_is_named_by_role_and_fetched(context: RecordingContext, hub: LoopbackHub, folder: Path) -> None:
    fetch_models(context, draft_entry(hub))
    (folder / "draft.safetensors").write_bytes(b"x" * 5000)
    context.check = True
    assert [row.field for row in fetch_models(context, draft_entry(hub)).diff] == ["draft: draft.safetensors"]
    context.check = False
    assert fetch_models(context, draft_entry(hub)).data["models"][0]["fetched"] == ["draft.safetensors"]


def test_model_without_a_commit_is_refused(context: RecordingContext, hub: LoopbackHub) -> None:
    with pytest.raises(Failed, match="the draft has no commit"):
        fetch_models(context, {key: value for key, value in draft_entry(hub).items() if key != "commit"})


def save_verified_state(context: RecordingContext, hub: LoopbackHub, commit: str = COMMIT) -> VerifiedState:
    model = {"id": "a/b", "commit": "c" * 40, "dir": "~/m", "files": [], "models": [draft_entry(hub, commit=commit)]}
    state = VerifiedState.from_json({"spec": {"name": "one"}, "model": model})
    verified_states.save_verified(context.state, state)
    return state


def test_drafter_of_the_verified_server_is_kept_and_restored(
    context: RecordingContext, hub: LoopbackHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_files, "_is_replaced", lambda context: False)
    fetch_models(context, draft_entry(hub))
    save_verified_state(context, hub)
    fetch_models(context, draft_entry(hub, commit="b" * 40, without=("README.md",)))
    assert not (folder / "README.md").exists()
    assert model_folders.replaced_folders(context) == {folder: COMMIT}
    restored = RestoreModelFiles().run(RestoreModelFiles.Args(), context)
    assert restored.changed and (folder / "README.md").exists()
    assert not fetch_models(context, draft_entry(hub)).changed


def test_changed_file_is_drift_with_its_role(context: RecordingContext, hub: LoopbackHub, folder: Path) -> None:
    fetch_models(context, draft_entry(hub))
    state = save_verified_state(context, hub)
    assert snapshot.list_changed_files(context, state) == []
    (folder / "config.json").write_text("{ }")
    assert snapshot.list_changed_files(context, state) == ["draft: config.json"]


def test_states_with_different_drafters_differ(context: RecordingContext, hub: LoopbackHub) -> None:
    state, other = save_verified_state(context, hub), save_verified_state(context, hub, commit="b" * 40)
    assert not verified_states.is_same(state, other) and verified_states.is_same(state, state)
    assert [state.model["models"][0]["commit"] for state in verified_states.load_earlier(context.state)] == [COMMIT]


def test_server_with_another_revision_of_its_drafter_differs(hub: LoopbackHub) -> None:
    loaded, wanted = draft_entry(hub), draft_entry(hub, commit="b" * 40)
    wanted["files"] = [{**file, "sha256": "f" * 64} if file["sha256"] else file for file in wanted["files"]]
    container = {"Id": "x", "Name": "/one", "State": {"Running": True}, "Config": {}, "HostConfig": {}}
    state = ContainerState(ContainerSpec("one", "i"), container, {}, "x", {"commit": "c", "models": [loaded]})
    rows = container_drift({"commit": "c", "models": [wanted]}, state)
    (row,) = (row for row in rows if row.field == "draft model revision")
    assert (row.before, row.after) == (COMMIT[:12], "b" * 12)
    assert not any("revision" in row.field for row in container_drift({"commit": "c", "models": [loaded]}, state))


def test_verify_model_includes_the_second_models(context: RecordingContext, hub: LoopbackHub, folder: Path) -> None:
    fetch_models(context, draft_entry(hub))
    (folder / "config.json").write_text("{ }")
    model = {**draft_entry(hub), "dir": "~/m"}
    del model["role"], model["transfer"]
    result = VerifyModel().run(VerifyModel.Args(**model, models=[draft_entry(hub)]), context)
    assert "draft: config.json" in result.data["wrong"] and "config.json" in result.data["wrong"]
    assert result.data["files"] == 2 * len(FILES)
