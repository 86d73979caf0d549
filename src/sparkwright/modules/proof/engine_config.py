from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkwright.engines.engine import USUAL, Engine
from sparkwright.engines.log import settings
from sparkwright.engines.log.reader import EngineState, Reader
from sparkwright.engines.log.state import FIELDS, SETTINGS
from sparkwright.engines.log.text import lines_of
from sparkwright.errors import Inconclusive
from sparkwright.host.containers import engine_of, log_reader
from sparkwright.host.module import Context, Module
from sparkwright.host.records import cells
from sparkwright.protocol.result import Result, arg

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
        engine = engine_of.named(context.docker(), args.name)
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
            cells.write(context.state, args.series, args.key, data)
        verdict = settings.judged(args.against, dict(found), args.changed, engine)
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
