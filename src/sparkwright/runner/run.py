"""Run a plan with a journal of its events, and answer the requests that start, follow, stop and list runs."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from sparkwright.errors import Exit, Refused, SparkwrightError
from sparkwright.host.machine import Machine
from sparkwright.host.records import restart_plans, turns, verified_states
from sparkwright.host.runs import journal, lock
from sparkwright.host.runs.journal import Journal
from sparkwright.host.state import StateFolder
from sparkwright.protocol.events import SCHEMA, Event, build_error_recap, event
from sparkwright.protocol.plan import Plan, tasks_of
from sparkwright.runner.rendezvous import Rendezvous
from sparkwright.secret import Secret
from sparkwright.trust import bounds, private
from sparkwright.trust.names import PATH_COMPONENT
from sparkwright.trust.redact import Redactor
from sparkwright.visible import one_line


def execute_plan(
    plan: Plan,
    machine: Machine,
    state: StateFolder,
    secrets: Mapping[str, Secret],
    run_journal: Journal,
    restart_plan: dict[str, Any] | None = None,
) -> None:
    """Run a plan in this process, writing its events to the journal, the recap last. Never raises.

    Args:
        restart_plan: the restart plan to save if the run succeeds; empty if it could not be made, None if it was not sent.
    """
    from sparkwright.runner.play import PlayRun

    def note(text: str) -> None:
        run_journal.write(event("note", task="", text=text))

    def write(row: Event) -> None:
        if row["event"] == "task_finished" and row["status"] in ("changed", "failed"):
            acting_tasks.add(row["task"])
        run_journal.write(row)

    acting_tasks: set[str] = set()

    run_journal.open()
    fields = {name: getattr(plan, name) for name in ("host", "play", "playbook", "check", "who")}
    run_journal.write(event("run_started", run=plan.run_id, **fields, schema=SCHEMA, sandbox=machine.sandbox))
    started_s = time.monotonic()
    try:
        rendezvous = Rendezvous(plan, secrets, note, run_journal)
        with (
            _hold_host(plan, machine, state, rendezvous, run_journal, note) as server_state,
            rendezvous.channel() as channel,
        ):
            play_run = PlayRun(plan, machine, server_state, secrets, write, run_journal.stop_requested, channel)
            recap = _mark_inconclusive(play_run.run(), plan, state)
        if restart_plan is not None and not plan.check and not recap["failed"]:
            save_restart_plan(restart_plan, server_state, run_journal.redactor, note)
    except SparkwrightError as error:
        recap = build_recap(plan.host, error, time.monotonic() - started_s)
    except BaseException as error:
        traceback.print_exc()
        details = f"{type(error).__name__}: {error} (see {run_journal.folder}/runner.log)"
        message = bounds.describe_os_error(error) or f"internal error in the runner: {details}"
        recap = build_recap(plan.host, SparkwrightError(message), time.monotonic() - started_s)
    run_journal.write(recap)
    _release_peers(plan, acting_tasks, secrets)


@contextlib.contextmanager
def _hold_host(
    plan: Plan,
    machine: Machine,
    state: StateFolder,
    rendezvous: Rendezvous,
    run_journal: Journal,
    note: Callable[[str], None],
) -> Iterator[StateFolder]:
    """Hold the host's lock for a run that changes the host, otherwise note which run does; yield the server's state folder."""
    from sparkwright.host.memory import host_outage
    from sparkwright.host.runs.context import RunContext

    def describe_interruption(owner: lock.LockOwner) -> str:
        return journal.describe_interruption(state, owner, plan.server, plan.playbook)

    if not plan.holds_lock:
        other_owner, is_alive = lock.inspect(state) if plan.exclusive else (None, False)
        if other_owner is not None and journal.is_unfinished(state, other_owner):
            note(f"in progress there: {other_owner}" if is_alive else describe_interruption(other_owner))
        with rendezvous.hold_or_report(_exclude_other_runs(plan, state, note)):
            yield state.for_server(plan.server)
        return
    owner = lock.LockOwner(plan.playbook or plan.play, plan.who, plan.run_id, os.getpid(), time.time())
    host_lock = lock.acquire(state, owner, host=plan.host, wait_s=rendezvous.lock_wait_s, note=note)
    with rendezvous.hold_or_report(host_lock) as previous_owner:
        if previous_owner is not None and journal.is_unfinished(state, previous_owner):
            note(describe_interruption(previous_owner))
        host_outage.record_outages(RunContext(machine, state, plan.run_id, run_journal.write))
        server_state = verified_states.resolve_records(state, plan.server, _sole_container_name(plan))
        if plan.server and not plan.by_turns:
            turns.remove_server(server_state, plan.server)
        yield server_state


def _release_peers(plan: Plan, acting_tasks: Set[str], secrets: Mapping[str, Secret]) -> None:
    """Tell the hosts that serve a model for this run that it copies nothing. Never raises.

    Args:
        acting_tasks: the tasks that changed something or failed; a copy among them has told its host.
    """
    for task in tasks_of(plan.steps):
        urls = task.args.get("peer") if task.module == "hf_model" and task.id not in acting_tasks else None
        if urls and isinstance(urls, list):
            from sparkwright.host import peers
            from sparkwright.host.models import peer

            with contextlib.suppress(SparkwrightError):
                peers.report_done(urls, peer.copy_token(secrets))


def _sole_container_name(plan: Plan) -> str:
    """Return the container's name in the plan of a host's only server; empty if there is none."""
    name = (restart_plans.restarted_state(plan).get("spec") or {}).get("name")
    return name if isinstance(name, str) and PATH_COMPONENT.fullmatch(name) else ""


@contextlib.contextmanager
def _exclude_other_runs(plan: Plan, state: StateFolder, note: Callable[[str], None]) -> Iterator[None]:
    """For a plan that measures, wait until the host's lock is free, and hold the measurement lock."""
    if not plan.measures:
        yield
        return
    lock.wait_for_release(state, host=plan.host, wait_s=plan.wait_s, note=note)
    with lock.acquire_measurement(state, plan.run_id, plan.play, wait_s=plan.wait_s, note=note):
        yield


