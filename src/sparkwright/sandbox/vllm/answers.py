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

from sparkwright.sandbox.serving.api import DONE_EVENT, encode_event, join_tokens, token_logprobs
from sparkwright.sandbox.serving.generation import Token
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


#: parsers that fit a model family; for other families every parser does
TOOL_PARSERS = {"Qwen3_5": ("qwen3_coder", "qwen3_xml"), "Qwen3Next": ("qwen3_coder", "qwen3_xml")}
#: number of tools above which the fault `many-tools` has an effect
MANY_TOOLS = 30
NEEDS_BOTH = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
NEEDS_PARSER = 'tool_choice="{}" requires --tool-call-parser to be set'


class InvalidRequest(Exception):
    """The error message of a response with status 400."""


def chat_answer_spec(engine: Engine, body: Mapping[str, Any], *, require_parser: bool = True) -> AnswerSpec:
    """Return the answer that a chat request calls for. Raises InvalidRequest.

    Args:
        engine: the engine that answers.
        body: the request.
        require_parser: refuse tools if no parser is configured; otherwise their calls stay in the text.
    """
    if picture_url(body) and not engine.config.sees:
        raise InvalidRequest(f"{engine.config.served_names[0]} is not a multimodal model")
    if body.get("tools") and body.get("tool_choice") != "none":
        _check_tools(engine, body.get("tool_choice") or "auto", require_parser=require_parser)
    if (call := requested_call(body)) is not None:
        spec = _tool_answer(engine, body, *call)
    else:
        spec = requested_answer(body, sees=True, thinks=engine.config.thinks and engine.fault() != "think-text")
    return replace(spec, null=True, calls=[]) if engine.fault() == "content-null" else spec


def _check_tools(engine: Engine, choice: Any, *, require_parser: bool) -> None:
    """Raise InvalidRequest for tools that no configured parser finds."""
    config = engine.config
    if choice == "auto" and require_parser and not (config.auto_tools and config.tool_parser):
        raise InvalidRequest(NEEDS_BOTH)
    if choice == "required" and not config.tool_parser:
        raise InvalidRequest(NEEDS_PARSER.format(choice))


def _tool_answer(engine: Engine, body: Mapping[str, Any], name: str, arguments: Any) -> AnswerSpec:
    config, choice = engine.config, body.get("tool_choice") or "auto"
    has_parser = bool(config.auto_tools and config.tool_parser)
    fitting_parsers = next(
        (ones for family, ones in TOOL_PARSERS.items() if config.architecture.startswith(family)), (config.tool_parser,)
    )
    if choice == "auto" and (
        not has_parser or config.tool_parser not in fitting_parsers or _is_left_as_text(engine.fault(), body)
    ):
        values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
        return text_answer(f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>")
    return tool_call_answer(name, arguments, id=f"chatcmpl-tool-{secrets.token_hex(8)}")


def _is_left_as_text(fault: str, body: Mapping[str, Any]) -> bool:
    """Return True if a fault leaves the tool call as text in the content."""
    return (
        fault == "tool-text"
        or (fault == "tool-stream" and bool(body.get("stream")))
        or (fault == "many-tools" and len(body["tools"]) > MANY_TOOLS)
    )


VECTOR_LENGTH = 128  # length of the vectors behind a score; embeddings have as many as their model has features
#: words that are too common to matter
STOP_WORDS = frozenset(("a", "an", "and", "in", "is", "of", "on", "the", "to", "what"))


def embed_text(text: str, dimensions: int = VECTOR_LENGTH) -> list[float]:
    """Return the embedding of a text, a vector of length one."""
    values = [0.0] * dimensions
    for word in [word for word in re.findall(r"\w+", text.lower()) if word not in STOP_WORDS] or ["-"]:
        digest = hashlib.sha256(word.encode()).digest()
        values[digest[0] % dimensions] += 1.0 if digest[1] % 2 else -1.0
    length = math.sqrt(sum(item * item for item in values)) or 1.0
    return [item / length for item in values]


def similarity(query: str, text: str) -> float:
    """Return the cosine similarity of two texts."""
    return sum(number * other for number, other in zip(embed_text(query), embed_text(text), strict=True))


def embeddings_response(
    model: str, texts: Sequence[str], tokens: int, dimensions: int = VECTOR_LENGTH
) -> dict[str, Any]:
    """Return the answer of /v1/embeddings."""
    rows = [
        {"index": n, "object": "embedding", "embedding": embed_text(text, dimensions)} for n, text in enumerate(texts)
    ]
    header = {"id": f"embd-{secrets.token_hex(8)}", "object": "list", "created": int(time.time()), "model": model}
    return {**header, "data": rows, "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}}


def rerank_response(model: str, query: str, texts: Sequence[str], tokens: int) -> dict[str, Any]:
    """Return the answer of /v1/rerank, the best text first."""
    rows = [
        {"index": n, "document": {"text": text}, "relevance_score": similarity(query, text)}
        for n, text in enumerate(texts)
    ]
    rows.sort(key=lambda row: -float(str(row["relevance_score"])))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"id": f"score-{secrets.token_hex(8)}", "model": model, "usage": usage, "results": rows}


#: kind, param and message of the error when the engine's core is gone
ENGINE_DEAD_ERROR = (
    "InternalServerError",
    None,
    "EngineCore encountered an issue. See stack trace (above) for the root cause.",
)


def error_body(message: str, kind: str, param: str | None, status: int) -> dict[str, Any]:
    """Return the body of an error."""
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


@dataclass(frozen=True)
class ChatShape:
    """The shape of /v1/chat/completions."""

    prefix = "chatcmpl"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def opening(self) -> list[dict[str, Any]]:
        """Return the choices of the first chunk: a role and no text."""
        delta = {"role": "assistant", "content": ""}
        return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]

    def token_choices(self, token: Token) -> list[dict[str, Any]]:
        """Return the choices of a token's chunk."""
        choice: dict[str, Any] = {"index": 0, "delta": {token.kind: token.text}, "logprobs": None}
        ended = {"stop_reason": None} if token.finish_reason else {}
        return [{**choice, "finish_reason": token.finish_reason, **ended, "token_ids": None}]

    def complete(self, tokens: Sequence[Token], calls: list[dict[str, Any]], top: int | None) -> dict[str, Any]:
        """Return the whole answer in one choice.

        Args:
            tokens: of the answer.
            calls: tool calls.
            top: number of candidates returned with each token; None for no logprobs.
        """
        thought, content = join_tokens(tokens, "reasoning"), None if calls else join_tokens(tokens, "content") or None
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None, "annotations": None}
        message |= {"audio": None, "function_call": None, "reasoning": thought or None}
        if calls:
            message["tool_calls"] = calls
        reason = "tool_calls" if calls else tokens[-1].finish_reason
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason, "stop_reason": None}
        if top is not None:
            choice["logprobs"] = {"content": [token_logprobs(token.text, top) for token in tokens]}
        return {**choice, "token_ids": None, "routed_experts": None}


