"""The HTTP API of the simulated llama-server, in the shape of b11549."""

from __future__ import annotations

import json
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkwright.ready import readable
from sparkwright.sandbox.llama_cpp.server import Config
from sparkwright.sandbox.serving.generation import Request, Token, adapted, generate, length_of
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
from sparkwright.sandbox.web import Handler

if TYPE_CHECKING:
    from sparkwright.sandbox.llama_cpp.server import LlamaServer

PUBLIC = ("health",)
PROMETHEUS = {"Content-Type": "text/plain; version=0.0.4"}
NO_METRICS = "This server does not support metrics endpoint. Start it with `--metrics`"
DONE = b"data: [DONE]\n\n"


class LlamaApi(Handler):
    """The handler of requests to the server."""

    server_version = "llama.cpp"

    @property
    def engine(self) -> LlamaServer:
        return self.server.owner  # type: ignore[attr-defined,no-any-return]

    def route(self) -> None:
        if not self.engine.loaded:
            self._error(503, "Loading model", "unavailable_error")
        elif self.parts[:1] and self.parts[0] not in PUBLIC and not self._allowed():
            self._error(401, "Invalid API Key", "authentication_error")
        else:
            self._routed()

    def _routed(self) -> None:
        match self.command, self.parts:
            case "GET", ["health"]:
                self.reply(200, {"status": "ok"})
            case "GET", ["v1", "models"]:
                self.reply(200, self._models())
            case "GET", ["props"]:
                self.reply(200, self._props())
            case "GET", ["metrics"] if self.engine.config.metrics:
                self.reply(200, self.engine.counters.text(), PROMETHEUS)
            case "GET", ["metrics"]:
                self._error(501, NO_METRICS, "not_supported_error")
            case "POST", ["v1", "chat", "completions"]:
                self._chat()
            case _:
                self._error(404, "File Not Found", "not_found_error")

    def _allowed(self) -> bool:
        scheme, _, given = (self.headers.get("Authorization") or "").partition(" ")
        return not self.engine.config.keys or (scheme.lower() == "bearer" and given in self.engine.config.keys)

    def _error(self, status: int, message: str, kind: str, **more: Any) -> None:
        self.reply(status, {"error": {"code": status, "message": message, "type": kind, **more}})

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
            "endpoint_metrics": config.metrics,
            "build_info": self.engine.version,
            "is_sleeping": False,
        }

    def _chat(self) -> None:
        engine, body = self.engine, self.body()
        if not isinstance(body, dict) or not body.get("messages"):
            self._error(400, "'messages' is required", "invalid_request_error")
            return
        prompt, room = engine.tokenizer.chat(body["messages"]), engine.config.context
        if len(prompt) >= room:
            message = (
                f"request ({len(prompt)} tokens) exceeds the available context size ({room} tokens), try increasing it"
            )
            self._error(400, message, "exceed_context_size_error", n_prompt_tokens=len(prompt), n_ctx=room)
            return
        if engine.fault() == "engine-exits" or engine.dead:
            engine.die()
            raise ConnectionResetError
        try:
            request = request_options_of(engine.config, body)
        except Refused as refused:
            self._error(500, str(refused), "server_error")
            return
        room -= len(prompt)
        most = min(room, body["max_tokens"]) if (body.get("max_tokens") or -1) > 0 else room
        own = request.tokens or length_of(body, most)
        quick, lora = bool(request.tokens), engine.config.adapters
        words = adapted(lora[0]) if lora and not engine.damaged else ()
        wanted = Request(prompt, most, own, request.thought, self._gone, compared=quick, words=request.words or words)
        tokens = generate(engine, wanted)
        if body.get("stream"):
            self.stream(self._chunks(tokens, body, len(prompt), request), "text/event-stream")
        else:
            made = list(tokens)
            reason = "tool_calls" if request.calls else made[-1].reason
            choice = {"finish_reason": reason, "index": 0, "message": _message(made, request.calls)}
            usage = _usage(len(prompt), len(made))
            self.reply(200, {"choices": [choice], **self._about("chat.completion"), "usage": usage})

    def _chunks(
        self, tokens: Iterator[Token], body: dict[str, Any], prompt: int, request: Requested
    ) -> Iterator[bytes]:
        about, began_s, count, reason = self._about("chat.completion.chunk"), time.monotonic(), 0, None
        yield _event(about, {"role": "assistant", "content": None})
        for token in tokens:
            count, reason = token.count, token.reason
            timings = {"timings": _timings(prompt, count, began_s)} if body.get("timings_per_token") else {}
            if not request.calls:
                kind = "reasoning_content" if token.kind == "reasoning" else "content"
                yield _event(about | timings, {kind: token.text})
        for delta in call_deltas(request.calls):
            yield _event(about, {"tool_calls": delta})
        yield _event(about, {}, reason="tool_calls" if request.calls else reason)
        if (body.get("stream_options") or {}).get("include_usage"):
            last = {"choices": [], **about, "usage": _usage(prompt, count), "timings": _timings(prompt, count, began_s)}
            yield b"data: " + json.dumps(last).encode() + b"\n\n"
        yield DONE

    def _about(self, kind: str) -> dict[str, Any]:
        name, now = f"chatcmpl-{secrets.token_hex(16)}", int(time.time())
        about = {"created": now, "id": name, "model": self.engine.config.alias}
        return {**about, "system_fingerprint": self.engine.version, "object": kind}

    def _gone(self) -> bool:
        """Return True if the client has disconnected."""
        try:
            return bool(readable([self.connection])) and not self.connection.recv(1, socket.MSG_PEEK)
        except (OSError, ValueError):
            return True


