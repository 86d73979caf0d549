"""Modules that start a server and wait until it is ready."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from sparkwright import defaults
from sparkwright.engines.log.log_format import LogFormat
from sparkwright.engines.log.reader import EngineState, read_log
from sparkwright.errors import Failed, SparkwrightError
from sparkwright.host.containers import (
    compile_caches,
    container_labels,
    containers,
    lifecycle,
    log_reader,
    mount_sources,
    replacement,
    server_key,
)
from sparkwright.host.containers.crash_loop import (
    MAX_RESTARTS,
    WINDOW_S,
    find_stop_reason_and_record_sample,
    stop_crash_loop,
)
from sparkwright.host.containers.running_server import RunningContainer
from sparkwright.host.memory import holders, host_outage
from sparkwright.host.memory.start_guard import configuration_key
from sparkwright.host.module import Context, Module, StateModule
from sparkwright.host.records import history, stopped_server, turns, verified_states
from sparkwright.measure import http_probe
from sparkwright.protocol.result import Change, Result, arg
from sparkwright.visible import format_count

POLL_S = 0.2
MAX_EVIDENCE_LINES = 8

#: verdicts of `smoke_test` that a stale compile cache may cause
SLOW_VERDICTS = ("regression", "misconfigured")


class Started(StateModule["Started.Args", dict[str, Any]]):
    """Start an existing container and set its restart policy, without comparing it with a recipe.

    Returns: id. Fails if it does not exist, if the Docker Engine cannot start it (with the reason, and the program that uses
    its port), or if the host went down during an earlier start of it, unless `--anyway` is given.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        restart: str = arg("the restart policy to set", default="no")

    def read(self, args: Args, context: Context) -> dict[str, Any]:
        return replacement.find_current(context, args.name)

    def differences(self, args: Args, observed: dict[str, Any]) -> list[Change]:
        if not observed:
            return [Change("state", None, "running")]
        state, policy = observed["State"], observed["HostConfig"]["RestartPolicy"]["Name"]
        changes = [] if state["Running"] else [Change("state", state["Status"], "running")]
        return [*changes, Change("restart", policy, args.restart)] if policy != args.restart else changes

    def describe(self, args: Args, observed: dict[str, Any]) -> dict[str, Any]:
        return {"id": observed.get("Id", "")}

    def act(self, args: Args, observed: dict[str, Any], changes: list[Change], context: Context) -> dict[str, Any]:
        if not observed:
            raise Failed(f"there is no container {args.name}.")
        turns.require_awake(context.state)
        if not observed["State"]["Running"]:
            spec = verified_states.find_spec(context.state, observed["Id"])
            host_outage.refuse_forbidden(
                context, host_outage.forbidden_reason(context.state, spec, observed["Id"]), Failed
            )
            held_bytes = holders.recorded_bytes(context, observed["Id"])
            context.guards.expect(context.machine.meminfo()["MemAvailable"] - held_bytes if held_bytes else None)
            start_guarded(context, observed["Id"], configuration_key(spec) if spec else "")
            _record_start(context, observed["Id"])
        lifecycle.set_policy(context, observed, mount_sources.restart_policy(observed, args.restart))
        return {}


def _record_start(context: Context, container_id: str) -> None:
    """Record that a stopped server was started again, so that a later exit is not attributed to the run that stopped it."""
    stop_record = stopped_server.load(context.state)
    if stop_record.get("id") == container_id:
        stopped_server.save(context.state, {**stop_record, "started": True})


def start_guarded(context: Context, container_id: str, key: str) -> None:
    """Start a stopped container with its compile cache, under the memory guard; the guard ends if the start fails.

    Args:
        key: see `start_guard.configuration_key`; empty if unknown.

    Raises:
        Failed: The Docker Engine cannot start it; the message has the reason, or the program that uses the port.
    """
    from docker.errors import APIError

    client = context.docker()
    container = containers.inspect(client, container_id)
    if container is None:
        raise Failed(f"container {container_id[:12]} is gone.")
    bindings = container["HostConfig"].get("PortBindings") or {}
    ports = tuple(f"{row['HostPort']}:0" for rows in bindings.values() for row in rows or ())
    try:
        compile_caches.prepare_start(context, container)
        server_key.update_link(context.state, container)
        context.guards.begin(context.machine, context.state, context.run_id, container, key=key)
        lifecycle.start(context, container_id)
    except (APIError, SparkwrightError, OSError) as error:
        context.guards.end()
        if isinstance(error, APIError):
            raise containers.build_start_error(error, client, ports) from None
        raise
    context.guards.set_process(containers.inspect(client, container_id) or {})


