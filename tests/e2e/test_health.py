"""Each state, caused by a fault and recognized by a health check; and no false state on a healthy host.

One simulated Spark is deployed for all tests; each breaks it, and a fixture repairs it. Checks run in this process with a clock
that the test moves forward.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import psutil
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
from tests.waiting import wait_until

QUICK_SETTINGS = Settings(host="sandbox", every_s=300, smoke_every_s=0, smoke_tokens=24, limits=Limits(token_s=0.4))
STATE_RECORDS = ("health-remembered", "restarts", "verified")


@dataclass
class CheckedHost:
    """The deployed host, and how far the clock of its checks is ahead."""

    project: SandboxProject
    machine: Machine
    state: StateFolder
    records: dict[str, Any]
    ahead_s: float = 0.0

    def context(self, **machine: Any) -> RunContext:
        return RunContext(replace(self.machine, **machine), self.state, "run-1", lambda event: None)

    def check(self, settings: Settings = QUICK_SETTINGS, later_s: float = 0.0, **options: Any) -> Record:
        self.ahead_s += later_s
        context = options.pop("context", None) or self.context()
        return build_check(context, settings, now=lambda: time.time() + self.ahead_s, **options).run()

    def docker(self) -> Any:
        return self.context().docker().api

    def container(self) -> dict[str, Any]:
        return self.project.container()

    def fault(self, name: str) -> None:
        control.set_fault(self.project.sandbox, name)

    def until(self, condition: Callable[[Any], bool]) -> None:
        """Wait until the condition holds for the container."""
        wait_until(lambda: condition(self.container()), "the container's state")

    def repair(self) -> None:
        """Restore the deployed state: no fault, serving, no records of checks."""
        control.set_fault(self.project.sandbox, None)
        container = self.container()
        if container["State"]["Status"] != "running" or container["RestartCount"]:
            self.docker().stop("qwen35", timeout=1)
            wait_until(lambda: self.machine.meminfo()["MemAvailable"] > 100 * GIB, "its memory")
            self.docker().start("qwen35")
        self.docker().update_container("qwen35", restart_policy={"Name": "unless-stopped"})
        wait_until(self.project.is_up, "the server")
        for path in (*self.state.path.glob("health*"), *self.state.path.glob("hashes-*")):
            path.unlink()
        for name in STATE_RECORDS:
            self.state.remove(name)
            if name in self.records:
                self.state.write(name, self.records[name])
        self.ahead_s = 0.0


def _stays_up(container: dict[str, Any]) -> bool:
    """Return True if this start has not failed at once for lack of memory."""
    age_s = time.time() - started_s(container)
    return container["State"]["Status"] == "running" and age_s > 1.5


@pytest.fixture(scope="module")
def deployed() -> Iterator[CheckedHost]:
    with sandbox_project() as project:
        project.edit("hosts/groups.yml", "vars: {}", "vars: {drain_s: 1}")
        project.deployed()
        machine = Machine.from_environment(control.up(project.sandbox))
        state = StateFolder.in_home(machine.home)
        state_records = {name: data for name in STATE_RECORDS if (data := state.read(name))}
        yield CheckedHost(project, machine, state, state_records)


@pytest.fixture
def host(deployed: CheckedHost) -> Iterator[CheckedHost]:
    yield deployed
    deployed.repair()


def test_a_healthy_server_is_ok_with_complete_evidence(host: CheckedHost) -> None:
    record = host.check()
    assert (record.state, record.cure, record.drift) == ("ok", "", ())
    levels = {item.check: item.level for item in record.evidence}
    assert set(levels.values()) == {"ok"}, record.evidence
    assert {"container", "/health", "token", "stall", "power", "temperature", "memory", "disk", "drift"} <= set(levels)
    assert record.server.token == "made" and record.serves.engine_version and record.sandbox
    assert load_latest(host.state.path) == record


def test_200_checks_of_a_healthy_server_are_ok(host: CheckedHost) -> None:
    patient = replace(QUICK_SETTINGS, limits=Limits())  # a token may take long on a busy machine
    records = [host.check(patient, later_s=300, pause=lambda s: None) for _ in range(200)]
    assert {(item.state, item.seen, item.flapping) for item in records} == {("ok", "ok", False)}
    assert len(load_history(host.state.path)) == 200
    assert CheckHistory.load(host.state).heals == []


def test_a_busy_server_gets_no_test_request(host: CheckedHost) -> None:
    with host.project.open_stream(100_000):
        records = [host.check(later_s=300) for _ in range(2)]
    assert {(item.state, item.server.token) for item in records} == {("ok", "skipped")}
    assert (records[1].server.served_tok_per_s or 0) > 0


def test_a_manually_stopped_server_is_down_and_not_healed(host: CheckedHost) -> None:
    host.docker().stop("qwen35", timeout=1)
    records = [host.check(replace(QUICK_SETTINGS, heal="restart"), later_s=300, scheduled=True) for _ in range(3)]
    assert {item.state for item in records} == {"down"}
    assert "stopped by hand" in records[0].why
    assert not any(item.healed for item in records)
    assert host.container()["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"


def test_an_engine_that_crashed_on_a_request_is_down(host: CheckedHost) -> None:
    host.docker().update_container("qwen35", restart_policy={"Name": "no"})
    host.fault("engine-exits")
    host.check()  # its own token kills it
    host.until(lambda container: container["State"]["Status"] == "exited")
    assert host.check(later_s=300).state == "down"


def test_a_start_after_a_crash_is_given_twice_the_time_of_the_last_start(host: CheckedHost) -> None:
    good = host.state.read("verified") or {}
    host.state.write("verified", {**good, "measured": {**good["measured"], "ready_s": 100.0}})
    host.fault("slow-start")
    host.until(lambda container: container["RestartCount"] > 0 and _stays_up(container))
    first, second, late = host.check(), host.check(later_s=150), host.check(later_s=60)
    assert {item.state for item in (first, second, late)} == {"down"}
    assert [item.cure for item in (first, second, late)] == ["", "", "restart"]
    assert "restarted once; starting for" in first.why and "the last start took 100 s" in first.why


def test_an_idle_server_without_tokens_is_wedged_also_at_the_second_check(host: CheckedHost) -> None:
    """The second check must not take the request of the first for a client's."""
    host.fault("wedge")
    record = host.check()
    assert (record.state, record.cure, record.server.health_status) == ("wedged", "restart", 200)
    assert [record.seen, host.check(later_s=300).seen] == ["wedged", "wedged"]


