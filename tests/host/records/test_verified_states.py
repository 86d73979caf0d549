"""Verified states for a rollback, incident bundles without secrets, and the history."""

import dataclasses
import json
from pathlib import Path

import pytest

from sparkwright.engines.engine import get_engine
from sparkwright.host.gateway import gateway_folders
from sparkwright.host.gateway.gateway_folders import ProofRecord, VerifiedGateway
from sparkwright.host.records import history, incidents, verified_states
from sparkwright.host.records.state_shapes import VERIFIED_STATE_SHAPE
from sparkwright.host.records.verified_states import Measured, ModelRecord, ServeRecord, VerifiedState
from sparkwright.host.state import StateFolder
from sparkwright.protocol.container import ContainerSpec, SpecRecord
from sparkwright.secret import Secret
from sparkwright.visible import escape_invisible
from tests.modules.context import RecordingContext


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    return StateFolder(tmp_path)


def good_state(seqs: int, commit: str = "c1", container: str = "") -> VerifiedState:
    container_id = container or f"id{seqs}{commit}"
    return VerifiedState({"name": "qwen35", "command": [str(seqs)]}, {"commit": commit}, container_id=container_id)


def container_ids(state: StateFolder) -> list[str]:
    """Return the Ids of the verified states' containers, newest first."""
    return [item.container_id for item in (verified_states.load_last(state), *verified_states.load_earlier(state))]


def test_a_deploy_of_an_earlier_state_can_be_rolled_back(state: StateFolder) -> None:
    for seqs in (1, 2, 1):
        verified_states.save_verified(state, good_state(seqs))
    assert container_ids(state) == ["id1c1", "id2c1"]


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("vllm", {"kv-offloading-size": 20, "cpu-offload-gb": 4}),
        ("vllm", {"kv-cache-memory-bytes": 10**10, "kv-offloading-size": 20}),
        ("sglang", {"mem-fraction-static": 0.7, "enable-hierarchical-cache": True, "hicache-size": 8}),
        ("llama_cpp", {"ctx-size": 4096}),
        ("openai", {"served_name": "m", "memory_gib": 10}),
    ],
)
def test_a_verified_state_keeps_the_memory_needs_of_every_engine(
    state: StateFolder, engine: str, flags: dict[str, object]
) -> None:
    needs = get_engine(engine).advice.memory(flags, {}).to_json()
    verified_states.save_verified(state, VerifiedState({"name": "m"}, serve={"engine_memory": needs}))
    assert verified_states.load_last(state).serve["engine_memory"] == needs


def test_verified_states_are_a_stack_and_a_rollback_drops_later_states(state: StateFolder) -> None:
    for seqs in (1, 2, 3):
        verified_states.save_verified(state, good_state(seqs))
    assert container_ids(state) == ["id3c1", "id2c1", "id1c1"]
    verified_states.save_verified(state, good_state(2, container="again"), rolled_back=True)
    assert container_ids(state) == ["again", "id1c1"]
    verified_states.save_verified(state, good_state(4))
    assert container_ids(state) == ["id4c1", "again", "id1c1"]


def test_a_new_revision_of_the_model_is_a_new_state_and_a_restart_is_not(state: StateFolder) -> None:
    verified_states.save_verified(state, good_state(1))
    verified_states.save_verified(state, good_state(1, container="restarted"))
    assert container_ids(state) == ["restarted"]
    verified_states.save_verified(state, good_state(1, commit="c2"))
    assert container_ids(state) == ["id1c2", "restarted"]


def test_every_field_of_a_verified_state_is_validated_when_it_is_read() -> None:
    names = {*verified_states.field_names(VerifiedState), *verified_states.field_names(VerifiedGateway)}
    assert names == VERIFIED_STATE_SHAPE.fields.keys()
    for name, record in {
        "spec": SpecRecord,
        "model": ModelRecord,
        "serve": ServeRecord,
        "measured": Measured,
        "proof": ProofRecord,
    }.items():
        assert VERIFIED_STATE_SHAPE.fields[name].fields.keys() >= record.__annotations__.keys() - {"role"}, name
    assert [*SpecRecord.__annotations__] == [field.name for field in dataclasses.fields(ContainerSpec)]