class WaitReady(Module["WaitReady.Args"]):
    """Wait until the server answers /health, and meanwhile report the stages of its start from its log.

    Fails at once, with the reason from the engine's log, if the container exits (even with code 0) or restarts, or if another
    member of its cluster has failed. Also fails after timeout_s. The last lines of the log are returned as evidence.

    Returns: ready_s (from the container's start), waited_s.
    """

    valid_in_check_mode = False

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        base_url: str = arg("the server's URL, such as http://127.0.0.1:8000")
        timeout_s: float = arg("how long a start may take, seconds", default=defaults.READY_TIMEOUT_S)

    def run(self, args: Args, context: Context) -> Result:
        client, container = context.docker(), replacement.find_current(context, args.name)
        if not container:
            raise Failed(f"there is no container {args.name}.")
        args = replace(args, name=containers.name_of(container))
        engine = container_labels.engine_of_container(container)
        restart_count, started_s = container["RestartCount"], time.monotonic()
        while True:
            current = containers.inspect(client, args.name)
            if current is None or not current["State"]["Running"] or current["RestartCount"] != restart_count:
                return self._failed_start_result(args, current, engine.log, context)
            answer = http_probe.send_request(
                args.base_url, engine.http.health_path, timeout_s=max(2, engine.http.health_timeout_s)
            )
            waited_s = time.monotonic() - started_s
            if answer.status == 200:
                ready_s = RunningContainer(current, {}).age_s
                data = {"ready_s": round(ready_s, 1), "waited_s": round(waited_s, 1)}
                return Result(msg=f"after {ready_s:.0f} s", data=data)
            if waited_s > args.timeout_s:
                return self._timeout_result(args, engine.log, context)
            context.check_failures()
            self._report_progress(args, engine.log, context, waited_s)
            time.sleep(POLL_S)

    def _report_progress(self, args: Args, log_format: LogFormat, context: Context, waited_s: float) -> None:
        state = self._read_state(args.name, log_format, context)
        context.guards.set_stage(state.stage or "starting")
        stage_number = log_format.stage_names.index(state.stage) + 1 if state.stage else 0
        if state.stage == "weights" and state.shards[1]:
            context.progress(*state.shards, text="loading weights, shards")
        else:
            text = f"{state.stage or 'starting'}, {waited_s:.0f} s"
            context.progress(stage_number, len(log_format.stages), text=text)

    @staticmethod
    def _read_state(name: str, log_format: LogFormat, context: Context) -> EngineState:
        return read_log(log_reader.read_tail(context.docker(), name, log_reader.TAIL_LINE_COUNT), log_format)

    def _failed_start_result(
        self, args: Args, container: dict[str, Any] | None, log_format: LogFormat, context: Context
    ) -> Result:
        if container is None:
            return Result(failed=True, msg=f"container {args.name} disappeared while starting.")
        state = self._read_state(args.name, log_format, context)
        code = container["State"]["ExitCode"]
        exit_reason = f"exit code {code}" if not container["State"].get("OOMKilled") else "OOM-killed"
        reason = state.failure.value or "no known reason in its log."
        lines = [line.rstrip() for line in log_reader.read_last_lines(context.docker(), args.name, 200) if line.strip()]
        data = {"exit_code": code, "failure": state.failure.value, "evidence": lines[-MAX_EVIDENCE_LINES:]}
        return Result(failed=True, msg=f"the engine exited ({exit_reason}): {reason}", data=data)

    def _timeout_result(self, args: Args, log_format: LogFormat, context: Context) -> Result:
        state = self._read_state(args.name, log_format, context)
        lines = log_reader.read_last_lines(context.docker(), args.name, MAX_EVIDENCE_LINES)
        msg = f"not ready after {args.timeout_s:g} s; the last stage in its log: {state.stage or 'none'}."
        return Result(failed=True, msg=msg, fix="If it is just slow, raise `expect.ready_s`.", data={"evidence": lines})


