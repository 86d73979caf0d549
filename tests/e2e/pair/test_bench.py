"""Measurements on a cluster of two simulated Sparks: all members start each arm, and restore the previous server."""

import json
import os
import re
import signal
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import wait_for_line
from tests.e2e.pair.project import HOSTS, NAME, PairProject, pair_project
from tests.e2e.test_bench import SMALL, read_results

HOST_OPTIONS = ("--host", "sandbox-pair")
SWEEP = ("bench.sweep", *HOST_OPTIONS, "--max-num-batched-tokens", "4096,8192", "--json", *SMALL)


@pytest.fixture(scope="module")
def pair() -> Iterator[PairProject]:
    with pair_project() as value:
        value.deployed()
        yield value


@pytest.fixture
def served(pair: PairProject) -> Iterator[dict[str, str]]:
    """The Ids of the serving ranks. Each test leaves them unchanged."""
    ids = pair.ids()
    assert ids.keys() == set(HOSTS)
    yield ids
    assert pair.ids() == ids
    assert pair.token()[0] == 200
    for host in HOSTS:
        assert [item.name for item in pair.engine_of(host).containers.list(all=True)] == [NAME]
    assert pair.deploy().recap["changed"] == 0


def test_two_arms_are_measured_in_both_orders_through_the_head(pair: PairProject, served: dict[str, str]) -> None:
    result = pair.run("bench.ab", *HOST_OPTIONS, "--flag", "chunked-prefill", "--json", *SMALL)
    assert result.code == 0, result.out[-3000:] + result.err
    measured = [event for event in result.events() if (event.get("data") or {}).get("cell")]
    assert [(event["host"], event["data"]["cell"]["arm"]) for event in measured] == [(HOSTS[0], arm) for arm in "abba"]
    joins = [event for event in result.events() if event.get("name") == "Wait until the rank has joined"]
    joined = {(event["host"], event["msg"]) for event in joins if "msg" in event}
    assert joined == {("sandbox1", "rank 0 of 2, over rdma"), ("sandbox2", "rank 1 of 2, over rdma")}
    experiment = read_results(pair, "ab-sandbox-pair")
    assert experiment["host"] == "sandbox-pair"
    assert [arm["effective"]["chunked_prefill"] for arm in experiment["arms"]] == [True, False]


def test_a_flag_without_effect_is_reported_and_not_measured(pair: PairProject, served: dict[str, str]) -> None:
    result = pair.run("bench.ab", *HOST_OPTIONS, "--flag", "enable-chunked-prefill", "--name", "nothing", *SMALL)
    assert result.code == 0, result.out[-3000:] + result.err
    assert "the flag does nothing" in result.out
    assert read_results(pair, "nothing")["cells"] == []


def test_an_arm_too_large_for_one_member_is_refused_while_the_cluster_serves(
    pair: PairProject, served: dict[str, str]
) -> None:
    values = ("--flag", "gpu-memory-utilization", "--values", "0.30,0.70", *SMALL)
    with pair.restored_files():
        with (pair.root / f"hosts/{HOSTS[1]}.yml").open("a") as file:
            file.write("\nvars: {reserve_gib: 55}\n")
        ab = pair.run("bench.ab", *HOST_OPTIONS, "--name", "large", "--json", *values)
        sweep = pair.run("bench.sweep", *HOST_OPTIONS, "--name", "larger", "--json", *values)
    assert "--values" not in ab.err and ab.code == 5, ab.out[-3000:] + ab.err
    assert ab.started_tasks() and not any(name.startswith("Stop ") for name in ab.started_tasks())
    failed = [event for event in ab.events() if event.get("status") == "failed"]
    assert {event["host"] for event in failed if event["name"].endswith("fits in memory")} == {HOSTS[1]}
    assert "GiB needed" in ab.recap["msg"]
    assert [cell["arm"] for cell in read_results(pair, "larger")["cells"]] == ["0_3"], sweep.out[-3000:]
    assert sweep.started_tasks().count("Start the head") == len(HOSTS), "once per member, for the arm that fits"


