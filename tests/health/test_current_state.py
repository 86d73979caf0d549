"""The current state, according to one inspection of the container and one request to /health."""

from pathlib import Path
from typing import Any

import pytest

from sparkwright.health import current_state, snapshot
from sparkwright.health.judging.observation import Limits
from sparkwright.health.record import Container
from sparkwright.health.settings import NAME, Settings
from sparkwright.host.records.verified_states import VerifiedState
from sparkwright.host.state import StateFolder

NOW_S = 1_000_000.0
URL = "http://127.0.0.1:8000"


def evaluate_snapshot(container_fields: dict[str, Any], health: int | None, verified: VerifiedState) -> tuple[str, str]:
    container = Container("qwen35", id="a", **{"status": "running", "started_s": NOW_S - 10, **container_fields})
    return current_state.evaluate_snapshot(snapshot.Snapshot(NOW_S, container, URL, health), verified, limits=Limits())


def test_a_start_in_the_second_of_the_verification_is_a_later_start() -> None:
    started = "2026-11-22T17:59:53.996820000Z"
    state = {"Status": "running", "StartedAt": started, "FinishedAt": "2026-11-22T17:59:53.9Z", "ExitCode": 0}
    host = {"RestartPolicy": {"Name": "unless-stopped"}}
    container = snapshot.parse_container({"Id": "a", "Name": "/qwen35", "State": state, "HostConfig": host}, "a")
    verified_s = 1795370393.5  # 17:59:53.5
    assert not snapshot.is_verified_since_start(container, VerifiedState(container_id="a", since=verified_s))
    assert snapshot.is_verified_since_start(container, VerifiedState(container_id="a", since=verified_s + 0.6))


@pytest.mark.parametrize(
    ("container", "health", "verified", "state", "why"),
    [
        ({}, 200, {}, "up", "no test request sent"),
        ({}, 0, {}, "starting", "starting for 10 s"),
        ({}, 0, {"container_id": "a", "since": NOW_S - 5}, "down", "nothing answers"),  # verified since this start
        ({}, 0, {"container_id": "a", "since": NOW_S - 60}, "starting", "starting for 10 s"),  # verified before this start
        ({}, 0, {"container_id": "b", "since": NOW_S - 5}, "starting", "starting for 10 s"),  # another container was verified
        ({}, 503, {}, "down", "/health returns 503"),
        ({"status": "paused"}, 0, {}, "down", "qwen35 is paused"),
        ({"status": "exited", "exit_code": 1}, 0, {}, "down", "qwen35 exited (1), not stopped by sparkwright"),
        ({"status": "restarting", "exit_code": 1, "restarts": 3}, 0, {}, "crash-looping", "restart 3 in progress"),
        ({"status": "restarting", "exit_code": 0, "restarts": 1}, 0, {}, "down", "exited with code 0; restart 1 in progress"),
        # the first seconds of a restart
        ({"restarts": 1, "finished_s": NOW_S - 14}, 0, {}, "down", "qwen35 exited 14 s ago, restarted once; starting for 10 s"),
        ({"restarts": 2, "finished_s": NOW_S - 14}, 0, {}, "crash-looping", "exited 14 s ago, restarted 2 times; starting"),
        ({"restarts": 2, "started_s": NOW_S - 20}, 0, {}, "down", "exited, restarted 2 times; starting for 20 s"),
        ({"restarts": 2, "finished_s": NOW_S - 14}, 200, {}, "up", "/health answers"),
        ({"restarts": 0, "finished_s": NOW_S - 14}, 0, {}, "starting", "starting for 10 s"),  # started by hand again
        ({"status": "absent"}, 0, {}, "down", "there is no container qwen35"),
        ({}, None, {}, "unknown", "qwen35 publishes no port"),
        ({"started_s": None}, 0, {}, "unknown", "its start time is unknown"),
    ],
)  # fmt: skip
def test_a_snapshot_is_evaluated_without_a_check(
    container: dict[str, Any], health: int | None, verified: dict[str, Any], state: str, why: str
) -> None:
    result = evaluate_snapshot(container, health, VerifiedState(**verified))
    assert (result[0], why in result[1]) == (state, True), result


def test_the_reason_names_the_check_or_run_that_stopped_the_container(tmp_path: Path) -> None:
    folder, verified = StateFolder(tmp_path), VerifiedState(container_id="a", since=NOW_S - 60)
    container = Container("qwen35", id="a", status="exited", exit_code=0, policy="no", finished_s=NOW_S - 300)

    def read_state() -> tuple[str, str]:
        observed = snapshot.Snapshot(NOW_S, container, URL)
        record = current_state.build_record(observed, verified, folder, active_run="", sandbox=False)
        return record["state"], record["why"]

    stopped = {"id": "a", "name": "qwen35", "policy": "unless-stopped", "run": "run-7"}
    assert read_state() == ("down", "qwen35 exited (0) 5 min ago, not stopped by sparkwright")
    folder.write("previous", stopped)
    assert read_state() == ("down", "qwen35 exited (0) 5 min ago, stopped by sparkwright (run run-7)")
    for other in ({**stopped, "started": True}, {**stopped, "id": "b"}):
        folder.write("previous", other)
        assert "not stopped by sparkwright" in read_state()[1], other
    folder.write("health-remembered", {"broken": {"id": "a", "why": "it restarted 4 times"}})
    assert read_state() == ("crash-looping", "qwen35 was stopped for a crash loop: it restarted 4 times")


def test_the_time_limit_of_a_start_is_read_from_the_settings(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    container = Container("qwen35", id="a", status="running", started_s=NOW_S - 3000, restarts=0)

    def read_state() -> str:
        current = snapshot.Snapshot(NOW_S, container, URL, 0)
        return str(current_state.build_record(current, VerifiedState(), folder, active_run="", sandbox=False)["state"])

    assert read_state() == "down"
    folder.write(NAME, Settings(limits=Limits(ready_s=3600.0)).to_json())
    assert read_state() == "starting"
