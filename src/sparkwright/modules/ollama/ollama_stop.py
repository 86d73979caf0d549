from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any, Literal

from sparkwright.errors import Failed
from sparkwright.host.containers import containers, lifecycle
from sparkwright.host.module import Context, StateModule
from sparkwright.host.ollama import ollama_models
from sparkwright.host.ollama.ollama_places import SERVICE, Place
from sparkwright.protocol.result import Change, arg

GONE_S = 15.0


class OllamaStop(StateModule["OllamaStop.Args", list[Place]]):
    """No Ollama runs on the host, so that nothing can load a model beside the engine. No Ollama at all is fine.

    A service is stopped through systemctl: its unit says `Restart=always`, so that a killed one is back after 3 s. It is not
    disabled: a reboot brings it back. A container is stopped by its engine, a user's process is asked to end.
    A service, or a process of another user, needs root (`become: true`, or sudo without a password).

    Returns: stopped (kind and name of each, for `ollama_reload`). Fails when one stays.
    """

    @dataclass(frozen=True)
    class Args:
        mode: Literal["unload", "stop", "leave"] = arg("only stop stops it", default="stop")

    def read(self, args: Args, context: Context) -> list[Place]:
        return list(ollama_models.inspect(context, timeout_s=2).present) if args.mode == "stop" else []

    def differences(self, args: Args, found: list[Place]) -> list[Change]:
        return [Change(str(place), "running", "stopped", "ollama: stop") for place in found]

    def describe(self, args: Args, found: list[Place]) -> dict[str, Any]:
        rows = [{"kind": place.kind, "name": place.name, "url": place.url} for place in found]
        return {"stopped": rows, "msg": ", ".join(map(str, found)) or "none runs"}

    def act(self, args: Args, found: list[Place], changes: list[Change], context: Context) -> dict[str, Any]:
        for place in found:
            _STOP[place.kind](place, context)
        deadline_s = time.monotonic() + GONE_S
        while left := ollama_models.inspect(context, timeout_s=1).present:
            if time.monotonic() > deadline_s:
                raise Failed(f"Ollama ({left[0]}) still answers at {left[0].url}.", fix=_MANUALLY)
            time.sleep(ollama_models.POLL_S)
        return {}


_MANUALLY = "On the host: `sudo systemctl stop ollama`, or stop whatever restarts it; then try again."


def _service(place: Place, context: Context) -> None:
    systemctl = ["systemctl", "stop", SERVICE]
    answer = context.machine.run(systemctl if os.geteuid() == 0 else ["sudo", "-n", *systemctl], timeout_s=60)
    if not answer.ok:
        raise Failed(f"cannot stop {SERVICE}: {(answer.err or answer.out).strip()}.", fix=_MANUALLY)


def _container(place: Place, context: Context) -> None:
    found = containers.inspect(context.docker(), place.name)
    if found is not None:
        lifecycle.stop_another(context, found["Id"], 30)


def _process(place: Place, context: Context) -> None:
    import psutil

    try:
        process = psutil.Process(place.pid)
        if process.name() == "ollama":
            process.terminate()
    except psutil.NoSuchProcess:
        return
    except psutil.AccessDenied:
        raise Failed(f"Ollama runs as another user ({place.name}).", fix=f"`sudo kill {place.pid}`.") from None


def _unknown(place: Place, context: Context) -> None:
    raise Failed(f"cannot stop the Ollama at {place.url}: unknown how it was started.", fix=_MANUALLY)


_STOP = {"service": _service, "container": _container, "process": _process, "address": _unknown}
