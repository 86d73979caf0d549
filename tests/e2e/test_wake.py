"""A request through a real HAProxy wakes a sleeping server: the host's service switches, without a laptop."""

import fcntl
import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

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
from tests.e2e.conftest import SandboxProject, sandbox_project
from tests.e2e.test_turns import CONTAINERS, LARGE, SMALL, TurnsProject
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")


class WakeProject(TurnsProject):
    """Two servers that take turns behind a gateway. The plans on the host contain shorter times than the inventory."""

    def __init__(self, project: SandboxProject) -> None:
        super().__init__(project)
        self.plain = self.hosts.read_text()

    def write_wake_keys(self, *, large: str = "", small: str = "wake: on_request, sleep_after: 30m") -> None:
        text = self.plain
        for recipe, keys in ((LARGE, large), (SMALL, small)):
            row = next(line for line in text.splitlines() if recipe in line)
            text = text.replace(row, row.replace("}", f", {keys}}}" if keys else "}"))
        self.hosts.write_text(text)

    def install(self) -> str:
        """Deploy both servers and the gateway, and return the output of the deploys."""
        deployed = [self.project.deploy("--recipe", recipe) for recipe in CONTAINERS]
        assert [result.code for result in deployed] == [0, 0] and self.deploy_gateway("refuse").code == 0
        for recipe in CONTAINERS:
            self.set_times(recipe, stay_awake_s=0.0, sleep_after_s=0.0)
        return "".join(result.out for result in deployed)

    @property
    def state(self) -> StateFolder:
        return self.project.state

    def waker(self) -> Waker:
        machine = Machine.from_environment(control.up(self.project.sandbox))
        context = RunContext(machine, self.state, "wake-1", lambda event: None)
        return Waker(context, run_plan)

    def set_times(self, recipe: str, **seconds: float) -> None:
        """Change the times in the stored plan of a server."""
        for path in (self.state.for_server(CONTAINERS[recipe]).records_folder / "restart_plans").glob("*.json"):
            plan = json.loads(path.read_text())
            path.write_text(json.dumps({**plan, "wake": {**plan["wake"], **seconds}}))

    def message(self, recipe: str) -> str:
        return WakeRecord.load(self.state).messages.get(CONTAINERS[recipe], "")

    def since(self, recipe: str) -> float:
        """Return the time of a server's last verification."""
        return verified_states.load_last(self.state.for_server(CONTAINERS[recipe])).since

    @contextmanager
    def service(self) -> Iterator[Waker]:
        """Run the wake service, as on a host: it holds its lock, and polls."""
        waker, stop_requested = self.waker(), threading.Event()

        def loop() -> None:
            while not stop_requested.wait(0.2):
                waker.poll()

        thread = threading.Thread(target=loop)
        with (self.state.path / turns.LOCK_FILE).open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            thread.start()
            try:
                yield waker
            finally:
                stop_requested.set()
                thread.join()

    def reason(self, recipe: str) -> str:
        rows = self.project.run("status", "--host", "sandbox", "--json").events()
        return str(next(row["why"] for row in rows if row["recipe"] == recipe))

    def error(self, recipe: str) -> tuple[int, str, int]:
        answer = self.chat(recipe)
        return answer.status, json.loads(answer.read())["error"]["code"], int(answer.getheader("Retry-After") or 0)


@pytest.fixture(scope="module")
def lab() -> Iterator[WakeProject]:
    with sandbox_project() as project:
        project.edit(f"recipes/{LARGE}.yml", "utilization: 0.85", "utilization: 0.72")
        value = WakeProject(project)
        gateway = {"host": "sandbox", "port": value.gateway, "tls": "none"}
        (project.root / "hosts/groups.yml").write_text(
            json.dumps({"lab": {}, "box": {"hosts": ["sandbox"], "gateway": gateway}})
        )
        value.write_wake_keys()
        assert project.deploy().code == 0
        for recipe in (SMALL, LARGE):
            assert value.switch(recipe).proved
        yield value