def test_requests_without_tokens_in_two_checks_are_a_stall(host: CheckedHost) -> None:
    with host.project.open_stream(100_000):  # a stopped engine does not count later requests
        host.fault("wedge")
        first, second = host.check(), host.check(later_s=120)
    assert first.state == "unknown"  # a long prefill looks the same
    assert (second.state, second.cure) == ("stalled", "restart")


def test_checks_at_short_intervals_add_up_to_a_stall(host: CheckedHost) -> None:
    with host.project.open_stream(100_000):
        host.fault("wedge")
        states = [host.check(later_s=20).seen for _ in range(5)]
    assert states[0] == "unknown" and states[-1] == "stalled"


def test_a_gpu_at_a_low_clock_is_degraded_and_not_restarted(host: CheckedHost) -> None:
    host.fault("power")
    heals = replace(QUICK_SETTINGS, heal="restart")
    records = [host.check(heals, later_s=300, scheduled=True, pause=lambda s: None) for _ in range(3)]
    assert {(item.state, item.cure) for item in records} == {("degraded", "power")}
    assert "AC power" in records[-1].healed
    assert CheckHistory.load(host.state).heals == []


def test_heat_is_degraded_at_the_second_check(host: CheckedHost) -> None:
    assert host.check().state == "ok"
    host.fault("hot")
    first, second = host.check(later_s=300), host.check(later_s=300)
    assert (first.state, first.seen, second.state) == ("ok", "degraded", "degraded")
    assert "96 °C" in second.why
    host.fault("slow")  # replaces the heat
    assert host.check(later_s=300).state == "ok"


def test_a_full_disk_is_degraded(host: CheckedHost) -> None:
    host.fault("no-space")
    record = host.check()
    assert (record.state, record.machine.disk_free_bytes) == ("degraded", 2**20)


def test_a_record_that_cannot_be_written_does_not_hide_the_servers_state(host: CheckedHost) -> None:
    record = host.state.path / "restarts.json"
    record.unlink(missing_ok=True)
    record.mkdir()  # stands for a full disk: only the write of this record fails
    try:
        result = host.project.run("health", "--host", "sandbox")
    finally:
        record.rmdir()
    assert (result.code, "ok: a token in" in result.out, "Docker" in result.out) == (0, True, False), result.out
    assert "cannot save the container's restart count: " in result.out


