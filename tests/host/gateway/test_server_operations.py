"""The records of a server move to a folder of its own when its host begins to run several servers, and back; drained gateways."""

from pathlib import Path

import pytest

from sparkwright.errors import Failed
from sparkwright.host.gateway import drain_record, server_operations
from sparkwright.host.gateway.server_operations import Gateway
from sparkwright.host.records import verified_states
from sparkwright.host.records.verified_states import VerifiedState
from sparkwright.host.state import StateFolder
from tests.remote.sshd import free_port

GOOD = {"spec": {"name": "chat"}, "container_id": "c1"}
SERVER_FILES = (
    "verified_before.json", "history.jsonl", "health.json", "health.jsonl.1", "restart_plans/a.json", "drained.json",
)  # fmt: skip
MACHINE_FILES = (
    "lock", "health-settings.json", "health.lock", "baselines/a.json", "runs/r/plan.json", "heal-token.json",
)  # fmt: skip


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    folder = StateFolder(tmp_path)
    folder.write("verified", GOOD)
    for name in (*SERVER_FILES, *MACHINE_FILES):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    return folder


def move_to_own_folder(state: StateFolder) -> None:
    assert verified_states.load_last(verified_states.resolve_records(state, "chat", "")).container_id == "c1"
    assert all((state.path / "servers/chat" / name).exists() for name in SERVER_FILES)


def move_back(state: StateFolder) -> None:
    assert verified_states.load_last(verified_states.resolve_records(state, "", "chat")).container_id == "c1"
    assert not (state.path / "servers").exists()


def test_records_of_the_server_move_and_those_of_the_host_stay(state: StateFolder) -> None:
    move_to_own_folder(state)
    assert all((state.path / name).exists() for name in MACHINE_FILES)
    assert verified_states.load_last(StateFolder(state.path)) == VerifiedState()
    move_back(state)
    assert all((state.path / name).exists() for name in (*SERVER_FILES, *MACHINE_FILES))


def test_files_of_an_unverified_server_do_not_prevent_a_move(state: StateFolder) -> None:
    move_to_own_folder(state)
    (state.path / "restart_plans").mkdir()
    (state.path / "restart_plans/b.json").write_text("{}")
    move_back(state)
    assert {path.name for path in (state.path / "restart_plans").iterdir()} == {"a.json", "b.json"}


def test_another_server_has_no_records_at_first(state: StateFolder) -> None:
    assert verified_states.load_last(verified_states.resolve_records(state, "vectors", "")) == VerifiedState()
    assert verified_states.load_last(state).to_json() == GOOD
    assert [server.server for server in state.servers()] == ["", "vectors"]
    assert [item.container_id for item in verified_states.iter_all_servers(state)] == ["c1"]


def test_an_interrupted_move_is_completed(state: StateFolder) -> None:
    (state.path / "servers/chat").mkdir(parents=True)
    (state.path / "history.jsonl").rename(state.path / "servers/chat/history.jsonl")
    move_to_own_folder(state)


def test_reading_the_records_of_a_server_moves_nothing(state: StateFolder) -> None:
    assert verified_states.load_last(state.for_server("chat")).container_id == "c1"
    assert verified_states.load_last(state.for_server("vectors")) == VerifiedState()
    assert not (state.path / "servers").exists()


@pytest.fixture
def silent_gateway() -> Gateway:
    """A gateway that does not answer."""
    return Gateway("box", "127.0.0.1", free_port(), False, "spark1/chat")


def test_a_drained_server_is_not_returned_with_another(tmp_path: Path, silent_gateway: Gateway) -> None:
    chat, vectors = (StateFolder(tmp_path, name) for name in ("chat", "vectors"))
    server_operations.ensure_key(chat)
    problems = drain_record.drain(chat, [silent_gateway], "run-1")
    assert problems == ["the gateway box does not answer: not drained there"]
    assert (drain_record.load_gateways(chat), drain_record.load_gateways(vectors)) == ([silent_gateway], [])
    assert drain_record.return_server(vectors) == ([], [])
    assert drain_record.load_gateways(chat) == [silent_gateway]


@pytest.mark.parametrize("name", ["../x", "a/b", ".", "x" * 200, "a\nb"])
def test_an_invalid_server_name_is_refused(state: StateFolder, name: str) -> None:
    with pytest.raises(Failed, match="server's name"):
        state.for_server(name)


def test_a_gateway_without_this_hosts_key_is_reported_and_not_recorded(tmp_path: Path, silent_gateway: Gateway) -> None:
    state = StateFolder(tmp_path, "chat")
    (problem,) = drain_record.drain(state, [silent_gateway], "run-1")
    assert problem == "the gateway box does not accept this host's key yet (`gateway.deploy` registers it)"
    assert drain_record.load_gateways(state) == []
