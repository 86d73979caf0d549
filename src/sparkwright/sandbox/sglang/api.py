"""The HTTP API of the simulated SGLang, in the shape of 0.5.23."""

from __future__ import annotations

import shlex
import socket
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from sparkwright.ready import readable
from sparkwright.sandbox.serving.generation import Request, adapted, generate
from sparkwright.sandbox.serving.process import POLL_S
from sparkwright.sandbox.sglang import request_options, start_log
from sparkwright.sandbox.sglang.answers import Answer, error
from sparkwright.sandbox.web import Handler

if TYPE_CHECKING:
    from sparkwright.sandbox.sglang.server import SglangServer

OWN_TOKENS = 64  # default number of tokens of an answer
THOUGHT_TOKENS = 200
#: paths that begin with these are answered without the key
OPEN = ("/health", "/ready", "/metrics")
PROMETHEUS = {"Content-Type": "text/plain; version=1.0.0; charset=utf-8"}


class SglangApi(Handler):
    """The handler of requests to the server."""

    server_version = "uvicorn"

    @property
    def engine(self) -> SglangServer:
        return self.server.owner  # type: ignore[attr-defined,no-any-return]

    def route(self) -> None:
        path = "/" + "/".join(self.parts)
        if not path.startswith(OPEN) and not self._allowed():
            self._send(401, {"error": "Unauthorized"})
            return
        match self.command, path:
            case "GET", "/health" | "/health_generate":
                self._send(self._health())
            case "GET", "/ready":
                self._send(200 if self.engine.status == "up" else 503)
            case "GET", "/metrics" if self.engine.config.metrics:
                self._send(200, self.engine.counters.text(), PROMETHEUS)
            case "GET", "/v1/models":
                self._send(200, self._models())
            case "GET", "/server_info" | "/get_server_info":
                self._send(200, self._server_info())
            case "GET", "/model_info" | "/get_model_info":
                self._send(200, self._model_info())
            case "POST", "/v1/chat/completions":
                self._chat()
            case _:
                self._send(404, {"detail": "Not Found"})

    def _send(self, status: int, payload: Any = None, headers: dict[str, str] | None = None) -> None:
        self.reply(status, payload, headers)
        self._log(status)

    def _log(self, status: int) -> None:
        line = f'127.0.0.1:{self.client_address[1]} - "{self.command} {self.path} HTTP/1.1"'
        self.engine.log(start_log.stamped(f"INFO:     {line} {status} {HTTPStatus(status).phrase}"))

    def _allowed(self) -> bool:
        scheme, _, given = (self.headers.get("Authorization") or "").partition(" ")
        keys = self.engine.config.keys
        return not keys or (scheme.lower() == "bearer" and given == keys)

    def _health(self) -> int:
        """Return the status of /health, which generates a token and waits for one."""
        engine, began_s = self.engine, time.monotonic()
        if engine.dead or engine.stopped.is_set() or engine.status == "starting":
            return 503
        while engine.fault() == "wedge":
            if time.monotonic() - began_s > engine.health_s or engine.stopped.wait(POLL_S):
                engine.status = "unhealthy"
                return 503
        engine.stopped.wait(engine.probe_s)
        engine.counters.computed(1, 0)
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
            **config.asked,
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
        about = {"model_path": config.model, "served_model_name": config.name, "is_generation": True}
        return {**about, "weight_version": "default", "architectures": [config.architecture]}

    def _chat(self) -> None:
        engine, body = self.engine, self.body()
        wrong = self._wrong(body)
        if wrong:
            self._send(400, error(wrong))
            return
        if engine.fault() == "engine-exits" or engine.dead:
            engine.die()
            raise ConnectionResetError
        prompt, most = engine.tokenizer.chat(body["messages"]), _most(body)
        wanted = request_options.of(engine.config, body)
        quick = len(wanted.words)
        named = self._adapter(body)
        words = wanted.words or (adapted(named) if named and not engine.damaged else ())
        thought = THOUGHT_TOKENS if self._thinks(body) and not quick else 0
        own = quick or (OWN_TOKENS + thought if most is None else most)
        room = most or engine.config.context - len(prompt)
        request = Request(prompt, room, own, thought, self._gone, compared=bool(quick), words=words)
        options = body.get("stream_options") or {}
        usage, each = bool(options.get("include_usage")), bool(options.get("continuous_usage_stats"))
        top = int(body.get("top_logprobs") or 0) if body.get("logprobs") is True else None
        answer = Answer(str(body.get("model") or "default"), len(prompt), top, usage, usage and each)
        if body.get("stream"):
            self._log(200)
            events = answer.stream(generate(engine, request), wanted.calls)
            self.stream(events, "text/event-stream; charset=utf-8")
        else:
            self._send(200, answer.complete(list(generate(engine, request)), wanted.calls))

    @staticmethod
    def _adapter(body: Mapping[str, Any]) -> str:
        """Return the adapter that a request names after a colon; empty for none, and for an adapter's name alone."""
        return str(body.get("model") or "").partition(":")[2]

    def _wrong(self, body: Any) -> str:
        """Return the reason to refuse a request, or an empty string."""
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
            return "[{'type': 'missing', 'loc': ('body', 'messages'), 'msg': 'Field required'}]"
        if not body["messages"]:
            return "Messages cannot be empty."
        if (named := self._adapter(body)) and named not in self.engine.config.adapters:
            loaded = list(self.engine.config.adapters)
            return f"Got LoRA adapter that has never been loaded: {named}\nAll loaded adapters: dict_keys({loaded})."
        prompt_tokens, room = len(self.engine.tokenizer.chat(body["messages"])), self.engine.config.context
        if prompt_tokens >= room:
            return f"The input ({prompt_tokens} tokens) is longer than the model's context length ({room} tokens)."
        most = _most(body) or 0
        if most + prompt_tokens <= room:
            return ""
        total = f"Requested token count exceeds the model's maximum context length of {room} tokens."
        parts = f"{prompt_tokens} tokens from the input messages and {most} tokens for the completion"
        return f"{total} You requested a total of {most + prompt_tokens} tokens: {parts}."

    def _thinks(self, body: dict[str, Any]) -> bool:
        """Return True if the answer begins with reasoning in a field of its own."""
        arguments = self.engine.config.asked
        usual = (arguments["default_chat_template_kwargs"] or {}).get("enable_thinking", True)
        wanted = (body.get("chat_template_kwargs") or {}).get("enable_thinking", usual)
        return bool(arguments["reasoning_parser"]) and bool(wanted)

    def _gone(self) -> bool:
        """Return True if the client has disconnected."""
        try:
            return bool(readable([self.connection])) and not self.connection.recv(1, socket.MSG_PEEK)
        except (OSError, ValueError):
            return True


def _most(body: dict[str, Any]) -> int | None:
    found = body.get("max_completion_tokens") or body.get("max_tokens")
    return found if isinstance(found, int) and found > 0 else None
