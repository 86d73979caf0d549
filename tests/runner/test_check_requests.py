"""Queries of a host that run a module in check mode: they leave nothing and mask secrets like a journal."""

import importlib
import inspect
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkwright.host.machine import Machine
from sparkwright.host.records import baselines, server_keys
from sparkwright.host.state import StateFolder
from sparkwright.modules import registry
from sparkwright.protocol.events import Event, event
from sparkwright.runner import check_requests
from sparkwright.runner import request as requests
from sparkwright.trust.redact import MASK

KEY = "0123456789abcdef" * 4


def ask_module(home: Path, module: str, args: dict[str, Any]) -> list[Event]:
    request = {"module": module, "args": args, "secrets": {}}
    events = check_requests.ask(request, Machine(home=home), StateFolder.in_home(home))
    return [row for row in events if row["event"] != "alive"]  # an import on a busy machine


@pytest.mark.parametrize(
    ("module", "field", "value"), [("prune_caches", "caches", []), ("gateway_own_key", "sha256", "")]
)
def test_query_returns_a_task_and_changes_nothing(tmp_path: Path, module: str, field: str, value: object) -> None:
    events = ask_module(tmp_path, module, {})
    assert [row["event"] for row in events] == ["run_started", "task_started", "task_finished", "recap"]
    assert (events[2]["status"], events[2]["data"][field], events[3]["exit"]) == ("ok", value, 0)
    assert list(tmp_path.rglob("*")) == []


def test_invalid_argument_is_refused_by_name(tmp_path: Path) -> None:
    recap = ask_module(tmp_path, "link_rate", {"role": "shout", "ends": []})[-1]
    assert (recap["exit"], recap["msg"]) == (5, "link_rate.role must be one of listen, send, got 'shout'.")


def test_server_keys_are_masked(tmp_path: Path) -> None:
    state = StateFolder.in_home(tmp_path)
    server_keys.save_key(state, "qwen", KEY, world_readable=False)
    baselines.write_cell(state, "a-series", "a-key", {"log": f"started with {KEY}"})
    finished = ask_module(tmp_path, "bench_cells", {"series": "a-series", "keys": ["a-key"]})[2]
    assert finished["data"]["cells"]["a-key"]["log"] == f"started with {MASK}"


def test_long_query_sends_alive_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """The laptop disconnects from a silent host."""
    monkeypatch.setattr(check_requests, "ALIVE_INTERVAL_S", 0.05)
    is_received = threading.Event()

    def work(emit: Callable[[Event], None]) -> None:
        assert is_received.wait(30)
        emit(event("note", task="", text="done"))

    events = check_requests.stream_events(work)
    assert next(events)["event"] == "alive"
    is_received.set()
    assert [row["text"] for row in events if row["event"] == "note"] == ["done"]


def test_error_of_a_query_is_raised() -> None:
    def work(emit: Callable[[Event], None]) -> None:
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        list(check_requests.stream_events(work))


@pytest.mark.parametrize("verb", requests.REQUEST_KINDS)
def test_each_request_kind_has_a_function(verb: str) -> None:
    module, _, name = requests.REQUEST_KINDS[verb].function_path.rpartition(".")
    function = getattr(importlib.import_module(f"sparkwright.runner.{module}"), name)
    assert [*inspect.signature(function).parameters] == ["request", "machine", "state"]
    assert function.__doc__


def test_query_modules_exist() -> None:
    assert set(registry.NAMES) >= requests.QUESTION_MODULES
