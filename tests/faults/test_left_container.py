"""The new container is created before the server is stopped: a refusal costs nothing, and what a cut-off run leaves is no server."""

from typing import Any

import pytest

from tests.faults.bench import RECIPE, Bench
from tests.faults.test_matrix import PROVED


def containers(bench: Bench) -> dict[str, str]:
    """The status of each container by name."""
    return {row["Names"][0]: row["State"] for row in bench.client().api.containers(all=True)}


def start(bench: Bench) -> tuple[Any, ...]:
    """All of the server's container that a stop, a start or an update would change."""
    found = bench.client().api.inspect_container("qwen35")
    return found["Id"], found["State"]["StartedAt"], found["HostConfig"]["RestartPolicy"]["Name"]


def test_what_the_engine_refuses_is_refused_while_the_server_serves(bench: Bench) -> None:
    bench.whole()
    before, text = start(bench), (bench.project.root / RECIPE).read_text()
    bench.project.edit(RECIPE, r"(?m)^container:\n", "container:\n  log_driver: lokki\n")
    refused = bench.project.deploy()
    (bench.project.root / RECIPE).write_text(text)
    assert refused.code == 1, refused.out[-3000:]
    assert refused.recap["msg"] == (
        "Docker could not create the new container: error looking up logging plugin lokki: "
        'plugin "lokki" not found. qwen35 was not touched and goes on serving.'
    )
    assert [event["name"] for event in refused.events() if event.get("status") == "failed"] == ["Create new container"]
    assert (start(bench), containers(bench)) == (before, {"/qwen35": "running"})
    again = bench.project.deploy()
    assert (again.code, again.recap["changed"]) == (0, 0), again.out[-2000:]


def cut_off(bench: Bench) -> None:
    """A run that is killed after it created the new container and before it stopped the server."""
    bench.change()
    bench.gate("Drain requests")
    laptop = bench.start()
    try:
        bench.reached(laptop)
        assert containers(bench) == {"/qwen35": "running", "/qwen35-replacement": "created"}
        bench.killed(laptop)
    finally:
        bench.open()
        bench.ended()
        laptop.wait(timeout=60)
        bench.repair()


def test_what_a_run_left_that_was_cut_off_is_named_and_counts_as_no_server(bench: Bench) -> None:
    bench.whole()
    before, text = start(bench), (bench.project.root / RECIPE).read_text()
    cut_off(bench)
    bench.docker(None)  # type: ignore[arg-type]  # nobody starts it with the Docker Engine
    assert bench.settled() == before[0]
    assert containers(bench) == {"/qwen35": "running", "/qwen35-replacement": "created"}
    examined = bench.project.run("doctor", "--host", "sandbox")
    assert "qwen35-replacement was created to replace qwen35, by a run that did not finish" in " ".join(
        examined.out.split()
    )
    status = bench.project.run("status", "--host", "sandbox")
    assert "replacement" not in status.out and "was interrupted" in " ".join((status.out + status.err).split())
    rows = bench.project.run("host.clean", "--host", "sandbox", "--check").out.splitlines()
    assert [row.split()[1] for row in rows if "qwen35-replacement" in row] == ["remove"], rows
    (bench.project.root / RECIPE).write_text(text)
    assert bench.project.deploy().code in PROVED, "nothing to deploy"
    assert (start(bench)[0], containers(bench)) == (before[0], {"/qwen35": "running"})


@pytest.mark.parametrize(
    "command", [pytest.param(command, marks=pytest.mark.whole) for command in ("restart", "rollback")] + ["deploy"]
)
def test_every_command_goes_on_beside_it(bench: Bench, command: str) -> None:
    bench.whole()
    bench.change()
    assert bench.project.deploy().code in PROVED  # a roll back has something to go back to
    cut_off(bench)
    text = (bench.project.root / RECIPE).read_text()
    if command == "restart":
        bench.project.edit(RECIPE, r"max-num-seqs: \d+", f"max-num-seqs: {bench.seqs - 1}")
    done = bench.project.run(command, "--host", "sandbox", "--json")
    (bench.project.root / RECIPE).write_text(text)
    assert done.code in PROVED, done.out[-3000:]
    assert bench.settled()
    left = {"/qwen35-replacement"} if command == "restart" else set()
    assert containers(bench).keys() == {"/qwen35"} | left
    if left:
        assert bench.project.deploy().code in PROVED
        assert containers(bench) == {"/qwen35": "running"}
