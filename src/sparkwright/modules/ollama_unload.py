"""The `ollama_unload` module."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

from sparkwright.errors import Failed
from sparkwright.modules.base import Change, Context, StateModule, arg
from sparkwright.modules.ollama_client import Absent, Busy, Loaded, Ollama

POLL_S = 0.25
ASK_AGAIN_S = 3.0


class OllamaUnload(StateModule["OllamaUnload.Args", list[Loaded]]):
    """Ollama holds no model in the memory that CPU and GPU share. Ollama itself stays up; no Ollama at all is fine.

    Each model is asked to go, the list is polled until it is empty, and who is still there is asked again: an unload can be
    lost while a model loads. Memory is believed only when the `memory` module has seen it.

    Returns: unloaded (names). Fails when a model is in use and stays: it names it.
    """

    @dataclass(frozen=True)
    class Args:
        mode: Literal["unload", "leave"] = arg("unload, or leave everything as it is", default="unload")
        timeout_s: float = arg("how long a busy model may take to end its request, seconds", default=60.0)

    def read(self, args: Args, context: Context) -> list[Loaded]:
        if args.mode == "leave":
            return []
        deadline_s = time.monotonic() + args.timeout_s
        while True:
            try:
                return Ollama(context.machine.ollama_url).loaded()
            except Absent:
                return []
            except Busy:
                if time.monotonic() > deadline_s:
                    raise Failed(
                        "Ollama does not answer: it is loading a model, or hangs.",
                        fix="On the host: `sudo systemctl stop ollama`, or set `ollama: leave` for this host.",
                    ) from None

    def differences(self, args: Args, found: list[Loaded]) -> list[Change]:
        return [
            Change(one.name, f"loaded, {one.size_bytes / 2**30:.1f} GiB", None, "it holds shared memory")
            for one in found
        ]

    def describe(self, args: Args, found: list[Loaded]) -> dict[str, Any]:
        names = [one.name for one in found]
        total = sum(one.size_bytes for one in found) / 2**30
        return {"unloaded": names, "msg": f"{', '.join(names)}: {total:.1f} GiB" if names else "nothing loaded"}

    def act(self, args: Args, found: list[Loaded], changes: list[Change], context: Context) -> dict[str, Any]:
        client = Ollama(context.machine.ollama_url)
        deadline_s = time.monotonic() + args.timeout_s
        asked_s, left = 0.0, found
        while left:
            if time.monotonic() > deadline_s:
                raise Failed(
                    f"Ollama keeps {', '.join(one.name for one in left)} in memory: a request is using it.",
                    fix="End that request, or `sudo systemctl stop ollama` on the host, then try again.",
                )
            try:
                if time.monotonic() - asked_s > ASK_AGAIN_S:
                    asked_s = time.monotonic()
                    for one in left:
                        client.unload(one.name)
                left = client.loaded()
            except Absent:
                return {}
            except Busy:
                continue
            context.progress(len(found) - len(left), len(found), text="unloading Ollama's models")
            if left:
                time.sleep(POLL_S)
        return {}
