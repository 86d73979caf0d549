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
from tests.e2e.conftest import SandboxProject, sandbox_project

QUICK_SETTINGS = Settings(host="sandbox", every_s=300, smoke_every_s=0, smoke_tokens=24, limits=Limits(token_s=0.4))
STATE_RECORDS = ("health-remembered", "restarts", "verified")


@dataclass
class CheckedHost:
    """The deployed host, and a clock that goes on by itself and by hand."""

    project: SandboxProject
    machine: Machine
    state: StateFolder
    kept: dict[str, Any]
    ahead_s: float = 0.0

    def context(self, **machine: Any) -> RunContext:
        return RunContext(replace(self.machine, **machine), self.state, "run-1", lambda event: None)

    def check(self, settings: Settings = QUICK_SETTINGS, later_s: float = 0.0, **options: Any) -> Record:
        self.ahead_s += later_s
        context = options.pop("context", None) or self.context()
        return build_check(context, settings, now=lambda: time.time() + self.ahead_s, **options).run()

    def docker(self) -> Any:
        return self.context().docker().api

    def fault(self, name: str) -> None:
        control.set_fault(self.project.sandbox, name)

    def until(self, true: Callable[[Any], bool]) -> None:
        """Wait until the condition holds for the container."""
        deadline_s = time.monotonic() + 20
        while not true(self.docker().inspect_container("qwen35")):
            assert time.monotonic() < deadline_s
            time.sleep(0.02)

    def repair(self) -> None:
        """Restore the deployed state: no fault, serving, no records of checks."""
        control.set_fault(self.project.sandbox, None)
        box = self.docker().inspect_container("qwen35")
        if box["State"]["Status"] != "running" or box["RestartCount"]:
            self.docker().stop("qwen35", timeout=1)
            self.until(lambda box: self.machine.meminfo()["MemAvailable"] > 100 * GIB)
            self.docker().start("qwen35")
        self.docker().update_container("qwen35", restart_policy={"Name": "unless-stopped"})
        self.until(lambda box: self.answers())
        for path in (*self.state.path.glob("health*"), *self.state.path.glob("hashes-*")):
            path.unlink()
        for name in STATE_RECORDS:
            self.state.remove(name)
            if name in self.kept:
                self.state.write(name, self.kept[name])
        self.ahead_s = 0.0

    def answers(self) -> bool:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.project.port, timeout=1)
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False

    @contextmanager
    def client(self) -> Iterator[None]:
        """Run a client's request for the length of the block."""
        connection = http.client.HTTPConnection("127.0.0.1", self.project.port, timeout=60)
        request = {"model": "qwen3.5-35b", "prompt": "Count.", "max_tokens": 100000, "stream": True, "ignore_eos": True}
        connection.request("POST", "/v1/completions", json.dumps(request), {"Content-Type": "application/json"})
        sock = connection.sock
        answer = threading.Thread(target=lambda: _read_stream(connection), daemon=True)
        answer.start()
        deadline_s = time.monotonic() + 10
        while "num_requests_running" in (text := self.metrics()) and _count_running(text) < 1:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        yield
        assert sock is not None
        sock.shutdown(socket.SHUT_RDWR)
        answer.join(timeout=10)

    def metrics(self) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.project.port, timeout=5)
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()


def _read_stream(connection: http.client.HTTPConnection) -> None:
    try:
        answer = connection.getresponse()
        while answer.read(100):
            pass
    except (OSError, http.client.HTTPException, ValueError, AttributeError):
        pass


def _stays_up(box: dict[str, Any]) -> bool:
    """Return True if this start has outlived one without memory, which ends at once."""
    age_s = time.time() - started_s(box)
    return box["State"]["Status"] == "running" and age_s > 1.5


def _count_running(text: str) -> float:
    return float(next(row for row in text.splitlines() if row.startswith("vllm:num_requests_running")).split()[-1])