def _mark_inconclusive(recap: Event, plan: Plan, state: StateFolder) -> Event:
    """Return the recap, marked as inconclusive if a measuring run failed while another run held the host's lock."""
    if plan.holds_lock or not plan.measures or recap["exit"] != Exit.FAILED:
        return recap
    owner, is_alive = lock.inspect(state)
    if not is_alive:
        return recap
    message = f"inconclusive: another run started on {plan.host}: {owner}."
    return {**recap, "exit": int(Exit.INCONCLUSIVE), "msg": f"{message} ({recap['msg']})"}


def build_recap(host: str, error: SparkwrightError, seconds: float = 0.0) -> Event:
    """Return the recap for a run that ended with an error."""
    return build_error_recap(host, error, seconds, msg=f"{error.message} {error.fix}".strip())


def save_restart_plan(
    restart_plan: dict[str, Any], state: StateFolder, redactor: Redactor, note: Callable[[str], None]
) -> None:
    """Save the restart plan, and note errors and reasons why an installed check can't use it. Never raises for them."""
    try:
        if restart_plan:
            restart_plans.save(state, restart_plan, redactor)
        if _is_healing_installed(state) and verified_states.load_last(state):
            restart_plans.load_usable(state, _runtime_of_checks())
        if restart_plans.read_wake(state).get("on_request") and not turns.is_service_running(state):
            note(f"no request wakes {state.server} yet: {turns.START_FIX}")
    except Refused as error:
        note(f"the health check will not restart this server: {error}")
    except OSError as error:
        note(f"cannot save the restart plan: {error.strerror}")


def _runtime_of_checks() -> str:
    """Return the hash of this runtime if the installed checks use it; otherwise empty."""
    from sparkwright import host_side
    from sparkwright.health import schedule

    runtime = schedule.find_runtime()
    return host_side.content_hash() if runtime is None or (runtime / schedule.IN_USE_MARK).exists() else ""


def _is_healing_installed(state: StateFolder) -> bool:
    # without importing `Settings`, which would take 10 ms
    return (state.read("health-settings") or {}).get("heal") == "restart"


# Requests about runs.


