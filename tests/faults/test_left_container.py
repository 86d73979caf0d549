"""The new container is created before the server is stopped: if Docker refuses it or the run is killed, the server still serves."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.faults.bench import RECIPE, Bench, restart_engine
from tests.faults.test_matrix import PROVED_CODES


@contextmanager
def kept_recipe(bench: Bench) -> Iterator[None]:
    """Restore the recipe at the end of the block."""
    path = bench.project.root / RECIPE
    text = path.read_text()
    yield
    path.write_text(text)


def container_states(bench: Bench) -> dict[str, str]:
    return {row["Names"][0]: row["State"] for row in bench.client().api.containers(all=True)}


def server_state(bench: Bench) -> tuple[Any, ...]:
    """Return the fields of the server's container that a stop, a start or an update changes."""
    container = bench.client().api.inspect_container("qwen35")
    return container["Id"], container["State"]["StartedAt"], container["HostConfig"]["RestartPolicy"]["Name"]


def test_container_refused_by_docker_leaves_the_server_running(bench: Bench) -> None:
    bench.whole()
    before = server_state(bench)
    with kept_recipe(bench):
        bench.project.edit(RECIPE, r"(?m)^container:\n", "container:\n  log_driver: lokki\n")
        refused = bench.project.deploy()
    assert refused.code == 1, refused.out[-3000:]
    assert refused.recap["msg"] == (
        "Docker could not create the new container: error looking up logging plugin lokki: "
        'plugin "lokki" not found. qwen35 is still serving.'
    )
    assert [event["name"] for event in refused.events() if event.get("status") == "failed"] == ["Create new container"]
    assert (server_state(bench), container_states(bench)) == (before, {"/qwen35": "running"})
    second_run = bench.project.deploy()
    assert (second_run.code, second_run.recap["changed"]) == (0, 0), second_run.out[-2000:]


def interrupt_run(bench: Bench) -> None:
    """Kill a run after it created the new container and before it stopped the server."""
    bench.change()
    bench.gate("Drain requests")
    laptop = bench.start()
    try:
        bench.reached(laptop)
        assert container_states(bench) == {"/qwen35": "running", "/qwen35-replacement": "created"}
        bench.killed(laptop)
    finally:
        bench.open()
        bench.ended()
        laptop.wait(timeout=60)
        bench.repair()


def test_leftover_of_an_interrupted_run_is_reported_and_is_no_server(bench: Bench) -> None:
    bench.whole()
    before = server_state(bench)
    with kept_recipe(bench):
        interrupt_run(bench)
        restart_engine(bench.project.sandbox)
        assert bench.settled() == before[0]
        assert container_states(bench) == {"/qwen35": "running", "/qwen35-replacement": "created"}
        doctor = " ".join(bench.project.run("doctor", "--host", "sandbox").out.split())
        assert "qwen35-replacement was created to replace qwen35, by a run that did not finish" in doctor
        status = bench.project.run("status", "--host", "sandbox")
        assert "replacement" not in status.out and "was interrupted" in " ".join((status.out + status.err).split())
        rows = bench.project.run("host.clean", "--host", "sandbox", "--check").out.splitlines()
        assert [row.split()[1] for row in rows if "qwen35-replacement" in row] == ["remove"], rows
    assert bench.project.deploy().code in PROVED_CODES, "nothing to deploy"
    assert (server_state(bench)[0], container_states(bench)) == (before[0], {"/qwen35": "running"})


@pytest.mark.parametrize(
    "command", [pytest.param(command, marks=pytest.mark.whole) for command in ("restart", "rollback")] + ["deploy"]
)
def test_commands_work_with_a_leftover_container(bench: Bench, command: str) -> None:
    bench.whole()
    bench.change()
    assert bench.project.deploy().code in PROVED_CODES  # `rollback` needs a previous state
    interrupt_run(bench)
    with kept_recipe(bench):
        if command == "restart":
            bench.project.edit(RECIPE, r"max-num-seqs: \d+", f"max-num-seqs: {bench.seqs - 1}")
        result = bench.project.run(command, "--host", "sandbox", "--json")
    assert result.code in PROVED_CODES, result.out[-3000:]
    assert bench.settled()
    expected = {"/qwen35-replacement"} if command == "restart" else set()
    assert container_states(bench).keys() == {"/qwen35"} | expected
    if expected:
        assert bench.project.deploy().code in PROVED_CODES
        assert container_states(bench) == {"/qwen35": "running"}
