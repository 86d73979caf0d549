from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

from sparkwright import defaults
from sparkwright.engines import http as roles
from sparkwright.engines import tasks
from sparkwright.engines.http import Http
from sparkwright.errors import Exit, Refused
from sparkwright.host.containers import containers, engine_of, ownership, server_key
from sparkwright.host.containers.status import status_of
from sparkwright.host.module import Context, Module
from sparkwright.host.records import good_states
from sparkwright.measure import server_metrics
from sparkwright.modules.proof.verify_health import VerifyHealth
from sparkwright.protocol.result import Change, Result, arg

POLL_S = 0.2
OTHERS_S = 2.0
#: verdicts of `verify_health` that another start would not change
LASTING = ("unauthorized", "wrong name")


class Liveness(Module["Liveness.Args"]):
    """Check that the server generates a token, or report that it needs a restart. Changes nothing.

    A container that does not run needs one at once; so does a server that answered in this very start and does not any more, one
    whose /health is fine and that generates nothing, and one that Docker started again meanwhile. A server that is starting is
    waited for, as long as its start may take: twice the last one that was measured, at least 30 s. Check mode does not wait. One
    that generates for others is alive, however long its queue: the run then ends with 4.

    Returns: silent (a restart is needed), serves (it gave a token), why, version. Fails when it answers and can't be asked: a key
    that is not known here, another served name. Refused for one that needs a restart and that sparkwright did not create.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        base_url: str = arg("the server, as http://127.0.0.1:8000")
        model: str = arg("the served name; empty: the first that the server names", default="")
        ready_s: float = arg("how long a start may take when none was measured, seconds", default=defaults.READY_S)
        timeout_s: float = arg("how long the token may take, seconds", default=defaults.TOKEN_S)

    def run(self, args: Args, context: Context) -> Result:
        result = self._judged(args, context)
        found = containers.inspect(context.docker(), args.name) if result.data.get("silent") else None
        if found is not None and not ownership.ours(context, found):
            fix = f"On the host: `docker restart {args.name}`, or `docker stop` and `docker rename` it."
            raise Refused(f"container {ownership.holder(context, found)}, and does not answer.", fix=fix)
        return result

    def _judged(self, args: Args, context: Context) -> Result:
        health = VerifyHealth.Args(base_url=args.base_url, model=args.model, tokens=1, timeout_s=args.timeout_s)
        start, starting = "", ""
        while True:
            found = containers.inspect(context.docker(), args.name) or {}
            if why := _not_running(args.name, found, start):
                return _silent(why)
            start, engine = str(found["State"]["StartedAt"]), engine_of.of_container(found)
            answer = VerifyHealth().ask(health, context, engine.http)
            if not answer.failed:
                return _serves(answer, waited=bool(starting))
            verdict = answer.data["verdict"]
            if verdict in LASTING or 400 <= answer.data.get("status", 0) < 500:
                return answer
            starting = _starting(found, args, context) if verdict == "loading" else ""
            if not starting and verdict == "wedged" and _generates(engine.http, args, context):
                within = f"no {tasks.noun(engine.http)} within {args.timeout_s:g} s"
                working = "works" if tasks.aside(engine.http) else "generates"
                return _unknown(f"{within} while the server {working} for other clients.")
            if not starting:
                return _silent(_looping(found) or answer.msg)
            if context.check:
                return _unknown(f"{args.name} is {starting}; `deploy` waits for it.")
            context.progress(0, text=starting)
            time.sleep(POLL_S)


def _not_running(name: str, found: dict[str, Any], start: str) -> str:
    """Return why no engine is running; empty if one is.

    start: the container's StartedAt at the previous inspect; empty at the first.
    """
    if not found:
        return f"there is no container {name}."
    state = found["State"]
    if state["Status"] != "running":
        return f"{name} {status_of(state['Status'])} (exit code {state['ExitCode']})."
    return f"{name} exited and was restarted." if start not in ("", state["StartedAt"]) else ""


def _looping(found: dict[str, Any]) -> str:
    """Return a message if Docker keeps restarting the container, which explains more than a missing answer; empty if it does
    not."""
    from sparkwright.health import snapshot
    from sparkwright.health.judging import restarts

    box, now_s = snapshot.container_of(found, ""), time.time()
    return f"{restarts.again(box, now_s)}." if restarts.loops(box, now_s) else ""


def _starting(found: dict[str, Any], args: Liveness.Args, context: Context) -> str:
    """Return the progress of the start in words; empty if the server was ready before, is in a restart loop or takes too long."""
    from sparkwright.health import current_state, snapshot
    from sparkwright.health.judging import restarts
    from sparkwright.health.schedule.settings import Settings

    good = good_states.last(context.state)
    good = good if good.get("container_id") == found["Id"] else {}
    box = snapshot.container_of(found, "")
    if snapshot.ready_since(box, good) or restarts.loops(box, time.time()):
        return ""
    started_s = box.started_s or 0.0
    limits = dataclasses.replace(Settings.of(context.state).limits, ready_s=args.ready_s)
    runs_s, most_s = time.time() - started_s, current_state.allowed_s(good, limits)
    return f"starting for {runs_s:.0f} s (up to {most_s:.0f} s)" if runs_s <= most_s else ""


def _generates(http: Http, args: Liveness.Args, context: Context) -> bool:
    """Return True if the server generates tokens for other clients while it sent us none."""
    key = server_key.for_probe(context, args.base_url, VerifyHealth.Args(args.base_url).api_key_secret)
    before = server_metrics.read(http, args.base_url, key)[0].get(roles.HEARTBEAT)
    until_s = time.monotonic() + OTHERS_S
    while before is not None and time.monotonic() < until_s:
        time.sleep(POLL_S)
        now = server_metrics.read(http, args.base_url, key)[0].get(roles.HEARTBEAT)
        if now is not None and now > before:
            return True
    return False


def _serves(answer: Result, *, waited: bool) -> Result:
    data = {"silent": False, "serves": True, "why": "", "version": answer.data["version"]}
    return Result(msg=f"{answer.msg}, once it had started" if waited else answer.msg, data=data)


def _silent(why: str) -> Result:
    change = Change("server", "does not answer", "restarted", why)
    msg = f"the server does not answer and will be restarted: {why.rstrip('.')}"
    return Result(msg=msg, diff=[change], data={"silent": True, "serves": False, "why": why})


def _unknown(why: str) -> Result:
    return Result(msg=why, exit=Exit.INCONCLUSIVE, data={"silent": False, "serves": False, "why": why})
