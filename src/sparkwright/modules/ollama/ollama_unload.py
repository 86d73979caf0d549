from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any, Literal

from sparkwright.errors import Failed
from sparkwright.host.module import Context, StateModule
from sparkwright.host.ollama import ollama_models
from sparkwright.host.ollama.ollama_client import in_gib
from sparkwright.host.ollama.ollama_models import Held, Seen
from sparkwright.protocol.result import Change, arg
from sparkwright.units import gib

BACK = 0.9


class OllamaUnload(StateModule["OllamaUnload.Args", Seen]):
    """Ollama holds no model in the memory that CPU and GPU share. Ollama itself stays up; no Ollama at all is fine.

    Every Ollama of the host is asked: the service (where its unit says), containers, a user's own process, OLLAMA_HOST. Each
    model is asked to go, the list is polled until it is empty, and who is still there is asked again: an unload can be lost
    while a model loads. Then it waits until what they held is available again, for a list is empty before the memory is; what
    does not come back is said, and whether the engine fits is for the `memory` module to say.

    Returns: unloaded (names), models (what `ollama_reload` needs to bring them back). Fails when a model is in use and stays
    (it names it), or when Ollama does not answer.
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

    def read(self, args: Args, context: Context) -> Seen:
        if args.mode == "leave":
            return Seen((), (), ())
        deadline_s = time.monotonic() + args.timeout_s
        while True:
            seen = ollama_models.inspect(context)
            if not seen.hanging:
                return seen
            if time.monotonic() > deadline_s or context.check:
                raise stuck(seen)
            context.progress(0, text="Ollama does not answer: it may be loading a model")
            time.sleep(ollama_models.POLL_S)

    def differences(self, args: Args, found: Seen) -> list[Change]:
        models, why = (usage.model for usage in found.held), "it holds shared memory"
        return [Change(model.name, f"loaded, {model.size_text}", None, why) for model in models]

    def describe(self, args: Args, found: Seen) -> dict[str, Any]:
        names = [usage.model.name for usage in found.held]
        models = [{"url": usage.place.url, **dataclasses.asdict(usage.model)} for usage in found.held]
        msg = f"{', '.join(names)}: {_in_all(found)}" if names else "nothing loaded"
        return {"unloaded": names, "models": models, "msg": msg}

    def act(self, args: Args, found: Seen, changes: list[Change], context: Context) -> dict[str, Any]:
        before = context.machine.meminfo()["MemAvailable"]
        left = ollama_models.unload(context, timeout_s=args.timeout_s)
        if left.held:
            raise kept(left.held)
        if left.hanging:
            raise stuck(left)
        _wait_for_memory(before, sum(usage.model.size_bytes or 0 for usage in found.held), args.memory_s, context)
        return {}


def _in_all(found: Seen) -> str:
    """Return the memory that the loaded models hold together, as text, as far as their sizes are known."""
    sizes = [usage.model.size_bytes for usage in found.held]
    known = sum(size or 0 for size in sizes)
    if not known:
        return in_gib(None)
    return in_gib(known) if all(sizes) else f"more than {in_gib(known)}, one of unknown size"


def _wait_for_memory(before: int, held: int, timeout_s: float, context: Context) -> None:
    """Wait until nine tenths of the models' memory are available; their sizes are Ollama's own estimates."""
    deadline_s = time.monotonic() + timeout_s
    while (back := context.machine.meminfo()["MemAvailable"] - before) < BACK * held:
        if time.monotonic() > deadline_s:
            context.note(f"Ollama held {gib(held)} GiB; {gib(max(0, back))} GiB released so far.")
            return
        time.sleep(ollama_models.POLL_S)


def kept(held: tuple[Held, ...]) -> Failed:
    """Return the error for models that stay loaded because they are in use."""
    names = ", ".join(usage.model.name for usage in held)
    return Failed(
        f"Ollama keeps {names} in memory: a request is using it.",
        fix="Wait for that request to finish or run `sudo systemctl stop ollama` on the host, then try again.",
    )


def stuck(seen: Seen) -> Failed:
    """Return the error for an Ollama instance that does not answer."""
    return Failed(
        f"Ollama ({seen.hanging[0]}) does not answer: it is loading a model or hung.",
        fix="On the host: `sudo systemctl stop ollama`, or set `ollama: leave` for this host.",
    )