@pytest.fixture(autouse=True)
def large_is_awake(lab: WakeProject) -> Iterator[None]:
    for recipe in CONTAINERS:
        lab.set_times(recipe, stay_awake_s=0.0, sleep_after_s=0.0)
    yield
    lab.state.remove(turns.WAKE_RECORD)
    if lab.awake() != CONTAINERS[LARGE]:
        assert lab.switch(LARGE).proved


def test_a_request_wakes_the_sleeping_server_until_it_is_idle(lab: WakeProject) -> None:
    routed = lab.deploy_gateway("refuse")
    assert routed.code == 0, routed.out[-2000:]
    assert lab.error(SMALL)[:2] == (503, "model_not_up"), "no service runs on the host"
    lab.set_times(SMALL, sleep_after_s=4.0)
    with lab.service():
        wait_until(lambda: lab.error(SMALL)[1] == "model_asleep")
        wait_until(lambda: lab.chat(SMALL).status == 200)
        assert lab.awake() == CONTAINERS[SMALL]
        row = history.read(lab.state.for_server(CONTAINERS[SMALL]))[0]
        assert (row["what"], row["who"]) == ("switched", "the wake service")
        assert "requested at the gateway" in row["why"]
        used_s = time.time()
        wait_until(lambda: f"{CONTAINERS[LARGE]} will be woken again after 4 s without a request" in lab.reason(SMALL))
        wait_until(lambda: lab.awake() == CONTAINERS[LARGE])
        wait_until(lambda: lab.chat(LARGE).status == 200)
    row = history.read(lab.state.for_server(CONTAINERS[LARGE]))[0]
    assert row["why"].startswith(f"{CONTAINERS[SMALL]}, woken by a request, was idle for") and row["time"] > used_s + 4
    assert lab.states() == {LARGE: "up", SMALL: "asleep"}


def test_client_settings_of_a_sleeping_server_are_the_same_as_while_it_is_awake(lab: WakeProject) -> None:
    def codex_settings() -> str:
        result = lab.project.run("client", "--host", f"sandbox/{SMALL}", "--for", "codex")
        assert result.code == 0, result.err
        return result.out

    while_asleep = codex_settings()
    machine = lab.project.run("client", "--host", "sandbox")
    assert machine.code == 0 and machine.out.count("asleep: a request through the gateway may wake it") == 1, (
        machine.out
    )
    assert lab.switch(SMALL).proved
    assert codex_settings() == while_asleep


def test_status_shows_the_current_message_of_the_service_also_after_a_check(lab: WakeProject) -> None:
    assert lab.deploy_gateway("refuse").code == 0
    with lab.service():
        wait_until(lambda: "a request wakes it" in lab.message(SMALL))
        assert lab.project.run("health", "--host", "sandbox").code == 0
        assert "a request wakes it" in lab.reason(SMALL)
    assert lab.reason(SMALL) == f"it is the turn of {CONTAINERS[LARGE]}", "the service has stopped"


def test_a_gateway_that_waits_answers_after_the_switch(lab: WakeProject) -> None:
    assert lab.deploy_gateway("wait").code == 0
    with lab.service():
        wait_until(lambda: CONTAINERS[SMALL] in WakeRecord.load(lab.state).took_s)
        took_s = WakeRecord.load(lab.state).took_s[CONTAINERS[SMALL]]
        assert 0 < took_s < 60, "of the switch by hand, by its run"
        assert lab.chat(SMALL).status == 200
    assert lab.states() == {LARGE: "asleep", SMALL: "up"}


