"""A server with a known schedule: what the client measures can be held against it."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from sparkwright.sandbox.web import Handler, Server


@dataclass
class Schedule:
    """first_s: to the first token. gap_s: between chunks. per_chunk: tokens a chunk. usage: continuous, final or none."""

    first_s: float = 0.05
    gap_s: float = 0.01
    per_chunk: int = 1
    chunks: int = 30
    usage: str = "continuous"
    kind: str = "content"
    stall_at: int = -1
    stall_s: float = 0.0
    cut_at: int = -1
    status: int = 200


class Exact(Handler):
    def route(self) -> None:
        plan: Schedule = self.server.owner  # type: ignore[attr-defined]
        if plan.status != 200:
            self.reply(plan.status, {"error": {"message": "no"}})
            return
        self.stream(self._events(plan), "text/event-stream")

    def _events(self, plan: Schedule) -> Any:
        yield self._event({"role": "assistant", "content": ""}, 0, plan)
        due_s = time.perf_counter() + plan.first_s
        for n in range(1, plan.chunks + 1):
            if n == plan.stall_at:
                due_s += plan.stall_s
            time.sleep(max(0.0, due_s - time.perf_counter()))
            if n == plan.cut_at:
                self.connection.shutdown(2)
                return
            yield self._event({plan.kind: "x"}, n * plan.per_chunk, plan)
            due_s += plan.gap_s
        if plan.usage == "final":
            last = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": plan.chunks * plan.per_chunk}}
            yield b"data: " + json.dumps(last).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"

    @staticmethod
    def _event(delta: dict[str, Any], tokens: int, plan: Schedule) -> bytes:
        data: dict[str, Any] = {"choices": [{"index": 0, "delta": delta}]}
        if plan.usage == "continuous":
            data["usage"] = {"prompt_tokens": 7, "completion_tokens": tokens}
        return b"data: " + json.dumps(data).encode() + b"\n\n"


def serve(plan: Schedule) -> Server:
    server = Server(0, Exact, plan)
    server.start()
    return server
