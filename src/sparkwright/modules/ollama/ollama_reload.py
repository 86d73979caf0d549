from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from sparkwright import defaults
from sparkwright.errors import SparkwrightError
from sparkwright.host.containers import containers, lifecycle
from sparkwright.host.module import Context, StateModule
from sparkwright.host.ollama.ollama_client import Absent, Busy, Loaded, Ollama, in_gib
from sparkwright.host.ollama.ollama_places import SERVICE
from sparkwright.protocol.result import Change, arg
from sparkwright.units import GIB, gib

COMES_S = 20.0


class OllamaReload(StateModule["OllamaReload.Args", list[dict[str, Any]]]):
    """The models that were unloaded for a deploy are in memory again, each one that still fits beside the engine.

    Call it when the engine is verified: it has taken its memory by then, so MemAvailable tells the truth. An Ollama that
    was stopped is started again (service and container; a user's process is started by its user). A model comes back with its
    context length, and pinned when it was. What does not fit, is of unknown size, or does not come, is said; it is no
    failure: the engine serves.

    Returns: loaded, left_out (names).
    """

    @dataclass(frozen=True)
    class Args:
        models: list[Any] = arg("what `ollama_unload` returned as models")
        stopped: list[Any] = arg("what `ollama_stop` returned as stopped", default_factory=list)
        reserve_gib: float = arg("memory that must stay free, GiB", default=defaults.RESERVE_GIB)
        timeout_s: float = arg("how long one may take to load, seconds", default=300.0)

    def read(self, args: Args, context: Context) -> list[dict[str, Any]]:
        return [model for model in args.models if model["name"] not in _names(model["url"])]

    def differences(self, args: Args, found: list[dict[str, Any]]) -> list[Change]:
        again = [Change(item["name"], "stopped", "running") for item in args.stopped]
        return again + [Change(row["name"], None, f"loaded, {in_gib(row['size_bytes'])}") for row in found]

    def act(self, args: Args, found: list[dict[str, Any]], changes: list[Change], context: Context) -> dict[str, Any]:
        for place in args.stopped:
            _start(place, context)
        loaded, left_out = list[str](), list[str]()
        for row in found:
            free = context.machine.meminfo()["MemAvailable"] - args.reserve_gib * GIB
            size = row["size_bytes"]
            if not size or size > free:
                why = f"it needs {gib(size)} GiB" if size else "its size is unknown"
                context.note(f"not reloading {row['name']}: {why}, {gib(free)} GiB free.")
                left_out.append(row["name"])
            else:
                (loaded if _load(row, args.timeout_s, context) else left_out).append(row["name"])
        msg = ", ".join(loaded) + (f"; not reloaded: {', '.join(left_out)}" if left_out else "")
        return {"loaded": loaded, "left_out": left_out, "msg": msg}


def _names(url: str) -> list[str]:
    try:
        return [loaded.name for loaded in Ollama(url, timeout_s=2).loaded()]
    except (Absent, Busy):
        return []


def _start(place: dict[str, Any], context: Context) -> None:
    if place["kind"] == "service":
        systemctl = ["systemctl", "start", SERVICE]
        context.machine.run(systemctl if os.geteuid() == 0 else ["sudo", "-n", *systemctl], timeout_s=60)
    elif place["kind"] == "container":
        found = containers.inspect(context.docker(), place["name"])
        if found is not None:
            lifecycle.start_another(context, found["Id"])
    else:
        context.note(f"Ollama ({place['name']}) was started by a user, not as a service: start it the same way again.")
        return
    deadline_s = time.monotonic() + COMES_S
    while time.monotonic() < deadline_s:
        try:
            Ollama(place["url"], timeout_s=2).version()
            return
        except (Absent, Busy):
            time.sleep(0.25)
    context.note(f"Ollama ({place['name']}) does not answer after its start.")


def _load(row: dict[str, Any], timeout_s: float, context: Context) -> bool:
    model = Loaded(row["name"], row["size_bytes"], row["context_length"], row["pinned"])
    try:
        if Ollama(row["url"], timeout_s=timeout_s).load(model):
            return True
        context.note(f"{model.name} is no longer installed in Ollama.")
    except (Absent, Busy, SparkwrightError) as error:
        context.note(f"{model.name} failed to load: {error}.")
    return False
