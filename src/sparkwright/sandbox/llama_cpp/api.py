"""The HTTP API of the simulated llama-server, with the response formats of b11549.

Error messages were observed on b11549. Tool calls and separate thinking follow its README, because the observed model has
random weights and produces neither.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sparkwright.sandbox.llama_cpp.server import LlamaServer
from sparkwright.sandbox.serving.api import THINKING_TOKENS, ChatAnswer, ModelApi, join_tokens
from sparkwright.sandbox.serving.generation import Token
from sparkwright.sandbox.serving.request_content import (
    AnswerSpec,
    picture_url,
    requested_answer,
    requested_call,
    tool_call_answer,
)

PUBLIC_PATHS = ("health",)
PROMETHEUS_HEADERS = {"Content-Type": "text/plain; version=0.0.4"}
NO_METRICS_MESSAGE = "This server does not support metrics endpoint. Start it with `--metrics`"
NO_PICTURES_MESSAGE = "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"
NO_TOOLS_MESSAGE = "tools param requires --jinja flag"


class LlamaApi(ModelApi):
    """Handler of requests to the server."""

    server_version = "llama.cpp"
    stream_content_type = "text/event-stream"

    @property
    def engine(self) -> LlamaServer:
        return super().engine  # type: ignore[no-any-return]

    def log_access(self, status: int) -> None:
        """Write nothing: llama-server logs no requests at the default verbosity."""

    def route(self) -> None:
        if not self.engine.loaded:
            self._error(503, "Loading model", "unavailable_error")
        elif self.parts[:1] and self.parts[0] not in PUBLIC_PATHS and not self.is_authorized(self.engine.config.keys):
            self._error(401, "Invalid API Key", "authentication_error")
        else:
            self._dispatch()

    def _dispatch(self) -> None:
        match self.command, self.parts:
            case "GET", ["health"]:
                self.reply(200, {"status": "ok"})
            case "GET", ["v1", "models"]:
                self.reply(200, self._models())
            case "GET", ["props"]:
                self.reply(200, self._props())
            case "GET", ["metrics"] if self.engine.config.has_metrics:
                self.reply(200, self.engine.counters.build_metrics_page(), PROMETHEUS_HEADERS)
            case "GET", ["metrics"]:
                self._error(501, NO_METRICS_MESSAGE, "not_supported_error")
            case "POST", ["v1", "chat", "completions"]:
                self._chat()
            case _:
                self._error(404, "File Not Found", "not_found_error")

    def _error(self, status: int, message: str, kind: str, **fields: Any) -> None:
        self.reply(status, {"error": {"code": status, "message": message, "type": kind, **fields}})

    def _models(self) -> dict[str, Any]:
        config = self.engine.config
        meta = {
            "vocab_type": 2,
            "n_vocab": 151643,
            "n_ctx": config.context,
            "n_ctx_train": 131072,
            "ftype": "MXFP4 MoE",
        }
        row = {
            "id": config.alias,
            "aliases": [config.alias],
            "tags": [],
            "object": "model",
            "created": int(time.time()),
        }
        return {"object": "list", "data": [{**row, "owned_by": "llamacpp", "meta": meta}]}

    def _props(self) -> dict[str, Any]:
        config = self.engine.config
        return {
            "default_generation_settings": {"params": {}, "n_ctx": config.context},
            "total_slots": config.max_num_seqs,
            "model_alias": config.alias,
            "model_path": config.model,
            "endpoint_metrics": config.has_metrics,
            "build_info": self.engine.version,
            "is_sleeping": False,
        }

    def _chat(self) -> None:
        engine, body = self.engine, self.body()
        if not isinstance(body, dict) or not body.get("messages"):
            self._error(400, "'messages' is required", "invalid_request_error")
            return
        prompt, token_limit = engine.tokenizer.encode_chat(body["messages"]), engine.config.context
        if len(prompt) >= token_limit:
            message = (
                f"request ({len(prompt)} tokens) exceeds the available context size ({token_limit} tokens), try "
                "increasing it"
            )
            self._error(400, message, "exceed_context_size_error", n_prompt_tokens=len(prompt), n_ctx=token_limit)
            return
        if engine.fault() == "engine-exits" or engine.dead:
            engine.exit_silently()
            raise ConnectionResetError
        if reason := self._support_error(body):
            self._error(500, reason, "server_error")
            return
        token_limit -= len(prompt)
        max_tokens = min(token_limit, body["max_tokens"]) if (body.get("max_tokens") or -1) > 0 else None
        spec = self._answer_spec(body)
        has_thinking = engine.config.parses_thinking and spec.is_immediate and not spec.words
        request = self.text_request(
            body, prompt, token_limit, spec, max_tokens=max_tokens, thinking_tokens=THINKING_TOKENS * has_thinking
        )
        answer = LlamaAnswer(engine.config.alias, len(prompt), body, version=engine.version)
        self.write(answer, request, spec, streamed=bool(body.get("stream")))

    def _support_error(self, body: Mapping[str, Any]) -> str:
        """Return the error message for a picture or for tools that the server does not support, or an empty string."""
        config = self.engine.config
        if picture_url(body) and not config.accepts_pictures:
            return NO_PICTURES_MESSAGE
        return NO_TOOLS_MESSAGE if body.get("tools") and body.get("tool_choice") != "none" and not config.jinja else ""

    def _answer_spec(self, body: Mapping[str, Any]) -> AnswerSpec:
        """Return the answer that a chat request calls for. The server's adapters apply to every request."""
        config = self.engine.config
        if (call := requested_call(body)) is not None:
            return tool_call_answer(*call, id=secrets.token_hex(16))
        adapter = config.adapters[0] if config.adapters else ""
        spec = requested_answer(body, accepts_pictures=config.accepts_pictures, parses_thinking=config.parses_thinking)
        return replace(spec, adapter=adapter)


@dataclass
class LlamaAnswer(ChatAnswer):
    """The answer to a chat request, in the format of b11549."""

    version: str = ""
    began_s: float = field(default_factory=time.monotonic)

    def base_fields(self, kind: str) -> dict[str, Any]:
        return {**super().base_fields(kind), "system_fingerprint": self.version}

    def message(self, tokens: Sequence[Token], calls: list[dict[str, Any]]) -> dict[str, Any]:
        thinking = join_tokens(tokens, "reasoning")
        message: dict[str, Any] = {"role": "assistant", "content": "" if calls else join_tokens(tokens, "content")}
        message |= {self.reasoning_field: thinking} if thinking else {}
        return message | ({"tool_calls": calls} if calls else {})

    def usage(self, token_count: int) -> dict[str, Any]:
        return {**super().usage(token_count), "prompt_tokens_details": {"cached_tokens": 0}}

    def extra_fields(self, token_count: int) -> dict[str, Any]:
        return self.final_fields(token_count) if self.body.get("timings_per_token") else {}

    def final_fields(self, token_count: int) -> dict[str, Any]:
        seconds = time.monotonic() - self.began_s
        rate = token_count / seconds if seconds else 0.0
        prediction_fields = {"predicted_n": token_count, "predicted_ms": seconds * 1000, "predicted_per_second": rate}
        return {"timings": {"cache_n": 0, "prompt_n": self.prompt_tokens, **prediction_fields}}
