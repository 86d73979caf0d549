"""Healing: whether a restart is allowed, and the restart itself, as a plan made from the last good state.

It is the same safe restart as `invoke restart`: stop, see the memory come back, start, prove a token, give the policy back. It
holds the host's lock, and its run is kept like every other (`invoke runs`, `invoke history`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparkwright.health.damping import WELL
from sparkwright.health.judge import POWER
from sparkwright.health.record import Record
from sparkwright.health.remembered import Remembered
from sparkwright.health.settings import Settings
from sparkwright.host.module import Context
from sparkwright.host.records import good_states
from sparkwright.host.state import StateFolder
from sparkwright.protocol.plan import Block, Plan, Step, Task

#: looks in a row that must say that a restart helps
LOOKS = 2
#: restarts in a row that did not help; after them a person has to look
GIVES_UP = 2
WHO = "the health check"


@dataclass(frozen=True, slots=True)
class Decision:
    """why_not: empty when it may restart. said: for the record, when there is something to say about it."""

    why_not: str = ""
    said: str = ""


def decide(record: Record, remembered: Remembered, settings: Settings, now_s: float) -> Decision:
    """Whether a restart is allowed now. Pure."""
    for stops, said in _REASONS:
        if stops(record, remembered, settings, now_s):
            return Decision(said, said if record.cure in ("restart", "power") and settings.heal != "none" else "")
    return Decision()


Reason = Callable[[Record, Remembered, Settings, float], bool]

#: what forbids a restart, the first that holds
_REASONS: tuple[tuple[Reason, str], ...] = (
    (lambda record, past, given, now_s: given.heal == "none", "healing is off"),
    (lambda record, past, given, now_s: bool(record.busy), "somebody works on the host"),
    (lambda record, past, given, now_s: record.cure == "power", f"not restarted: {POWER}"),
    (lambda record, past, given, now_s: record.cure != "restart", "a restart would not help"),
    (lambda record, past, given, now_s: bool(record.drift), "not restarted: what runs is not the last good state"),
    (lambda record, past, given, now_s: past.cures < LOOKS, "not restarted yet: one look proves too little"),
    (lambda record, past, given, now_s: past.failed >= GIVES_UP, "not restarted: the last restarts did not help"),
    (
        lambda record, past, given, now_s: any(0 <= now_s - one < given.heal_every_s for one in past.heals),
        "not restarted: there was a restart a short while ago, and the budget is spent",
    ),
)


def restart(context: Context, settings: Settings, remembered: Remembered, now_s: float) -> str:
    """Restart the server as the last good state describes it. Returns how it ended, one sentence."""
    from sparkwright.host.machine import Machine
    from sparkwright.host.runs import journal
    from sparkwright.runner.main import play

    remembered.heals = [*(one for one in remembered.heals if 0 <= now_s - one < 86400), now_s]
    remembered.save(context.state)
    run_id = time.strftime("%Y%m%dT%H%M%S") + f"-h{os.getpid() % 4096:03x}"
    made = plan(good_states.last(context.state), run_id, settings.host or "this host")
    machine: Machine = context.machine
    secrets = dict(context.secrets)
    book = journal.Journal.begin(context.state, run_id, made.to_json(), tuple(one.reveal() for one in secrets.values()))
    play(made, machine, context.state, secrets, book)
    recap = journal.recap_of(book.folder) or {"exit": 1, "msg": "the run was cut off"}
    return f"restarted (run {run_id})" if recap["exit"] == 0 else f"the restart failed (run {run_id}): {recap['msg']}"


def remember_outcome(record: Record, remembered: Remembered, state: StateFolder) -> None:
    """A restart that did not help counts against the next."""
    remembered.failed = 0 if record.seen in WELL else remembered.failed + 1
    remembered.cures = 0
    remembered.save(state)


def plan(good: dict[str, Any], run_id: str, host: str) -> Plan:
    """The restart of what the last good state describes. Pure."""
    spec, serve, model = good["spec"], good.get("serve") or {}, good.get("model") or {}
    name, ready_s = spec["name"], serve.get("ready_s") or 900.0
    address = _url(spec)
    fits = {"utilization": serve["utilization"]} if serve.get("utilization") else {}
    measured = {**(good.get("measured") or {}), "ready_s": "{{ ready.ready_s }}"}
    steps: tuple[Step, ...] = (
        _task("Gather facts", "facts"),
        _task("Refuse what will not fit", "assert_memory_fits", name=name, **fits),
        Block(
            id="restart",
            name="Restart the server",
            tasks=(
                _task("Stop the server", "stopped", name=name, stop_timeout_s=serve.get("stop_timeout_s") or 60),
                _task("See that nothing of it is left", "wait_exited", name=name),
                _task("Wait until its memory is back", "wait_memory_released"),
                _task("Let the page cache of the model go", "page_cache", model_dir=model.get("dir") or ""),
                _task("See that the engine fits", "memory", **fits),
                _task("Start the server", "container", spec=spec),
                _wait("Wait until it is ready", name, address, ready_s),
                _task("Prove that it generates", "verify_health", base_url=address, model=serve.get("served_name", "")),
                Task(
                    id="grant",
                    name="Grant the restart policy",
                    module="grant_restart",
                    args={"spec": spec, "model": model, "serve": serve, "measured": measured, "what": "healed"},
                    open=("measured",),
                ),
            ),
            rescue=(
                _task("Wait for the Docker Engine", "docker_ready"),
                Task(
                    id="incident",
                    name="Keep what there is to know of the failure",
                    module="incident",
                    args={"name": name, "why": "{{ failed_result.msg }}"},
                    open=("why",),
                    ignore_errors=True,
                ),
                Task(
                    id="back",
                    name="See whether it was touched",
                    module="restore_previous",
                    args={"name": name},
                    register="back",
                ),
                Task(
                    id="again",
                    name="Start it once more",
                    module="started",
                    args={"name": name},
                    when=("back.put_back",),
                ),
                _wait("Wait until it is ready again", name, address, ready_s, when=("back.put_back",)),
                Task(
                    id="grant_restart_previous",
                    name="Give it its restart policy back",
                    module="grant_restart_previous",
                    args={"name": name, "restart": "{{ back.restart }}", "why": "{{ failed_result.msg }}"},
                    open=("restart", "why"),
                    when=("back.put_back",),
                ),
                Task(
                    id="end",
                    name="Say how it ended",
                    module="fail",
                    args={"msg": "{{ failed_result.msg }} Started once more, it answers."},
                    open=("msg",),
                ),
            ),
        ),
    )
    return Plan(run_id, host, "Heal", steps, playbook="heal", who=WHO, exclusive=True)


def _task(title: str, module: str, /, **args: Any) -> Task:
    return Task(id=module, name=title, module=module, args=args)


def _wait(name: str, container: str, address: str, ready_s: float, when: tuple[str, ...] = ()) -> Task:
    args = {"name": container, "base_url": address, "timeout_s": ready_s}
    register = "" if when else "ready"
    return Task(id=f"ready{len(when)}", name=name, module="wait_ready", args=args, register=register, when=when)


def _url(spec: dict[str, Any]) -> str:
    from sparkwright.health.probe import url_of_spec

    return url_of_spec(spec)
