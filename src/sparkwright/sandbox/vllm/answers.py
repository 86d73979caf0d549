"""The answers of 0.32.0: chat and plain completions, complete and streamed, and errors."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sparkwright.sandbox.serving.generation import Token
from sparkwright.sandbox.serving.request_content import call_deltas

DONE = b"data: [DONE]\n\n"
#: kind, param and message of the error when the engine's core is gone
DEAD = ("InternalServerError", None, "EngineCore encountered an issue. See stack trace (above) for the root cause.")
CHOSEN, OTHER = -0.02, -5.2  # log probabilities of a token and of the second candidate


def error(message: str, kind: str, param: str | None, status: int) -> dict[str, Any]:
    """Return the body of an error."""
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


@dataclass(frozen=True)
class Chat:
    """The shape of /v1/chat/completions."""

    prefix = "chatcmpl"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def opening(self) -> list[dict[str, Any]]:
        """Return the choices of the first chunk: a role and no text."""
        delta = {"role": "assistant", "content": ""}
        return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]

    def piece(self, token: Token) -> list[dict[str, Any]]:
        """Return the choices of a token's chunk."""
        found: dict[str, Any] = {"index": 0, "delta": {token.kind: token.text}, "logprobs": None}
        ended = {"stop_reason": None} if token.reason else {}
        return [{**found, "finish_reason": token.reason, **ended, "token_ids": None}]

    def complete(self, tokens: Sequence[Token], calls: list[dict[str, Any]], top: int | None) -> dict[str, Any]:
        """Return the whole answer in one choice.

        Args:
            tokens: of the answer.
            calls: tool calls.
            top: number of candidates returned with each token; None for no logprobs.
        """
        sentence = "".join(token.text for token in tokens if token.kind == "content")
        thought = "".join(token.text for token in tokens if token.kind == "reasoning")
        content = None if calls else sentence or None
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None, "annotations": None}
        message |= {"audio": None, "function_call": None, "reasoning": thought or None}
        if calls:
            message["tool_calls"] = calls
        reason = "tool_calls" if calls else tokens[-1].reason
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason, "stop_reason": None}
        if top is not None:
            choice["logprobs"] = {"content": [_choices(token.text, top) for token in tokens]}
        return {**choice, "token_ids": None, "routed_experts": None}


@dataclass(frozen=True)
class Plain:
    """The shape of /v1/completions."""

    prefix = "cmpl"
    kind = chunk_kind = "text_completion"

    def opening(self) -> list[dict[str, Any]]:
        """Return no choices: nothing comes before the text."""
        return []

    def piece(self, token: Token) -> list[dict[str, Any]]:
        """Return the choices of a token's chunk."""
        found = {"index": 0, "text": token.text, "logprobs": None, "finish_reason": token.reason, "stop_reason": None}
        return [{**found, "prompt_token_ids": None, "token_ids": None}]

    def complete(self, tokens: Sequence[Token], calls: list[dict[str, Any]], top: int | None) -> dict[str, Any]:
        """Return the whole answer in one choice."""
        del calls, top
        choice = {"index": 0, "text": "".join(token.text for token in tokens), "logprobs": None}
        choice |= {"finish_reason": tokens[-1].reason, "stop_reason": None, "token_ids": None, "prompt_logprobs": None}
        return {**choice, "prompt_token_ids": None, "routed_experts": None}


@dataclass(frozen=True)
class Answer:
    """The answer to one request."""

    shape: Chat | Plain
    model: str
    fingerprint: str
    #: number of prompt tokens
    prompt: int
    #: a stream reports the token counts at its end
    usage: bool = False
    #: a stream reports the token counts with each chunk
    usage_each: bool = False
    #: see `complete` of a shape
    top: int | None = None

    def complete(self, tokens: Sequence[Token], calls: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the JSON of an answer that is not streamed."""
        details = {"prompt_tokens_details": None, "completion_tokens_details": None}
        return {
            **self._about(self.shape.kind),
            "choices": [self.shape.complete(tokens, calls, self.top)],
            "service_tier": None,
            "system_fingerprint": self.fingerprint,
            "usage": {**self._usage(len(tokens)), **details},
            "kv_transfer_params": None,
            "metrics": None,
        }

    def stream(self, tokens: Iterable[Token], calls: Sequence[dict[str, Any]] = ()) -> Iterator[bytes]:
        """Yield the events of a streamed answer.

        Args:
            tokens: of the answer.
            calls: tool calls, which replace the tokens' text.
        """
        about, count = self._about(self.shape.chunk_kind), 0
        opening = self.shape.opening()
        if opening:
            usage = self._usage(0) if self.usage_each else None
            yield _event(about, opening, usage, {"prompt_token_ids": None, "prompt_text": None})
        for token in tokens:
            count = token.count
            if calls:
                continue
            last = {"system_fingerprint": self.fingerprint} if token.reason and not self.usage else {}
            yield _event(about, self.shape.piece(token), self._usage(count) if self.usage_each else None, last)
        for delta in call_deltas(calls):
            choice = {"index": 0, "delta": {"tool_calls": delta}, "logprobs": None, "finish_reason": None}
            yield _event(about, [{**choice, "token_ids": None}], self._usage(count) if self.usage_each else None, {})
        if calls:
            choice = {"index": 0, "delta": {"content": ""}, "logprobs": None, "finish_reason": "tool_calls"}
            yield _event(about, [{**choice, "stop_reason": None, "token_ids": None}], None, {})
        if self.usage:
            yield _event(about, [], self._usage(count), {"system_fingerprint": self.fingerprint})
        yield DONE

    @staticmethod
    def broken() -> Iterator[bytes]:
        """Yield the last events of a stream whose engine is gone."""
        kind, param, message = DEAD
        yield b"data: " + json.dumps(error(message, kind, param, 500)).encode() + b"\n\n"
        yield DONE

    def _about(self, kind: str) -> dict[str, Any]:
        name = f"{self.shape.prefix}-{secrets.token_hex(8)}"
        return {"id": name, "object": kind, "created": int(time.time()), "model": self.model}

    def _usage(self, tokens: int) -> dict[str, int]:
        return {"prompt_tokens": self.prompt, "total_tokens": self.prompt + tokens, "completion_tokens": tokens}


def _choices(word: str, top: int) -> dict[str, Any]:
    """Return a token with its logprobs."""
    rows = [(word, CHOSEN), ("the ", OTHER)]
    found = [{"token": text, "logprob": value, "bytes": list(text.encode())} for text, value in rows]
    return {**found[0], "top_logprobs": found[:top]}


def _event(about: dict[str, Any], choices: list[Any], usage: dict[str, int] | None, more: dict[str, Any]) -> bytes:
    data = {**about, "choices": choices, **({"usage": usage} if usage else {}), **more}
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"
