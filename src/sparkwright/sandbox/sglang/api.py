"""The HTTP API of the simulated SGLang, with the response formats in the source of 0.5.23.

Without a parser, tool calls and thinking remain in the content, as the model generated them.
"""

from __future__ import annotations

import json
import secrets
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from sparkwright.sandbox.serving.api import (
    PROMETHEUS_HEADERS,
    THINKING_TOKENS,
    ChatAnswer,
    ModelApi,
    join_tokens,
    token_logprobs,
)
from sparkwright.sandbox.serving.generation import Token
from sparkwright.sandbox.serving.process import POLL_S
from sparkwright.sandbox.serving.request_content import (
    AnswerSpec,
    requested_answer,
    requested_call,
    text_answer,
    tool_call_answer,
)
from sparkwright.sandbox.sglang.server import SglangServer

#: prefixes of the paths that need no API key
PUBLIC_PATHS = ("/health", "/ready", "/metrics")
MULTIMODAL_SUFFIX = "ForConditionalGeneration"


class SglangApi(ModelApi):
    """Handler of requests to the server."""

    server_version = "uvicorn"

    @property
    def engine(self) -> SglangServer:
        return super().engine  # type: ignore[no-any-return]

    def route(self) -> None:
        path = "/" + "/".join(self.parts)
        if not path.startswith(PUBLIC_PATHS) and not self.is_authorized(self.engine.config.keys):
            self.send(401, {"error": "Unauthorized"})
            return
        match self.command, path:
            case "GET", "/health" | "/health_generate":
                self.send(self._check_health())
            case "GET", "/ready":
                self.send(200 if self.engine.status == "up" else 503)
            case "GET", "/metrics" if self.engine.config.has_metrics:
                self.send(200, self.engine.counters.build_metrics_page(), PROMETHEUS_HEADERS)
            case "GET", "/v1/models":
                self.send(200, self._models())
            case "GET", "/server_info" | "/get_server_info":
                self.send(200, self._server_info())
            case "GET", "/model_info" | "/get_model_info":
                self.send(200, self._model_info())
            case "POST", "/v1/chat/completions":
                self._chat()
            case _:
                self.send(404, {"detail": "Not Found"})

    def _check_health(self) -> int:
        """Generate a token, and return the status of /health: 503 after a timeout."""
        engine, began_s = self.engine, time.monotonic()
        if engine.dead or engine.stop_event.is_set() or engine.status == "starting":
            return 503
        while engine.fault() == "wedge":
            if time.monotonic() - began_s > engine.health_timeout_s or engine.stop_event.wait(POLL_S):
                engine.status = "unhealthy"
                return 503
        engine.stop_event.wait(engine.token_delay_s)
        engine.counters.add_prompt(1, 0)
        engine.status = "up"
        return 200

    def _models(self) -> dict[str, Any]:
        config = self.engine.config
        row = {"id": config.name, "object": "model", "created": int(time.time()), "owned_by": "sglang"}
        rows = [{**row, "root": config.name, "parent": None, "max_model_len": config.context}]
        for name, path in config.adapters.items():
            rows.append({**row, "id": name, "root": path, "parent": config.name, "max_model_len": None})
        return {"object": "list", "data": rows}

    def _server_info(self) -> dict[str, Any]:
        engine, config = self.engine, self.engine.config
        state = {"last_gen_throughput": 0.0, "memory_usage": {"token_capacity": config.kv_tokens}}
        return {
            **config.arguments,
            "launch_command": shlex.join(["sglang", "serve", *engine.argv]),
            "status": "ready",
            "max_total_num_tokens": config.kv_tokens,
            "max_req_input_len": config.context - 1,
            "internal_states": [{**state, "effective_max_running_requests_per_dp": config.max_num_seqs}],
            "version": engine.version,
            "frontend": "python",
        }

    def _model_info(self) -> dict[str, Any]:
        config = self.engine.config
        info = {"model_path": config.model, "served_model_name": config.name, "is_generation": True}
        return {**info, "weight_version": "default", "architectures": [config.architecture]}

    def _chat(self) -> None:
        engine, body = self.engine, self.body()
        error_message = self._request_error(body)
        if error_message:
            error = {"object": "error", "message": error_message, "type": "BadRequestError", "param": None, "code": 400}
            self.send(400, error)
            return
        if engine.fault() == "engine-exits" or engine.dead:
            engine.exit_silently()
            raise ConnectionResetError
        prompt, max_tokens, spec = (
            engine.tokenizer.encode_chat(body["messages"]),
            _max_tokens(body),
            self._answer_spec(body),
        )
        thinking_tokens = THINKING_TOKENS * self._has_thinking(body)
        token_limit = engine.config.context - len(prompt)
        request = self.text_request(
            body, prompt, token_limit, spec, max_tokens=max_tokens, thinking_tokens=thinking_tokens
        )
        answer = SglangAnswer(str(body.get("model") or "default"), len(prompt), body)
        self.write(answer, request, spec, streamed=bool(body.get("stream")))

    def _answer_spec(self, body: Mapping[str, Any]) -> AnswerSpec:
        """Return the answer that a chat request calls for."""
        config = self.engine.config
        if (call := requested_call(body)) is not None:
            if config.arguments["tool_call_parser"]:
                return tool_call_answer(*call, id=f"call_{secrets.token_hex(12)}", index=0)
            text = json.dumps(dict(zip(("name", "arguments"), call, strict=True)))
            return text_answer(f"<tool_call>\n{text}\n</tool_call>")
        parses_thinking = bool(config.arguments["reasoning_parser"])
        accepts_pictures = config.architecture.endswith(MULTIMODAL_SUFFIX)
        spec = requested_answer(body, accepts_pictures=accepts_pictures, parses_thinking=parses_thinking)
        return replace(spec, adapter=self._adapter(body))

    @staticmethod
    def _adapter(body: Mapping[str, Any]) -> str:
        """Return the adapter in MODEL:ADAPTER, or an empty string. An adapter's name alone selects the base model."""
        return str(body.get("model") or "").partition(":")[2]

    def _request_error(self, body: Any) -> str:
        """Return the error message for an invalid request, or an empty string."""
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
            return "[{'type': 'missing', 'loc': ('body', 'messages'), 'msg': 'Field required'}]"
        if not body["messages"]:
            return "Messages cannot be empty."
        if (adapter := self._adapter(body)) and adapter not in self.engine.config.adapters:
            adapter_names = list(self.engine.config.adapters)
            return f"Got LoRA adapter that has never been loaded: {adapter}\nAll loaded adapters: dict_keys({adapter_names})."
        prompt_tokens, token_limit = (
            len(self.engine.tokenizer.encode_chat(body["messages"])),
            self.engine.config.context,
        )
        if prompt_tokens >= token_limit:
            return (
                f"The input ({prompt_tokens} tokens) is longer than the model's context length ({token_limit} tokens)."
            )
        max_tokens = _max_tokens(body) or 0
        if max_tokens + prompt_tokens <= token_limit:
            return ""
        message = f"Requested token count exceeds the model's maximum context length of {token_limit} tokens."
        parts_text = f"{prompt_tokens} tokens from the input messages and {max_tokens} tokens for the completion"
        return f"{message} You requested a total of {max_tokens + prompt_tokens} tokens: {parts_text}."

    def _has_thinking(self, body: dict[str, Any]) -> bool:
        """Return True if the answer begins with thinking, returned in its own field."""
        arguments = self.engine.config.arguments
        default = (arguments["default_chat_template_kwargs"] or {}).get("enable_thinking", True)
        is_enabled = (body.get("chat_template_kwargs") or {}).get("enable_thinking", default)
        return bool(arguments["reasoning_parser"]) and bool(is_enabled)


