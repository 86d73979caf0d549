"""The answers of 0.32.0 to chats, texts, embeddings and rankings: what a request calls for, and its shape, complete and streamed."""

from __future__ import annotations

import hashlib
import math
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sparkwright.sandbox.serving.api import DONE, candidates, event, text_of
from sparkwright.sandbox.serving.generation import Token
from sparkwright.sandbox.serving.request_content import (
    Requested,
    call_deltas,
    called,
    picture_of,
    requested,
    spoken,
    tool_call,
)

if TYPE_CHECKING:
    from sparkwright.sandbox.vllm.engine import Engine


#: parsers that fit a model family; for other families every parser does
TOOL_PARSERS = {"Qwen3_5": ("qwen3_coder", "qwen3_xml"), "Qwen3Next": ("qwen3_coder", "qwen3_xml")}
#: number of tools above which the fault `many-tools` has an effect
MANY_TOOLS = 30
NEEDS_BOTH = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
NEEDS_PARSER = 'tool_choice="{}" requires --tool-call-parser to be set'


class Refused(Exception):
    """The error message of a response with status 400."""


def of(engine: Engine, body: Mapping[str, Any], *, refuses: bool = True) -> Requested:
    """Return the answer that a chat request calls for. Raises Refused.

    Args:
        engine: the engine that answers.
        body: the request.
        refuses: refuse tools if no parser is configured; otherwise their calls stay in the text.
    """
    if picture_of(body) and not engine.config.sees:
        raise Refused(f"{engine.config.served_names[0]} is not a multimodal model")
    if body.get("tools") and body.get("tool_choice") != "none":
        _refuse_tools(engine, body.get("tool_choice") or "auto", refuses=refuses)
    if (call := called(body)) is not None:
        found = _called(engine, body, *call)
    else:
        found = requested(body, sees=True, thinks=engine.config.thinks and engine.fault() != "think-text")
    return replace(found, null=True, calls=[]) if engine.fault() == "content-null" else found


def _refuse_tools(engine: Engine, choice: Any, *, refuses: bool) -> None:
    """Raise Refused for tools that no configured parser finds."""
    config = engine.config
    if choice == "auto" and refuses and not (config.auto_tools and config.tool_parser):
        raise Refused(NEEDS_BOTH)
    if choice == "required" and not config.tool_parser:
        raise Refused(NEEDS_PARSER.format(choice))


def _called(engine: Engine, body: Mapping[str, Any], name: str, given: Any) -> Requested:
    config, choice = engine.config, body.get("tool_choice") or "auto"
    parses = bool(config.auto_tools and config.tool_parser)
    fits = next(
        (ones for family, ones in TOOL_PARSERS.items() if config.architecture.startswith(family)), (config.tool_parser,)
    )
    if choice == "auto" and (not parses or config.tool_parser not in fits or _unparsed(engine.fault(), body)):
        values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in given.items())
        return spoken(f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>")
    return tool_call(name, given, id=f"chatcmpl-tool-{secrets.token_hex(8)}")


def _unparsed(fault: str, body: Mapping[str, Any]) -> bool:
    """Return True if a fault leaves the tool call as text in the content."""
    return (
        fault == "tool-text"
        or (fault == "tool-stream" and bool(body.get("stream")))
        or (fault == "many-tools" and len(body["tools"]) > MANY_TOOLS)
    )


NUMBERS = 128  # length of the vectors behind a score; embeddings have as many as their model has features
#: words that are too common to matter
COMMON = frozenset(("a", "an", "and", "in", "is", "of", "on", "the", "to", "what"))


def vector(text: str, numbers: int = NUMBERS) -> list[float]:
    """Return the embedding of a text, a vector of length one."""
    found = [0.0] * numbers
    for word in [word for word in re.findall(r"\w+", text.lower()) if word not in COMMON] or ["-"]:
        digest = hashlib.sha256(word.encode()).digest()
        found[digest[0] % numbers] += 1.0 if digest[1] % 2 else -1.0
    length = math.sqrt(sum(item * item for item in found)) or 1.0
    return [item / length for item in found]


def score(query: str, text: str) -> float:
    """Return the cosine similarity of two texts."""
    return sum(number * other for number, other in zip(vector(query), vector(text), strict=True))


def embeddings(model: str, texts: Sequence[str], tokens: int, numbers: int = NUMBERS) -> dict[str, Any]:
    """Return the answer of /v1/embeddings."""
    rows = [{"index": n, "object": "embedding", "embedding": vector(text, numbers)} for n, text in enumerate(texts)]
    about = {"id": f"embd-{secrets.token_hex(8)}", "object": "list", "created": int(time.time()), "model": model}
    return {**about, "data": rows, "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}}


def ranking(model: str, query: str, texts: Sequence[str], tokens: int) -> dict[str, Any]:
    """Return the answer of /v1/rerank, the best text first."""
    rows = [
        {"index": n, "document": {"text": text}, "relevance_score": score(query, text)} for n, text in enumerate(texts)
    ]
    rows.sort(key=lambda row: -float(str(row["relevance_score"])))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"id": f"score-{secrets.token_hex(8)}", "model": model, "usage": usage, "results": rows}


#: kind, param and message of the error when the engine's core is gone
DEAD = ("InternalServerError", None, "EngineCore encountered an issue. See stack trace (above) for the root cause.")


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
        thought, content = text_of(tokens, "reasoning"), None if calls else text_of(tokens, "content") or None
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None, "annotations": None}
        message |= {"audio": None, "function_call": None, "reasoning": thought or None}
        if calls:
            message["tool_calls"] = calls
        reason = "tool_calls" if calls else tokens[-1].reason
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason, "stop_reason": None}
        if top is not None:
            choice["logprobs"] = {"content": [candidates(token.text, top) for token in tokens]}
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
        yield event(error(message, kind, param, 500))
        yield DONE

    def _about(self, kind: str) -> dict[str, Any]:
        name = f"{self.shape.prefix}-{secrets.token_hex(8)}"
        return {"id": name, "object": kind, "created": int(time.time()), "model": self.model}

    def _usage(self, tokens: int) -> dict[str, int]:
        return {"prompt_tokens": self.prompt, "total_tokens": self.prompt + tokens, "completion_tokens": tokens}


def _event(about: dict[str, Any], choices: list[Any], usage: dict[str, int] | None, more: dict[str, Any]) -> bytes:
    data = {**about, "choices": choices, **({"usage": usage} if usage else {}), **more}
    return event(data)
