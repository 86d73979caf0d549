"""Running a plan in this process with a journal of its events, and the requests that start, follow, stop and list runs."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sparkwright.errors import Exit, Refused, SparkwrightError
from sparkwright.host.machine import Machine
from sparkwright.host.records import good_states, restart_plans, turns
from sparkwright.host.runs import journal, lock
from sparkwright.host.runs.journal import Journal
from sparkwright.host.state import StateFolder
from sparkwright.protocol.events import SCHEMA, Event, event, recap_of_error
from sparkwright.protocol.plan import Plan
from sparkwright.runner.rendezvous import Rendezvous
from sparkwright.secret import Secret
from sparkwright.trust import bounds, private
from sparkwright.trust.names import STEP
from sparkwright.trust.redact import Redactor
from sparkwright.visible import one_line


def play(
    plan: Plan,
    machine: Machine,
    state: StateFolder,
    secrets: Mapping[str, Secret],
    book: Journal,
    restart: dict[str, Any] | None = None,
) -> None:
    """Run a plan in this process, writing its events to the journal, recap last. Never raises.

    Args:
        restart: the restart plan that came with it; empty if none could be made.
    """
    from sparkwright.host.memory import host_lost
    from sparkwright.host.runs.context import RunContext
    from sparkwright.runner.play import PlayRun

    def note(text: str) -> None:
        book.write(event("note", task="", text=text))

    def run(met: Rendezvous) -> Event:
        with met.channel() as channel:
            return PlayRun(plan, machine, own, secrets, book.write, book.stop_requested, channel).run()

    book.open()
    about = {name: getattr(plan, name) for name in ("host", "play", "playbook", "check", "who")}
    book.write(event("run_started", run=plan.run_id, **about, schema=SCHEMA, sandbox=machine.sandbox))
    started_s = time.monotonic()
    try:
        own = state.of_server(plan.server)
        met = Rendezvous(plan, secrets, note, book)
        if plan.exclusive and not plan.check:
            owner = lock.Owner(plan.playbook or plan.play, plan.who, plan.run_id, os.getpid(), time.time())
            held = lock.held(state, owner, host=plan.host, wait_s=met.lock_wait_s, note=note)
            with met.having(held) as before:
                if before is not None and journal.unfinished(state, before):
                    note(journal.story(state, before, plan.server))
                host_lost.settle(RunContext(machine, state, plan.run_id, book.write))
                own = good_states.settle_records(state, plan.server, _alone(plan))
                if plan.server and not plan.by_turns:
                    turns.forget(own, plan.server)
                recap = run(met)
        else:
            before, alive = lock.inspect(state) if plan.exclusive else (None, False)
            if before is not None and journal.unfinished(state, before):
                note(f"in progress there: {before}" if alive else journal.story(state, before, plan.server))
            with met.having(_undisturbing(plan, state, note)):
                recap = _beside(run(met), plan, state)
        if restart is not None and not plan.check and not recap["failed"]:
            keep_restart_plan(restart, own, book.hidden, note)
    except SparkwrightError as error:
        recap = recap_of(plan.host, error, time.monotonic() - started_s)
    except BaseException as error:
        traceback.print_exc()
        system = bounds.sentence(error)
        sentence = (
            system or f"internal error in the runner: {type(error).__name__}: {error} (see {book.folder}/runner.log)"
        )
        recap = recap_of(plan.host, SparkwrightError(sentence), time.monotonic() - started_s)
    book.write(recap)


def _alone(plan: Plan) -> str:
    """Return the container's name in the plan of a host's only server; empty if there is none."""
    name = (restart_plans.restarted_by(plan).get("spec") or {}).get("name")
    return name if isinstance(name, str) and STEP.fullmatch(name) else ""


@contextlib.contextmanager
def _undisturbing(plan: Plan, state: StateFolder, note: Callable[[str], None]) -> Iterator[None]:
    """For a plan that measures, wait until no run is in progress on the host, and keep other runs from measuring."""
    if not plan.measures:
        yield
        return
    lock.wait_free(state, host=plan.host, wait_s=plan.wait_s, note=note)
    with lock.alone(state, plan.run_id, plan.play, wait_s=plan.wait_s, note=note):
        yield


def _beside(recap: Event, plan: Plan, state: StateFolder) -> Event:
    """Return the recap of a measuring run, whose failure is inconclusive if another run has started on the host since."""
    owner, alive = lock.inspect(state) if plan.measures and recap["exit"] == Exit.FAILED else (None, False)
    if not alive:
        return recap
    message = f"inconclusive: another run started on {plan.host}: {owner}."
    return {**recap, "exit": int(Exit.INCONCLUSIVE), "msg": f"{message} ({recap['msg']})"}


def recap_of(host: str, error: SparkwrightError, seconds: float = 0.0) -> Event:
    """Return the recap for a run that ended with an error."""
    return recap_of_error(host, error, seconds, msg=f"{error.message} {error.fix}".strip())


def keep_restart_plan(given: dict[str, Any], state: StateFolder, hidden: Redactor, note: Callable[[str], None]) -> None:
    """Save the restart plan. Errors, and reasons why an installed check can't use it, are noted and never fail the run."""
    try:
        if given:
            restart_plans.keep(state, given, hidden)
        if _heals(state) and good_states.last(state):
            restart_plans.usable(state, _runtime_of_checks())
        if restart_plans.wake(state).get("on_request") and not turns.running(state):
            note(f"no request wakes {state.server} yet: {turns.STARTS}")
    except Refused as error:
        note(f"the health check will not restart this server: {error}")
    except OSError as error:
        note(f"the restart plan could not be kept: {error.strerror}")


