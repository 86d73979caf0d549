"""Answers to chats, text completions, embeddings and rankings in the formats of 0.32.0, complete and streamed."""

from __future__ import annotations

import hashlib
import math
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sparkwright.sandbox.serving.api import DONE_EVENT, encode_event, join_tokens, token_logprobs
from sparkwright.sandbox.serving.generation import Token, count_tokens
from sparkwright.sandbox.serving.request_content import (
    AnswerSpec,
    call_deltas,
    picture_url,
    requested_answer,
    requested_call,
    text_answer,
    tool_call_answer,
)

if TYPE_CHECKING:
    from sparkwright.sandbox.vllm.engine import Engine


#: tool parsers that work with a model family; every parser works with a family that is not listed
TOOL_PARSERS = {"Qwen3_5": ("qwen3_coder", "qwen3_xml"), "Qwen3Next": ("qwen3_coder", "qwen3_xml")}
#: number of tools above which the fault `many-tools` applies
MANY_TOOLS_THRESHOLD = 30
NEEDS_BOTH_MESSAGE = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
NEEDS_PARSER_MESSAGE = 'tool_choice="{}" requires --tool-call-parser to be set'
#: type, param and message of the error after the engine core has exited
ENGINE_DEAD_ERROR = (
    "InternalServerError",
    None,
    "EngineCore encountered an issue. See stack trace (above) for the root cause.",
)
VECTOR_LENGTH = 128  # dimensions of the embeddings that a rerank compares
#: common words, ignored in embeddings
STOP_WORDS = frozenset(("a", "an", "and", "in", "is", "of", "on", "the", "to", "what"))


class InvalidRequest(Exception):
    """The request is answered with status 400 and this message."""


def chat_answer_spec(engine: Engine, body: Mapping[str, Any], *, require_parser: bool = True) -> AnswerSpec:
    """Return the answer that a chat request calls for.

    Args:
        body: JSON of the request.
        require_parser: reject tools if no parser is configured; otherwise the calls remain in the text.

    Raises:
        InvalidRequest: the request has pictures or tools that the server does not support.
    """
    if picture_url(body) and not engine.config.accepts_pictures:
        raise InvalidRequest(f"{engine.config.served_names[0]} is not a multimodal model")
    if body.get("tools") and body.get("tool_choice") != "none":
        _check_tools(engine, body.get("tool_choice") or "auto", require_parser=require_parser)
    if (call := requested_call(body)) is not None:
        spec = _tool_answer(engine, body, *call)
    else:
        spec = requested_answer(
            body,
            accepts_pictures=True,
            parses_thinking=engine.config.parses_thinking and engine.fault() != "think-text",
        )
    return replace(spec, has_null_content=True, calls=[]) if engine.fault() == "content-null" else spec


def _check_tools(engine: Engine, choice: Any, *, require_parser: bool) -> None:
    """Raise InvalidRequest if tools are offered but no parser for their calls is configured."""
    config = engine.config
    if choice == "auto" and require_parser and not (config.auto_tools and config.tool_parser):
        raise InvalidRequest(NEEDS_BOTH_MESSAGE)
    if choice == "required" and not config.tool_parser:
        raise InvalidRequest(NEEDS_PARSER_MESSAGE.format(choice))


def _tool_answer(engine: Engine, body: Mapping[str, Any], name: str, arguments: Any) -> AnswerSpec:
    config, choice = engine.config, body.get("tool_choice") or "auto"
    has_parser = bool(config.auto_tools and config.tool_parser)
    fitting_parsers = next(
        (parsers for family, parsers in TOOL_PARSERS.items() if config.architecture.startswith(family)),
        (config.tool_parser,),
    )
    if choice == "auto" and (
        not has_parser or config.tool_parser not in fitting_parsers or _is_left_as_text(engine.fault(), body)
    ):
        parameters_text = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
        return text_answer(f"<tool_call>\n<function={name}>\n{parameters_text}</function>\n</tool_call>")
    return tool_call_answer(name, arguments, id=f"chatcmpl-tool-{secrets.token_hex(8)}")


