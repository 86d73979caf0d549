"""The lab on a cluster of two simulated Sparks: each arm is started by all members, and all restore what served before."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.pair.project import HOSTS, NAME, PairProject, pair_project

HOST_OPTIONS = ("--host", "sandbox-pair")
SMALL = ("--loads", "serve", "--requests", "2", "--concurrency", "2", "--prompt-tokens", "64", "--output-tokens", "6")
SWEEP = ("bench.sweep", *HOST_OPTIONS, "--max-num-batched-tokens", "4096,8192", *SMALL)


@pytest.fixture(scope="module")
def pair() -> Iterator[PairProject]:
    with pytest.MonkeyPatch.context() as patch, pair_project() as value:
        patch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
        value.deployed()
        yield value


@pytest.fixture
def served(pair: PairProject) -> Iterator[dict[str, str]]:
    """The Ids of the ranks that serve; afterwards the same serve, and nothing else is there."""
    ids = pair.ids()
    assert ids.keys() == set(HOSTS)
    yield ids
    assert pair.ids() == ids
    assert pair.token()[0] == 200
    for host in HOSTS:
        assert [item.name for item in pair.engine_of(host).containers.list(all=True)] == [NAME]
    assert pair.deploy().recap["changed"] == 0


def read_results(pair: PairProject, name: str) -> dict[str, Any]:
    experiment: dict[str, Any] = json.loads((pair.root / "results" / name / "results.json").read_text())
    return experiment


def start_command(pair: PairProject, *words: str) -> subprocess.Popen[str]:
    program = [sys.executable, "-c", "from sparkwright.cli import main; main()", *words, "--json"]
    return subprocess.Popen(program, cwd=pair.root, stdout=subprocess.PIPE, text=True)


def wait_for_task(running: subprocess.Popen[str], task: str) -> None:
    """Wait until a task of this name begins."""
    assert running.stdout is not None
    for line in running.stdout:
        if '"event": "task_started"' in line and f'"name": "{task}' in line:
            return
    raise AssertionError(f"{task} never began")


def test_two_arms_are_measured_there_and_back_through_the_head(pair: PairProject, served: dict[str, str]) -> None:
    result = pair.run("bench.ab", *HOST_OPTIONS, "--flag", "chunked-prefill", "--json", *SMALL)
    assert result.code == 0, result.out[-3000:] + result.err
    cells = [
        (event["host"], event["data"]["cell"]["arm"])
        for event in result.events()
        if (event.get("data") or {}).get("cell")
    ]
    assert cells == [(HOSTS[0], arm) for arm in "abba"]
    joined = [
        event for event in result.events() if event.get("name") == "Wait until the rank has joined" and "msg" in event
    ]
    assert sorted({(item["host"], item["msg"]) for item in joined}) == [
        ("sandbox1", "rank 0 of 2, over rdma"),
        ("sandbox2", "rank 1 of 2, over rdma"),
    ]
    experiment = read_results(pair, "ab-sandbox-pair")
    assert experiment["host"] == "sandbox-pair"
    assert [arm["effective"]["chunked_prefill"] for arm in experiment["arms"]] == [True, False]


def test_a_flag_that_does_nothing_is_found_out_by_all_members(pair: PairProject, served: dict[str, str]) -> None:
    result = pair.run("bench.ab", *HOST_OPTIONS, "--flag", "enable-chunked-prefill", "--name", "nothing", *SMALL)
    assert result.code == 0, result.out[-3000:] + result.err
    assert "the flag does nothing" in result.out
    assert read_results(pair, "nothing")["cells"] == []


def test_an_arm_that_does_not_fit_on_one_member_is_refused_before_anything_stops(
    pair: PairProject, served: dict[str, str]
) -> None:
    """The budget of each arm is judged on each member while the cluster serves: here one host has less room than the other."""
    file = pair.root / f"hosts/{HOSTS[1]}.yml"
    text = file.read_text()
    file.write_text(text + "\nvars: {reserve_gib: 55}\n")
    values = ("--flag", "gpu-memory-utilization", "--values", "0.30,0.70", *SMALL)
    try:
        ab = pair.run("bench.ab", *HOST_OPTIONS, "--name", "large", "--json", *values)
        sweep = pair.run("bench.sweep", *HOST_OPTIONS, "--name", "larger", "--json", *values)
    finally:
        file.write_text(text)
    assert "--values" not in ab.err and ab.code == 5, ab.out[-3000:] + ab.err
    names = {event.get("name") for event in ab.events() if event["event"] == "task_started"}
    assert names and not any(str(name).startswith("Stop ") for name in names), names
    fit_events = [
        event for event in ab.events() if str(event.get("name")).endswith("fits in memory") and "status" in event
    ]
    assert {event["host"] for event in fit_events if event["status"] == "failed"} == {HOSTS[1]}
    assert "GiB needed" in ab.recap["msg"]
    assert [cell["arm"] for cell in read_results(pair, "larger")["cells"]] == ["0_3"], sweep.out[-3000:]
    started_tasks = [event["name"] for event in sweep.events() if event["event"] == "task_started"]
    assert started_tasks.count("Start the head") == len(HOSTS), "once on each: the arm that fits"


def test_an_arm_that_does_not_start_is_told_and_the_sweep_goes_on(pair: PairProject, served: dict[str, str]) -> None:
    pair.run("sandbox.fault", "worker-never-joins", "--host", "sandbox2")
    running = start_command(pair, *SWEEP, "--name", "dies")
    wait_for_task(running, "Exchange what the members restore")
    pair.run("sandbox.fault", "none", "--host", "sandbox2")
    out = running.communicate(timeout=120)[0]
    assert running.returncode == 1, out[-3000:]
    experiment = read_results(pair, "dies")
    assert [("has not joined its group" in arm.get("failed", "")) for arm in experiment["arms"]] == [True, False]
    assert [cell["arm"] for cell in experiment["cells"]] == ["8192"]


def test_a_rank_that_ends_while_it_is_measured_fails_for_all(pair: PairProject, served: dict[str, str]) -> None:
    running = start_command(pair, "bench.ab", *HOST_OPTIONS, "--flag", "chunked-prefill", "--name", "killed", *SMALL)
    wait_for_task(running, "Measure a")
    pair.engine_of("sandbox2").containers.get(NAME).kill()
    out = running.communicate(timeout=120)[0]
    assert running.returncode == 1, out[-3000:]
    assert "rank 1 exited" in out


def test_without_the_laptop_it_goes_on_and_no_cell_is_measured_twice(pair: PairProject, served: dict[str, str]) -> None:
    running = start_command(pair, *SWEEP, "--name", "alone")
    wait_for_task(running, "Measure 4096")
    running.kill()
    running.wait()
    pair.run("attach", *HOST_OPTIONS)
    assert pair.ids() == served
    result = pair.run(*SWEEP, "--name", "alone")
    assert result.code == 0, result.out[-3000:] + result.err
    assert "Start the head" not in result.out
    assert [cell["arm"] for cell in read_results(pair, "alone")["cells"]] == ["4096", "8192"]


@pytest.mark.parametrize("host", HOSTS)
def test_a_member_that_is_lost_leaves_what_the_same_command_finishes(
    pair: PairProject, served: dict[str, str], host: str
) -> None:
    name = f"lost-{host}"
    running = start_command(pair, *SWEEP, "--name", name)
    wait_for_task(running, "Measure 8192")
    lock = pair.folder_of(host) / "home/.local/state/sparkwright/lock"
    os.kill(json.loads(lock.read_text())["pid"], signal.SIGKILL)
    out = running.communicate(timeout=120)[0]
    assert running.returncode == 1, out[-3000:]
    assert re.search(rf"lost {host} \(rank \d\)|was interrupted", out)
    result = pair.run(*SWEEP, "--name", name)
    assert result.code == 0, result.out[-3000:] + result.err
    assert "Measure 4096" not in result.out
    assert [cell["arm"] for cell in read_results(pair, name)["cells"]] == ["4096", "8192"]


def test_a_member_alone_is_refused_and_one_with_others_too(pair: PairProject, served: dict[str, str]) -> None:
    for hosts in ("sandbox2", "sandbox1"):
        result = pair.run("bench.ab", "--host", hosts, "--flag", "chunked-prefill", *SMALL)
        assert result.code == 5 and "Use `--host sandbox-pair`." in result.err, result.err