def test_a_slow_server_is_degraded_when_measured(host: CheckedHost) -> None:
    host.fault("slow")
    due = replace(QUICK_SETTINGS, smoke_every_s=3600, smoke_tokens=8)
    record = host.check(due, scheduled=True)
    assert (record.state, record.speed.verdict) == ("degraded", "misconfigured"), record.why
    assert (record.speed.tok_per_s or 99) < 10 and record.speed.baseline_tok_per_s
    second = host.check(due, later_s=60, scheduled=True)
    assert second.speed == record.speed  # not measured again before it is due


def test_another_container_than_the_verified_one_is_drift(host: CheckedHost) -> None:
    good = host.state.read("verified") or {}
    command = [word.replace("0.8", "0.7") for word in good["spec"]["command"]]
    image = good["spec"]["image"].partition("@")[0] + "@sha256:" + "0" * 64
    other_spec = {"command": command, "image": image, "image_ids": ["sha256:" + "0" * 64]}
    host.state.write("verified", {**good, "container_id": "f" * 64, "spec": {**good["spec"], **other_spec}})
    record = host.check()
    assert (record.state, record.cure) == ("degraded", "deploy")
    assert "image" in record.drift and "--gpu-memory-utilization" in record.drift


def test_a_changed_model_file_is_drift(host: CheckedHost) -> None:
    model = next((host.machine.home / "models").rglob("model-00007-*.safetensors"))
    content, stat = model.read_bytes(), model.stat()
    model.write_bytes(content[:-10] + b"1234567890")
    record = host.check()
    assert record.drift == (f"model {model.name}",)
    model.write_bytes(content)
    os.utime(model, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert host.check().drift == (f"model {model.name}",), "a restored time stamp does not prove the content"
    kept.renew_ctimes(host.project.sandbox)
    assert host.check().drift == ()


def hold_lock(host: CheckedHost) -> contextlib.AbstractContextManager[Any]:
    """Hold the host's lock as another run does."""
    owner = lock.LockOwner("deploy", "ops@laptop", "run-2", 1, time.time())
    return lock.acquire(host.state, owner, host="sandbox")


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


def run_hash_check(host: CheckedHost, hours: str = "", ahead_s: float = 0.0) -> list[str]:
    """Run the periodic hash of a check, in another process because it lowers its priority, and return its output."""
    command = [sys.executable, "-c", HASH_CHECK_PROGRAM, str(host.project.sandbox), hours, str(ahead_s)]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return completed.stdout.splitlines()


def find_model_files_evidence(record: Record) -> tuple[str, str]:
    row = next(item for item in record.evidence if item.check == "model files")
    return row.level, row.message


def test_a_full_hash_in_quiet_hours_finds_changed_content_with_an_unchanged_time_stamp(host: CheckedHost) -> None:
    settings = replace(QUICK_SETTINGS, verify_every_s=86400)
    assert not [item for item in host.check().evidence if item.check == "model files"], "not by default"
    assert run_hash_check(host)[0] == "", "the first call only starts the interval"
    hour = (time.localtime().tm_hour + 12) % 24
    assert run_hash_check(host, f"{hour:02d}:00-{hour:02d}:30")[0] == ""
    assert "not hashed yet; paused: outside the quiet hours" in find_model_files_evidence(host.check(settings))[1]
    with host.project.open_stream(100_000):
        assert "paused: requests are running" in run_hash_check(host)[0]
        assert "paused: requests are running" in find_model_files_evidence(host.check(settings))[1]
    line, priority = run_hash_check(host)
    assert line.endswith("finished: content as verified") and priority == "19 3"
    level, text = find_model_files_evidence(host.check(settings))
    assert level == "ok" and "verified by a full hash" in text
    assert run_hash_check(host)[0] == "", "it is not due again"

    model = next((host.machine.home / "models").rglob("model-00007-*.safetensors"))
    content, stat = model.read_bytes(), model.stat()
    model.write_bytes(content[:-10] + b"1234567890")
    os.utime(model, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    kept.renew_ctimes(host.project.sandbox)  # a failing disk would not change the time stamps either
    assert host.check(settings).state == "ok"
    assert "content of 1 changed" in run_hash_check(host, ahead_s=90000)[0]
    record = [host.check(settings) for _ in range(2)][-1]
    assert (record.state, record.cure) == ("degraded", "deploy") and model.name in record.why
    assert host.project.run("models.verify", "--host", "sandbox").code == 2, "a deploy would download it"
    model.write_bytes(content)
    os.utime(model, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert host.project.run("models.verify", "--host", "sandbox").code == 0
    assert host.check(settings).seen == "ok"


def test_a_crash_loop_is_stopped_and_stays_recognized(host: CheckedHost) -> None:
    host.check()
    host.fault("crash-loop")
    host.until(lambda container: container["RestartCount"] > 3)
    record = host.check(later_s=60)
    assert (record.state, record.cure) == ("crash-looping", "person")
    container = host.container()
    assert (container["HostConfig"]["RestartPolicy"]["Name"], container["State"]["Status"]) == ("no", "exited")
    second = host.check(later_s=60)
    assert second.state == "crash-looping" and "stopped for a crash loop" in second.why
    assert (host.state.path / "incidents").is_dir()
    assert (acts(host.state)[0]["what"], acts(host.state)[0]["who"]) == ("stopped for a crash loop", "the health check")

    # it was restarted, and then stopped by hand
    host.state.write("verified", {**(host.state.read("verified") or {}), "since": time.time()})
    later = host.check(later_s=60)
    assert (later.state, "crash loop" in later.why) == ("down", False), later.why


def test_without_docker_or_a_verified_server_the_state_is_unknown(host: CheckedHost) -> None:
    record = host.check(context=host.context(docker_host="unix:///nonexistent/docker.sock"))
    assert (record.state, record.container.status) == ("unknown", "")
    assert "Docker Engine" in record.why and record.server.token == "made"
    host.state.remove("verified")
    assert host.check().why == "no server has been verified on this host"


def test_a_check_during_a_deploy_is_unknown_and_not_a_change(host: CheckedHost) -> None:
    host.check(scheduled=True)
    with hold_lock(host):
        record = host.check(scheduled=True)
    assert (record.state, record.server.token) == ("unknown", "") and "ops@laptop" in record.busy
    after = host.check(scheduled=True)
    assert (after.state, after.before) == ("ok", "ok")
    assert CheckHistory.load(host.state).notified == "ok"


def test_a_wedged_server_is_restarted_once_an_hour(host: CheckedHost) -> None:
    heals = replace(QUICK_SETTINGS, heal="restart")
    host.fault("wedge")
    assert "second check" in host.check(heals, scheduled=True).healed
    healed = host.check(heals, later_s=300, scheduled=True)
    assert healed.state == "ok", (healed.why, healed.healed)
    assert healed.healed.startswith("restarted (run ")
    host.fault("none")
    host.fault("wedge")
    second = [host.check(heals, later_s=300, scheduled=True) for _ in range(3)]
    assert {item.state for item in second} <= {"wedged", "stalled"} and "--heal-every ago" in second[-1].healed
    assert len(CheckHistory.load(host.state).heals) == 1


def test_the_command_reports_each_state_with_its_exit_code(host: CheckedHost) -> None:
    fine = host.project.run("health", "--host", "sandbox", "--json")
    assert (fine.code, fine.task("Check the server's health")["data"]["record"]["state"]) == (0, "ok")
    host.fault("hot")
    for _ in range(2):
        hot = host.project.run("health", "--host", "sandbox")
    assert hot.code == 2 and "degraded: GPU temperature 96 °C" in hot.out
    host.docker().stop("qwen35", timeout=1)
    down = host.project.run("health", "--host", "sandbox")
    assert down.code == 1 and "down: qwen35 was stopped by hand: exited (0)" in down.out
    refused = host.project.run("health.install", "--host", "sandbox")
    assert refused.code == 5 and "has no scheduler" in refused.out


def has_open_request(port: int) -> bool:
    """Return True if a connection of this process stays open: a wedged engine counts no requests in its metrics."""

    def list_connections() -> set[int]:
        connections = psutil.Process().net_connections("tcp4")
        return {item.laddr.port for item in connections if item.raddr and item.raddr.port == port}

    before = list_connections()
    time.sleep(0.3)
    return bool(before & list_connections())


def test_a_deploy_that_begins_during_a_check_is_not_a_fault(host: CheckedHost) -> None:
    host.fault("wedge")
    slow = replace(QUICK_SETTINGS, limits=Limits(token_s=5))
    with ThreadPoolExecutor(1) as pool:
        check = pool.submit(host.check, slow)
        wait_until(lambda: has_open_request(host.project.port), "the request of the check")
        with hold_lock(host):
            host.docker().kill("qwen35")
            record = check.result(timeout=20)
    assert record.state == "unknown" and "ops@laptop" in record.busy
