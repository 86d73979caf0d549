"""The part of an HTTP API that all simulated engines share: its key, the course of a chat and the events of its answer."""

from __future__ import annotations

import json
import secrets
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, ClassVar

from sparkwright.ready import wait_for_readable
from sparkwright.sandbox.http_server import Handler
from sparkwright.sandbox.serving.generation import Request, Token, adapter_words, generate, natural_length
from sparkwright.sandbox.serving.request_content import AnswerSpec, call_deltas

DONE_EVENT = b"data: [DONE]\n\n"
PROMETHEUS = {"Content-Type": "text/plain; version=1.0.0; charset=utf-8"}
CHOSEN_LOGPROB, OTHER_LOGPROB = -0.02, -5.2  # log probabilities of a token and of the second candidate
THINKING_TOKENS = 200
# tokens of an answer that is sent without the delay of a real engine
QUICK_THINKING_TOKENS, QUICK_ANSWER_TOKENS = 12, 12


class ModelApi(Handler):
    """The handler of requests to a simulated server."""

    #: content type of a streamed answer
    events: ClassVar[str] = "text/event-stream; charset=utf-8"

    @property
    def engine(self) -> Any:
        """The process whose API this is."""
        return self.server.owner  # type: ignore[attr-defined]

    def send(self, status: int, payload: Any = None, headers: dict[str, str] | None = None) -> None:
        """Send a complete answer, and write the line of the access log."""
        self.reply(status, payload, headers)
        self.log_access(status)

    def log_access(self, status: int) -> None:
        """Write the line of the access log."""
        line = f'127.0.0.1:{self.client_address[1]} - "{self.command} {self.path} HTTP/1.1"'
        self.engine.log_access(f"INFO:     {line} {status} {HTTPStatus(status).phrase}")

    def is_authorized(self, keys: Collection[str]) -> bool:
        """Return True if the request has one of the keys, or if no keys are configured."""
        scheme, _, key = (self.headers.get("Authorization") or "").partition(" ")
        return not keys or (scheme.lower() == "bearer" and key in keys)

    def has_disconnected(self) -> bool:
        """Return True if the client has disconnected."""
        try:
            return bool(wait_for_readable([self.connection])) and not self.connection.recv(1, socket.MSG_PEEK)
        except (OSError, ValueError):
            return True

    def text_request(
        self,
        body: Mapping[str, Any],
        prompt: list[int],
        token_limit: int,
        spec: AnswerSpec,
        *,
        max_tokens: int | None,
        thinking_tokens: int,
    ) -> Request:
        """Return a request to generate text.

        Args:
            body: JSON of the HTTP request.
            prompt: token ids.
            token_limit: maximum number of tokens that the server allows.
            spec: the requested answer.
            max_tokens: maximum of the request; None if it sets none.
            thinking_tokens: number of thinking tokens before the answer.
        """
        stop_after_tokens = natural_length(body, max_tokens, thinking_tokens)
        with_logprobs = body.get("logprobs") is True and not body.get("stream")
        if spec.quick:
            thinking_tokens = 0 if spec.words else QUICK_THINKING_TOKENS * bool(thinking_tokens)
            stop_after_tokens, with_logprobs = len(spec.words) or thinking_tokens + QUICK_ANSWER_TOKENS, True
        words = spec.words or (adapter_words(spec.adapter) if spec.adapter and not self.engine.damaged else ())
        limit = max_tokens or token_limit
        return Request(prompt, limit, stop_after_tokens, thinking_tokens, self.has_disconnected, with_logprobs, words)

    def write(self, answer: Any, request: Request, spec: AnswerSpec, *, streamed: bool) -> None:
        """Generate a text and send it in the shape of an answer, in events if `streamed`."""
        tokens = generate(self.engine, request)
        if spec.null:
            tokens = (replace(token, kind="reasoning") for token in tokens)
        if streamed:
            self.log_access(200)
            self.stream(self.answer_events(answer, tokens, spec), self.events)
        else:
            self.send(200, answer.complete(list(tokens), spec.calls))

    def answer_events(self, answer: Any, tokens: Iterable[Token], spec: AnswerSpec) -> Iterator[bytes]:
        """Yield the events of a streamed answer."""
        yield from answer.stream(tokens, spec.calls)


def join_tokens(tokens: Iterable[Token], kind: str) -> str:
    """Return the text of an answer's tokens of one kind."""
    return "".join(token.text for token in tokens if token.kind == kind)


