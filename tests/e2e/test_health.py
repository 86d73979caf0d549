"""Every state, produced by breaking something and recognised by a check; and none invented on a healthy host.

One pretend Spark is deployed once; each test breaks it and has it mended after. Checks run in this process, by a clock of the
test's own, so that minutes between two looks pass at once.
"""

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from sparkwright.health.judging.observation import Limits
from sparkwright.health.record import Record
from sparkwright.health.settings import Settings
from sparkwright.health.store import CheckHistory, load_history, load_latest
from sparkwright.host.containers.containers import started_s
from sparkwright.host.machine import Machine
from sparkwright.host.records.history import read as acts
from sparkwright.host.runs import lock
from sparkwright.host.runs.context import RunContext
from sparkwright.host.state import StateFolder
from sparkwright.runner.health_check import build_check
from sparkwright.sandbox import control
from sparkwright.units import GIB
from tests.e2e import kept
from tests.e2e.conftest import Desk, fresh_desk

QUICK = Settings(host="sandbox", every_s=300, smoke_every_s=0, smoke_tokens=24, limits=Limits(token_s=0.4))
GOOD_FILES = ("health-remembered", "restarts", "verified")


@dataclass
class Ward:
    """The deployed host, and a clock that goes on by itself and by hand."""

    desk: Desk
    machine: Machine
    state: StateFolder
    kept: dict[str, Any]
    ahead_s: float = 0.0

    def context(self, **machine: Any) -> RunContext:
        return RunContext(replace(self.machine, **machine), self.state, "run-1", lambda event: None)

    def check(self, settings: Settings = QUICK, later_s: float = 0.0, **given: Any) -> Record:
        self.ahead_s += later_s
        context = given.pop("context", None) or self.context()
        return build_check(context, settings, now=lambda: time.time() + self.ahead_s, **given).run()

    def docker(self) -> Any:
        return self.context().docker().api

    def fault(self, name: str) -> None:
        control.set_fault(self.desk.sandbox, name)

    def until(self, true: Callable[[Any], bool]) -> None:
        """Until docker says so of the container."""
        deadline_s = time.monotonic() + 20
        while not true(self.docker().inspect_container("qwen35")):
            assert time.monotonic() < deadline_s
            time.sleep(0.02)

    def repair(self) -> None:
        """As it was deployed: no fault, serving, nothing remembered."""
        control.set_fault(self.desk.sandbox, None)
        box = self.docker().inspect_container("qwen35")
        if box["State"]["Status"] != "running" or box["RestartCount"]:
            self.docker().stop("qwen35", timeout=1)
            self.until(lambda box: self.machine.meminfo()["MemAvailable"] > 100 * GIB)
            self.docker().start("qwen35")
        self.docker().update_container("qwen35", restart_policy={"Name": "unless-stopped"})
        self.until(lambda box: self.answers())
        for path in (*self.state.path.glob("health*"), *self.state.path.glob("hashes-*")):
            path.unlink()
        for name in GOOD_FILES:
            self.state.remove(name)
            if name in self.kept:
                self.state.write(name, self.kept[name])
        self.ahead_s = 0.0

    def answers(self) -> bool:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.desk.port, timeout=1)
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False

    @contextmanager
    def client(self) -> Iterator[None]:
        """Somebody whose request runs as long as the block."""
        connection = http.client.HTTPConnection("127.0.0.1", self.desk.port, timeout=60)
        words = {"model": "qwen3.5-35b", "prompt": "Count.", "max_tokens": 100000, "stream": True, "ignore_eos": True}
        connection.request("POST", "/v1/completions", json.dumps(words), {"Content-Type": "application/json"})
        sock = connection.sock
        answer = threading.Thread(target=lambda: _read(connection), daemon=True)
        answer.start()
        deadline_s = time.monotonic() + 10
        while "num_requests_running" in (text := self.metrics()) and _running(text) < 1:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        yield
        assert sock is not None
        sock.shutdown(socket.SHUT_RDWR)
        answer.join(timeout=10)

    def metrics(self) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.desk.port, timeout=5)
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()


def _read(connection: http.client.HTTPConnection) -> None:
    try:
        answer = connection.getresponse()
        while answer.read(100):
            pass
    except (OSError, http.client.HTTPException, ValueError, AttributeError):
        pass