def test_a_sweep_continues_after_an_arm_that_does_not_start(pair: PairProject, served: dict[str, str]) -> None:
    pair.run("sandbox.fault", "worker-never-joins", "--host", "sandbox2")
    running = pair.start(*SWEEP, "--name", "dies")
    wait_for_line(running, '"name": "Exchange what the members restore')
    pair.run("sandbox.fault", "none", "--host", "sandbox2")
    out = running.communicate(timeout=120)[0]
    assert running.returncode == 1, out[-3000:]
    experiment = read_results(pair, "dies")
    assert [("has not joined its group" in arm.get("failed", "")) for arm in experiment["arms"]] == [True, False]
    assert [cell["arm"] for cell in experiment["cells"]] == ["8192"]


def test_a_rank_killed_during_a_measurement_fails_it(pair: PairProject, served: dict[str, str]) -> None:
    options = (*HOST_OPTIONS, "--flag", "chunked-prefill", "--name", "killed", "--json", *SMALL)
    running = pair.start("bench.ab", *options)
    wait_for_line(running, '"name": "Measure a')
    pair.engine_of("sandbox2").containers.get(NAME).kill()
    out = running.communicate(timeout=120)[0]
    assert running.returncode == 1, out[-3000:]
    assert "rank 1 exited" in out


def test_a_sweep_continues_without_the_laptop_and_measures_no_cell_twice(
    pair: PairProject, served: dict[str, str]
) -> None:
    with pair.start(*SWEEP, "--name", "alone") as laptop:
        wait_for_line(laptop, '"name": "Measure 4096')
        laptop.kill()
    pair.run("attach", *HOST_OPTIONS)
    assert pair.ids() == served
    result = pair.run(*SWEEP, "--name", "alone")
    assert result.code == 0, result.out[-3000:] + result.err
    assert "Start the head" not in result.started_tasks()
    assert [cell["arm"] for cell in read_results(pair, "alone")["cells"]] == ["4096", "8192"]


def test_a_stopped_sweep_restores_the_cluster(pair: PairProject, served: dict[str, str]) -> None:
    running = pair.start(*SWEEP, "--name", "stopped")
    wait_for_line(running, '"name": "Measure 4096')
    assert pair.run("stop", *HOST_OPTIONS).code == 0
    out = running.communicate(timeout=120)[0]
    assert (running.returncode, "stopped on request" in out) == (1, True), out[-3000:]
    assert pair.ids() == served


@pytest.mark.parametrize("host", HOSTS)
def test_the_same_command_finishes_a_sweep_whose_runner_was_killed(
    pair: PairProject, served: dict[str, str], host: str
) -> None:
    name = f"lost-{host}"
    running = pair.start(*SWEEP, "--name", name)
    wait_for_line(running, '"name": "Measure 8192')
    lock = pair.folder_of(host) / "home/.local/state/sparkwright/lock"
    os.kill(json.loads(lock.read_text())["pid"], signal.SIGKILL)
    out = running.communicate(timeout=120)[0]
    assert running.returncode == 1, out[-3000:]
    assert re.search(rf"lost {host} \(rank \d\)|was interrupted", out)
    result = pair.run(*SWEEP, "--name", name)
    assert result.code == 0, result.out[-3000:] + result.err
    assert not [task for task in result.started_tasks() if task.startswith("Measure 4096")]
    assert [cell["arm"] for cell in read_results(pair, name)["cells"]] == ["4096", "8192"]


def test_a_measurement_of_a_single_member_is_refused(pair: PairProject, served: dict[str, str]) -> None:
    for hosts in ("sandbox2", "sandbox1"):
        result = pair.run("bench.ab", "--host", hosts, "--flag", "chunked-prefill", *SMALL)
        assert result.code == 5 and "Use `--host sandbox-pair`." in result.err, result.err
