"""The HTTP API code shared by all simulated engines: API keys, the access log, chat answers and their event streams."""

from __future__ import annotations

import itertools
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
from sparkwright.sandbox.serving.generation import Request, Token, adapter_words, count_tokens, generate, natural_length
from sparkwright.sandbox.serving.request_content import AnswerSpec, call_deltas

DONE_EVENT = b"data: [DONE]\n\n"
PROMETHEUS_HEADERS = {"Content-Type": "text/plain; version=1.0.0; charset=utf-8"}
CHOSEN_LOGPROB, OTHER_LOGPROB = -0.02, -5.2  # log probabilities of the generated token and of the runner-up
THINKING_TOKENS = 200
#: numbers of tokens in an answer that is sent without the delay of a real engine
QUICK_THINKING_TOKENS, QUICK_ANSWER_TOKENS = 12, 12


class ModelApi(Handler):
    """Handler of requests to a simulated server."""

    #: content type of a streamed answer
    stream_content_type: ClassVar[str] = "text/event-stream; charset=utf-8"

    @property
    def engine(self) -> Any:
        """The simulated server process."""
        return self.server.owner  # type: ignore[attr-defined]

    def send(self, status: int, payload: Any = None, headers: dict[str, str] | None = None) -> None:
        """Send a response that is not streamed, and log the access."""
        self.reply(status, payload, headers)
        self.log_access(status)

    def log_access(self, status: int) -> None:
        """Write a uvicorn access log line."""
        line = f'127.0.0.1:{self.client_address[1]} - "{self.command} {self.path} HTTP/1.1"'
        self.engine.log_access(f"INFO:     {line} {status} {HTTPStatus(status).phrase}")

    def is_authorized(self, keys: Collection[str]) -> bool:
        """Return True if the request has one of the keys as bearer token, or if no keys are configured."""
        scheme, _, key = (self.headers.get("Authorization") or "").partition(" ")
        return not keys or (scheme.lower() == "bearer" and key in keys)

    def has_disconnected(self) -> bool:
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
        """Return the generation request for an HTTP request.

        Args:
            body: JSON of the HTTP request.
            prompt: token ids.
            token_limit: maximum number of tokens that the server can generate after this prompt.
            spec: the answer to generate.
            max_tokens: limit set by the HTTP request, or None.
            thinking_tokens: number of thinking tokens before the answer.
        """
        stop_after_tokens = natural_length(body, max_tokens, thinking_tokens)
        with_logprobs = body.get("logprobs") is True and not body.get("stream")
        if spec.is_immediate:
            thinking_tokens = 0 if spec.words else QUICK_THINKING_TOKENS * bool(thinking_tokens)
            stop_after_tokens, with_logprobs = len(spec.words) or thinking_tokens + QUICK_ANSWER_TOKENS, True
        words = spec.words or (adapter_words(spec.adapter) if spec.adapter and not self.engine.damaged else ())
        limit = max_tokens or token_limit
        return Request(prompt, limit, stop_after_tokens, thinking_tokens, self.has_disconnected, with_logprobs, words)

    def write(self, answer: Any, request: Request, spec: AnswerSpec, *, streamed: bool) -> None:
        """Generate text and send it as `answer`: as an event stream if `streamed`, else as one JSON document."""
        tokens = generate(self.engine, request)
        if spec.has_null_content:
            tokens = (replace(token, kind="reasoning") for token in tokens)
        if streamed:
            self.log_access(200)
            self.stream(self.answer_events(answer, tokens, spec), self.stream_content_type)
        else:
            self.send(200, answer.complete(list(tokens), spec.calls))

    def answer_events(self, answer: Any, tokens: Iterator[Token], spec: AnswerSpec) -> Iterator[bytes]:
        """Yield the events of a streamed answer. As in the real engines, the role comes with the first token, not before it.

        Source: vLLM 0.32.0, entrypoints/openai/chat_completion/serving.py (`first_iteration`).
        """
        first_tokens = list(itertools.islice(tokens, 1))
        yield from answer.stream(itertools.chain(first_tokens, tokens), spec.calls)


def join_tokens(tokens: Iterable[Token], kind: str) -> str:
    """Return the text of the tokens of one kind: reasoning or content."""
    return "".join(token.text for token in tokens if token.kind == kind)


