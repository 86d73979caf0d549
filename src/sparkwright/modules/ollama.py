"""Modules about Ollama."""

from __future__ import annotations

import dataclasses
import os
import time
from dataclasses import dataclass
from typing import Any, Literal

from sparkwright import defaults
from sparkwright.errors import Failed, SparkwrightError
from sparkwright.host import ollama
from sparkwright.host.containers import containers, lifecycle
from sparkwright.host.module import Context, Module, StateModule
from sparkwright.host.ollama import (
    SERVICE,
    HeldModel,
    LoadedModel,
    Ollama,
    OllamaAbsent,
    OllamaBusy,
    OllamaInstance,
    OllamaState,
    format_size,
)
from sparkwright.protocol.result import Change, Result, arg
from sparkwright.units import GIB, format_gib

MIN_RELEASED_SHARE = 0.9


class OllamaUnload(StateModule["OllamaUnload.Args", OllamaState]):
    """Unload Ollama's models from the memory that CPU and GPU share.

    Ollama itself keeps running; no Ollama at all is not a failure. All instances on the host are handled: the service (at
    the address in its unit), containers, a user's own process, OLLAMA_HOST. Each model is unloaded, the list is polled until
    it is empty, and remaining models are unloaded again, because an unload can be lost while a model loads. Then it waits
    until their memory is available again, because the list is empty before the memory is released. Memory that is not
    released is reported; the `memory` module decides whether the engine fits.

    Returns: unloaded (names), models (what `ollama_reload` needs to load them again). Fails if a model is in use and stays
    (with its name), or if Ollama does not answer.
    """

    @dataclass(frozen=True)
    class Args:
        mode: Literal["unload", "stop", "leave"] = arg(
            "unload; stop unloads too (`ollama_stop` then stops Ollama); leave: do nothing", default="unload"
        )
        timeout_s: float = arg("how long a busy model may take to finish its request, seconds", default=60.0)
        memory_s: float = arg(
            "how long to wait for memory to be released once no model is loaded, seconds", default=5.0
        )

    def read(self, args: Args, context: Context) -> OllamaState:
        if args.mode == "leave":
            return OllamaState((), (), ())
        deadline_s = time.monotonic() + args.timeout_s
        while True:
            seen = ollama.inspect(context)
            if not seen.hanging:
                return seen
            if time.monotonic() > deadline_s or context.check:
                raise unresponsive_error(seen)
            context.progress(0, text="Ollama does not answer: it may be loading a model")
            time.sleep(ollama.POLL_S)

    def differences(self, args: Args, observed: OllamaState) -> list[Change]:
        models, why = (usage.model for usage in observed.held), "it holds shared memory"
        return [Change(model.name, f"loaded, {model.size_text}", None, why) for model in models]

    def describe(self, args: Args, observed: OllamaState) -> dict[str, Any]:
        names = [usage.model.name for usage in observed.held]
        models = [{"url": usage.instance.url, **dataclasses.asdict(usage.model)} for usage in observed.held]
        msg = f"{', '.join(names)}: {_format_total_size(observed)}" if names else "nothing loaded"
        return {"unloaded": names, "models": models, "msg": msg}

    def act(self, args: Args, observed: OllamaState, changes: list[Change], context: Context) -> dict[str, Any]:
        before = context.machine.meminfo()["MemAvailable"]
        remaining = ollama.unload_all(context, timeout_s=args.timeout_s)
        if remaining.held:
            raise models_in_use_error(remaining.held)
        if remaining.hanging:
            raise unresponsive_error(remaining)
        _wait_for_memory(before, sum(usage.model.size_bytes or 0 for usage in observed.held), args.memory_s, context)
        return {}


def _format_total_size(seen: OllamaState) -> str:
    """Return the memory that the loaded models hold together, as text, as far as their sizes are known."""
    sizes = [usage.model.size_bytes for usage in seen.held]
    known = sum(size or 0 for size in sizes)
    if not known:
        return format_size(None)
    return format_size(known) if all(sizes) else f"more than {format_size(known)}, one of unknown size"


def _wait_for_memory(before: int, held: int, timeout_s: float, context: Context) -> None:
    """Wait until nine tenths of the models' memory are available; their sizes are Ollama's own estimates."""
    deadline_s = time.monotonic() + timeout_s
    while (released := context.machine.meminfo()["MemAvailable"] - before) < MIN_RELEASED_SHARE * held:
        if time.monotonic() > deadline_s:
            context.note(f"Ollama held {format_gib(held)} GiB; {format_gib(max(0, released))} GiB released so far.")
            return
        time.sleep(ollama.POLL_S)