@dataclass(frozen=True)
class CompletionShape:
    """The shape of /v1/completions."""

    prefix = "cmpl"
    kind = chunk_kind = "text_completion"

    def opening(self) -> list[dict[str, Any]]:
        """Return no choices: nothing comes before the text."""
        return []

    def token_choices(self, token: Token) -> list[dict[str, Any]]:
        """Return the choices of a token's chunk."""
        choice = {
            "index": 0,
            "text": token.text,
            "logprobs": None,
            "finish_reason": token.finish_reason,
            "stop_reason": None,
        }
        return [{**choice, "prompt_token_ids": None, "token_ids": None}]

    def complete(self, tokens: Sequence[Token], calls: list[dict[str, Any]], top: int | None) -> dict[str, Any]:
        """Return the whole answer in one choice."""
        del calls, top
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
            **self._base_fields(self.shape.kind),
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
        header, count = self._base_fields(self.shape.chunk_kind), 0
        opening = self.shape.opening()
        if opening:
            usage = self._usage(0) if self.usage_each else None
            yield _encode_chunk(header, opening, usage, {"prompt_token_ids": None, "prompt_text": None})
        for token in tokens:
            count = token.count
            if calls:
                continue
            last = {"system_fingerprint": self.fingerprint} if token.finish_reason and not self.usage else {}
            yield _encode_chunk(
                header, self.shape.token_choices(token), self._usage(count) if self.usage_each else None, last
            )
        for delta in call_deltas(calls):
            choice = {"index": 0, "delta": {"tool_calls": delta}, "logprobs": None, "finish_reason": None}
            yield _encode_chunk(
                header, [{**choice, "token_ids": None}], self._usage(count) if self.usage_each else None, {}
            )
        if calls:
            choice = {"index": 0, "delta": {"content": ""}, "logprobs": None, "finish_reason": "tool_calls"}
            yield _encode_chunk(header, [{**choice, "stop_reason": None, "token_ids": None}], None, {})
        if self.usage:
            yield _encode_chunk(header, [], self._usage(count), {"system_fingerprint": self.fingerprint})
        yield DONE_EVENT

    @staticmethod
    def abort_events() -> Iterator[bytes]:
        """Yield the last events of a stream whose engine is gone."""
        kind, param, message = ENGINE_DEAD_ERROR
        yield encode_event(error_body(message, kind, param, 500))
        yield DONE_EVENT

    def _base_fields(self, kind: str) -> dict[str, Any]:
        name = f"{self.shape.prefix}-{secrets.token_hex(8)}"
        return {"id": name, "object": kind, "created": int(time.time()), "model": self.model}

    def _usage(self, tokens: int) -> dict[str, int]:
        return {"prompt_tokens": self.prompt, "total_tokens": self.prompt + tokens, "completion_tokens": tokens}


def _encode_chunk(
    header: dict[str, Any], choices: list[Any], usage: dict[str, int] | None, extra: dict[str, Any]
) -> bytes:
    data = {**header, "choices": choices, **({"usage": usage} if usage else {}), **extra}
    return encode_event(data)