@pytest.fixture(scope="module")
def deployed() -> Iterator[CheckedHost]:
    with sandbox_project() as project:
        project.edit("hosts/groups.yml", "reserve_gib: 4", "reserve_gib: 4\n    drain_s: 1")
        project.deployed()
        machine = Machine.from_environment(control.up(project.sandbox))
        state = StateFolder.in_home(machine.home)
        state_records = {name: data for name in STATE_RECORDS if (data := state.read(name))}
        yield CheckedHost(project, machine, state, state_records)


@pytest.fixture
def ward(deployed: CheckedHost) -> Iterator[CheckedHost]:
    yield deployed
    deployed.repair()


def test_a_healthy_server_is_ok_with_all_the_evidence(ward: CheckedHost) -> None:
    record = ward.check()
    assert (record.state, record.cure, record.drift) == ("ok", "", ())
    levels = {item.check: item.level for item in record.evidence}
    assert set(levels.values()) == {"ok"}, record.evidence
    assert {"container", "/health", "token", "stall", "power", "temperature", "memory", "disk", "drift"} <= set(levels)
    assert record.server.token == "made" and record.serves.engine_version and record.sandbox
    assert load_latest(ward.state.path) == record


def test_no_state_is_invented_in_200_checks(ward: CheckedHost) -> None:
    records = [ward.check(later_s=300, pause=lambda s: None) for _ in range(200)]
    assert {(item.state, item.seen, item.flapping) for item in records} == {("ok", "ok", False)}
    assert len(load_history(ward.state.path)) == 200
    assert CheckHistory.load(ward.state).heals == []


def test_a_server_at_work_is_not_asked_for_a_token(ward: CheckedHost) -> None:
    with ward.client():
        records = [ward.check(later_s=300) for _ in range(2)]
    assert {(item.state, item.server.token) for item in records} == {("ok", "skipped")}
    assert (records[1].server.served_tok_per_s or 0) > 0