def _stays(box: dict[str, Any]) -> bool:
    """Whether this start has come beyond what one without memory does: that one ends at once."""
    age_s = time.time() - started_s(box)
    return box["State"]["Status"] == "running" and age_s > 1.5


def _running(text: str) -> float:
    return float(next(row for row in text.splitlines() if row.startswith("vllm:num_requests_running")).split()[-1])


@pytest.fixture(scope="module")
def deployed() -> Iterator[Ward]:
    with fresh_desk() as desk:
        desk.edit("hosts/groups.yml", "reserve_gib: 4", "reserve_gib: 4\n    drain_s: 1")
        desk.deployed()
        machine = Machine.here(control.up(desk.sandbox))
        state = StateFolder.of(machine.home)
        kept = {name: data for name in GOOD_FILES if (data := state.read(name))}
        yield Ward(desk, machine, state, kept)


@pytest.fixture
def ward(deployed: Ward) -> Iterator[Ward]:
    yield deployed
    deployed.repair()


def test_a_healthy_server_is_ok_with_all_the_evidence(ward: Ward) -> None:
    found = ward.check()
    assert (found.state, found.cure, found.drift) == ("ok", "", ())
    levels = {item.check: item.level for item in found.evidence}
    assert set(levels.values()) == {"ok"}, found.evidence
    assert {"container", "/health", "token", "stall", "power", "temperature", "memory", "disk", "drift"} <= set(levels)
    assert found.server.token == "made" and found.serves.engine_version and found.sandbox
    assert load_latest(ward.state.path) == found


def test_no_state_is_invented_in_200_checks(ward: Ward) -> None:
    found = [ward.check(later_s=300, pause=lambda s: None) for _ in range(200)]
    assert {(item.state, item.seen, item.flapping) for item in found} == {("ok", "ok", False)}
    assert len(load_history(ward.state.path)) == 200
    assert CheckHistory.of(ward.state).heals == []


def test_a_server_at_work_is_not_asked_for_a_token(ward: Ward) -> None:
    with ward.client():
        found = [ward.check(later_s=300) for _ in range(2)]
    assert {(item.state, item.server.token) for item in found} == {("ok", "skipped")}
    assert (found[1].server.served_tok_per_s or 0) > 0


