"""Detection of a server that needs a restart: by its answers, and by the duration of its start."""

import threading
from datetime import UTC, datetime, timedelta
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
from tests.modules.server.test_server_inspection import docker_engine
from tests.waiting import wait_until

NOBODY = "http://127.0.0.1:1"


def check_liveness(
    home: Path, url: str, *, age_s: float = 0, good: dict[str, Any] | None = None, **more: Any
) -> Result:
    """Return the result for a running container of this age.

    Args:
        good: the last verified state, of this container.
        more: timeout_s of the token, restarts by Docker.
    """
    started = (datetime.now(UTC) - timedelta(seconds=age_s)).strftime("%Y-%m-%dT%H:%M:%S.000000000Z")
    container = {
        "Id": "abc",
        "Name": "/qwen35",
        "Image": "sha256:0",
        "Config": {"Labels": ownership.build_labels(RecordingContext(home), "server", "qwen35")},
        "RestartCount": more.get("restarts", 0),
        "State": {"Running": True, "Status": "running", "StartedAt": started, "ExitCode": 0},
        "HostConfig": {"PortBindings": {}, "RestartPolicy": {"Name": "unless-stopped"}},
    }
    with docker_engine(container) as docker_host:
        context = RecordingContext(home, docker_host=docker_host, check=True)
        if good is not None:
            context.state.write("verified", {"spec": {"name": "qwen35"}, "container_id": "abc", **good})
        args = Liveness.Args(name="qwen35", base_url=url, model="m", ready_s=60, timeout_s=more.get("timeout_s", 1))
        return Liveness().run(args, context)


@pytest.mark.parametrize(
    ("schedule", "silent"),
    [({}, False), ({"silent": True}, True), ({"answers": 503}, True), ({"status": 500}, True), ({"dies": True}, True)],
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
    """A stream is answered all the while; a request that comes now waits in the queue."""
    with serving(Schedule(gap_s=0.02, chunks=100_000)) as server:
        body = {**openai_api.build_request(HTTP, "m", "hello", 100_000), "stream": True}
        client = threading.Thread(
            target=http_probe.send_request,
            args=(server.url, openai_api.CHAT_PATH),
            kwargs={"body": body, "timeout_s": 60},
            daemon=True,
        )
        client.start()
        wait_until(lambda: server.generated > 0, "the first token")
        server.plan.silent = True
        result = check_liveness(tmp_path, server.url, timeout_s=0.1)
    assert (result.failed, result.data["silent"], result.exit) == (False, False, Exit.INCONCLUSIVE), result
    assert "generates for other clients" in result.msg


@pytest.mark.parametrize(("restarts", "silent"), [(0, False), (1, False), (2, True)])
def test_crash_loop_is_not_waited_for(tmp_path: Path, restarts: int, silent: bool) -> None:
    """Seen a second after Docker started it again."""
    result = check_liveness(tmp_path, NOBODY, age_s=1, restarts=restarts)
    assert result.data["silent"] is silent, result.msg


@pytest.mark.parametrize(
    ("age_s", "good", "silent"),
    [
        (10, None, False),  # never measured: as long as the recipe allows
        (70, None, True),
        (20, {"measured": {"ready_s": 5.0}, "since": 1.0}, False),  # at least 30 s
        (40, {"measured": {"ready_s": 5.0}, "since": 1.0}, True),
        (190, {"measured": {"ready_s": 100.0}, "since": 1.0}, False),  # twice the last one
        (10, {"measured": {"ready_s": 100.0}, "since": 4e9}, True),  # it has answered in this very start
    ],
)
def test_start_is_waited_for_within_its_limit(
    tmp_path: Path, age_s: float, good: dict[str, Any] | None, silent: bool
) -> None:
    result = check_liveness(tmp_path, NOBODY, age_s=age_s, good=good)
    assert result.data["silent"] is silent, result.msg
    if not silent:
        assert (result.exit, "`deploy` waits for it" in result.msg) == (Exit.INCONCLUSIVE, True)


# Health is a generated token: the verdicts ready, loading, wedged and dying.


def check_health(tmp_path: Path, *, requested_model: str = "m", key: str = "", **plan: Any) -> Result:
    with serving(Schedule(**plan)) as server:
        context = RecordingContext(tmp_path, secrets={"VLLM_API_KEY": Secret(key)} if key else {})
        return VerifyHealth().run(VerifyHealth.Args(base_url=server.url, model=requested_model, timeout_s=1), context)


def test_server_that_generates_is_ready(tmp_path: Path) -> None:
    result = check_health(tmp_path)
    assert (result.failed, result.data["verdict"], result.data["version"]) == (False, "ready", "0.32.0")


def test_thinking_instead_of_content_is_reported(tmp_path: Path) -> None:
    result = check_health(tmp_path, kind="reasoning")
    assert result.data["thinks"]
    assert "content stays null" in result.msg


@pytest.mark.parametrize(
    ("plan", "verdict"),
    [
        ({"model": "other"}, "wrong name"),
        ({"silent": True}, "wedged"),
        ({"answers": 503}, "dying"),
        ({"dies": True}, "dying"),
        ({"status": 400}, "error"),
        ({"error_at": 0}, "error"),
        ({"api_key": "right"}, "unauthorized"),
    ],
)
def test_each_problem_has_a_verdict(tmp_path: Path, plan: dict[str, Any], verdict: str) -> None:
    result = check_health(tmp_path, requested_model="" if plan.get("api_key") else "m", **plan)
    assert (result.failed, result.data["verdict"]) == (True, verdict)


def test_error_with_status_200_is_reported_in_the_words_of_the_server(tmp_path: Path) -> None:
    result = check_health(tmp_path, error_at=0)
    assert result.msg == "the test request failed with 200: EngineCore encountered an issue."


def test_api_key_is_used(tmp_path: Path) -> None:
    assert check_health(tmp_path, key="right", api_key="right").data["verdict"] == "ready"


def test_unreachable_server_is_loading(tmp_path: Path) -> None:
    args = VerifyHealth.Args(base_url="http://127.0.0.1:1")
    assert VerifyHealth().run(args, RecordingContext(tmp_path)).data["verdict"] == "loading"
