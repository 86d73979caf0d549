"""The runner's entry point: a request from the laptop as one JSON line on standard input, events on standard output.

{"verb": "run", "plan": {...}, "env": {...}, "secrets": {...}}     start a run, detached, and follow it; with "restart": {...},
                                                                   keep that if it succeeds (see restart_plan.py)
{"verb": "attach", "run": "" | id}                                 follow a run again, from its first event
{"verb": "stop", "run": "" | id}                                   ask the current run to stop at a safe point
{"verb": "runs", "all": bool}                                      one `run` event for each kept run that may change something,
                                                                   or for all of them, newest first
{"verb": "health", "smoke": bool, "token_s": seconds}              check the server's health now
{"verb": "diagnose", "container": name, ...}                       diagnose its server, in one event (see records.py)
{"verb": "status", "container": name, "gateway": bool}             the host's status, in one event (see status.py)
{"verb": "checks", "since_s": seconds}                             its checks since then, in one event
{"verb": "history"}, {"verb": "incident", "run": "" | id}          the host's records (see records.py)
{"verb": "serving", "name": "" | container}                        ask a server here for a token
{"verb": "lock"}, {"verb": "unlock", "how": "stop" | "kill" | "forget", "run": id}
{"verb": "clean", "name": host}                                    remove sparkwright's own folders (see records.py)

On a host that serves several, each may have "server": container.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from sparkwright.errors import Refused, SparkwrightError
from sparkwright.host.machine import Machine
from sparkwright.host.runs import journal, lock
from sparkwright.host.runs.journal import Journal
from sparkwright.host.state import StateFolder
from sparkwright.protocol.events import Event, event, lines
from sparkwright.protocol.plan import Plan
from sparkwright.runner import request as requests
from sparkwright.runner import run
from sparkwright.secret import Secret
from sparkwright.trust import private
from sparkwright.trust.redact import Redactor
from sparkwright.trust.secret_names import PROXIES
from sparkwright.visible import one_line

Verb = Callable[[dict[str, Any], Machine, StateFolder], Iterator[Event]]


def main() -> int:
    """Answer one request. The exit code is only that of the exchange; the recap has the outcome of the run."""
    try:
        request = requests.read(sys.stdin.buffer)
    except Refused as refusal:
        return refuse(refusal)
    return answer(request)


def refuse(refusal: Refused) -> int:
    """Answer a request that can't be read."""
    _say([_refusal({}, refusal)], Redactor())
    return 0


def answer(request: dict[str, Any]) -> int:
    """Answer a request and return the exit code of `main`."""
    hidden = Redactor(request.get("secrets", {}).values())
    os.umask(os.umask(0o022) | 0o022)  # no other user may write to a run's files
    os.environ.update(request.get("env", {}))
    os.environ.update({name: value for name, value in request.get("secrets", {}).items() if name in PROXIES})
    os.environ["LC_ALL"] = "C"
    machine = Machine.here()
    try:
        state = StateFolder.of(machine.home)
        state.tighten()
        state.refuse_newer()
        private.close(machine.home / ".local/share/sparkwright")  # the runtime of this very process
        _say(_verb(request["verb"])(request, machine, state.of_server(request.get("server", ""))), hidden)
    except SparkwrightError as error:
        _say([_refusal(request, error)], hidden)
    except OSError as error:
        message = f"run not started: {StateFolder.of(machine.home).path}: {error.strerror}."
        _say([_refusal(request, SparkwrightError(message, fix="On the host: `df -h ~`."))], hidden)
    except Exception as error:
        traceback.print_exc()
        message = f"internal error on the host: {type(error).__name__}: {error}."
        _say([_refusal(request, SparkwrightError(message, fix="Please report it."))], hidden)
    return 0


def _verb(name: str) -> Verb:
    """Return the function of a verb. Raises Refused for an unknown one."""
    if name in _VERBS:
        return _VERBS[name]
    if name not in _SHORT:
        raise requests.unknown(name)
    module, _, function = _SHORT[name].rpartition(".")
    found: Verb = getattr(importlib.import_module(f"sparkwright.runner.{module}"), function)
    return found