def test_stopped_by_hand_is_down_and_not_healed(ward: Ward) -> None:
    ward.docker().stop("qwen35", timeout=1)
    found = [ward.check(replace(QUICK, heal="restart"), later_s=300, scheduled=True) for _ in range(3)]
    assert {item.state for item in found} == {"down"}
    assert "stopped by hand" in found[0].why
    assert not any(item.healed for item in found)
    assert ward.docker().inspect_container("qwen35")["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"


def test_an_engine_that_died_on_a_request_is_seen(ward: Ward) -> None:
    ward.docker().update_container("qwen35", restart_policy={"Name": "no"})
    ward.fault("engine-exits")
    ward.check()  # its own token kills it
    ward.until(lambda box: box["State"]["Status"] == "exited")
    assert ward.check(later_s=300).state == "down"


def test_a_start_after_an_end_of_its_own_is_left_alone_until_twice_the_last_one(ward: Ward) -> None:
    good = ward.state.read("verified") or {}
    ward.state.write("verified", {**good, "measured": {**good["measured"], "ready_s": 100.0}})
    ward.fault("slow-start")
    ward.until(lambda box: box["RestartCount"] > 0 and _stays(box))
    first, second, late = ward.check(), ward.check(later_s=150), ward.check(later_s=60)
    assert [(item.state, item.cure) for item in (first, second, late)] == [
        ("down", ""),
        ("down", ""),
        ("down", "restart"),
    ]
    assert "restarted once; starting for" in first.why and "the last start took 100 s" in first.why


def test_no_token_from_an_idle_server_is_wedged(ward: Ward) -> None:
    ward.fault("wedge")
    found = ward.check()
    assert (found.state, found.cure) == ("wedged", "restart")
    assert found.server.health_status == 200


def test_requests_without_tokens_over_two_looks_are_a_stall(ward: Ward) -> None:
    with ward.client():  # a stopped engine counts the requests that it has, and none that come
        ward.fault("wedge")
        first, second = ward.check(), ward.check(later_s=120)
    assert first.state == "unknown"  # a long prefill looks the same
    assert (second.state, second.cure) == ("stalled", "restart")


def test_a_wedged_server_stays_known_as_one_after_the_checks_own_request(ward: Ward) -> None:
    ward.fault("wedge")
    assert [ward.check().seen, ward.check(later_s=300).seen] == ["wedged", "wedged"]


def test_looks_that_follow_each_other_closely_add_up(ward: Ward) -> None:
    with ward.client():
        ward.fault("wedge")
        states = [ward.check(later_s=20).seen for _ in range(5)]
    assert states[0] == "unknown" and states[-1] == "stalled"


def test_a_starved_gpu_is_wedged_and_only_power_helps(ward: Ward) -> None:
    ward.fault("power")
    heals = replace(QUICK, heal="restart")
    found = [ward.check(heals, later_s=300, scheduled=True, pause=lambda s: None) for _ in range(3)]
    assert {(item.state, item.cure) for item in found} == {("degraded", "power")}
    assert "AC power" in found[-1].healed
    assert CheckHistory.of(ward.state).heals == []


def test_heat_is_degraded_when_it_lasts(ward: Ward) -> None:
    assert ward.check().state == "ok"
    ward.fault("hot")
    first, second = ward.check(later_s=300), ward.check(later_s=300)
    assert (first.state, first.seen, second.state) == ("ok", "degraded", "degraded")
    assert "96 °C" in second.why
    ward.fault("slow")  # another one: the heat is gone
    assert ward.check(later_s=300).state == "ok"


def test_a_full_disk_is_degraded(ward: Ward) -> None:
    ward.fault("no-space")
    found = ward.check()
    assert (found.state, found.machine.disk_free_bytes) == ("degraded", 2**20)


def test_a_slow_server_is_degraded_once_it_is_measured(ward: Ward) -> None:
    ward.fault("slow")
    due = replace(QUICK, smoke_every_s=3600, smoke_tokens=8)
    found = ward.check(due, scheduled=True)
    assert (found.state, found.speed.verdict) == ("degraded", "misconfigured"), found.why
    assert (found.speed.tok_per_s or 99) < 10 and found.speed.baseline_tok_per_s
    again = ward.check(due, later_s=60, scheduled=True)
    assert again.speed == found.speed  # not measured again before it is due


def test_another_container_in_its_place_is_drift(ward: Ward) -> None:
    good = ward.state.read("verified") or {}
    command = [word.replace("0.8", "0.7") for word in good["spec"]["command"]]
    image = good["spec"]["image"].partition("@")[0] + "@sha256:" + "0" * 64
    other = {"command": command, "image": image, "image_ids": ["sha256:" + "0" * 64]}
    ward.state.write("verified", {**good, "container_id": "f" * 64, "spec": {**good["spec"], **other}})
    found = ward.check()
    assert (found.state, found.cure) == ("degraded", "deploy")
    assert "image" in found.drift and "--gpu-memory-utilization" in found.drift


def test_a_file_of_the_model_that_changed_is_drift(ward: Ward) -> None:
    model = next((ward.machine.home / "models").rglob("model-00007-*.safetensors"))
    content, stat = model.read_bytes(), model.stat()
    model.write_bytes(content[:-10] + b"1234567890")
    found = ward.check()
    assert found.drift == (f"model {model.name}",)
    model.write_bytes(content)
    os.utime(model, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert ward.check().drift == (f"model {model.name}",), "its old time was put back, and nothing proved its bytes"
    kept.renew_ctimes(ward.desk.sandbox)
    assert ward.check().drift == ()


HASHED = """
import json, os, sys
import psutil
from dataclasses import replace
from sparkwright.health import model_hashes
from sparkwright.health.settings import Settings
from sparkwright.host.machine import Machine
from sparkwright.host.runs.context import RunContext
from sparkwright.host.state import StateFolder
from sparkwright.sandbox import control
from pathlib import Path
sandbox, hours, ahead_s = sys.argv[1:]
machine = Machine.here(control.up(Path(sandbox)))
context = RunContext(machine, StateFolder.of(machine.home), "run-1", lambda event: None)
settings = Settings(verify_every_s=86400, quiet_hours=hours)
import time
print(model_hashes.hash_more_files(context, settings, now=lambda: time.time() + float(ahead_s)))
print(os.nice(0), int(psutil.Process().ionice().ioclass))
"""


def hashed(ward: Ward, hours: str = "", ahead_s: float = 0.0) -> list[str]:
    """The periodic hash of a scheduled check, in a process of its own, for it lowers its priority. Returns what it printed."""
    words = [sys.executable, "-c", HASHED, str(ward.desk.sandbox), hours, str(ahead_s)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.splitlines()


def model_files(found: Record) -> tuple[str, str]:
    row = next(item for item in found.evidence if item.check == "model files")
    return row.level, row.message


def test_a_full_hash_in_quiet_hours_finds_bytes_that_changed_under_an_unchanged_stamp(ward: Ward) -> None:
    asks = replace(QUICK, verify_every_s=86400)
    assert not [item for item in ward.check().evidence if item.check == "model files"], "nobody asked for it"
    assert hashed(ward)[0] == "", "the check of the install only notes that it is asked for"
    hour = (time.localtime().tm_hour + 12) % 24
    assert hashed(ward, f"{hour:02d}:00-{hour:02d}:30")[0] == ""
    assert "not hashed yet; paused: outside the quiet hours" in model_files(ward.check(asks))[1]
    with ward.client():
        assert "paused: requests are running" in hashed(ward)[0]
        assert "paused: requests are running" in model_files(ward.check(asks))[1]
    line, priority = hashed(ward)
    assert line.endswith("finished: as they were proved") and priority == "19 3"
    level, text = model_files(ward.check(asks))
    assert level == "ok" and "as verified, by a full hash" in text
    assert hashed(ward)[0] == "", "it is not due again"

    model = next((ward.machine.home / "models").rglob("model-00007-*.safetensors"))
    content, stat = model.read_bytes(), model.stat()
    model.write_bytes(content[:-10] + b"1234567890")
    os.utime(model, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    kept.renew_ctimes(ward.desk.sandbox)  # a disk leaves the whole stamp as it was
    assert ward.check(asks).state == "ok", "a stamp says nothing of it"
    assert "1 wrong" in hashed(ward, ahead_s=90000)[0]
    found = [ward.check(asks) for _ in range(2)][-1]
    assert (found.state, found.cure) == ("degraded", "deploy") and model.name in found.why
    assert ward.desk.run("models.verify", "--host", "sandbox").code == 2, "a deploy would fetch it"
    model.write_bytes(content)
    os.utime(model, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert ward.desk.run("models.verify", "--host", "sandbox").code == 0
    assert ward.check(asks).seen == "ok"


def test_a_crash_loop_is_broken_and_stays_so(ward: Ward) -> None:
    ward.check()
    ward.fault("crash-loop")
    ward.until(lambda box: box["RestartCount"] > 3)
    found = ward.check(later_s=60)
    assert (found.state, found.cure) == ("crash-looping", "person")
    box = ward.docker().inspect_container("qwen35")
    assert (box["HostConfig"]["RestartPolicy"]["Name"], box["State"]["Status"]) == ("no", "exited")
    again = ward.check(later_s=60)
    assert again.state == "crash-looping" and "stopped for a crash loop" in again.why
    assert (ward.state.path / "incidents").is_dir()
    assert (acts(ward.state)[0]["what"], acts(ward.state)[0]["who"]) == ("stopped for a crash loop", "the health check")

    ward.state.write(
        "verified", {**(ward.state.read("verified") or {}), "since": time.time()}
    )  # it was restarted, and then
    later = ward.check(later_s=60)  # it was stopped by hand
    assert (later.state, "crash loop" in later.why) == ("down", False), later.why


def test_without_docker_or_a_verified_server_nothing_is_claimed(ward: Ward) -> None:
    gone = ward.check(context=ward.context(docker_host="unix:///nonexistent/docker.sock"))
    assert (gone.state, gone.container.status) == ("unknown", "")
    assert "Docker Engine" in gone.why and gone.server.token == "made"
    ward.state.remove("verified")
    assert ward.check().why == "no server has been verified here"


def test_a_deploy_in_progress_is_neither_probed_nor_a_change(ward: Ward) -> None:
    ward.check(scheduled=True)
    with lock.acquire(ward.state, lock.LockOwner("deploy", "ops@laptop", "run-2", 1, time.time()), host="sandbox"):
        found = ward.check(scheduled=True)
    assert (found.state, found.server.token) == ("unknown", "") and "ops@laptop" in found.busy
    after = ward.check(scheduled=True)
    assert (after.state, after.before) == ("ok", "ok")
    assert CheckHistory.of(ward.state).notified == "ok"


def test_a_wedged_server_is_restarted_once_an_hour(ward: Ward) -> None:
    heals = replace(QUICK, heal="restart")
    before = ward.docker().inspect_container("qwen35")
    ward.fault("wedge")
    assert "second check" in ward.check(heals, scheduled=True).healed
    healed = ward.check(heals, later_s=300, scheduled=True)  # what runs on is sick; a new start is not
    assert healed.state == "ok", (healed.why, healed.healed)
    assert healed.healed.startswith("restarted (run ")
    after = ward.docker().inspect_container("qwen35")
    assert after["Id"] == before["Id"] and after["State"]["StartedAt"] > before["State"]["StartedAt"]
    assert after["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"
    ward.fault("none")
    ward.fault("wedge")
    again = [ward.check(heals, later_s=300, scheduled=True) for _ in range(3)]
    assert {item.state for item in again} <= {"wedged", "stalled"} and "--heal-every ago" in again[-1].healed
    assert len(CheckHistory.of(ward.state).heals) == 1


def test_the_command_says_it_with_its_exit_code(ward: Ward) -> None:
    fine = ward.desk.run("health", "--host", "sandbox", "--json")
    assert (fine.code, fine.task("Check the server's health")["data"]["record"]["state"]) == (0, "ok")
    ward.fault("hot")
    for _ in range(2):
        hot = ward.desk.run("health", "--host", "sandbox")
    assert hot.code == 2 and "degraded: GPU temperature 96 °C" in hot.out
    ward.docker().stop("qwen35", timeout=1)
    down = ward.desk.run("health", "--host", "sandbox")
    assert down.code == 1 and "down: qwen35 was stopped by hand: exited (0)" in down.out
    refused = ward.desk.run("health.install", "--host", "sandbox")
    assert refused.code == 5 and "has no scheduler" in refused.out


@pytest.mark.parametrize(
    ("words", "result"),
    [
        (("--every", "often"), "--every: invalid duration 'often'"),
        (("--every", "1s"), "too short"),
        (("--heal", "reboot"), "There are: none, restart"),
        (("--webhook", "https://hooks.slack.com/services/T/B/x"), "--webhook-file"),
        (("--webhook", "https://u:p@example.com/"), "holds a secret"),
        (("--verify-models", "1h"), "too short"),
        (("--quiet-hours", "02:00-05:00"), "--quiet-hours is for --verify-models"),
        (("--verify-models", "7d", "--quiet-hours", "2-5"), "Write it as 02:00-05:00"),
    ],
)
def test_what_is_asked_for_is_checked_first(desk: Desk, words: tuple[str, ...], result: str) -> None:
    done = desk.run("health.install", "--host", "sandbox", *words)
    assert done.code == 5 and result in done.err


def test_a_deploy_that_begins_during_a_check_is_not_taken_for_a_fault(ward: Ward) -> None:
    ward.fault("wedge")
    slow = replace(QUICK, limits=Limits(token_s=5))
    found: list[Record] = []
    checking = threading.Thread(target=lambda: found.append(ward.check(slow)))
    checking.start()
    while _running(ward.metrics()) < 1:  # the check waits for its token
        time.sleep(0.02)
    with lock.acquire(ward.state, lock.LockOwner("deploy", "ops@laptop", "run-2", 1, time.time()), host="sandbox"):
        ward.docker().kill("qwen35")
        checking.join(timeout=20)
    assert found[0].state == "unknown" and "ops@laptop" in found[0].busy