def _message(made: list[Token], calls: list[dict[str, Any]]) -> dict[str, Any]:
    content, thought = (
        "".join(token.text for token in made if token.kind == kind) for kind in ("content", "reasoning")
    )
    message: dict[str, Any] = {"role": "assistant", "content": "" if calls else content}
    message |= {"reasoning_content": thought} if thought else {}
    return message | ({"tool_calls": calls} if calls else {})


def _event(about: dict[str, Any], delta: dict[str, Any], *, reason: str | None = None) -> bytes:
    data = {"choices": [{"finish_reason": reason, "index": 0, "delta": delta}], **about}
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def _usage(prompt: int, tokens: int) -> dict[str, Any]:
    details = {"prompt_tokens_details": {"cached_tokens": 0}}
    return {"completion_tokens": tokens, "prompt_tokens": prompt, "total_tokens": prompt + tokens, **details}


def _timings(prompt: int, tokens: int, began_s: float) -> dict[str, Any]:
    seconds = time.monotonic() - began_s
    rate = tokens / seconds if seconds else 0.0
    return {
        "cache_n": 0,
        "prompt_n": prompt,
        "predicted_n": tokens,
        "predicted_ms": seconds * 1000,
        "predicted_per_second": rate,
    }


# Request options beyond plain text: tools, thinking, JSON schemas, pictures, other languages.
#
# Refusals have the wording of the real llama-server, as observed on b11549. Tool calls and separate thinking follow its README:
# they need a model that is not random.

NO_PICTURES = "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"
NO_TOOLS = "tools param requires --jinja flag"
THOUGHT = 24  # tokens
ANSWER = 8


class Refused(Exception):
    """The error message of a response with status 500."""


@dataclass(frozen=True)
class Requested:
    """The answer that a request calls for."""

    #: words of the answer; empty for the default sentence
    words: tuple[str, ...] = ()
    #: tool calls
    calls: list[dict[str, Any]] = field(default_factory=list)
    #: thinking tokens before the answer
    thought: int = 0
    #: thinking and answer tokens together; 0 for as many as the request allows
    tokens: int = 0


def request_options_of(config: Config, body: Mapping[str, Any]) -> Requested:
    """Return the answer that a chat request calls for. Raises Refused."""
    picture = picture_of(body)
    if picture and not config.sees:
        raise Refused(NO_PICTURES)
    if body.get("tools") and body.get("tool_choice") != "none" and not config.jinja:
        raise Refused(NO_TOOLS)
    if (call := called(body)) is not None:
        return _called(*call)
    if (schema := schema_of(body)) is not None:
        return _reply(json.dumps(instance(schema)))
    if picture:
        return _reply(colour(picture))
    if (body.get("chat_template_kwargs") or {}).get("enable_thinking") is True:
        return Requested(thought=THOUGHT, tokens=THOUGHT + ANSWER) if config.thinks else _reply("<think>Hm.</think>9.9")
    return _reply(known(body) or foreign(body))


def _reply(text: str) -> Requested:
    pieces = words(text)
    return Requested(pieces, tokens=len(pieces))


def _called(name: str, given: Any) -> Requested:
    function = {"name": name, "arguments": json.dumps(given)}
    call = {"type": "function", "function": function, "id": secrets.token_hex(16)}
    return Requested(words("a b c d"), [call], tokens=2)