def _is_left_as_text(fault: str, body: Mapping[str, Any]) -> bool:
    """Return True if a fault leaves the tool call as text in the content."""
    return (
        fault == "tool-text"
        or (fault == "tool-stream" and bool(body.get("stream")))
        or (fault == "many-tools" and len(body["tools"]) > MANY_TOOLS_THRESHOLD)
    )


def embed_text(text: str, dimensions: int = VECTOR_LENGTH) -> list[float]:
    """Return the embedding of a text, normalized to length 1."""
    values = [0.0] * dimensions
    words = [word for word in re.findall(r"\w+", text.lower()) if word not in STOP_WORDS]
    for word in words or ["-"]:
        digest = hashlib.sha256(word.encode()).digest()
        values[digest[0] % dimensions] += 1.0 if digest[1] % 2 else -1.0
    length = math.sqrt(sum(number * number for number in values)) or 1.0
    return [number / length for number in values]


def similarity(query: str, text: str) -> float:
    """Return the cosine similarity of the embeddings of two texts."""
    return sum(left * right for left, right in zip(embed_text(query), embed_text(text), strict=True))


def embeddings_response(model: str, texts: Sequence[str], token_count: int, dimensions: int) -> dict[str, Any]:
    """Return the body of a response from /v1/embeddings."""
    rows = [
        {"index": n, "object": "embedding", "embedding": embed_text(text, dimensions)} for n, text in enumerate(texts)
    ]
    header = {"id": f"embd-{secrets.token_hex(8)}", "object": "list", "created": int(time.time()), "model": model}
    return {
        **header,
        "data": rows,
        "usage": {"prompt_tokens": token_count, "total_tokens": token_count, "completion_tokens": 0},
    }


def rerank_response(model: str, query: str, texts: Sequence[str], token_count: int) -> dict[str, Any]:
    """Return the body of a response from /v1/rerank, the best text first."""
    scores = [similarity(query, text) for text in texts]
    results = [
        {"index": n, "document": {"text": texts[n]}, "relevance_score": scores[n]}
        for n in sorted(range(len(texts)), key=lambda n: -scores[n])
    ]
    usage = {"prompt_tokens": token_count, "total_tokens": token_count}
    return {"id": f"score-{secrets.token_hex(8)}", "model": model, "usage": usage, "results": results}


def error_body(message: str, kind: str, param: str | None, status: int) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


@dataclass(frozen=True)
class ChatShape:
    """The response format of /v1/chat/completions."""

    prefix = "chatcmpl"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def opening(self) -> list[dict[str, Any]]:
        """Return the choices of the first chunk: the role, without text."""
        delta = {"role": "assistant", "content": ""}
        return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]

    def token_choices(self, token: Token) -> list[dict[str, Any]]:
        choice: dict[str, Any] = {"index": 0, "delta": {token.kind: token.text}, "logprobs": None}
        stop_reason = {"stop_reason": None} if token.finish_reason else {}
        return [{**choice, "finish_reason": token.finish_reason, **stop_reason, "token_ids": None}]

    def complete(
        self, tokens: Sequence[Token], calls: list[dict[str, Any]], top_logprobs: int | None
    ) -> dict[str, Any]:
        """Return the choice of an answer that is not streamed.

        Args:
            calls: tool calls, which replace the content.
            top_logprobs: number of candidates returned with each token; None returns no logprobs.
        """
        thinking, content = join_tokens(tokens, "reasoning"), None if calls else join_tokens(tokens, "content") or None
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None, "annotations": None}
        message |= {"audio": None, "function_call": None, "reasoning": thinking or None}
        if calls:
            message["tool_calls"] = calls
        reason = "tool_calls" if calls else tokens[-1].finish_reason
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason, "stop_reason": None}
        if top_logprobs is not None:
            choice["logprobs"] = {"content": [token_logprobs(token.text, top_logprobs) for token in tokens]}
        return {**choice, "token_ids": None, "routed_experts": None}


