"""Modules that unload, stop, reload and list Ollama's models."""

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
from sparkwright.host.machine import CompletedCommand
from sparkwright.host.module import Context, Module, StateModule
from sparkwright.host.ollama import (
    SERVICE_UNIT,
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

STOP_TIMEOUT_S = 15.0

_MANUAL_FIX = "On the host: `sudo systemctl stop ollama`, or stop the program that restarts it; then try again."

START_TIMEOUT_S = 20.0


class OllamaUnload(StateModule["OllamaUnload.Args", OllamaState]):
    """Unload Ollama's models from the memory that CPU and GPU share.

    Ollama itself keeps running; a host without Ollama is not a failure. All instances on the host are handled: the
    service (at the address in its unit), containers, a user's process, and the address in OLLAMA_HOST. Each model is
    unloaded, the list is polled until it is empty, and remaining models are unloaded again, because an unload can be lost
    while a model loads. The module then waits until their memory is available again, because the list is empty before the
    memory is released. Memory that is not released is reported; the `memory` module decides whether the engine fits.

    Returns: unloaded (names), models (the argument `models` of `ollama_reload`). Fails if a model stays loaded because it is
    in use, or if Ollama does not answer.
    """

    @dataclass(frozen=True)
    class Args:
        mode: Literal["unload", "stop", "leave"] = arg(
            "unload; stop unloads too (`ollama_stop` then stops Ollama); leave: do nothing", default="unload"
        )
        timeout_s: float = arg("time limit for a busy model to finish its request, seconds", default=60.0)
        memory_s: float = arg("time limit for memory to be released once no model is loaded, seconds", default=5.0)

    def read(self, args: Args, context: Context) -> OllamaState:
        if args.mode == "leave":
            return OllamaState((), (), ())
        deadline_s = time.monotonic() + args.timeout_s
        while True:
            state = ollama.inspect(context)
            if not state.hanging_instances:
                return state
            if time.monotonic() > deadline_s or context.check:
                raise _unresponsive_error(state)
            context.progress(0, text="Ollama does not answer: it may be loading a model")
            time.sleep(ollama.POLL_S)

    def differences(self, args: Args, observed: OllamaState) -> list[Change]:
        return [
            Change(usage.model.name, f"loaded, {usage.model.size_text}", None, "it uses shared memory")
            for usage in observed.held_models
        ]

    def describe(self, args: Args, observed: OllamaState) -> dict[str, Any]:
        names = [usage.model.name for usage in observed.held_models]
        models = [{"url": usage.instance.url, **dataclasses.asdict(usage.model)} for usage in observed.held_models]
        msg = f"{', '.join(names)}: {_format_total_size(observed)}" if names else "nothing loaded"
        return {"unloaded": names, "models": models, "msg": msg}

    def act(self, args: Args, observed: OllamaState, changes: list[Change], context: Context) -> dict[str, Any]:
        available_bytes_before = context.machine.meminfo()["MemAvailable"]
        remaining = ollama.unload_all(context, timeout_s=args.timeout_s)
        if remaining.held_models:
            names = ", ".join(usage.model.name for usage in remaining.held_models)
            raise Failed(
                f"Ollama keeps {names} in memory: a request is using it.",
                fix="Wait for that request to finish or run `sudo systemctl stop ollama` on the host, then try again.",
            )
        if remaining.hanging_instances:
            raise _unresponsive_error(remaining)
        held_bytes = sum(usage.model.size_bytes or 0 for usage in observed.held_models)
        _wait_for_memory(available_bytes_before, held_bytes, args.memory_s, context)
        return {}


def _format_total_size(state: OllamaState) -> str:
    """Return the total size of the loaded models as text; a lower bound if a size is unknown."""
    sizes = [usage.model.size_bytes for usage in state.held_models]
    known_bytes = sum(size or 0 for size in sizes)
    if not known_bytes:
        return format_size(None)
    return format_size(known_bytes) if all(sizes) else f"more than {format_size(known_bytes)} (not all sizes are known)"


def _wait_for_memory(available_bytes_before: int, held_bytes: int, timeout_s: float, context: Context) -> None:
    """Wait until MIN_RELEASED_SHARE of the models' memory is available; their sizes are Ollama's estimates."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        released_bytes = context.machine.meminfo()["MemAvailable"] - available_bytes_before
        if released_bytes >= MIN_RELEASED_SHARE * held_bytes:
            return
        if time.monotonic() > deadline_s:
            held_gib = format_gib(held_bytes)
            context.note(f"Ollama held {held_gib} GiB; {format_gib(max(0, released_bytes))} GiB released so far.")
            return
        time.sleep(ollama.POLL_S)


def _unresponsive_error(state: OllamaState) -> Failed:
    return Failed(
        f"Ollama ({state.hanging_instances[0]}) does not answer: it is either loading a model or hung.",
        fix="On the host: `sudo systemctl stop ollama`, or set `ollama: leave` for this host.",
    )


class OllamaStop(StateModule["OllamaStop.Args", list[OllamaInstance]]):
    """Stop Ollama on the host, so that it cannot load a model while the engine runs. A host without Ollama is not a failure.

    A service is stopped through systemctl, because its unit has `Restart=always`: systemd restarts a killed service after
    3 s. It is not disabled, so a reboot starts it again. A container is stopped by the Docker Engine; a user's process is
    sent SIGTERM. A service, or a process of another user, needs root (`become: true`, or sudo without a password).

    Returns: stopped (kind, name and url of each instance, for `ollama_reload`). Fails if an instance keeps running.
    """

    @dataclass(frozen=True)
    class Args:
        mode: Literal["unload", "stop", "leave"] = arg("stop: stop Ollama; otherwise do nothing", default="stop")

    def read(self, args: Args, context: Context) -> list[OllamaInstance]:
        return list(ollama.inspect(context, timeout_s=2).running_instances) if args.mode == "stop" else []

    def differences(self, args: Args, observed: list[OllamaInstance]) -> list[Change]:
        return [Change(str(instance), "running", "stopped", "ollama: stop") for instance in observed]

    def describe(self, args: Args, observed: list[OllamaInstance]) -> dict[str, Any]:
        stopped_instances = [
            {"kind": instance.kind, "name": instance.name, "url": instance.url} for instance in observed
        ]
        return {"stopped": stopped_instances, "msg": ", ".join(map(str, observed)) or "none is running"}

    def act(
        self, args: Args, observed: list[OllamaInstance], changes: list[Change], context: Context
    ) -> dict[str, Any]:
        for instance in observed:
            _STOP_BY_KIND[instance.kind](instance, context)
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        while remaining := ollama.inspect(context, timeout_s=1).running_instances:
            if time.monotonic() > deadline_s:
                raise Failed(f"Ollama ({remaining[0]}) still answers at {remaining[0].url}.", fix=_MANUAL_FIX)
            time.sleep(ollama.POLL_S)
        return {}


def _stop_service(instance: OllamaInstance, context: Context) -> None:
    completed = _run_systemctl("stop", context)
    if not completed.ok:
        raise Failed(f"cannot stop {SERVICE_UNIT}: {(completed.err or completed.out).strip()}.", fix=_MANUAL_FIX)


def _run_systemctl(verb: str, context: Context) -> CompletedCommand:
    systemctl = ["systemctl", verb, SERVICE_UNIT]
    return context.machine.run(systemctl if os.geteuid() == 0 else ["sudo", "-n", *systemctl], timeout_s=60)


def _stop_container(instance: OllamaInstance, context: Context) -> None:
    container = containers.inspect(context.docker(), instance.name)
    if container is not None:
        lifecycle.stop_foreign(context, container["Id"], 30)


def _stop_process(instance: OllamaInstance, context: Context) -> None:
    import psutil

    try:
        process = psutil.Process(instance.pid)
        if process.name() == "ollama":
            process.terminate()
    except psutil.NoSuchProcess:
        return
    except psutil.AccessDenied:
        raise Failed(f"Ollama runs as another user ({instance.name}).", fix=f"`sudo kill {instance.pid}`.") from None


def _refuse_unknown(instance: OllamaInstance, context: Context) -> None:
    raise Failed(f"cannot stop the Ollama at {instance.url}: unknown how it was started.", fix=_MANUAL_FIX)


_STOP_BY_KIND = {
    "service": _stop_service,
    "container": _stop_container,
    "process": _stop_process,
    "address": _refuse_unknown,
}


class OllamaReload(StateModule["OllamaReload.Args", list[dict[str, Any]]]):
    """Reload the models that were unloaded for a deploy, if they still fit in memory next to the engine.

    Use it after the engine is verified: it has allocated its memory by then, so MemAvailable is accurate. A stopped service
    or container of Ollama is started again; a user's process must be started by its user. A model is loaded with its former
    context length, and pinned if it was pinned. Models that do not fit, have an unknown size, or fail to load are only
    reported, because the engine is already serving.

    Returns: loaded, left_out (names).
    """

    @dataclass(frozen=True)
    class Args:
        models: list[Any] = arg("`models` as returned by `ollama_unload`")
        stopped: list[Any] = arg("`stopped` as returned by `ollama_stop`", default_factory=list)
        reserve_gib: float = arg("memory that must stay free, GiB", default=defaults.RESERVE_GIB)
        timeout_s: float = arg("how long a model may take to load, seconds", default=300.0)

    def read(self, args: Args, context: Context) -> list[dict[str, Any]]:
        return [model for model in args.models if model["name"] not in _loaded_names(model["url"])]

    def differences(self, args: Args, observed: list[dict[str, Any]]) -> list[Change]:
        restart_changes = [Change(instance["name"], "stopped", "running") for instance in args.stopped]
        return restart_changes + [
            Change(model["name"], None, f"loaded, {format_size(model['size_bytes'])}") for model in observed
        ]

    def act(
        self, args: Args, observed: list[dict[str, Any]], changes: list[Change], context: Context
    ) -> dict[str, Any]:
        for instance in args.stopped:
            _start_ollama(instance, context)
        loaded_names, not_loaded_names = list[str](), list[str]()
        for model in observed:
            free_bytes = context.machine.meminfo()["MemAvailable"] - args.reserve_gib * GIB
            size_bytes = model["size_bytes"]
            if not size_bytes or size_bytes > free_bytes:
                reason = f"it needs {format_gib(size_bytes)} GiB" if size_bytes else "its size is unknown"
                context.note(f"not reloading {model['name']}: {reason}, {format_gib(free_bytes)} GiB free.")
                not_loaded_names.append(model["name"])
            elif _load_model(model, args.timeout_s, context):
                loaded_names.append(model["name"])
            else:
                not_loaded_names.append(model["name"])
        msg = ", ".join(loaded_names) + (f"; not reloaded: {', '.join(not_loaded_names)}" if not_loaded_names else "")
        return {"loaded": loaded_names, "left_out": not_loaded_names, "msg": msg}


def _loaded_names(url: str) -> list[str]:
    try:
        return [loaded.name for loaded in Ollama(url, timeout_s=2).list_loaded()]
    except (OllamaAbsent, OllamaBusy):
        return []


def _start_ollama(instance: dict[str, Any], context: Context) -> None:
    if instance["kind"] == "service":
        _run_systemctl("start", context)
    elif instance["kind"] == "container":
        container = containers.inspect(context.docker(), instance["name"])
        if container is not None:
            lifecycle.start_foreign(context, container["Id"])
    else:
        context.note(
            f"Ollama ({instance['name']}) was started by a user, not as a service: start it again in the same way."
        )
        return
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        try:
            Ollama(instance["url"], timeout_s=2).version()
            return
        except (OllamaAbsent, OllamaBusy):
            time.sleep(0.25)
    context.note(f"Ollama ({instance['name']}) did not answer after its start.")


def _load_model(model: dict[str, Any], timeout_s: float, context: Context) -> bool:
    loaded_model = LoadedModel(model["name"], model["size_bytes"], model["context_length"], model["pinned"])
    try:
        if Ollama(model["url"], timeout_s=timeout_s).load(loaded_model):
            return True
        context.note(f"{loaded_model.name} is no longer installed in Ollama.")
    except (OllamaAbsent, OllamaBusy, SparkwrightError) as error:
        context.note(f"{loaded_model.name} failed to load: {error}.")
    return False


class OllamaPs(Module["OllamaPs.Args"]):
    """List the models that the host's Ollama instances have in memory, and how each instance runs. Changes nothing.

    A host without Ollama is not a failure.

    Returns: models (name, size_bytes or null, url, kind, place), present (instances), hanging (instances that do not answer:
    they are either loading a model or hung).
    """

    @dataclass(frozen=True)
    class Args:
        timeout_s: float = arg("how long each instance may take to answer, seconds", default=5.0)

    def run(self, args: Args, context: Context) -> Result:
        state = ollama.inspect(context, timeout_s=args.timeout_s)
        models, messages = list[dict[str, Any]](), list[str]()
        for usage in state.held_models:
            model, instance = usage.model, usage.instance
            instance_fields = {"url": instance.url, "kind": instance.kind, "place": instance.name}
            models.append({"name": model.name, "size_bytes": model.size_bytes, **instance_fields})
            messages.append(f"{model.name}, {model.size_text} ({instance})")
        messages += [
            f"{instance} does not answer: it is either loading a model or hung" for instance in state.hanging_instances
        ]
        idle_message = (
            f"no model loaded ({', '.join(map(str, state.running_instances))})"
            if state.running_instances
            else "Ollama is not running"
        )
        data = {
            "models": models,
            "present": list(map(str, state.running_instances)),
            "hanging": list(map(str, state.hanging_instances)),
        }
        return Result(msg="; ".join(messages) or idle_message, data=data)
