"""The answers of a simulated SGLang: complete, streamed and errors, in the shape of the source of 0.5.23."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkwright.sandbox.serving.generation import Token
from sparkwright.sandbox.serving.request_content import call_deltas

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
