"""The HTTP side: health, models, metrics and streams in the shape of version 0.32.0."""

from __future__ import annotations

import itertools
import json
import secrets
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sparkwright.sandbox.web import Handler

if TYPE_CHECKING:
    from sparkwright.sandbox.vllm.engine import Engine

WORDS = ("The ", "lamp ", "turned ", "above ", "the ", "dark ", "water, ", "and ", "he ", "counted ", "ships. ")
PREFILL_S = 0.06
SHARED = 0.75  # each further stream keeps this share of the one before


class Counters:
    """What /metrics shows."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.generated = 0
        self.running = 0

    def text(self, model: str) -> str:
        labels = f'{{engine="0",model_name="{model}"}}'
        rows = (
            ("vllm:num_requests_running", "gauge", "Number of requests in model execution batches.", self.running),
            ("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.", 0),
            ("vllm:generation_tokens_total", "counter", "Number of generation tokens processed.", self.generated),
        )
        return "".join(
            f"# HELP {name} {what}\n# TYPE {name} {kind}\n{name}{labels} {float(value)}\n"
            for name, kind, what, value in rows
        )


class VllmApi(Handler):
    """One request to the engine."""

    server_version = "uvicorn"

    @property
    def engine(self) -> Engine:
        return self.server.owner  # type: ignore[attr-defined,no-any-return]

    def route(self) -> None:
        match self.command, self.parts:
            case "GET", ["health"] | ["ping"]:
                self._send(200)
            case "GET", ["metrics"]:
                self._send(200, self.engine.counters.text(self.engine.config.served_name).encode())
            case "GET", ["version"]:
                self._send(200, {"version": self.engine.version})
            case "GET", ["v1", "models"] if self._allowed():
                self._send(200, {"object": "list", "data": [self._model()]})
            case "POST", ["v1", "chat", "completions"] if self._allowed():
                self._chat()
            case _, ["v1", *_] if not self._allowed():
                self._send(401, {"error": "Unauthorized"})
            case _:
                self._send(404, {"detail": "Not Found"})

    def _send(self, status: int, payload: Any = None) -> None:
        self.reply(status, payload)
        self._log(status)

    def _log(self, status: int) -> None:
        words = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 500: "Internal Server Error"}
        self.engine.log(
            f'INFO:     127.0.0.1:49714 - "{self.command} {self.path} HTTP/1.1" {status} {words.get(status, "")}'
        )

    def _allowed(self) -> bool:
        key = self.engine.config.api_key
        return not key or self.headers.get("Authorization") == f"Bearer {key}"

    def _model(self) -> dict[str, Any]:
        config = self.engine.config
        about = {"id": config.served_name, "object": "model", "created": int(time.time()), "owned_by": "vllm"}
        return {**about, "root": config.model, "parent": None, "max_model_len": config.max_model_len, "permission": []}

    def _error(self, status: int, message: str, kind: str, param: str) -> None:
        self._send(status, {"error": {"message": message, "type": kind, "param": param, "code": status}})

    def _chat(self) -> None:
        body, config, engine = self.body() or {}, self.engine.config, self.engine
        if body.get("model") != config.served_name:
            self._error(404, f"The model `{body.get('model')}` does not exist.", "NotFoundError", "model")
            return
        tokens = int(body.get("max_tokens") or body.get("max_completion_tokens") or 64)
        if tokens > config.max_model_len:
            said = f"max_tokens={tokens} cannot be greater than max_model_len={config.max_model_len}."
            self._error(400, f"{said} Please request fewer output tokens.", "BadRequestError", "max_tokens")
            return
        if engine.fault() == "engine-dies":
            engine.die()
            self._error(500, "EngineCore encountered an issue. See stack trace (above) for the root cause.", "x", "")
            return
        if body.get("stream"):
            self._log(200)
            self.stream(self._chunks(body, tokens), "text/event-stream; charset=utf-8")
        else:
            self._whole(body, tokens)

    def _whole(self, body: dict[str, Any], tokens: int) -> None:
        pieces = list(self._generate(body, tokens))
        content = "".join(text for kind, text in pieces if kind == "content")
        thought = "".join(text for kind, text in pieces if kind == "reasoning")
        message = {"role": "assistant", "content": content or None, "reasoning": thought or None}
        choice = {"index": 0, "message": message, "finish_reason": "length", "stop_reason": None}
        about = {"id": f"chatcmpl-{secrets.token_hex(8)}", "object": "chat.completion", "created": int(time.time())}
        usage = self._usage(body, len(pieces))
        self._send(200, {**about, "model": self.engine.config.served_name, "choices": [choice], "usage": usage})

    def _chunks(self, body: dict[str, Any], tokens: int) -> Iterator[bytes]:
        options = body.get("stream_options") or {}
        about = {
            "id": f"chatcmpl-{secrets.token_hex(8)}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
        }
        about["model"] = self.engine.config.served_name

        def event(choices: list[Any], usage: dict[str, int] | None = None) -> bytes:
            data = {**about, "choices": choices} | ({"usage": usage} if usage else {})
            return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"

        def choice(delta: dict[str, Any], reason: str | None = None) -> list[Any]:
            return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]

        each = bool(options.get("continuous_usage_stats"))
        yield event(choice({"role": "assistant", "content": ""}), self._usage(body, 0) if each else None)
        count = 0
        for count, (kind, text) in enumerate(self._generate(body, tokens), 1):
            yield event(choice({kind: text}), self._usage(body, count) if each else None)
        yield event(choice({"content": ""}, "length"), self._usage(body, count) if each else None)
        if options.get("include_usage"):
            yield event([], self._usage(body, count))
        yield b"data: [DONE]\n\n"

    @staticmethod
    def _usage(body: dict[str, Any], tokens: int) -> dict[str, int]:
        prompt = sum(len(str(one.get("content", ""))) // 4 + 4 for one in body.get("messages") or ())
        return {"prompt_tokens": prompt, "total_tokens": prompt + tokens, "completion_tokens": tokens}

    def _generate(self, body: dict[str, Any], tokens: int) -> Iterator[tuple[str, str]]:
        """(kind, text) of each token, on a fixed schedule: one that is late does not delay the next."""
        engine = self.engine
        asked = (body.get("chat_template_kwargs") or {}).get("enable_thinking", True)
        thought = 200 if engine.config.thinks and asked else 0
        with engine.counters.mutex:
            engine.counters.running += 1
        try:
            due_s = time.monotonic() + PREFILL_S
            for n, word in zip(range(tokens), itertools.cycle(WORDS), strict=False):
                while engine.fault() == "wedge" and not engine.stopped.is_set():
                    time.sleep(0.05)
                time.sleep(max(0.0, due_s - time.monotonic()))
                if engine.stopped.is_set():
                    return
                with engine.counters.mutex:
                    engine.counters.generated += 1
                    streams = engine.counters.running
                yield ("reasoning" if n < thought else "content"), word
                due_s = max(due_s + 1 / engine.tok_per_s / SHARED ** min(streams - 1, 6), time.monotonic() - 0.5)
        finally:
            with engine.counters.mutex:
                engine.counters.running -= 1