def test_stopped_by_hand_is_down_and_not_healed(ward: CheckedHost) -> None:
    ward.docker().stop("qwen35", timeout=1)
    records = [ward.check(replace(QUICK_SETTINGS, heal="restart"), later_s=300, scheduled=True) for _ in range(3)]
    assert {item.state for item in records} == {"down"}
    assert "stopped by hand" in records[0].why
    assert not any(item.healed for item in records)
    assert ward.docker().inspect_container("qwen35")["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"


def test_an_engine_that_died_on_a_request_is_seen(ward: CheckedHost) -> None:
    ward.docker().update_container("qwen35", restart_policy={"Name": "no"})
    ward.fault("engine-exits")
    ward.check()  # its own token kills it
    ward.until(lambda box: box["State"]["Status"] == "exited")
    assert ward.check(later_s=300).state == "down"


def test_a_start_after_an_end_of_its_own_is_left_alone_until_twice_the_last_one(ward: CheckedHost) -> None:
    good = ward.state.read("verified") or {}
    ward.state.write("verified", {**good, "measured": {**good["measured"], "ready_s": 100.0}})
    ward.fault("slow-start")
    ward.until(lambda box: box["RestartCount"] > 0 and _stays_up(box))
    first, second, late = ward.check(), ward.check(later_s=150), ward.check(later_s=60)
    assert [(item.state, item.cure) for item in (first, second, late)] == [
        ("down", ""),
        ("down", ""),
        ("down", "restart"),
    ]
    assert "restarted once; starting for" in first.why and "the last start took 100 s" in first.why


def test_no_token_from_an_idle_server_is_wedged(ward: CheckedHost) -> None:
    ward.fault("wedge")
    record = ward.check()
    assert (record.state, record.cure) == ("wedged", "restart")
    assert record.server.health_status == 200


def test_requests_without_tokens_over_two_looks_are_a_stall(ward: CheckedHost) -> None:
    with ward.client():  # a stopped engine counts the requests that it has, and none that come
        ward.fault("wedge")
        first, second = ward.check(), ward.check(later_s=120)
    assert first.state == "unknown"  # a long prefill looks the same
    assert (second.state, second.cure) == ("stalled", "restart")


def test_a_wedged_server_stays_known_as_one_after_the_checks_own_request(ward: CheckedHost) -> None:
    ward.fault("wedge")
    assert [ward.check().seen, ward.check(later_s=300).seen] == ["wedged", "wedged"]


def test_looks_that_follow_each_other_closely_add_up(ward: CheckedHost) -> None:
    with ward.client():
        ward.fault("wedge")
        states = [ward.check(later_s=20).seen for _ in range(5)]
    assert states[0] == "unknown" and states[-1] == "stalled"


def test_a_starved_gpu_is_wedged_and_only_power_helps(ward: CheckedHost) -> None:
    ward.fault("power")
    heals = replace(QUICK_SETTINGS, heal="restart")
    records = [ward.check(heals, later_s=300, scheduled=True, pause=lambda s: None) for _ in range(3)]
    assert {(item.state, item.cure) for item in records} == {("degraded", "power")}
    assert "AC power" in records[-1].healed
    assert CheckHistory.load(ward.state).heals == []


def test_heat_is_degraded_when_it_lasts(ward: CheckedHost) -> None:
    assert ward.check().state == "ok"
    ward.fault("hot")
    first, second = ward.check(later_s=300), ward.check(later_s=300)
    assert (first.state, first.seen, second.state) == ("ok", "degraded", "degraded")
    assert "96 °C" in second.why
    ward.fault("slow")  # another one: the heat is gone
    assert ward.check(later_s=300).state == "ok"


def test_a_full_disk_is_degraded(ward: CheckedHost) -> None:
    ward.fault("no-space")
    record = ward.check()
    assert (record.state, record.machine.disk_free_bytes) == ("degraded", 2**20)


def test_a_slow_server_is_degraded_once_it_is_measured(ward: CheckedHost) -> None:
    ward.fault("slow")
    due = replace(QUICK_SETTINGS, smoke_every_s=3600, smoke_tokens=8)
    record = ward.check(due, scheduled=True)
    assert (record.state, record.speed.verdict) == ("degraded", "misconfigured"), record.why
    assert (record.speed.tok_per_s or 99) < 10 and record.speed.baseline_tok_per_s
    second = ward.check(due, later_s=60, scheduled=True)
    assert second.speed == record.speed  # not measured again before it is due


def test_another_container_in_its_place_is_drift(ward: CheckedHost) -> None:
    good = ward.state.read("verified") or {}
    command = [word.replace("0.8", "0.7") for word in good["spec"]["command"]]
    image = good["spec"]["image"].partition("@")[0] + "@sha256:" + "0" * 64
    other_spec = {"command": command, "image": image, "image_ids": ["sha256:" + "0" * 64]}
    ward.state.write("verified", {**good, "container_id": "f" * 64, "spec": {**good["spec"], **other_spec}})
    record = ward.check()
    assert (record.state, record.cure) == ("degraded", "deploy")
    assert "image" in record.drift and "--gpu-memory-utilization" in record.drift


def test_a_file_of_the_model_that_changed_is_drift(ward: CheckedHost) -> None:
    model = next((ward.machine.home / "models").rglob("model-00007-*.safetensors"))
    content, stat = model.read_bytes(), model.stat()
    model.write_bytes(content[:-10] + b"1234567890")
    record = ward.check()
    assert record.drift == (f"model {model.name}",)
    model.write_bytes(content)
    os.utime(model, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert ward.check().drift == (f"model {model.name}",), "its old time was put back, and nothing proved its bytes"
    kept.renew_ctimes(ward.project.sandbox)
    assert ward.check().drift == ()


HASH_CHECK_PROGRAM = """
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
machine = Machine.from_environment(control.up(Path(sandbox)))
context = RunContext(machine, StateFolder.in_home(machine.home), "run-1", lambda event: None)
settings = Settings(verify_every_s=86400, quiet_hours=hours)
import time
print(model_hashes.hash_more_files(context, settings, now=lambda: time.time() + float(ahead_s)))
print(os.nice(0), int(psutil.Process().ionice().ioclass))
"""


def run_hash_check(ward: CheckedHost, hours: str = "", ahead_s: float = 0.0) -> list[str]:
    """The periodic hash of a scheduled check, in a process of its own, for it lowers its priority. Returns what it printed."""
    command = [sys.executable, "-c", HASH_CHECK_PROGRAM, str(ward.project.sandbox), hours, str(ahead_s)]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return completed.stdout.splitlines()


def find_model_files_evidence(record: Record) -> tuple[str, str]:
    row = next(item for item in record.evidence if item.check == "model files")
    return row.level, row.message


def test_a_full_hash_in_quiet_hours_finds_bytes_that_changed_under_an_unchanged_stamp(ward: CheckedHost) -> None:
    asks = replace(QUICK_SETTINGS, verify_every_s=86400)
    assert not [item for item in ward.check().evidence if item.check == "model files"], "nobody asked for it"
    assert run_hash_check(ward)[0] == "", "the check of the install only notes that it is asked for"
    hour = (time.localtime().tm_hour + 12) % 24
    assert run_hash_check(ward, f"{hour:02d}:00-{hour:02d}:30")[0] == ""
    assert "not hashed yet; paused: outside the quiet hours" in find_model_files_evidence(ward.check(asks))[1]
    with ward.client():
        assert "paused: requests are running" in run_hash_check(ward)[0]
        assert "paused: requests are running" in find_model_files_evidence(ward.check(asks))[1]
    line, priority = run_hash_check(ward)
    assert line.endswith("finished: content as verified") and priority == "19 3"
    level, text = find_model_files_evidence(ward.check(asks))
    assert level == "ok" and "verified by a full hash" in text
    assert run_hash_check(ward)[0] == "", "it is not due again"

    model = next((ward.machine.home / "models").rglob("model-00007-*.safetensors"))
    content, stat = model.read_bytes(), model.stat()
    model.write_bytes(content[:-10] + b"1234567890")
    os.utime(model, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    kept.renew_ctimes(ward.project.sandbox)  # a disk leaves the whole stamp as it was
    assert ward.check(asks).state == "ok", "a stamp says nothing of it"
    assert "content of 1 changed" in run_hash_check(ward, ahead_s=90000)[0]
    records = [ward.check(asks) for _ in range(2)][-1]
    assert (records.state, records.cure) == ("degraded", "deploy") and model.name in records.why
    assert ward.project.run("models.verify", "--host", "sandbox").code == 2, "a deploy would fetch it"
    model.write_bytes(content)
    os.utime(model, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert ward.project.run("models.verify", "--host", "sandbox").code == 0
    assert ward.check(asks).seen == "ok"


def test_a_crash_loop_is_broken_and_stays_so(ward: CheckedHost) -> None:
    ward.check()
    ward.fault("crash-loop")
    ward.until(lambda box: box["RestartCount"] > 3)
    record = ward.check(later_s=60)
    assert (record.state, record.cure) == ("crash-looping", "person")
    box = ward.docker().inspect_container("qwen35")
    assert (box["HostConfig"]["RestartPolicy"]["Name"], box["State"]["Status"]) == ("no", "exited")
    second = ward.check(later_s=60)
    assert second.state == "crash-looping" and "stopped for a crash loop" in second.why
    assert (ward.state.path / "incidents").is_dir()
    assert (acts(ward.state)[0]["what"], acts(ward.state)[0]["who"]) == ("stopped for a crash loop", "the health check")

    ward.state.write(
        "verified", {**(ward.state.read("verified") or {}), "since": time.time()}
    )  # it was restarted, and then
    later = ward.check(later_s=60)  # it was stopped by hand
    assert (later.state, "crash loop" in later.why) == ("down", False), later.why


def test_without_docker_or_a_verified_server_nothing_is_claimed(ward: CheckedHost) -> None:
    gone = ward.check(context=ward.context(docker_host="unix:///nonexistent/docker.sock"))
    assert (gone.state, gone.container.status) == ("unknown", "")
    assert "Docker Engine" in gone.why and gone.server.token == "made"
    ward.state.remove("verified")
    assert ward.check().why == "no server has been verified on this host"


def test_a_deploy_in_progress_is_neither_probed_nor_a_change(ward: CheckedHost) -> None:
    ward.check(scheduled=True)
    with lock.acquire(ward.state, lock.LockOwner("deploy", "ops@laptop", "run-2", 1, time.time()), host="sandbox"):
        record = ward.check(scheduled=True)
    assert (record.state, record.server.token) == ("unknown", "") and "ops@laptop" in record.busy
    after = ward.check(scheduled=True)
    assert (after.state, after.before) == ("ok", "ok")
    assert CheckHistory.load(ward.state).notified == "ok"


def test_a_wedged_server_is_restarted_once_an_hour(ward: CheckedHost) -> None:
    heals = replace(QUICK_SETTINGS, heal="restart")
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
    second = [ward.check(heals, later_s=300, scheduled=True) for _ in range(3)]
    assert {item.state for item in second} <= {"wedged", "stalled"} and "--heal-every ago" in second[-1].healed
    assert len(CheckHistory.load(ward.state).heals) == 1


def test_the_command_says_it_with_its_exit_code(ward: CheckedHost) -> None:
    fine = ward.project.run("health", "--host", "sandbox", "--json")
    assert (fine.code, fine.task("Check the server's health")["data"]["record"]["state"]) == (0, "ok")
    ward.fault("hot")
    for _ in range(2):
        hot = ward.project.run("health", "--host", "sandbox")
    assert hot.code == 2 and "degraded: GPU temperature 96 °C" in hot.out
    ward.docker().stop("qwen35", timeout=1)
    down = ward.project.run("health", "--host", "sandbox")
    assert down.code == 1 and "down: qwen35 was stopped by hand: exited (0)" in down.out
    refused = ward.project.run("health.install", "--host", "sandbox")
    assert refused.code == 5 and "has no scheduler" in refused.out


@pytest.mark.parametrize(
    ("words", "result"),
    [
        (("--every", "often"), "--every: invalid duration 'often'"),
        (("--every", "1s"), "too short"),
        (("--heal", "reboot"), "--heal must be one of none, restart, got 'reboot'"),
        (("--webhook", "https://hooks.slack.com/services/T/B/x"), "--webhook-file"),
        (("--webhook", "https://u:p@example.com/"), "contains a secret"),
        (("--verify-models", "1h"), "too short"),
        (("--quiet-hours", "02:00-05:00"), "--quiet-hours needs --verify-models"),
        (("--verify-models", "7d", "--quiet-hours", "2-5"), "Write it as 02:00-05:00"),
    ],
)
def test_what_is_asked_for_is_checked_first(project: SandboxProject, words: tuple[str, ...], result: str) -> None:
    outcome = project.run("health.install", "--host", "sandbox", *words)
    assert outcome.code == 5 and result in outcome.err


def test_a_deploy_that_begins_during_a_check_is_not_taken_for_a_fault(ward: CheckedHost) -> None:
    ward.fault("wedge")
    slow = replace(QUICK_SETTINGS, limits=Limits(token_s=5))
    found: list[Record] = []
    checking = threading.Thread(target=lambda: found.append(ward.check(slow)))
    checking.start()
    while _count_running(ward.metrics()) < 1:  # the check waits for its token
        time.sleep(0.02)
    with lock.acquire(ward.state, lock.LockOwner("deploy", "ops@laptop", "run-2", 1, time.time()), host="sandbox"):
        ward.docker().kill("qwen35")
        checking.join(timeout=20)
    assert found[0].state == "unknown" and "ops@laptop" in found[0].busy
