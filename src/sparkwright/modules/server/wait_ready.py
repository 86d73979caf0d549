from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from sparkwright import defaults
from sparkwright.engines.log.book import LogBook
from sparkwright.engines.log.reader import EngineState, read
from sparkwright.errors import Failed
from sparkwright.host.containers import container_labels, containers, log_reader, replacement
from sparkwright.host.containers.running_server import Running
from sparkwright.host.module import Context, Module
from sparkwright.measure import http_probe
from sparkwright.protocol.result import Result, arg

POLL_S = 0.2
EVIDENCE_LINES = 8


class WaitReady(Module["WaitReady.Args"]):
    """Wait until the server answers /health, telling the stages of its start as its log does.

    It ends at once, with the engine's own reason, when the container exits (with code 0 too) or starts over; in a cluster also
    when another member has failed.

    Returns: ready_s, stage. Fails with the last lines of the log as evidence; a slow start is no failure before timeout_s.
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        base_url: str = arg("the server, as http://127.0.0.1:8000")
        timeout_s: float = arg("how long a start may take, seconds", default=defaults.READY_S)

    def run(self, args: Args, context: Context) -> Result:
        client, first = context.docker(), replacement.current(context, args.name)
        if not first:
            raise Failed(f"there is no container {args.name}.")
        args = replace(args, name=replacement.name_of(first))
        engine = container_labels.engine_of_container(first)
        restarts, started_s = first["RestartCount"], time.monotonic()
        while True:
            now = containers.inspect(client, args.name)
            if now is None or not now["State"]["Running"] or now["RestartCount"] != restarts:
                return self._failed_start(args, now, engine.log, context)
            answer = http_probe.ask(args.base_url, engine.http.health, timeout_s=max(2, engine.http.health_s))
            waited_s = time.monotonic() - started_s
            if answer.status == 200:
                seconds = Running(now, {}).age_s
                data = {"ready_s": round(seconds, 1), "waited_s": round(waited_s, 1)}
                return Result(msg=f"after {seconds:.0f} s", data=data)
            if waited_s > args.timeout_s:
                return self._late(args, engine.log, context)
            context.go_on()
            self._tell(args, engine.log, context, waited_s)
            time.sleep(POLL_S)

    def _tell(self, args: Args, book: LogBook, context: Context, waited_s: float) -> None:
        """Report the stage and the progress of the start."""
        state = self._state(args.name, book, context)
        context.guards.stage(state.stage or "starting")
        done = book.stage_names.index(state.stage) + 1 if state.stage else 0
        if state.stage == "weights" and state.shards[1]:
            context.progress(*state.shards, text="loading weights, shards")
        else:
            context.progress(done, len(book.stages), text=f"{state.stage or 'starting'}, {waited_s:.0f} s")

    @staticmethod
    def _state(name: str, book: LogBook, context: Context) -> EngineState:
        return read(log_reader.end(context.docker(), name, log_reader.END_LINES), book)

    def _failed_start(self, args: Args, now: dict[str, Any] | None, book: LogBook, context: Context) -> Result:
        if now is None:
            return Result(failed=True, msg=f"container {args.name} disappeared while starting.")
        state = self._state(args.name, book, context)
        code = now["State"]["ExitCode"]
        how = f"exit code {code}" if not now["State"].get("OOMKilled") else "OOM-killed"
        why = state.failure.value or "no known reason in its log."
        lines = [line.rstrip() for line in log_reader.last_lines(context.docker(), args.name, 200) if line.strip()]
        data = {"exit_code": code, "failure": state.failure.value, "evidence": lines[-EVIDENCE_LINES:]}
        return Result(failed=True, msg=f"the engine exited ({how}): {why}", data=data)

    def _late(self, args: Args, book: LogBook, context: Context) -> Result:
        state = self._state(args.name, book, context)
        lines = log_reader.last_lines(context.docker(), args.name, EVIDENCE_LINES)
        msg = f"not ready after {args.timeout_s:g} s; the last stage in its log: {state.stage or 'none'}."
        return Result(failed=True, msg=msg, fix="If it is just slow, raise `expect.ready_s`.", data={"evidence": lines})
