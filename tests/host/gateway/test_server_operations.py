"""The records of a server move to the container's name when the host starts or stops to serve several."""

import json
from pathlib import Path

import pytest

from sparkwright.errors import Failed
from sparkwright.host.gateway import drain_record, server_operations
from sparkwright.host.gateway.server_operations import Gateway
from sparkwright.host.records import verified_states
from sparkwright.host.state import StateFolder
from tests.remote.sshd import free_port

GOOD = {"spec": {"name": "chat"}, "container_id": "c1"}
SERVER_FILES = (
    "verified_before.json", "history.jsonl", "health.json", "health.jsonl.1", "restart_plans/a.json", "drained.json",
)  # fmt: skip
MACHINE_FILES = (
    "lock",
    "health-settings.json",
    "health.lock",
    "baselines/a.json",
    "runs/r/plan.json",
    "heal-token.json",
)


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    value = StateFolder(tmp_path)
    value.write("verified", GOOD)
    for name in (*SERVER_FILES, *MACHINE_FILES):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(json.dumps({}))
    return value


def test_the_memory_of_the_server_moves_and_the_machines_stays(state: StateFolder) -> None:
    now = verified_states.resolve_records(state, "chat", "")
    assert verified_states.load_last(now)["container_id"] == "c1"
    assert all((state.path / "servers/chat" / name).exists() for name in SERVER_FILES)
    assert all((state.path / name).exists() for name in MACHINE_FILES)
    assert verified_states.load_last(StateFolder(state.path)) == {}
    back = verified_states.resolve_records(state, "", "chat")
    assert verified_states.load_last(back)["container_id"] == "c1"
    assert all((state.path / name).exists() for name in (*SERVER_FILES, *MACHINE_FILES))
    assert not (state.path / "servers").exists()


def test_what_an_unverified_server_left_is_in_the_way_of_no_move(state: StateFolder) -> None:
    """It left folders, and no verified state or a damaged one."""
    verified_states.resolve_records(state, "chat", "")
    (state.path / "restart_plans").mkdir()
    (state.path / "restart_plans/b.json").write_text("{}")
    back = verified_states.resolve_records(state, "", "chat")
    assert verified_states.load_last(back)["container_id"] == "c1"
    assert {path.name for path in (state.path / "restart_plans").iterdir()} == {"a.json", "b.json"}
    assert not (state.path / "servers").exists()


def test_another_server_begins_without_a_memory(state: StateFolder) -> None:
    assert verified_states.load_last(verified_states.resolve_records(state, "vectors", "")) == {}
    assert verified_states.load_last(state) == GOOD
    assert [server.server for server in state.servers()] == ["", "vectors"]
    assert [item["container_id"] for item in verified_states.iter_all_servers(state)] == ["c1"]


def test_a_move_that_was_cut_off_is_done_again(state: StateFolder) -> None:
    (state.path / "servers/chat").mkdir(parents=True)
    (state.path / "history.jsonl").rename(state.path / "servers/chat/history.jsonl")
    now = verified_states.resolve_records(state, "chat", "")
    assert verified_states.load_last(now)["container_id"] == "c1"
    assert all((state.path / "servers/chat" / name).exists() for name in SERVER_FILES)


def test_who_only_looks_finds_it_where_it_still_is_and_moves_nothing(state: StateFolder) -> None:
    assert verified_states.load_last(state.for_server("chat"))["container_id"] == "c1"
    assert verified_states.load_last(state.for_server("vectors")) == {}
    assert not (state.path / "servers").exists()


def test_what_one_server_left_drained_is_not_returned_with_another(tmp_path: Path) -> None:
    chat, vectors = (StateFolder(tmp_path, name) for name in ("chat", "vectors"))
    nobody = Gateway("box", "127.0.0.1", free_port(), False, "spark1/chat")
    server_operations.ensure_key(chat)
    assert drain_record.drain(chat, [nobody], "run-1") == ["the gateway box does not answer: not drained there"]
    assert (drain_record.load_gateways(chat), drain_record.load_gateways(vectors)) == ([nobody], [])
    assert drain_record.return_server(vectors) == ([], [])
    assert drain_record.load_gateways(chat) == [nobody]


@pytest.mark.parametrize("name", ["../x", "a/b", ".", "x" * 200, "a\nb"])
def test_a_name_that_is_no_containers_is_refused(state: StateFolder, name: str) -> None:
    with pytest.raises(Failed, match="server's name"):
        state.for_server(name)


def test_a_gateway_that_was_never_deployed_for_this_host_is_named_once_and_nothing_is_returned_to_it(
    tmp_path: Path,
) -> None:
    state = StateFolder(tmp_path, "chat")
    nobody = Gateway("box", "127.0.0.1", free_port(), False, "spark1/chat")
    (problem,) = drain_record.drain(state, [nobody], "run-1")
    assert problem == "the gateway box does not accept this host's key yet (`gateway.deploy` registers it)"
    assert drain_record.load_gateways(state) == []