def test_a_woken_server_stays_awake_for_its_minimum_time(lab: WakeProject) -> None:
    """Clients request both models without a pause."""
    lab.write_wake_keys(large="wake: on_request", small="wake: on_request")
    assert f"no request wakes {CONTAINERS[LARGE]} yet: " in lab.install()
    lab.set_times(SMALL, stay_awake_s=20.0)
    runs = {path.name for path in lab.state.runs()}
    with lab.service():
        wait_until(lambda: lab.error(SMALL)[1] == "model_asleep")
        wait_until(lambda: lab.chat(LARGE).status == 503)
        wait_until(lambda: lab.error(LARGE)[1] == "model_asleep")
        assert lab.chat(SMALL).status == 503, "the switch is still running"
        assert lab.error(LARGE)[2] > 20, "the switch, the minimum turn and the switch back"
        wait_until(lambda: lab.chat(SMALL).status == 200)
        woken_s = lab.since(SMALL)
        wait_until(lambda: lab.error(LARGE)[1] == "model_asleep")
        wait_until(lambda: f"{CONTAINERS[SMALL]} keeps its turn until" in lab.message(LARGE))
        wait_until(lambda: f"{CONTAINERS[SMALL]} keeps its turn until" in lab.reason(LARGE))
        wait_until(lambda: lab.chat(LARGE).status == 200)
        assert lab.since(LARGE) > woken_s + 20
    assert len({path.name for path in lab.state.runs()} - runs) == 2
    assert lab.states() == {LARGE: "up", SMALL: "asleep"}


def test_a_failed_switch_wakes_the_other_server_again_and_is_tried_only_twice(
    lab: WakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.write_wake_keys()
    monkeypatch.setattr(wake, "RETRY_PAUSE_S", 4.0)
    broken_task = r"\1- name: Break\n\1  fail: {msg: broken}\n\n\1- include: parts/prove.yml"
    with lab.project.restored_files():
        lab.project.edit("playbooks/switch.yml", "( +)- include: parts/prove.yml", broken_task)
        lab.install()
    runs = {path.name for path in lab.state.runs()}
    with lab.service():
        wait_until(lambda: lab.error(SMALL)[0] == 503 and "a request can't wake it until" in lab.message(SMALL))
        assert "broken qwen35 is awake again." in lab.message(SMALL) and lab.awake() == CONTAINERS[LARGE]
        wait_until(lambda: lab.error(SMALL)[0] == 503 and "2 attempts in a row failed" in lab.message(SMALL))
        wait_until(lambda: lab.error(SMALL)[1] == "model_not_up")
        assert "a request can't wake it: 2 attempts in a row failed" in lab.reason(SMALL)
    assert len({path.name for path in lab.state.runs()} - runs) == 2
    assert lab.states() == {LARGE: "up", SMALL: "asleep"}
    lab.install()


def test_a_switch_waits_for_another_run_on_the_host(lab: WakeProject) -> None:
    assert lab.deploy_gateway("refuse").code == 0
    owner = lock.LockOwner("deploy", "somebody", "run-1", 1, time.time())
    with lab.service():
        with lock.acquire(lab.state, owner, host="sandbox"):
            wait_until(lambda: lab.error(SMALL)[1] == "model_asleep")
            wait_until(lambda: "waiting for deploy by somebody" in lab.message(SMALL))
            assert lab.awake() == CONTAINERS[LARGE]
        wait_until(lambda: lab.chat(SMALL).status == 200)


def test_a_restarted_service_finishes_an_interrupted_switch(lab: WakeProject) -> None:
    """The service was killed after it recorded the turn and before it stopped the other server."""
    path = lab.state.path / "turns.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "awake": CONTAINERS[SMALL]}))
    WakeRecord(begun=CONTAINERS[SMALL], run="20261127T000000-00000000").save(lab.state)
    assert lab.waker().poll()
    assert lab.states() == {LARGE: "asleep", SMALL: "up"}
    row = history.read(lab.state.for_server(CONTAINERS[SMALL]))[0]
    assert row["why"] == "run 20261127T000000-00000000 was cut off"
    record = WakeRecord.load(lab.state)
    assert (record.begun, record.failures) == ("", {})