def models_in_use_error(held: tuple[HeldModel, ...]) -> Failed:
    """Return the error for models that stay loaded because they are in use."""
    names = ", ".join(usage.model.name for usage in held)
    return Failed(
        f"Ollama keeps {names} in memory: a request is using it.",
        fix="Wait for that request to finish or run `sudo systemctl stop ollama` on the host, then try again.",
    )


def unresponsive_error(seen: OllamaState) -> Failed:
    """Return the error for an Ollama instance that does not answer."""
    return Failed(
        f"Ollama ({seen.hanging[0]}) does not answer: it is loading a model or hung.",
        fix="On the host: `sudo systemctl stop ollama`, or set `ollama: leave` for this host.",
    )


STOP_TIMEOUT_S = 15.0


class OllamaStop(StateModule["OllamaStop.Args", list[OllamaInstance]]):
    """Stop Ollama on the host, so that it cannot load a model while the engine runs. No Ollama at all is not a failure.

    A service is stopped through systemctl, because its unit has `Restart=always` and a killed one is back after 3 s. It is
    not disabled: a reboot starts it again. A container is stopped by its engine, a user's process gets a signal to end. A
    service, or a process of another user, needs root (`become: true`, or sudo without a password).

    Returns: stopped (kind and name of each, for `ollama_reload`). Fails if one keeps running.
    """

    @dataclass(frozen=True)
    class Args:
        mode: Literal["unload", "stop", "leave"] = arg("stop: stop it; otherwise do nothing", default="stop")

    def read(self, args: Args, context: Context) -> list[OllamaInstance]:
        return list(ollama.inspect(context, timeout_s=2).present) if args.mode == "stop" else []

    def differences(self, args: Args, observed: list[OllamaInstance]) -> list[Change]:
        return [Change(str(place), "running", "stopped", "ollama: stop") for place in observed]

    def describe(self, args: Args, observed: list[OllamaInstance]) -> dict[str, Any]:
        rows = [{"kind": place.kind, "name": place.name, "url": place.url} for place in observed]
        return {"stopped": rows, "msg": ", ".join(map(str, observed)) or "none runs"}

    def act(
        self, args: Args, observed: list[OllamaInstance], changes: list[Change], context: Context
    ) -> dict[str, Any]:
        for place in observed:
            _STOP_BY_KIND[place.kind](place, context)
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        while remaining := ollama.inspect(context, timeout_s=1).present:
            if time.monotonic() > deadline_s:
                raise Failed(f"Ollama ({remaining[0]}) still answers at {remaining[0].url}.", fix=_MANUAL_FIX)
            time.sleep(ollama.POLL_S)
        return {}


_MANUAL_FIX = "On the host: `sudo systemctl stop ollama`, or stop whatever restarts it; then try again."


def _stop_service(place: OllamaInstance, context: Context) -> None:
    systemctl = ["systemctl", "stop", SERVICE]
    answer = context.machine.run(systemctl if os.geteuid() == 0 else ["sudo", "-n", *systemctl], timeout_s=60)
    if not answer.ok:
        raise Failed(f"cannot stop {SERVICE}: {(answer.err or answer.out).strip()}.", fix=_MANUAL_FIX)


def _stop_container(place: OllamaInstance, context: Context) -> None:
    container = containers.inspect(context.docker(), place.name)
    if container is not None:
        lifecycle.stop_foreign(context, container["Id"], 30)


def _stop_process(place: OllamaInstance, context: Context) -> None:
    import psutil

    try:
        process = psutil.Process(place.pid)
        if process.name() == "ollama":
            process.terminate()
    except psutil.NoSuchProcess:
        return
    except psutil.AccessDenied:
        raise Failed(f"Ollama runs as another user ({place.name}).", fix=f"`sudo kill {place.pid}`.") from None


def _refuse_unknown(place: OllamaInstance, context: Context) -> None:
    raise Failed(f"cannot stop the Ollama at {place.url}: unknown how it was started.", fix=_MANUAL_FIX)


_STOP_BY_KIND = {
    "service": _stop_service,
    "container": _stop_container,
    "process": _stop_process,
    "address": _refuse_unknown,
}


START_TIMEOUT_S = 20.0


