from __future__ import annotations

from dataclasses import dataclass

from sparkwright.engines.log.reader import Reader
from sparkwright.engines.log.text import plain
from sparkwright.errors import Inconclusive
from sparkwright.host.containers import containers, engine_of, log_reader
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg


class EngineLog(Module["EngineLog.Args"]):
    """Read the log of a container's last start: what the engine says of itself, each value with the line that says it.

    It changes nothing. A container that is stopped is read too.

    Returns: state (version, chunked_prefill ..., null for unknown, and evidence), known (whether the log holds a start at
    all), text (its last lines without colours, with `tail`), cut (what was read of a log that is too long to be read whole),
    engine (whose log it is).

    Inconclusive when there is no such container. Fails when its logging driver keeps nothing to read.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        tail: int = arg("how many of its last lines to return as well", default=0)

    def run(self, args: Args, context: Context) -> Result:
        client = context.docker()
        inspected = containers.inspect(client, args.name)
        if inspected is None:
            raise Inconclusive(f"there is no container {args.name}.")
        engine = engine_of.of_container(inspected)
        reader = Reader(engine.log)
        log = log_reader.StartLog(client, args.name)
        for chunk in log:
            reader.push(chunk)
        state = reader.finish()
        text = plain("\n".join(log_reader.last_lines(client, args.name, args.tail))) if args.tail else ""
        msg = state.failure.value or (state.stage if state.known else "no engine start in the log")
        data = {"state": state.to_json(), "known": state.known, "text": text, "cut": log.cut, "engine": engine.name}
        return Result(msg=f"{msg}; {log.cut}" if log.cut else msg, data=data)