@dataclass(frozen=True)
class CompletionShape:
    """The response format of /v1/completions."""

    prefix = "cmpl"
    kind = chunk_kind = "text_completion"

    def opening(self) -> list[dict[str, Any]]:
        """Return no choices, because the first chunk already contains text."""
        return []

    def token_choices(self, token: Token) -> list[dict[str, Any]]:
        choice = {
            "index": 0,
            "text": token.text,
            "logprobs": None,
            "finish_reason": token.finish_reason,
            "stop_reason": None,
        }
        return [{**choice, "prompt_token_ids": None, "token_ids": None}]

    def complete(
        self, tokens: Sequence[Token], calls: list[dict[str, Any]], top_logprobs: int | None
    ) -> dict[str, Any]:
        """Return the choice of an answer that is not streamed."""
        del calls, top_logprobs
        choice = {"index": 0, "text": "".join(token.text for token in tokens), "logprobs": None}
        choice |= {
            "finish_reason": tokens[-1].finish_reason,
            "stop_reason": None,
            "token_ids": None,
            "prompt_logprobs": None,
        }
        return {**choice, "prompt_token_ids": None, "routed_experts": None}


@dataclass(frozen=True)
class Answer:
    """The answer to one request."""

    shape: ChatShape | CompletionShape
    model: str
    fingerprint: str
    prompt_tokens: int
    #: the last chunk of a stream contains the token counts
    with_usage: bool = False
    #: every chunk of a stream contains the token counts
    with_chunk_usage: bool = False
    #: see `ChatShape.complete`
    top_logprobs: int | None = None

    def complete(self, tokens: Sequence[Token], calls: list[dict[str, Any]]) -> dict[str, Any]:
        details = {"prompt_tokens_details": None, "completion_tokens_details": None}
        return {
            **self._base_fields(self.shape.kind),
            "choices": [self.shape.complete(tokens, calls, self.top_logprobs)],
            "service_tier": None,
            "system_fingerprint": self.fingerprint,
            "usage": {**self._usage(count_tokens(tokens)), **details},
            "kv_transfer_params": None,
            "metrics": None,
        }

    def stream(self, tokens: Iterable[Token], calls: Sequence[dict[str, Any]] = ()) -> Iterator[bytes]:
        """Yield the events of a streamed answer. Tool calls replace the tokens' text."""
        header, count = self._base_fields(self.shape.chunk_kind), 0
        opening = self.shape.opening()
        if opening:
            yield _encode_chunk(header, opening, self._chunk_usage(0), {"prompt_token_ids": None, "prompt_text": None})
        for token in tokens:
            count = token.count
            if calls:
                continue
            last_fields = (
                {"system_fingerprint": self.fingerprint} if token.finish_reason and not self.with_usage else {}
            )
            yield _encode_chunk(header, self.shape.token_choices(token), self._chunk_usage(count), last_fields)
        for delta in call_deltas(calls):
            choice = {"index": 0, "delta": {"tool_calls": delta}, "logprobs": None, "finish_reason": None}
            yield _encode_chunk(header, [{**choice, "token_ids": None}], self._chunk_usage(count), {})
        if calls:
            choice = {"index": 0, "delta": {"content": ""}, "logprobs": None, "finish_reason": "tool_calls"}
            yield _encode_chunk(header, [{**choice, "stop_reason": None, "token_ids": None}], None, {})
        if self.with_usage:
            yield _encode_chunk(header, [], self._usage(count), {"system_fingerprint": self.fingerprint})
        yield DONE_EVENT

    @staticmethod
    def abort_events() -> Iterator[bytes]:
        """Yield the last events of a stream whose engine core has exited."""
        kind, param, message = ENGINE_DEAD_ERROR
        yield encode_event(error_body(message, kind, param, 500))
        yield DONE_EVENT

    def _base_fields(self, kind: str) -> dict[str, Any]:
        name = f"{self.shape.prefix}-{secrets.token_hex(8)}"
        return {"id": name, "object": kind, "created": int(time.time()), "model": self.model}

    def _chunk_usage(self, token_count: int) -> dict[str, int] | None:
        return self._usage(token_count) if self.with_chunk_usage else None

    def _usage(self, token_count: int) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + token_count,
            "completion_tokens": token_count,
        }


def _encode_chunk(
    header: dict[str, Any], choices: list[Any], usage: dict[str, int] | None, extra: dict[str, Any]
) -> bytes:
    return encode_event({**header, "choices": choices, **({"usage": usage} if usage else {}), **extra})