class OllamaReload(StateModule["OllamaReload.Args", list[dict[str, Any]]]):
    """Load the models again that were unloaded for a deploy, if they still fit in memory next to the engine.

    Use it after the engine is verified: it has allocated its memory by then, so MemAvailable is accurate. An Ollama that was
    stopped is started again (service and container; a user's process must be started by its user). A model gets its former
    context length, and is pinned if it was. Models that do not fit, have an unknown size, or fail to load are reported,
    which is not a failure, because the engine serves.

    Returns: loaded, left_out (names).
    """

    @dataclass(frozen=True)
    class Args:
        models: list[Any] = arg("`models` as returned by `ollama_unload`")
        stopped: list[Any] = arg("`stopped` as returned by `ollama_stop`", default_factory=list)
        reserve_gib: float = arg("memory that must stay free, GiB", default=defaults.RESERVE_GIB)
        timeout_s: float = arg("how long one may take to load, seconds", default=300.0)

    def read(self, args: Args, context: Context) -> list[dict[str, Any]]:
        return [model for model in args.models if model["name"] not in _loaded_names(model["url"])]

    def differences(self, args: Args, observed: list[dict[str, Any]]) -> list[Change]:
        restarts = [Change(item["name"], "stopped", "running") for item in args.stopped]
        return restarts + [Change(row["name"], None, f"loaded, {format_size(row['size_bytes'])}") for row in observed]

    def act(
        self, args: Args, observed: list[dict[str, Any]], changes: list[Change], context: Context
    ) -> dict[str, Any]:
        for place in args.stopped:
            _start_ollama(place, context)
        loaded, not_loaded = list[str](), list[str]()
        for row in observed:
            free = context.machine.meminfo()["MemAvailable"] - args.reserve_gib * GIB
            size = row["size_bytes"]
            if not size or size > free:
                why = f"it needs {format_gib(size)} GiB" if size else "its size is unknown"
                context.note(f"not reloading {row['name']}: {why}, {format_gib(free)} GiB free.")
                not_loaded.append(row["name"])
            else:
                (loaded if _load_model(row, args.timeout_s, context) else not_loaded).append(row["name"])
        msg = ", ".join(loaded) + (f"; not reloaded: {', '.join(not_loaded)}" if not_loaded else "")
        return {"loaded": loaded, "left_out": not_loaded, "msg": msg}


def _loaded_names(url: str) -> list[str]:
    try:
        return [loaded.name for loaded in Ollama(url, timeout_s=2).list_loaded()]
    except (OllamaAbsent, OllamaBusy):
        return []


def _start_ollama(place: dict[str, Any], context: Context) -> None:
    if place["kind"] == "service":
        systemctl = ["systemctl", "start", SERVICE]
        context.machine.run(systemctl if os.geteuid() == 0 else ["sudo", "-n", *systemctl], timeout_s=60)
    elif place["kind"] == "container":
        container = containers.inspect(context.docker(), place["name"])
        if container is not None:
            lifecycle.start_foreign(context, container["Id"])
    else:
        context.note(f"Ollama ({place['name']}) was started by a user, not as a service: start it the same way again.")
        return
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        try:
            Ollama(place["url"], timeout_s=2).version()
            return
        except (OllamaAbsent, OllamaBusy):
            time.sleep(0.25)
    context.note(f"Ollama ({place['name']}) does not answer after its start.")


def _load_model(row: dict[str, Any], timeout_s: float, context: Context) -> bool:
    model = LoadedModel(row["name"], row["size_bytes"], row["context_length"], row["pinned"])
    try:
        if Ollama(row["url"], timeout_s=timeout_s).load(model):
            return True
        context.note(f"{model.name} is no longer installed in Ollama.")
    except (OllamaAbsent, OllamaBusy, SparkwrightError) as error:
        context.note(f"{model.name} failed to load: {error}.")
    return False


class OllamaPs(Module["OllamaPs.Args"]):
    """List the models that the host's Ollama instances hold in memory, and how each instance runs. Changes nothing.

    A host without Ollama is not a failure.

    Returns: models (name, size_bytes or null, url, kind, place), present, hanging (instances that do not answer: they load a
    model, or hang).
    """

    @dataclass(frozen=True)
    class Args:
        timeout_s: float = arg("how long each may take to answer, seconds", default=5.0)

    def run(self, args: Args, context: Context) -> Result:
        seen = ollama.inspect(context, timeout_s=args.timeout_s)
        held, names = (
            [(usage.model, usage.instance) for usage in seen.held],
            ("name", "size_bytes", "url", "kind", "place"),
        )
        values = ((model.name, model.size_bytes, place.url, place.kind, place.name) for model, place in held)
        rows = [dict(zip(names, row, strict=True)) for row in values]
        answer = [f"{model.name}, {model.size_text} ({place})" for model, place in held]
        answer += [f"{place} does not answer: it is loading a model or hung" for place in seen.hanging]
        idle = f"no model loaded ({', '.join(map(str, seen.present))})" if seen.present else "Ollama is not running"
        data = {"models": rows, "present": list(map(str, seen.present)), "hanging": list(map(str, seen.hanging))}
        return Result(msg="; ".join(answer) or idle, data=data)
