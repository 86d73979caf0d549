"""Damaged files in a host's state folder are treated as missing, without a traceback."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import pytest

from sparkwright import host_side
from sparkwright.health import heal, probe, settings, store
from sparkwright.health.judging.observation import Limits
from sparkwright.health.record import Evidence, Record
from sparkwright.health.store import CheckHistory
from sparkwright.host.containers import crash_loop
from sparkwright.host.memory import holders
from sparkwright.host.models.manifest import Manifest
from sparkwright.host.records import baselines, restart_plans, verified_states
from sparkwright.host.records.baselines import Baselines
from sparkwright.host.records.verified_states import VerifiedState
from sparkwright.host.runs import journal, lock
from sparkwright.host.state import StateFolder
from sparkwright.measure import reference
from sparkwright.modules.server import stop
from sparkwright.modules.server.records import LastGood
from sparkwright.protocol.container import ContainerSpec
from sparkwright.protocol.plan import Plan, Task
from sparkwright.runner import records, run, status
from tests.fuzz.harness import damaged_texts, damaged_values, feed
from tests.modules.context import RecordingContext

GOOD: dict[str, Any] = {
    "spec": ContainerSpec("qwen35", "vllm/vllm-openai:v0.11@sha256:" + "0" * 64, ports=("8000:8000",)).to_json(),
    "model": {"id": "Qwen/Qwen3", "commit": "c" * 40, "dir": "~/m", "files": [{"path": "a", "size_bytes": 1}]},
    "serve": {"served_name": "qwen", "utilization": 0.8, "ready_s": 300.0, "tok_per_s": 30, "stop_timeout_s": 60},
    "measured": {"ready_s": 212.5, "tok_per_s": 31.4}, "held_bytes": 10**11, "container_id": "abc", "restart_count": 0,
    "run": "run-1", "since": 1_795_000_000.0,
}  # fmt: skip
CHECK = Record(
    *(1_795_000_000.0, "ok", "ok", 1_794_000_000.0), why="it generates", evidence=(Evidence("token", "ok", "made"),)
).to_json()
CHECK_HISTORY = {
    "seen": ["ok", "down"], "state": "ok", "since_s": 1.0, "cures": 0, "answered": "abc 1", "told": "ok", "failed": 0,
    "counted": {"time_s": 1.0, "start": "abc 1.0", "running": 0.0, "token": "made", "generated": 5.0},
    "broken": {"id": "abc", "why": "x"}, "heals": [1.0], "speed": {"tok_per_s": 30.0, "measured_s": 1.0},
}  # fmt: skip
REFERENCE = {
    "prompts": 1, "since": 1.0, "key": {"model": "m"},
    "texts": [{"text": f"one, two{n}", "steps": [[["one", -0.1], [f"two{n}", -0.7]]]} for n in range(3)],
}  # fmt: skip
BASELINE = {
    "tok_per_s": {"count": 30.0}, "deviation": 0.01, "runs": 5, "clock_mhz": None, "key": {"model": "m"}, "about": {},
}  # fmt: skip
GRANT = Task("t1", "Grant", "grant_restart", {"spec": GOOD["spec"], "model": GOOD["model"]})
RESTART_PLAN = {"runtime": host_side.content_hash(), "plan": Plan("restart", "spark1", "Restart", (GRANT,)).to_json()}
EVENTS = [
    {"event": "run_started", "time": 1.0, "run": "run-1"},
    {"event": "task_started", "time": 1.0, "task": "1", "name": "Gather facts"},
    {"event": "recap", "time": 2.0, "host": "spark1", "exit": 0, "msg": ""},
]


@pytest.fixture
def context(tmp_path: Path) -> RecordingContext:
    recording = RecordingContext(tmp_path)
    recording.state.path.mkdir(parents=True)
    return recording


def read_verified_states(context: RecordingContext) -> None:
    good = verified_states.load_last(context.state)
    verified_states.load_earlier(context.state)
    context.docker = _NoContainers  # type: ignore[assignment, method-assign]
    LastGood().run(LastGood.Args(name="qwen35"), context)
    holders.recorded_bytes(context, "abc")
    stop._describe_cost(1, context, "")
    crash_loop._read_samples({"Id": "abc"}, context)
    prober = probe.Prober(context, CheckHistory(), Limits())
    assert isinstance(prober.serves.served_name, str)
    if good:
        if good.spec.get("image"):
            ContainerSpec.from_json(good.spec)
        verified_states.save_verified(context.state, good)


def read_restart_plan(context: RecordingContext) -> None:
    context.state.write("verified", GOOD)
    wedged = Record(time_s=1.0, state="wedged", seen="wedged", since_s=1.0, cure="restart")
    decision = heal.decide_restart(wedged, CheckHistory(cures=2), settings.Settings(heal="restart"), context.state, 2e9)
    assert decision.message or (decision.plan is not None and Plan.from_json(decision.plan.to_json()))


class _NoContainers:
    """A Docker Engine without containers."""

    api = property(lambda self: self)

    def inspect_container(self, name: str) -> Any:
        raise docker.errors.NotFound("none")

    def containers(self, **options: Any) -> list[dict[str, Any]]:
        return []


def read_check_history(context: RecordingContext) -> None:
    history = CheckHistory.load(context.state)
    history.last_speed  # noqa: B018
    history.save(context.state)
    CheckHistory.load(context.state)
    probe.Prober(context, history, Limits())


def read_checks(context: RecordingContext) -> None:
    latest = store.load_latest(context.state.path)
    if latest is not None:
        assert latest.is_overdue(2e9) in (True, False)
        json.dumps(latest.to_json(), allow_nan=False).encode()
    for row in status.read_checks({"since_s": 0}, context.machine, context.state):
        json.dumps(row, allow_nan=False).encode()


def read_lock(context: RecordingContext) -> None:
    owner, alive = lock.inspect(context.state)
    assert not alive
    if owner is not None:
        assert str(owner)
        journal.describe_interruption(context.state, owner)
        assert (context.state.path / "runs" / owner.run).resolve().is_relative_to(context.state.path.resolve())


def read_runs(context: RecordingContext) -> None:
    list(run.list_runs({"all": False}, context.machine, context.state))
    for folder in context.state.runs():
        journal.read_recap(folder)
        journal.read_last_task(context.state, folder.name)
        assert list(journal.follow(folder))[-1]["event"] == "recap"


def read_history(context: RecordingContext) -> None:
    for row in records.read_history({}, context.machine, context.state):
        assert row["event"] == "history"


def read_baselines(context: RecordingContext) -> None:
    stored = Baselines(context.state)
    for key in ({"model": "m"}, {"model": "m", "host": "h"}):
        for baseline in (stored.read(key), getattr(stored.find_nearest(key), "baseline", None)):
            assert baseline is None or (baseline.median > 0 and baseline.tolerance > 0)


def read_references(context: RecordingContext) -> None:
    stored = baselines.read_reference(context.state, {"model": "m"})
    if stored is not None:
        _, differences = reference.compare_texts(stored.texts, stored.texts[::-1])
        assert all(difference.sentence for difference in differences)


def read_manifests(context: RecordingContext) -> None:
    for item in Manifest.load_all(context.state):
        item.is_complete(), item.changed_files(), item.commit, item.entries()
        item.save()


def read_settings(context: RecordingContext) -> None:
    stored = settings.Settings.load(context.state)
    assert stored.every_s >= 0
    json.dumps(stored.to_json())


#: the file, an example of its content, and its reader
FILES: dict[str, tuple[str, Any, Callable[[RecordingContext], None]]] = {
    "verified": ("verified.json", GOOD, read_verified_states),
    "verified before": ("verified_before.json", {"states": [GOOD]}, read_verified_states),
    "restart plan": (f"{restart_plans.FOLDER}/{restart_plans.state_hash(VerifiedState.from_json(GOOD))}.json", RESTART_PLAN, read_restart_plan),
    "previous": ("previous.json", {"id": "abc", "name": "q", "policy": "no", "running": True, "run": "run-1"}, read_lock),
    "restarts": ("restarts.json", {"id": "abc", "seen": [[1.0, 2]]}, read_verified_states),
    "stopping": ("stopping.json", {"id": "abc", "available_bytes": 1, "since": 1.0, "held_bytes": None}, read_verified_states),
    "remembered": ("health-remembered.json", CHECK_HISTORY, read_check_history),
    "settings": ("health-settings.json", settings.Settings().to_json(), read_settings),
    "latest check": ("health.json", CHECK, read_checks),
    "checks": ("health.jsonl", CHECK, read_checks),
    "lock": ("lock", dataclasses.asdict(lock.LockOwner("deploy", "ann@desk", "run-1", 7, 1_795_000_000.0)), read_lock),
    "plan": ("runs/run-1/plan.json", {"host": "spark1", "play": "Deploy", "who": "ann@desk", "check": False}, read_runs),
    "events": ("runs/run-1/events.jsonl", EVENTS, read_runs),
    "history": ("history.jsonl", {"time": 1.0, "run": "run-1", "who": "ann", "what": "verified"}, read_history),
    "baseline": (f"{baselines.record_name(baselines.FOLDER, {'model': 'm'})}.json", BASELINE, read_baselines),
    "reference": (f"{baselines.record_name(baselines.REFERENCES_FOLDER, {'model': 'm'})}.json", REFERENCE, read_references),
    "model": ("model-0123.json", {"folder": "/m", "files": {"a": [1, 2, 3, "x"]}, "indexes": {}, "about": {"paths": ["a"]}}, read_manifests),
}  # fmt: skip


def write_state_file(context: RecordingContext, name: str, data: bytes) -> None:
    """Write a file into an empty state folder. A file of a run gets the other files of that run."""
    shutil.rmtree(context.state.path)
    path = context.state.path / name
    path.parent.mkdir(parents=True)
    if name.startswith("runs/"):
        for other in ("plan.json", "events.jsonl"):
            (path.parent / other).write_bytes(b"{}\n")
    path.write_bytes(data)


def encode_rows(value: Any) -> bytes:
    rows = value if isinstance(value, list) else [value]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.mark.parametrize("name", FILES)
def test_damaged_state_file(name: str, context: RecordingContext) -> None:
    path, example, read = FILES[name]

    def write_and_read(data: bytes) -> None:
        write_state_file(context, path, data)
        read(context)

    feed(write_and_read, damaged_texts([encode_rows(example)]))
    feed(lambda value: write_and_read(encode_rows(value)), damaged_values([example]))


def test_a_damaged_part_of_a_state_is_reported_and_the_rest_is_used(
    context: RecordingContext, capfd: pytest.CaptureFixture[str]
) -> None:
    context.state.write("verified", {**GOOD, "measured": "fast"})
    good = verified_states.load_last(context.state)
    assert (good.spec["name"], good.measured) == ("qwen35", {})
    assert "verified.json is damaged, ignoring it" in capfd.readouterr().err
    context.state.write("verified", {**GOOD, "spec": {**GOOD["spec"], "ports": 8000}})
    assert verified_states.load_last(context.state) == VerifiedState(), "a state with a damaged container was used"


def test_a_valid_state_is_read_without_a_warning(context: RecordingContext, capfd: pytest.CaptureFixture[str]) -> None:
    for path, example, _ in FILES.values():
        if path.endswith(".json") and not path.startswith("runs"):
            write_state_file(context, path, encode_rows(example))
            assert StateFolder(context.state.path).read(path.removesuffix(".json")) == json.loads(encode_rows(example))
    assert capfd.readouterr().err == ""