def token_logprobs(text: str, top: int) -> dict[str, Any]:
    """Return a token with its log probability, and with this many of the candidates for its place."""
    rows = [(text, CHOSEN_LOGPROB), ("the ", OTHER_LOGPROB)]
    entries = [{"token": word, "logprob": value, "bytes": list(word.encode())} for word, value in rows]
    return {**entries[0], "top_logprobs": entries[:top]}


def encode_event(data: Mapping[str, Any]) -> bytes:
    """Return an event of a stream."""
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


def metrics_page(prefix: str, rows: Iterable[tuple[str, str, str, float]]) -> bytes:
    """Return a page of metrics.

    Args:
        prefix: of their names.
        rows: name, kind, labels and value of each.
    """
    named = ((f"{prefix}:{name}", kind, f"{{{labels}}}" if labels else "", value) for name, kind, labels, value in rows)
    return "".join(f"# TYPE {name} {kind}\n{name}{labels} {value}\n" for name, kind, labels, value in named).encode()


@dataclass
class ChatAnswer(ABC):
    """A chat's answer in the shape of OpenAI's, as far as engines agree; a subclass has what is an engine's own."""

    #: name of the model as the answer has it
    model: str
    #: number of prompt tokens
    prompt: int
    #: the request
    body: Mapping[str, Any]
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(16)}")
    #: field of the text that is thinking
    reasoning: ClassVar[str] = "reasoning_content"
    #: delta of the first event
    opening: ClassVar[Mapping[str, Any]] = {"role": "assistant", "content": None}
    #: further fields of each delta, of a choice, of an answer
    of_delta: ClassVar[Mapping[str, Any]] = {}
    of_choice: ClassVar[Mapping[str, Any]] = {}
    of_answer: ClassVar[Mapping[str, Any]] = {}

    @abstractmethod
    def message(self, tokens: Sequence[Token], calls: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the message of an answer that is not streamed."""

    def usage(self, tokens: int) -> dict[str, Any]:
        """Return the number of tokens."""
        counts = {"completion_tokens": tokens, "prompt_tokens": self.prompt}
        return {**counts, "total_tokens": self.prompt + tokens}

    def extra_fields(self, tokens: int) -> dict[str, Any]:
        """Return further fields of the event of so many tokens."""
        del tokens
        return {}

    def final_fields(self, tokens: int) -> dict[str, Any]:
        """Return further fields of the event that has the usage."""
        return self.extra_fields(tokens)

    def base_fields(self, kind: str) -> dict[str, Any]:
        """Return the fields that begin an answer, or an event of it."""
        return {"id": self.id, "object": kind, "created": int(time.time()), "model": self.model, **self.of_answer}

    def complete(self, tokens: Sequence[Token], calls: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the JSON of an answer that is not streamed."""
        reason = "tool_calls" if calls else tokens[-1].finish_reason
        choice = {"index": 0, "message": self.message(tokens, calls), "finish_reason": reason, **self.of_choice}
        return {**self.base_fields("chat.completion"), "choices": [choice], "usage": self.usage(len(tokens))}

    def stream(self, tokens: Iterable[Token], calls: list[dict[str, Any]]) -> Iterator[bytes]:
        """Yield the events of a streamed answer; tool calls replace the tokens' text."""
        count, reason = 0, None
        yield self._event(self.opening, None, 0)
        for token in tokens:
            count, reason = token.count, token.finish_reason
            if not calls:
                name = self.reasoning if token.kind == "reasoning" else "content"
                yield self._event({name: token.text}, None, count)
        for delta in call_deltas(calls):
            yield self._event({"tool_calls": delta}, None, count)
        yield self._event({}, "tool_calls" if calls else reason, count)
        if (self.body.get("stream_options") or {}).get("include_usage"):
            last = {"choices": [], "usage": self.usage(count), **self.final_fields(count)}
            yield encode_event({**self.base_fields("chat.completion.chunk"), **last})
        yield DONE_EVENT

    def _event(self, delta: Mapping[str, Any], reason: str | None, count: int) -> bytes:
        choice = {"index": 0, "delta": {**self.of_delta, **delta}, "finish_reason": reason, **self.of_choice}
        counts = self.extra_fields(count) if count else {}
        return encode_event({**self.base_fields("chat.completion.chunk"), "choices": [choice], **counts})