def test_damaged_fields_of_an_earlier_gateway_are_left_out(tmp_path: Path) -> None:
    context = RecordingContext(tmp_path)
    good = {"spec": {"name": "gateway"}, "digest": "d1", "models": ["qwen"], "proof": {"port": 8080, "models": {}}}
    damaged = {
        **good,
        "digest": "d2",
        "since": "yesterday",
        "models": "qwen",
        "proof": {"port": 8080, "models": ["qwen"]},
    }
    states = [good, damaged, {**good, "digest": "../d3"}]
    gateway_folders.state_of(context).write("verified_before", {"states": states})
    read_good, read_damaged = gateway_folders.load_earlier(context)
    assert read_good.to_json() == {**good, "spec": {"name": "gateway"}}
    assert read_damaged == VerifiedGateway({"name": "gateway"}, digest="d2", proof={"port": 8080})


def test_fields_of_a_newer_version_are_kept(state: StateFolder) -> None:
    state.write("verified", {**good_state(1).to_json(), "color": "green"})
    verified_states.save_verified(state, good_state(2))
    assert verified_states.load_earlier(state)[0].to_json()["color"] == "green"


def test_secrets_in_environment_and_arguments_are_redacted() -> None:
    config = {"Env": ["HF_TOKEN=hf_abc", "VLLM_API_KEY=k1", "TZ=UTC"], "Cmd": ["--api-key", "k1", "--model", "/m"]}
    arguments = ["--api-key=k1", "--served-model-name", "token-model"]
    redacted = incidents.redact_inspect({"Config": config, "Args": arguments})
    text = str(redacted)
    assert "hf_abc" not in text and "k1" not in text
    assert redacted["Config"]["Env"][2] == "TZ=UTC" and redacted["Config"]["Cmd"][-1] == "/m"
    assert redacted["Args"][-1] == "token-model"


def test_a_bundle_is_saved_without_a_docker_engine(tmp_path: Path) -> None:
    context = RecordingContext(tmp_path, docker_host="unix:///nowhere", secrets={"X": Secret("s3cret")})
    folder = incidents.save(context, "qwen35", "the log has s3cret")
    assert "s3cret" not in (folder / "about.json").read_text()
    assert "not available" in (folder / "container.log").read_text()
    assert "MemTotal" in (folder / "meminfo").read_text()
    assert incidents.list_bundles(context.state) == [folder]


def test_a_secret_with_characters_that_json_escapes_is_redacted(tmp_path: Path) -> None:
    context = RecordingContext(tmp_path, docker_host="unix:///nowhere", secrets={"X": Secret('gehëim"1234')})
    folder = incidents.save(context, "qwen35", 'the log has gehëim"1234')
    assert "1234" not in (folder / "about.json").read_text()
    assert json.loads((folder / "about.json").read_text())["why"] == "the log has ••••"


def test_the_history_is_newest_first_without_incomplete_lines(tmp_path: Path) -> None:
    context = RecordingContext(tmp_path)
    history.append(context, "verified", image="a")
    history.append(context, "put back", why="b")
    with (context.state.path / history.FILE).open("a") as file:
        file.write('{"time": 1, "wha')
    assert [row["what"] for row in history.read(context.state)] == ["put back", "verified"]


def test_lines_of_json_remain_valid_when_invisible_characters_are_escaped(tmp_path: Path) -> None:
    """The laptop escapes invisible characters, partly with escapes that JSON does not have."""
    message = {"event": "note", "text": "a\x1b[2J\x7f\x9bb\u200b\u202ec\n"}
    line = json.dumps(message, ensure_ascii=False)
    (tmp_path / "events.jsonl").write_text(f"{line}\n{line}\n")
    (tmp_path / "container.log").write_text("\x9b2J\n")
    sent = {name: escape_invisible(text) for name, text in incidents.iter_files(tmp_path, tmp_path / "none")}
    assert [json.loads(line) for line in sent["events.jsonl"].splitlines()] == [message, message]
    assert sent["container.log"] == "\\x9b2J\n"
