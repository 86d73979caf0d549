"""A request wakes a sleeping server, through a real HAProxy: the host's own service switches, and no laptop is there."""

import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sparkwright.health import wake
from sparkwright.health.wake import Waker
from sparkwright.host.machine import Machine
from sparkwright.host.records import history, turns, verified_states
from sparkwright.host.records.turns import WakeRecord
from sparkwright.host.runs import lock
from sparkwright.host.runs.context import RunContext
from sparkwright.host.state import StateFolder
from sparkwright.runner.health_check import run_plan
from sparkwright.sandbox import control
from tests.e2e.conftest import sandbox_project
from tests.e2e.test_turns import CONTAINERS, LARGE, SMALL, TurnsProject

pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")
DEADLINE_S = 60.0


class WakeProject(TurnsProject):
    """Two servers that take turns behind a gateway; intervals of minutes in the host's files are seconds in its records."""

    def wake(self, *, large: str = "", small: str = "wake: on_request, sleep_after: 30m") -> None:
        """Write the keys of both entries."""
        text = self.plain
        for recipe, keys in ((LARGE, large), (SMALL, small)):
            row = next(line for line in text.splitlines() if recipe in line)
            text = text.replace(row, row.replace("}", f", {keys}}}" if keys else "}"))
        self.hosts.write_text(text)

    def install(self) -> str:
        """Bring the plans of both to the host, and the gateway's files; return what the runs say."""
        deployed = [self.project.deploy("--recipe", recipe) for recipe in CONTAINERS]
        assert [result.code for result in deployed] == [0, 0] and self.route("refuse").code == 0
        for recipe in CONTAINERS:
            self.times(recipe, stay_awake_s=0.0, sleep_after_s=0.0)
        return "".join(result.out for result in deployed)

    @property
    def state(self) -> StateFolder:
        return StateFolder.in_home(self.project.sandbox / "home")

    def waker(self) -> Waker:
        machine = Machine.from_environment(control.up(self.project.sandbox))
        context = RunContext(machine, self.state, "wake-1", lambda event: None)
        return Waker(context, run_plan)

    def times(self, recipe: str, **seconds: float) -> None:
        """Shorten the times in the kept plan of a server."""
        for path in (self.state.for_server(CONTAINERS[recipe]).records_folder / "restart_plans").glob("*.json"):
            plan = json.loads(path.read_text())
            path.write_text(json.dumps({**plan, "wake": {**plan["wake"], **seconds}}))

    def message(self, recipe: str) -> str:
        return WakeRecord.load(self.state).messages.get(CONTAINERS[recipe], "")

    def since(self, recipe: str) -> float:
        """Return the time of a server's last verification."""
        return float(verified_states.load_last(self.state.for_server(CONTAINERS[recipe]))["since"])

    @contextmanager
    def service(self) -> Iterator[Waker]:
        """The service, as it runs on a host: it holds its lock, and looks again and again."""
        waker, stop_requested = self.waker(), threading.Event()

        def loop() -> None:
            while not stop_requested.wait(0.2):
                waker.poll()

        thread = threading.Thread(target=loop)
        with (self.state.path / turns.LOCK).open("wb") as file:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
            thread.start()
            try:
                yield waker
            finally:
                stop_requested.set()
                thread.join()

    def why(self, recipe: str) -> str:
        rows = self.project.run("status", "--host", "sandbox", "--json").events()
        return str(next(row["why"] for row in rows if row["recipe"] == recipe))

    def error(self, recipe: str) -> tuple[int, str, int]:
        answer = self.chat(recipe)
        return answer.status, json.loads(answer.read())["error"]["code"], int(answer.getheader("Retry-After") or 0)

    def until(self, holds: Any) -> None:
        until_s = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < until_s, WakeRecord.load(self.state)
            time.sleep(0.1)


@pytest.fixture(scope="module")
def lab() -> Iterator[WakeProject]:
    with pytest.MonkeyPatch.context() as patch, sandbox_project() as project:
        patch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
        project.edit(f"recipes/{LARGE}.yml", "utilization: 0.85", "utilization: 0.72")
        value = WakeProject(project)
        value.plain = value.hosts.read_text()
        gateway = {"host": "sandbox", "port": value.gateway, "tls": "none"}
        (project.root / "hosts/groups.yml").write_text(
            json.dumps({"lab": {}, "box": {"hosts": ["sandbox"], "gateway": gateway}})
        )
        value.wake()
        assert project.deploy().code == 0
        for recipe in (SMALL, LARGE):
            assert value.switch(recipe).proved
        yield value


@pytest.fixture(autouse=True)
def large_is_awake(lab: WakeProject) -> Iterator[None]:
    for recipe in CONTAINERS:
        lab.times(recipe, stay_awake_s=0.0, sleep_after_s=0.0)
    yield
    lab.state.remove(turns.WAKE_RECORD)
    if lab.awake() != CONTAINERS[LARGE]:
        assert lab.switch(LARGE).proved


