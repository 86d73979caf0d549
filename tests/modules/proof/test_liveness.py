"""Detection of a server that needs a restart, by its answers and by the duration of its start."""

import functools
import threading
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines import openai_api
from sparkwright.engines.vllm.http import HTTP
from sparkwright.errors import Exit
from sparkwright.host.containers import ownership
from sparkwright.measure import http_probe
from sparkwright.modules.proof.liveness import Liveness, VerifyHealth
from sparkwright.protocol.result import Result
from sparkwright.secret import Secret
from tests.measure.exact_server import Schedule, serving
from tests.modules.context import RecordingContext
from tests.modules.docker_engine import container_attrs, docker_engine
from tests.waiting import wait_until

UNREACHABLE = "http://127.0.0.1:1"


def check_liveness(
    home: Path,
    url: str,
    *,
    age_s: float = 0,
    restarts: int = 0,
    verified: dict[str, Any] | None = None,
    timeout_s: float = 1,
) -> Result:
    """Return the result for a running container of this age, with the last verified state of this container."""
    labels = ownership.build_labels(RecordingContext(home), "server", "qwen35")
    container = container_attrs(age_s=age_s, restarts=restarts, Labels=labels)
    container["HostConfig"]["RestartPolicy"] = {"Name": "unless-stopped"}
    with docker_engine(container) as docker_host:
        context = RecordingContext(home, docker_host=docker_host, check=True)
        if verified is not None:
            context.state.write("verified", {"spec": {"name": "qwen35"}, "container_id": container["Id"], **verified})
        args = Liveness.Args(name="qwen35", base_url=url, model="m", ready_s=60, timeout_s=timeout_s)
        return Liveness().run(args, context)


@pytest.mark.parametrize(
    ("schedule", "silent"),
    [
        ({}, False),
        ({"silent": True}, True),
        ({"health_status": 503}, True),
        ({"status": 500}, True),
        ({"dies": True}, True),
    ],
)
def test_only_a_token_is_an_answer(tmp_path: Path, schedule: dict[str, Any], silent: bool) -> None:
    with serving(Schedule(**schedule)) as server:
        result = check_liveness(tmp_path, server.url)
    assert (result.failed, result.data["silent"], result.data["serves"]) == (False, silent, not silent)
    assert ("will be restarted" in result.msg) == silent


@pytest.mark.parametrize("schedule", [{"status": 400}, {"model": "other"}, {"api_key": "right"}])
def test_problem_that_a_restart_would_not_fix_is_a_failure(tmp_path: Path, schedule: dict[str, Any]) -> None:
    with serving(Schedule(**schedule)) as server:
        assert check_liveness(tmp_path, server.url).failed


def test_server_that_generates_for_other_clients_is_not_restarted(tmp_path: Path) -> None:
    """A stream is being answered, and a new request waits in the queue."""
    with serving(Schedule(gap_s=0.02, chunks=100_000)) as server:
        body = {**openai_api.build_request(HTTP, "m", "hello", 100_000), "stream": True}
        send = functools.partial(http_probe.send_request, server.url, openai_api.CHAT_PATH, body=body, timeout_s=60)
        threading.Thread(target=send, daemon=True).start()
        wait_until(lambda: server.generated > 0, "the first token")
        server.schedule.silent = True
        result = check_liveness(tmp_path, server.url, timeout_s=0.1)
    assert (result.failed, result.data["silent"], result.exit) == (False, False, Exit.INCONCLUSIVE), result
    assert "generates for other clients" in result.msg


@pytest.mark.parametrize(("restarts", "silent"), [(0, False), (1, False), (2, True)])
def test_crash_loop_is_not_waited_for(tmp_path: Path, restarts: int, silent: bool) -> None:
    result = check_liveness(tmp_path, UNREACHABLE, age_s=1, restarts=restarts)
    assert result.data["silent"] is silent, result.msg


@pytest.mark.parametrize(
    ("age_s", "verified", "silent"),
    [
        (10, None, False),  # not measured yet: the limit of the recipe
        (70, None, True),
        (20, {"measured": {"ready_s": 5.0}, "since": 1.0}, False),  # at least 30 s
        (40, {"measured": {"ready_s": 5.0}, "since": 1.0}, True),
        (190, {"measured": {"ready_s": 100.0}, "since": 1.0}, False),  # twice the last start
        (10, {"measured": {"ready_s": 100.0}, "since": 4e9}, True),  # it has already answered since this start
    ],
)
def test_start_has_a_time_limit(tmp_path: Path, age_s: float, verified: dict[str, Any] | None, silent: bool) -> None:
    result = check_liveness(tmp_path, UNREACHABLE, age_s=age_s, verified=verified)
    assert result.data["silent"] is silent, result.msg
    if not silent:
        assert (result.exit, "`deploy` waits for it" in result.msg) == (Exit.INCONCLUSIVE, True)


def check_health(tmp_path: Path, *, requested_model: str = "m", key: str = "", **schedule: Any) -> Result:
    with serving(Schedule(**schedule)) as server:
        context = RecordingContext(tmp_path, secrets={"VLLM_API_KEY": Secret(key)} if key else {})
        return VerifyHealth().run(VerifyHealth.Args(base_url=server.url, model=requested_model, timeout_s=1), context)


def test_server_that_generates_is_ready(tmp_path: Path) -> None:
    result = check_health(tmp_path)
    assert (result.failed, result.data["verdict"], result.data["version"]) == (False, "ready", "0.32.0")


def test_thinking_instead_of_content_is_reported(tmp_path: Path) -> None:
    result = check_health(tmp_path, kind="reasoning")
    assert result.data["thinks"] and "content stays null" in result.msg


@pytest.mark.parametrize(
    ("schedule", "verdict", "message"),
    [
        ({"model": "other"}, "wrong name", ""),
        ({"silent": True}, "wedged", ""),
        ({"health_status": 503}, "dying", ""),
        ({"dies": True}, "dying", ""),
        ({"status": 400}, "error", ""),
        ({"error_at": 0}, "error", "the test request failed with 200: EngineCore encountered an issue."),
        ({"api_key": "right"}, "unauthorized", ""),
    ],
)
def test_each_problem_has_a_verdict(tmp_path: Path, schedule: dict[str, Any], verdict: str, message: str) -> None:
    result = check_health(tmp_path, requested_model="" if "api_key" in schedule else "m", **schedule)
    assert (result.failed, result.data["verdict"]) == (True, verdict)
    assert message in result.msg


def test_api_key_is_used(tmp_path: Path) -> None:
    assert check_health(tmp_path, key="right", api_key="right").data["verdict"] == "ready"


def test_unreachable_server_is_loading(tmp_path: Path) -> None:
    args = VerifyHealth.Args(base_url=UNREACHABLE)
    assert VerifyHealth().run(args, RecordingContext(tmp_path)).data["verdict"] == "loading"
