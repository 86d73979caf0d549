"""The HTTP API of the simulated SGLang, in the shape of 0.5.23."""

from __future__ import annotations

import json
import secrets
import shlex
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from sparkwright.ready import readable
from sparkwright.sandbox.serving.generation import Request, Token, adapted, generate, length_of
from sparkwright.sandbox.serving.process import POLL_S
from sparkwright.sandbox.serving.request_content import (
    call_deltas,
    called,
    colour,
    foreign,
    instance,
    known,
    picture_of,
    schema_of,
    words,
)
from sparkwright.sandbox.sglang import start_log
from sparkwright.sandbox.sglang.config import Config
from sparkwright.sandbox.web import Handler

if TYPE_CHECKING:
    from sparkwright.sandbox.sglang.server import SglangServer

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
        wanted = request_options_of(engine.config, body)
        quick = len(wanted.words)
        named = self._adapter(body)
        words = wanted.words or (adapted(named) if named and not engine.damaged else ())
        thought = THOUGHT_TOKENS if self._thinks(body) and not quick else 0
        own = quick or length_of(body, most, thought)
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


# The answers of a simulated SGLang: complete, streamed and errors, in the shape of the source of 0.5.23.

DONE = b"data: [DONE]\n\n"
CHOSEN, OTHER = -0.02, -5.2  # log probabilities of a token and of the second candidate
REASONING = "reasoning_content"


def error(message: str, kind: str = "BadRequestError", status: int = 400) -> dict[str, Any]:
    """Return the body of an error."""
    return {"object": "error", "message": message, "type": kind, "param": None, "code": status}


@dataclass(frozen=True)
class Answer:
    """The answer to one request."""

    #: name as the request has it
    model: str
    #: number of prompt tokens
    prompt: int
    #: number of candidates returned with each token and their log probabilities; None for none
    top: int | None
    #: a stream reports the token counts at its end
    usage: bool = False
    #: a stream reports the token counts with each chunk
    usage_each: bool = False
    id: str = field(default_factory=lambda: secrets.token_hex(16))

    def complete(self, tokens: Sequence[Token], calls: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        """Return the JSON of an answer that is not streamed.

        Args:
            tokens: of the answer.
            calls: tool calls.
        """
        content = "".join(token.text for token in tokens if token.kind == "content")
        thought = "".join(token.text for token in tokens if token.kind == "reasoning")
        logprobs = None if self.top is None else {"content": [self._choices(token) for token in tokens]}
        message: dict[str, Any] = {"role": "assistant", "content": content or None, REASONING: thought or None}
        message["tool_calls"] = list(calls) or None
        reason = tokens[-1].reason
        if calls:
            message["content"], reason = None, "tool_calls"
        choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": reason, "matched_stop": None}
        about = {**self._about("chat.completion"), "choices": [choice], "usage": self._usage(len(tokens))}
        return {**about, "metadata": {"weight_version": "default"}}

    def stream(self, tokens: Iterable[Token], calls: Sequence[dict[str, Any]] = ()) -> Iterator[bytes]:
        """Yield the events of a streamed answer.

        Args:
            tokens: of the answer.
            calls: tool calls, which replace the tokens' text.
        """
        count, reason = 0, None
        yield self._event({REASONING: None, "role": "assistant", "content": ""}, None, 0)
        for token in tokens:
            count, reason = token.count, token.reason
            if calls:
                continue
            thinks = token.kind == "reasoning"
            yield self._event(
                {REASONING: token.text} if thinks else {REASONING: None, "content": token.text}, None, count
            )
        for delta in call_deltas(calls):
            yield self._event({"tool_calls": delta}, None, count)
        yield self._event({REASONING: None}, "tool_calls" if calls else reason, count)
        if self.usage:
            last = {**self._about("chat.completion.chunk"), "choices": [], "usage": self._usage(count)}
            yield b"data: " + json.dumps(last, separators=(",", ":")).encode() + b"\n\n"
        yield DONE

    def _event(self, delta: dict[str, Any], reason: str | None, count: int) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason, "matched_stop": None}
        usage = {"usage": self._usage(count)} if self.usage_each and count else {}
        data = {**self._about("chat.completion.chunk"), "choices": [choice], **usage}
        return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"

    def _about(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": int(time.time()), "model": self.model}

    def _usage(self, tokens: int) -> dict[str, Any]:
        total = self.prompt + tokens
        counts = {"prompt_tokens": self.prompt, "total_tokens": total, "completion_tokens": tokens}
        return {**counts, "prompt_tokens_details": None, "reasoning_tokens": 0}

    def _choices(self, token: Token) -> dict[str, Any]:
        rows = [(token.text, CHOSEN), ("the ", OTHER)]
        found = [{"token": text, "logprob": value, "bytes": list(text.encode())} for text, value in rows]
        return {**found[0], "top_logprobs": found[: self.top or 0]}


# Request options beyond plain text, as a simulated SGLang answers them. Read in the source of 0.5.23.
#
# Tool calls that no parser finds, and thinking, stay in the content as the model wrote them.

MULTIMODAL = "ForConditionalGeneration"


@dataclass(frozen=True)
class Requested:
    """The answer that a request calls for."""

    #: words of the answer; empty for the default sentence
    words: tuple[str, ...] = ()
    #: tool calls
    calls: list[dict[str, Any]] = field(default_factory=list)


def request_options_of(config: Config, body: Mapping[str, Any]) -> Requested:
    """Return the answer that a chat request calls for."""
    if (call := called(body)) is not None:
        return _called(config, *call)
    if (schema := schema_of(body)) is not None:
        return Requested(words(json.dumps(instance(schema))))
    if (picture := picture_of(body)) and config.architecture.endswith(MULTIMODAL):
        return Requested(words(colour(picture)))
    thinking = (body.get("chat_template_kwargs") or {}).get("enable_thinking")
    if thinking is True and not config.asked["reasoning_parser"]:
        return Requested(words("<think>\nHm.\n</think>\n\n9.9"))
    return Requested(words(known(body) or foreign(body)))


def _called(config: Config, name: str, given: Any) -> Requested:
    text = json.dumps({"name": name, "arguments": given})
    if not config.asked["tool_call_parser"]:
        return Requested(words(f"<tool_call>\n{text}\n</tool_call>"))
    function = {"name": name, "arguments": json.dumps(given)}
    call = {"id": f"call_{secrets.token_hex(12)}", "index": 0, "type": "function", "function": function}
    return Requested(words("a b c d"), [call])
