"""A power cut at a random moment of a change: after the next deploy, a verified server serves.

A seed determines the moment: a task of the deploy, and the time after its start. `make test-all` tries a few, `make test-faults`
hundreds.
"""

import random
import time

import pytest

from tests.faults.bench import Bench, ServerWatcher, swap_tasks
from tests.faults.test_matrix import PROVED_CODES
from tests.waiting import wait_until

SEEDS, QUICK = range(300), 3
#: the longest time after a task's start, seconds; most tasks of the sandbox take less
MAX_DELAY_S = 0.4
#: steps that change something, which are cut more often than the others
CHANGES = (
    "Create new container",
    "Stop previous server, keep it for rollback",
    "Start the server",
    "Wait until it is ready",
    "Enable restart policy, remove previous container",
)


def random_moment(seed: int, steps: list[str]) -> tuple[str, float]:
    """Return a task, and seconds after its start."""
    chance = random.Random(seed)
    step = chance.choice(CHANGES if chance.random() < 0.6 else steps)
    return step, chance.random() ** 2 * MAX_DELAY_S


def is_started(bench: Bench, step: str) -> bool:
    try:
        return any(item["event"] == "task_started" and item.get("name") == step for item in bench.run_events())
    except (OSError, StopIteration):
        return False


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed < QUICK else pytest.mark.whole) for seed in SEEDS]
)
def test_deploy_after_a_power_cut_serves_verified(bench: Bench, seed: int) -> None:
    bench.whole()
    before = next(bench.state.runs())
    steps = [step for step in swap_tasks(bench.project.root / "playbooks") if step != "Stop Ollama"]
    step, after_s = random_moment(seed, steps)
    bench.change()
    with ServerWatcher(bench) as watch:
        laptop = bench.start()
        wait_until(lambda: next(bench.state.runs()) != before or laptop.poll() is not None, "a run")
        wait_until(lambda: is_started(bench, step) or laptop.poll() is not None, step)
        time.sleep(after_s)  # chooses the moment
        bench.power()
        laptop.wait(timeout=60)
        second_run = bench.project.deploy()
        assert second_run.code in PROVED_CODES, (step, after_s, second_run.out[-3000:])
        serves = bench.settled()
    assert serves, (step, after_s)
    assert (watch.most_running, watch.most_eligible) == (1, 1)
    (row,) = bench.client().api.containers(all=True)
    assert row["Names"] == ["/qwen35"], "no other container is left"
    assert (bench.state.read("verified") or {})["container_id"] == serves
    assert bench.state.read("previous") is None and bench.state.read("interim") is None
    third_run = bench.project.deploy()
    assert (third_run.code, third_run.recap["changed"]) == (0, 0), (step, after_s, third_run.out[-3000:])