def _max_tokens(body: dict[str, Any]) -> int | None:
    max_tokens = body.get("max_completion_tokens") or body.get("max_tokens")
    return max_tokens if isinstance(max_tokens, int) and max_tokens > 0 else None


@dataclass
class SglangAnswer(ChatAnswer):
    """The answer to a chat request, in the format of 0.5.23."""

    id: str = field(default_factory=lambda: secrets.token_hex(16))
    opening: ClassVar[Mapping[str, Any]] = {"role": "assistant", "content": ""}
    extra_delta_fields: ClassVar[Mapping[str, Any]] = {ChatAnswer.reasoning_field: None}
    extra_choice_fields: ClassVar[Mapping[str, Any]] = {"logprobs": None, "matched_stop": None}

    def complete(self, tokens: Sequence[Token], calls: list[dict[str, Any]]) -> dict[str, Any]:
        answer = {**super().complete(tokens, calls), "metadata": {"weight_version": "default"}}
        if self.body.get("logprobs") is True:
            top_count = int(self.body.get("top_logprobs") or 0)
            answer["choices"][0]["logprobs"] = {"content": [token_logprobs(token.text, top_count) for token in tokens]}
        return answer

    def message(self, tokens: Sequence[Token], calls: list[dict[str, Any]]) -> dict[str, Any]:
        content, thinking = (join_tokens(tokens, kind) or None for kind in ("content", "reasoning"))
        texts = {"content": None if calls else content, self.reasoning_field: thinking}
        return {"role": "assistant", **texts, "tool_calls": calls or None}

    def usage(self, token_count: int) -> dict[str, Any]:
        return {**super().usage(token_count), "prompt_tokens_details": None, "reasoning_tokens": 0}

    def extra_fields(self, token_count: int) -> dict[str, Any]:
        with_usage = (self.body.get("stream_options") or {}).get("continuous_usage_stats")
        return {"usage": self.usage(token_count)} if with_usage else {}