def token_logprobs(text: str, top_count: int) -> dict[str, Any]:
    """Return a token with its log probability and the `top_count` most likely tokens at its position, at most two."""
    candidates = [
        {"token": token, "logprob": logprob, "bytes": list(token.encode())}
        for token, logprob in ((text, CHOSEN_LOGPROB), ("the ", OTHER_LOGPROB))
    ]
    return {**candidates[0], "top_logprobs": candidates[:top_count]}


def encode_event(data: Mapping[str, Any]) -> bytes:
    """Return a server-sent event."""
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


def metrics_page(prefix: str, rows: Iterable[tuple[str, str, str, float]]) -> bytes:
    """Return a Prometheus page.

    Args:
        prefix: common prefix of the metrics' names, without the colon.
        rows: name, type, labels and value of each metric.
    """
    lines = []
    for name, kind, labels, value in rows:
        sample = f"{prefix}:{name}{{{labels}}}" if labels else f"{prefix}:{name}"
        lines.append(f"# TYPE {prefix}:{name} {kind}\n{sample} {value}\n")
    return "".join(lines).encode()


@dataclass
class ChatAnswer(ABC):
    """The answer to a chat request, in OpenAI's format. Subclasses add the fields of their engine."""

    #: name of the model in the answer
    model: str
    prompt_tokens: int
    #: JSON of the request
    body: Mapping[str, Any]
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(16)}")
    #: name of the field that contains the thinking
    reasoning_field: ClassVar[str] = "reasoning_content"
    #: delta of the first event
    opening: ClassVar[Mapping[str, Any]] = {"role": "assistant", "content": None}
    #: additional fields of each delta
    extra_delta_fields: ClassVar[Mapping[str, Any]] = {}
    #: additional fields of each choice
    extra_choice_fields: ClassVar[Mapping[str, Any]] = {}

    @abstractmethod
    def message(self, tokens: Sequence[Token], calls: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the message of an answer that is not streamed."""

    def usage(self, token_count: int) -> dict[str, Any]:
        """Return the token counts for an answer with this number of generated tokens."""
        counts = {"completion_tokens": token_count, "prompt_tokens": self.prompt_tokens}
        return {**counts, "total_tokens": self.prompt_tokens + token_count}

    def extra_fields(self, token_count: int) -> dict[str, Any]:
        """Return additional fields of a stream event after this number of generated tokens."""
        del token_count
        return {}

    def final_fields(self, token_count: int) -> dict[str, Any]:
        """Return additional fields of the last stream event, which contains the usage."""
        return self.extra_fields(token_count)

    def base_fields(self, kind: str) -> dict[str, Any]:
        """Return the common first fields of answers and stream events."""
        return {"id": self.id, "object": kind, "created": int(time.time()), "model": self.model}

    def complete(self, tokens: Sequence[Token], calls: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the JSON of an answer that is not streamed."""
        reason = "tool_calls" if calls else tokens[-1].finish_reason
        choice = {
            "index": 0,
            "message": self.message(tokens, calls),
            "finish_reason": reason,
            **self.extra_choice_fields,
        }
        return {**self.base_fields("chat.completion"), "choices": [choice], "usage": self.usage(count_tokens(tokens))}

    def stream(self, tokens: Iterable[Token], calls: list[dict[str, Any]]) -> Iterator[bytes]:
        """Yield the events of a streamed answer; tool calls replace the tokens' text."""
        count, reason = 0, None
        yield self._event(self.opening, None, 0)
        for token in tokens:
            count, reason = token.count, token.finish_reason
            if not calls:
                name = self.reasoning_field if token.kind == "reasoning" else "content"
                yield self._event({name: token.text}, None, count)
        for delta in call_deltas(calls):
            yield self._event({"tool_calls": delta}, None, count)
        yield self._event({}, "tool_calls" if calls else reason, count)
        if (self.body.get("stream_options") or {}).get("include_usage"):
            last_event = {"choices": [], "usage": self.usage(count), **self.final_fields(count)}
            yield encode_event({**self.base_fields("chat.completion.chunk"), **last_event})
        yield DONE_EVENT

    def _event(self, delta: Mapping[str, Any], reason: str | None, count: int) -> bytes:
        choice = {"index": 0, "delta": {**self.extra_delta_fields, **delta}, "finish_reason": reason}
        choice |= self.extra_choice_fields
        counts = self.extra_fields(count) if count else {}
        return encode_event({**self.base_fields("chat.completion.chunk"), "choices": [choice], **counts})
