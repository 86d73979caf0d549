"""A container's log is read within limits, from a real Docker Engine; an omitted part is reported and proves nothing."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from sparkwright.engines.log.reader import read_log
from sparkwright.engines.vllm.log import LOG as VLLM
from sparkwright.host.containers import containers, log_reader
from sparkwright.host.containers.log_reader import StartLog
from sparkwright.modules.proof import engine_reports
from sparkwright.modules.proof.engine_reports import VerifyLogs
from tests import docker_image
from tests.waiting import wait_until

LOG = (Path(__file__).parents[2] / "data/vllm-0.32.0/hybrid-chunked-on/server.log").read_text()
READY = "Application startup complete."
START = LOG.partition(READY)[0] + READY
ENGINE_ERROR = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."


@pytest.fixture(scope="module")
def engine() -> Iterator[docker.DockerClient]:
    try:
        client = docker.DockerClient(timeout=30)  # requests the version
    except docker.errors.DockerException:
        pytest.skip("no Docker Engine here")
    yield client
    client.close()


@pytest.fixture(scope="module")
def shell(engine: docker.DockerClient) -> Iterator[str]:
    """An image with this machine's shell, yes and head."""
    with docker_image.temporary_image(engine, ("/bin/sh", "/usr/bin/yes", "/usr/bin/head")) as name:
        yield name


@pytest.fixture
def run_logging(engine: docker.DockerClient, shell: str) -> Iterator[Any]:
    """A function that runs a script, whose $1 is the log of a start, and returns the name of the exited container."""
    started: list[Any] = []

    def run(script: str) -> str:
        name = f"sparkwright-test-{uuid.uuid4().hex[:12]}"
        words = ["/bin/sh", "-c", script, "sh", START]
        started.append(engine.containers.run(shell, words, name=name, detach=True, network_mode="none"))
        assert started[-1].wait(timeout=120)["StatusCode"] == 0
        return name

    yield run
    for item in started:
        item.remove(force=True)


def test_a_log_within_the_limits_is_read_completely(engine: docker.DockerClient, run_logging: Any) -> None:
    log = StartLog(engine, run_logging('echo "$1"'))
    assert read_log(iter(log), VLLM).value("chunked_prefill") is True
    assert log.truncation == ""


def test_the_beginning_and_the_end_of_a_long_log_are_read(engine: docker.DockerClient, run_logging: Any) -> None:
    name = run_logging(f'echo "$1"; yes "all is well" | head -n 200000; echo "{ENGINE_ERROR}"')
    log = StartLog(engine, name, max_bytes=200_000)
    chunks = list(log)
    state = read_log(iter(chunks), VLLM)
    assert state.value("chunked_prefill") is True
    assert state.failure.value == "its engine failed while it served a request."
    assert sum(map(len, chunks)) < 300_000
    assert log.truncation == "log read up to 0.2 MiB, and its last 2000 lines"


def test_the_time_for_reading_a_log_is_limited(engine: docker.DockerClient, run_logging: Any) -> None:
    log = StartLog(engine, run_logging(f'echo "$1"; yes "all is well" | head -n 20000; echo "{ENGINE_ERROR}"'), max_s=0)
    assert read_log(iter(log), VLLM).failure.value == "its engine failed while it served a request."
    assert log.truncation.startswith("log read for 0 s")


def test_the_size_of_the_end_of_a_log_is_limited(engine: docker.DockerClient, run_logging: Any) -> None:
    name = run_logging("yes aaaaaaaa | head -c 12000000")
    assert len(log_reader.read_tail(engine, name, 10**7)) <= log_reader.MAX_TAIL_BYTES


def test_only_the_log_of_the_last_start_is_read(engine: docker.DockerClient, shell: str) -> None:
    name = f"sparkwright-test-{uuid.uuid4().hex[:12]}"
    script = "if [ -e /began ]; then echo second; else : > /began; echo first; fi; read line"
    container = engine.containers.create(
        shell, ["/bin/sh", "-c", script], name=name, stdin_open=True, network_mode="none"
    )

    def log_is(expected: bytes) -> bool:
        return b"".join(StartLog(engine, name)).split() == [expected]

    try:
        container.start()
        wait_until(lambda: log_is(b"first"), "the log of the first start")
        container.kill()
        container.wait()
        container.start()
        wait_until(lambda: log_is(b"second"), "the log of the second start")
    finally:
        container.remove(force=True)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        pytest.param({"StartedAt": "10:00:03.5", "FinishedAt": ""}, None, id="first start"),
        pytest.param(
            {"StartedAt": "10:00:03.5", "FinishedAt": "09:59:59.5"}, "09:59:59.5", id="after an earlier start"
        ),
        pytest.param({"StartedAt": "10:00:03.5", "FinishedAt": "10:30:00"}, "09:59:58.5", id="clock set back"),
        pytest.param(
            {"StartedAt": "10:00:03.5", "FinishedAt": "10:00:02", "Running": False, "Status": "exited"},
            "09:59:58.5",
            id="exited",
        ),
    ],
)
def test_lines_that_were_written_before_docker_set_the_start_time_are_part_of_the_log(
    state: dict[str, Any], expected: str | None
) -> None:
    times = {name: f"2026-11-30T{state[name] or '00:00:00'}Z" for name in ("StartedAt", "FinishedAt")}
    if not state["FinishedAt"]:
        times["FinishedAt"] = "0001-01-01T00:00:00Z"
    container = {"State": {"Running": True, "Status": "running", **state, **times}}
    assert containers.log_start_s(container) == (expected and containers.parse_time(f"2026-11-30T{expected}"))


def test_an_incomplete_log_does_not_prove_that_a_line_is_absent() -> None:
    args = VerifyLogs.Args(name="x", forbid_log=["NET/Socket"])
    state = read_log(START, VLLM)
    assert [check.verdict for check in engine_reports.evaluate_checks(args, state, {})] == ["proved"]
    omitted = "log read up to 256 MiB, and its last 2000 lines"
    (check,) = engine_reports.evaluate_checks(args, state, {}, omitted)
    assert (check.verdict, check.evidence) == ("not found", omitted)