def start(request: dict[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    """Start a detached run and return its events.

    In the request, `restart` is the restart plan, see `execute_plan` and host/records/restart_plans.py.
    """
    try:
        plan = Plan.from_json(request["plan"])
    except (ValueError, TypeError, RecursionError) as error:
        raise Refused(f"invalid plan: {one_line(str(error), max_chars=200)}.") from None
    state.write_format()
    secrets = {name: Secret(value) for name, value in request["secrets"].items()}
    run_journal = Journal.begin(state, plan.run_id, request["plan"], tuple(request["secrets"].values()))
    wake_read_fd, run_journal.wake_write_fd = os.pipe()
    os.set_blocking(run_journal.wake_write_fd, False)
    if os.fork() == 0:
        os.close(wake_read_fd)
        _detach(run_journal)
        try:
            execute_plan(plan, machine, state, secrets, run_journal, request.get("restart"))
        finally:
            os._exit(0)
    os.close(run_journal.wake_write_fd)
    run_journal.release_lock()
    return journal.follow(run_journal.folder, wake_read_fd)


def _detach(run_journal: Journal) -> None:
    """Start a new session without the laptop's pipes, so that the run outlives the connection."""
    os.setsid()
    null_fd = os.open(os.devnull, os.O_RDONLY)
    log_fd = os.open(run_journal.folder / "runner.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, private.FILE_MODE)
    for source, target in ((null_fd, 0), (log_fd, 1), (log_fd, 2)):
        os.dup2(source, target)
    sys.stdout = sys.stderr = _RedactedLog(run_journal.redactor)


class _RedactedLog(io.TextIOBase):
    """The standard output of a run, written to runner.log with secrets masked.

    If the disk is full, output is lost and the run continues.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            os.write(1, self._redactor.redact_text(text).encode(errors="replace"))
        return len(text)


def attach(request: dict[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    """Yield the events of the newest or the requested run; for a measurement, also a note about its results."""
    folder = _find_run(state, request)
    is_bench = journal.command_of(str(journal.read_plan(folder).get("playbook", ""))) == journal.EXPERIMENT_COMMAND
    for run_event in journal.follow(folder):
        if is_bench and run_event["event"] == "recap":
            text = "the results stay on this host: the same `bench` command, run again, fetches them."
            yield event("note", task="", text=text)
        yield run_event


def stop(request: dict[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    """Make the current run or the requested one stop at the next safe point."""
    folder = _find_run(state, request) if request["run"] else _find_run_in_progress(state, request)
    if journal.is_running(folder):
        private.touch(folder / "stop")
        yield event("note", task="", text=f"run {folder.name} will stop at the next safe point")
    else:
        yield event("note", task="", text=f"run {folder.name} has already ended")


def _find_run_in_progress(state: StateFolder, request: dict[str, Any]) -> Path:
    """Return the run to stop if the request has no id: the one that holds the lock, or the only one in progress.

    Without a run in progress, return the newest one, to report that it has ended. Raises Refused if several are in progress.
    """
    owner, is_alive = lock.inspect(state)
    running_folders = journal.list_running(state)
    lock_holders = [folder for folder in running_folders if owner is not None and is_alive and folder.name == owner.run]
    if lock_holders or len(running_folders) == 1:
        return (lock_holders or running_folders)[0]
    if running_folders:
        names = ", ".join(folder.name for folder in running_folders)
        fix = f"Name one: `invoke stop --host {request['host'] or 'HOST'} --run RUN`."
        raise Refused(f"several runs in progress: {names}.", fix=fix)
    return _find_run(state, request)


def list_runs(request: dict[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    """Yield a `run` event for each recorded run that may change something, or for all of them, newest first."""
    is_empty = True
    for folder in state.runs():
        plan, recap = journal.read_plan(folder), journal.read_recap(folder)
        if journal.is_read_only(plan) and not request["all"]:
            continue
        is_empty = False
        outcome = "cut off" if recap is None else f"exit {recap.get('exit')}"
        fields = {name: plan.get(name) for name in ("play", "who", "check")}
        yield event("run", run=folder.name, **fields, state="running" if journal.is_running(folder) else outcome)
    if is_empty:
        yield event(
            "note", task="", text="no runs yet" if request["all"] else "no runs that may have changed this host yet"
        )


def _find_run(state: StateFolder, request: dict[str, Any]) -> Path:
    """Return the folder of the requested run; without an id, that of the newest run in progress, or else of the newest run."""
    run_id = request["run"]
    for folder in sorted(state.runs(), key=journal.is_running, reverse=True):
        if run_id in ("", folder.name):
            return folder
    if not run_id:
        raise Refused("no runs on this host yet.")
    raise Refused(f"no run {run_id} on this host.", fix=f"`invoke runs --host {request['host'] or 'HOST'}` lists them.")