def test_a_request_wakes_the_sleeping_one_and_idle_time_puts_it_back(lab: WakeProject) -> None:
    routed = lab.route("refuse")
    assert routed.code == 0, routed.out[-2000:]
    assert lab.error(SMALL)[:2] == (503, "model_not_up"), "no service runs on the host"
    lab.times(SMALL, sleep_after_s=4.0)
    with lab.service():
        lab.until(lambda: lab.error(SMALL)[1] == "model_asleep")
        lab.until(lambda: lab.chat(SMALL).status == 200)
        assert lab.awake() == CONTAINERS[SMALL]
        row = history.read(lab.state.for_server(CONTAINERS[SMALL]))[0]
        assert (row["what"], row["who"]) == ("switched", "the wake service") and "requested at the gateway" in row[
            "why"
        ]
        used_s = time.time()
        lab.until(lambda: f"{CONTAINERS[LARGE]} is awake again after 4 s without a request" in lab.why(SMALL))
        lab.until(lambda: lab.awake() == CONTAINERS[LARGE])
        lab.until(lambda: lab.chat(LARGE).status == 200)
    row = history.read(lab.state.for_server(CONTAINERS[LARGE]))[0]
    assert row["why"].startswith(f"{CONTAINERS[SMALL]}, woken by a request, was idle for") and row["time"] > used_s + 4
    assert lab.states() == {LARGE: "up", SMALL: "asleep"}


def test_a_request_waits_for_the_switch_where_the_gateway_lets_it(lab: WakeProject) -> None:
    assert lab.route("wait").code == 0
    with lab.service():
        lab.until(lambda: CONTAINERS[SMALL] in WakeRecord.load(lab.state).took_s)
        took_s = WakeRecord.load(lab.state).took_s[CONTAINERS[SMALL]]
        assert 0 < took_s < 60, "of the switch by hand, by its run"
        assert lab.chat(SMALL).status == 200
    assert lab.states() == {LARGE: "asleep", SMALL: "up"}


def test_two_that_want_each_others_place_take_it_once_in_their_least_time(lab: WakeProject) -> None:
    """Clients ask for both without a pause: no switch before the one that is awake has had its time."""
    lab.wake(large="wake: on_request", small="wake: on_request")
    assert f"no request wakes {CONTAINERS[LARGE]} yet: " in lab.install()
    lab.times(SMALL, stay_awake_s=20.0)
    runs = {path.name for path in lab.state.runs()}
    with lab.service():
        lab.until(lambda: lab.chat(SMALL).status == 200)
        woken_s = lab.since(SMALL)
        lab.until(lambda: lab.error(LARGE)[1] == "model_asleep")
        lab.until(lambda: f"{CONTAINERS[SMALL]} keeps its turn until" in lab.message(LARGE))
        lab.until(lambda: f"{CONTAINERS[SMALL]} keeps its turn until" in lab.why(LARGE))
        lab.until(lambda: lab.chat(LARGE).status == 200)
        assert lab.since(LARGE) > woken_s + 20
    assert len({path.name for path in lab.state.runs()} - runs) == 2
    assert lab.states() == {LARGE: "up", SMALL: "asleep"}


def test_a_switch_that_fails_wakes_the_other_again_and_is_not_tried_for_each_request(
    lab: WakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.wake()
    monkeypatch.setattr(wake, "RETRY_PAUSE_S", 4.0)
    playbook = lab.project.root / "playbooks/switch.yml"
    text = playbook.read_text()
    broken_task = r"\1- name: Break\n\1  fail: {msg: broken}\n\n\1- include: parts/prove.yml"
    lab.project.edit("playbooks/switch.yml", "( +)- include: parts/prove.yml", broken_task)
    try:
        lab.install()
    finally:
        playbook.write_text(text)
    runs = {path.name for path in lab.state.runs()}
    with lab.service():
        lab.until(lambda: lab.error(SMALL)[0] == 503 and "a request can't wake it until" in lab.message(SMALL))
        assert "broken qwen35 is awake again." in lab.message(SMALL) and lab.awake() == CONTAINERS[LARGE]
        lab.until(lambda: lab.error(SMALL)[0] == 503 and "2 attempts in a row failed" in lab.message(SMALL))
        lab.until(lambda: lab.error(SMALL)[1] == "model_not_up")
        assert "a request can't wake it: 2 attempts in a row failed" in lab.why(SMALL)
    assert len({path.name for path in lab.state.runs()} - runs) == 2
    assert lab.states() == {LARGE: "up", SMALL: "asleep"}
    lab.install()


def test_a_run_on_the_host_comes_first(lab: WakeProject) -> None:
    assert lab.route("refuse").code == 0
    owner = lock.LockOwner("deploy", "somebody", "run-1", 1, time.time())
    with lab.service():
        with lock.acquire(lab.state, owner, host="sandbox"):
            lab.until(lambda: lab.error(SMALL)[1] == "model_asleep")
            lab.until(lambda: "waiting for deploy by somebody" in lab.message(SMALL))
            assert lab.awake() == CONTAINERS[LARGE]
        lab.until(lambda: lab.chat(SMALL).status == 200)


def test_a_switch_of_the_service_that_was_killed_is_finished_by_the_next_one(lab: WakeProject) -> None:
    """As it leaves the host when it is killed between its word whose turn it is and the stop of the other."""
    path = lab.state.path / "turns.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "awake": CONTAINERS[SMALL]}))
    WakeRecord(begun=CONTAINERS[SMALL], run="20261127T000000-00000000").save(lab.state)
    assert lab.waker().poll()
    assert lab.states() == {LARGE: "asleep", SMALL: "up"}
    row = history.read(lab.state.for_server(CONTAINERS[SMALL]))[0]
    assert row["why"] == "run 20261127T000000-00000000 was cut off"
    record = WakeRecord.load(lab.state)
    assert (record.begun, record.failures) == ("", {})