class CrashLoop(Module["CrashLoop.Args"]):
    """Stop a server that keeps crashing: set its restart policy to `no`, and save an incident.

    With unified memory, repeated starts leak driver memory until the host itself fails. More than `most` restarts within
    `within_s` count as a crash loop, and so does an exit with code 0 of a server that should keep running. A container that
    sparkwright did not create is left alone. Each scheduled check runs this module, which records the number of restarts
    from which the next check counts.

    Returns: broken, why, incident, restarts. Fails if it stopped a loop; otherwise it changes nothing.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        most: int = arg("number of restarts above which it counts as a loop", default=MAX_RESTARTS)
        within_s: float = arg("period over which restarts are counted, seconds", default=WINDOW_S)

    def run(self, args: Args, context: Context) -> Result:
        container = containers.inspect(context.docker(), args.name)
        if container is None:
            return Result(msg="no server", data={"broken": False})
        reason = find_stop_reason_and_record_sample(container, context, max_restarts=args.most, window_s=args.within_s)
        restart_count = int(container.get("RestartCount", 0))
        if not reason:
            return Result(
                msg=f"{format_count(restart_count, 'restart')} since its start",
                data={"broken": False, "restarts": restart_count},
            )
        data = {"broken": True, "why": reason, "restarts": restart_count}
        if context.check:
            return Result(changed=True, msg=reason, data=data)
        raise BrokenLoop(args.name, reason, {**data, "incident": stop_crash_loop(context, args.name, reason)})


class BrokenLoop(Failed):
    """Raised after a crash loop was stopped, with the data of `crash_loop`."""

    def __init__(self, name: str, reason: str, data: dict[str, Any]) -> None:
        fix = "`invoke incident` fetches its diagnostics; `invoke deploy` or `invoke rollback` starts a server again."
        super().__init__(f"{name} is no longer restarted: {reason}.", fix=fix)
        self.data = data


class MoveCacheAside(Module["MoveCacheAside.Args"]):
    """Stop a server that is too slow, and move its compile cache aside, so that the next start is cold.

    A stale cache can make a server several times slower. The moved cache is kept for inspection until another one is moved
    aside or `invoke caches.prune` removes it. The history records the move with its reason.

    Returns: tok_per_s (of the warm start), aside (the folder). Fails with `why` if a cold start cannot help: the throughput
    test did not find the server slow, the start was cold already, or there is no cache.
    """

    valid_in_check_mode = False

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        why: str = arg("the server's problem, for the history")
        fix: str = arg("the fix to report if a cold start cannot help", default="")
        verdict: str = arg("the verdict of the throughput test", default="")
        tok_per_s: float | None = arg("the measured rate", default=None)
        stop_timeout_s: int = arg(
            "how long it may take to stop before it is killed, seconds", default=defaults.STOP_TIMEOUT_S
        )

    def run(self, args: Args, context: Context) -> Result:
        container = containers.inspect(context.docker(), args.name) or {}
        if args.verdict not in SLOW_VERDICTS or not container or not compile_caches.is_warm_start(context, container):
            raise Failed(args.why, fix=args.fix)
        holders.record_stop(context, container)
        lifecycle.stop(context, container, args.stop_timeout_s)
        key = compile_caches.mounted_key(container)
        aside_folder = compile_caches.move_aside(context, container, args.why)
        if aside_folder is None:
            raise Failed(args.why, fix=args.fix)
        reason = f"{args.why} It was started with a compile cache, now in {aside_folder}"
        history.append(context, "cache moved aside", container_id=container["Id"], why=reason)
        data = {"tok_per_s": args.tok_per_s, "aside": str(aside_folder)}
        change = Change("compile cache", key, f"{key}/{compile_caches.ASIDE_FOLDER}", args.why)
        return Result(changed=True, diff=[change], msg="stopped; the next start compiles from scratch", data=data)