def _say(events: Iterable[Event], hidden: Redactor) -> None:
    """Write events to the laptop. If it does not listen any more, the run continues without it."""
    out = sys.stdout.buffer
    try:
        for row in events:
            out.writelines(lines(row, hidden))
            out.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())


def _run(request: dict[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    try:
        plan = Plan.from_json(request.get("plan") or {})
    except (ValueError, TypeError, RecursionError) as error:
        raise Refused(f"invalid plan: {one_line(str(error), at_most=200)}.") from None
    state.note_format()
    secrets = {name: Secret(value) for name, value in request.get("secrets", {}).items()}
    book = Journal.begin(state, plan.run_id, request["plan"], tuple(s.reveal() for s in secrets.values()))
    bell, book.bell = os.pipe()
    os.set_blocking(book.bell, False)
    if os.fork() == 0:
        os.close(bell)
        _detach(book)
        try:
            run.play(plan, machine, state, secrets, book, request.get("restart"))
        finally:
            os._exit(0)
    os.close(book.bell)
    book.leave()
    return journal.follow(book.folder, bell)


def _detach(book: Journal) -> None:
    """Start a session of its own, without the laptop's pipes, so that the run outlives the connection."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(book.folder / "runner.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, private.FILE)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    sys.stdout = sys.stderr = _Log(book.hidden)


class _Log(io.TextIOBase):
    """The standard output of a run: goes to runner.log, secrets as dots.

    What a full disk refuses is lost, and the run continues.
    """

    def __init__(self, hidden: Redactor) -> None:
        self._hidden = hidden

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            os.write(1, self._hidden.text(text).encode(errors="replace"))
        return len(text)


def _attach(request: dict[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    return journal.follow(_find(state, request.get("run", "")))


def _stop(request: dict[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    folder = _find(state, request["run"]) if request.get("run") else _at_work(state)
    if journal.lives(folder):
        private.touch(folder / "stop")
        yield event("note", task="", text=f"run {folder.name} will stop at the next safe point")
    else:
        yield event("note", task="", text=f"run {folder.name} has already ended")


def _at_work(state: StateFolder) -> Path:
    """Return the run for a "stop" without an id: the one that holds the lock, or the only one in progress."""
    owner, alive = lock.inspect(state)
    living = journal.living(state)
    holding = [folder for folder in living if owner is not None and alive and folder.name == owner.run]
    if holding or len(living) == 1:
        return (holding or living)[0]
    if living:
        names = ", ".join(folder.name for folder in living)
        raise Refused(f"several runs in progress: {names}.", fix="Name one: `invoke stop --host HOST --run RUN`.")
    return _find(state, "")


def _runs(request: dict[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    for folder in state.runs():
        plan, recap = journal.plan_of(folder), journal.recap_of(folder)
        if journal.reads(plan) and not request.get("all"):
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


def _refusal(request: dict[str, Any], error: SparkwrightError) -> Event:
    return run.recap_of(str(request.get("plan", {}).get("host", "")), error)


_VERBS: dict[str, Verb] = {"run": _run, "attach": _attach, "stop": _stop, "runs": _runs}
#: the functions of the other verbs, in this folder: imported on use
_SHORT = {
    "checks": "status.read_checks",
    "clean": "records.clean",
    "diagnose": "records.read_diagnosis",
    "health": "health_check.check",
    "history": "records.read_history",
    "incident": "records.read_incident",
    "lock": "records.read_lock",
    "serving": "records.read_serving",
    "status": "status.read_status",
    "unlock": "records.unlock",
}


if __name__ == "__main__":
    # docker's SDK imports it if installed, for addresses with ssh://: half of its time. A host's runtime does not have it either
    sys.modules["paramiko"] = None  # type: ignore[assignment]
    sys.exit(main())
