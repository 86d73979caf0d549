"""Modules that read what the engine reports about itself: its log, its settings, its device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sparkwright.engines.engine import USUAL, Engine
from sparkwright.engines.log import resolution
from sparkwright.engines.log.reader import EngineState, Reader
from sparkwright.engines.log.state import FIELDS, SETTINGS
from sparkwright.engines.log.text import lines_of, plain
from sparkwright.errors import Exit, Failed, Inconclusive
from sparkwright.host.containers import container_labels, containers, log_reader
from sparkwright.host.memory import gpu_use
from sparkwright.host.memory.gpu_use import Use
from sparkwright.host.module import Context, Module
from sparkwright.host.records import baselines
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
        engine = container_labels.engine_of_container(inspected)
        reader = Reader(engine.log)
        log = log_reader.StartLog(client, args.name)
        for chunk in log:
            reader.push(chunk)
        state = reader.finish()
        text = plain("\n".join(log_reader.last_lines(client, args.name, args.tail))) if args.tail else ""
        msg = state.failure.value or (state.stage if state.known else "no engine start in the log")
        data = {"state": state.to_json(), "known": state.known, "text": text, "cut": log.cut, "engine": engine.name}
        return Result(msg=f"{msg}; {log.cut}" if log.cut else msg, data=data)


SHOWN = 4


class EngineConfig(Module["EngineConfig.Args"]):
    """The settings that an engine really runs with, from the config dump in its own log, or, of an engine that has none, from
    its other lines; held against another start's.

    With `against` it says what differs. Equal dumps prove that the flags in `changed` do nothing, when all of them show
    in the dump; else nothing is proved.

    Returns: arm, settings (by name, as printed), state (readings of the log), verdict (differs, same or not shown; "" without
    `against`), same (whether verdict is same), differs (name: both values), ready_s.

    Inconclusive when the log holds no config dump.
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        against: dict[str, Any] | None = arg("settings of another start", default=None)
        changed: list[str] = arg("flags in which the two commands differ", default_factory=list)
        series: str = arg("the experiment that keeps what is found; empty: it is not kept", default="")
        key: str = arg("the name under which it is kept", default="")
        arm: str = arg("what serves, as the experiment calls it", default="")

    def run(self, args: Args, context: Context) -> Result:
        if context.check:
            return Result(msg="known after: the start", data={"same": False})
        engine = container_labels.engine_named(context.docker(), args.name)
        reader = Reader(engine.log)
        found: Mapping[str, str] = {}
        for line in lines_of(log_reader.StartLog(context.docker(), args.name)):
            if reader.feed(line):
                found = {}
            found = engine.log.settings(line) or found
        state = reader.finish()
        found = found or reported(state, engine)
        if not found:
            raise Inconclusive(f"no config dump in the log of {args.name}: its settings are unknown.")
        data: dict[str, Any] = {"arm": args.arm, "settings": dict(found), "state": readings(state)}
        if args.series:
            baselines.write_cell(context.state, args.series, args.key, data)
        verdict = resolution.judged(args.against, dict(found), args.changed, engine)
        return Result(msg=_sentence(state, engine), data={**data, **verdict})


def reported(state: EngineState, engine: Engine) -> dict[str, str]:
    """Return the settings that other log lines state, for an engine without a config dump. Empty for vLLM, which has one."""
    if engine.name == USUAL:
        return {}
    return {name: str(state.value(name)) for name in (*SETTINGS, *state.also) if state.value(name) is not None}


def readings(state: EngineState) -> dict[str, Any]:
    """Return the settings that the engine's log states; those it does not state are left out."""
    reported = state.to_json()
    about = {name: reported[name] for name in (*FIELDS, *state.also) if reported[name] is not None}
    shown = ("chunked_prefill", "prefix_caching")
    evidence = {name: line for name, line in reported["evidence"].items() if name in shown}
    return {**about, "warnings": reported["warnings"][:SHOWN], "evidence": evidence}


def _sentence(state: EngineState, engine: Engine) -> str:
    words = {True: "on", False: "off", None: "unknown"}
    chunked, prefix = words[state.value("chunked_prefill")], words[state.value("prefix_caching")]
    title = f"{engine.title} {state.value('version') or ''}".rstrip()
    return f"{title}: chunked prefill {chunked}, prefix caching {prefix} (engine log)"


class GpuUsed(Module["GpuUsed.Args"]):
    """The server computes on the GPU: a process of its container is among the compute processes of nvidia-smi.

    Where it is not, the engine's own log counts: the line that names the device of its buffers. Neither seen is a failure for a
    container that asks for a GPU: a CPU-only image serves all the same, at a fraction of the speed. When nvidia-smi can't be
    asked and the log does not tell either, the answer is unknown: the run goes on and ends with 4.

    Returns: verdict (gpu, no gpu, unknown, not asked for), processes (pid, name, bytes), evidence.
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        gpus: str = arg("the GPUs that the recipe asks for; empty: none, nothing is checked", default="all")

    def run(self, args: Args, context: Context) -> Result:
        if not args.gpus:
            return Result(
                msg="not checked: the recipe asks for no GPU", data={"verdict": "not asked for", "processes": []}
            )
        if not containers.running(context.docker(), args.name):
            raise Failed(f"container {args.name} is no longer running.")
        return judge_gpu_used(gpu_use.inspect(args.name, context))


def judge_gpu_used(use: Use) -> Result:
    """Return the result for an observed use of the GPU. Pure."""
    data: dict[str, Any] = {"verdict": use.verdict, "processes": [asdict(gpu_process) for gpu_process in use.mine]}
    if use.mine:
        return Result(msg=f"uses the GPU: {use.why}", data=data)
    data["evidence"] = use.evidence
    if use.verdict == "gpu":
        return Result(msg=f"uses the GPU by its own log: {use.why}", data=data)
    if use.verdict == "unknown":
        msg = f"unknown whether the server uses the GPU: {use.why}."
        return Result(msg=msg, exit=Exit.INCONCLUSIVE, data=data)
    reason = f"; {use.why}" if use.log.cpu else f": {use.why}"
    return Result(failed=True, msg=f"the server does not use the GPU{reason}.", fix=gpu_use.FIX, data=data)