def _runtime_of_checks() -> str:
    """Return the hash of the runtime that the installed checks use, if it is this one; otherwise empty."""
    from sparkwright import host_side
    from sparkwright.health import schedule

    here = schedule.runtime()
    return host_side.content_hash() if here is None or (here / schedule.MARK).exists() else ""


def _heals(state: StateFolder) -> bool:
    """Return True if a check that restarts is installed, without importing `Settings`, which would take 10 ms."""
    return (state.read("health-settings") or {}).get("heal") == "restart"


# Requests about runs.


def start(request: dict[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    """Start a detached run and return its events.

    In the request, `restart` is the restart plan to save if the run succeeds, see host/records/restart_plans.py; it is empty if
    none could be made.
    """
    try:
        plan = Plan.from_json(request["plan"])
    except (ValueError, TypeError, RecursionError) as error:
        raise Refused(f"invalid plan: {one_line(str(error), at_most=200)}.") from None
    state.note_format()
    secrets = {name: Secret(value) for name, value in request["secrets"].items()}
    book = Journal.begin(state, plan.run_id, request["plan"], tuple(s.reveal() for s in secrets.values()))
    bell, book.bell = os.pipe()
    os.set_blocking(book.bell, False)
    if os.fork() == 0:
        os.close(bell)
        _detach(book)
        try:
            play(plan, machine, state, secrets, book, request.get("restart"))
        finally:
            os._exit(0)
    os.close(book.bell)
    book.leave()
    return journal.follow(book.folder, bell)


def _detach(book: Journal) -> None:
    """Start a new session without the laptop's pipes, so that the run outlives the connection."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(book.folder / "runner.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, private.FILE)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    sys.stdout = sys.stderr = _Log(book.hidden)


class _Log(io.TextIOBase):
    """The standard output of a run, which is written to runner.log with secrets as dots.

    If the disk is full, output is lost and the run continues.
    """

    def __init__(self, hidden: Redactor) -> None:
        self._hidden = hidden

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            os.write(1, self._hidden.text(text).encode(errors="replace"))
        return len(text)


def attach(request: dict[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    """Return the events of the newest or the requested run, from the first one on."""
    return journal.follow(_find(state, request["run"]))


def stop(request: dict[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    """Ask the current run, or the requested one, to stop at a safe point."""
    folder = _find(state, request["run"]) if request["run"] else _at_work(state)
    if journal.lives(folder):
        private.touch(folder / "stop")
        yield event("note", task="", text=f"run {folder.name} will stop at the next safe point")
    else:
        yield event("note", task="", text=f"run {folder.name} has already ended")


def _at_work(state: StateFolder) -> Path:
    """Return the run to stop if no id is given: the one that holds the lock, or the only one in progress."""
    owner, alive = lock.inspect(state)
    living = journal.living(state)
    holding = [folder for folder in living if owner is not None and alive and folder.name == owner.run]
    if holding or len(living) == 1:
        return (holding or living)[0]
    if living:
        names = ", ".join(folder.name for folder in living)
        raise Refused(f"several runs in progress: {names}.", fix="Name one: `invoke stop --host HOST --run RUN`.")
    return _find(state, "")


def kept(request: dict[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    """Yield a `run` event for each recorded run that may change something, or for all of them, newest first."""
    for folder in state.runs():
        plan, recap = journal.plan_of(folder), journal.recap_of(folder)
        if journal.reads(plan) and not request["all"]:
            continue
        ended = "running" if journal.lives(folder) else "cut off" if recap is None else f"exit {recap.get('exit')}"
        yield event(
            "run", run=folder.name, play=plan.get("play"), who=plan.get("who"), check=plan.get("check"), state=ended
        )


def _find(state: StateFolder, run_id: str) -> Path:
    for folder in sorted(state.runs(), key=journal.lives, reverse=True):
        if run_id in ("", folder.name):
            return folder
    what = f"no run {run_id} on this host" if run_id else "no runs on this host yet"
    raise Refused(f"{what}.", fix="`invoke runs --host HOST` lists them.")
