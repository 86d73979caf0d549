"""The HTTP API of the simulated vLLM: health, models, metrics, tokenization and completions in the formats of 0.32.0."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sparkwright.sandbox.serving.api import PROMETHEUS_HEADERS, THINKING_TOKENS, ModelApi
from sparkwright.sandbox.serving.generation import Aborted, GroupBroken, Request, Token
from sparkwright.sandbox.serving.process import MAX_CHARS_PER_TOKEN
from sparkwright.sandbox.serving.request_content import AnswerSpec
from sparkwright.sandbox.vllm import answers, messages, responses
from sparkwright.sandbox.vllm.answers import ENGINE_DEAD_ERROR, Answer, ChatShape, CompletionShape, error_body
from sparkwright.sandbox.vllm.messages import MessageAnswer
from sparkwright.sandbox.vllm.model import Adapter
from sparkwright.sandbox.vllm.responses import ResponseAnswer

if TYPE_CHECKING:
    from sparkwright.sandbox.vllm.engine import Engine

POLL_S = 0.05
#: error type for an invalid request body, which all APIs report in the same format
INVALID_TYPE = "Bad Request"
#: first parts of the paths that need an API key
PROTECTED_ROOTS = ("v1", "v2", "inference")


class ApiError(Exception):
    """An error response: HTTP status and body."""

    def __init__(self, status: int, kind: str, param: str | None, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.payload: dict[str, Any] = error_body(message, kind, param, status)

    def to_message_format(self) -> ApiError:
        """Change the error to the format of the Messages API, unless the body is invalid (INVALID_TYPE), and return it."""
        if self.kind != INVALID_TYPE:
            self.payload = {"type": "error", "error": {"type": self.kind, "message": str(self)}}
        return self


class VllmApi(ModelApi):
    """Handler of requests to the engine."""

    server_version = "uvicorn"
    #: adapter named in the request, or None
    _adapter: Adapter | None = None

    @property
    def engine(self) -> Engine:
        return super().engine  # type: ignore[no-any-return]

    def route(self) -> None:
        handlers = self._routes().get("/" + "/".join(self.parts)) or self._response_routes()
        if self.parts[:1] and self.parts[0] in PROTECTED_ROOTS and not self.is_authorized(self.engine.config.api_keys):
            self.send(401, {"error": "Unauthorized"})
        elif handlers is None:
            self.send(404, {"detail": "Not Found"})
        elif self.command not in handlers:
            self.send(405, {"detail": "Method Not Allowed"})
        else:
            try:
                handlers[self.command]()
            except ApiError as error:
                self.send(error.status, error.payload)

    def _routes(self) -> dict[str, dict[str, Callable[[], None]]]:
        return {
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health, "POST": self._health},
            "/load": {"GET": lambda: self.send(200, {"server_load": self.engine.metrics.running})},
            "/metrics": {"GET": lambda: self.send(200, self.engine.metrics.build_metrics_page(), PROMETHEUS_HEADERS)},
            "/version": {"GET": lambda: self.send(200, {"version": self.engine.version})},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/v1/models": {"GET": self._models},
            **(self._pooling_routes() if self.engine.config.pooling else self._generation_routes()),
        }

    def _pooling_routes(self) -> dict[str, dict[str, Callable[[], None]]]:
        return {"/v1/embeddings": {"POST": self._embed}, "/v1/rerank": {"POST": self._rerank}}

    def _generation_routes(self) -> dict[str, dict[str, Callable[[], None]]]:
        return {
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/completions": {"POST": self._text_completion},
            "/v1/messages": {"POST": self._message},
            "/v1/messages/count_tokens": {"POST": self._count_message_tokens},
            "/v1/responses": {"POST": self._response},
        }

    def _response_routes(self) -> dict[str, Callable[[], None]] | None:
        """Return the handlers for the path of a stored response, or None for any other path."""
        match self.parts:
            case ["v1", "responses", response_id] if not self.engine.config.pooling:
                return {"GET": lambda: self.send(200, self._stored_response(response_id))}
            case ["v1", "responses", response_id, "cancel"] if not self.engine.config.pooling:
                return {"POST": lambda: self._cancel(response_id)}
        return None

    def _health(self) -> None:
        self.send(503 if self.engine.dead else 200)

    def _models(self) -> None:
        config, now = self.engine.config, int(time.time())
        permission_fields = {
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_view": True,
        }
        permission_fields |= {"allow_search_indices": False, "allow_fine_tuning": False, "is_blocking": False}
        permission = {
            "id": f"modelperm-{secrets.token_hex(8)}",
            "object": "model_permission",
            "created": now,
            **permission_fields,
        }
        model = {"object": "model", "created": now, "owned_by": "vllm", "root": config.model, "parent": None}
        permissions = [{**permission, "organization": "*", "group": None}]
        limit_fields = {"max_model_len": config.max_model_len, "permission": permissions}
        rows = [{"id": name, **model, **limit_fields} for name in config.served_names]
        parent_fields = {"parent": config.served_names[0], "max_model_len": None}
        rows += [
            {"id": adapter.name, **model, **limit_fields, "root": adapter.path, **parent_fields}
            for adapter in config.adapters.values()
        ]
        self.send(200, {"object": "list", "data": rows})

    def _tokenize(self) -> None:
        ids = self._prompt(self._body())
        length = self.engine.config.max_model_len
        self.send(200, {"count": len(ids), "max_model_len": length, "tokens": ids, "token_strs": None})

    def _detokenize(self) -> None:
        self.send(200, {"prompt": self.engine.tokenizer.decode(self._body().get("tokens") or ())})

    def _chat(self) -> None:
        body = self._body()
        self._check_model_name(body)
        self._require_field(body, "messages")
        max_tokens = body.get("max_completion_tokens") or body.get("max_tokens")
        self._complete(self._answer_factory(ChatShape(), body), body, max_tokens, self._thinking_tokens(body))

    def _thinking_tokens(self, body: dict[str, Any]) -> int:
        """Return the number of thinking tokens before the answer to a chat."""
        is_thinking_enabled = (body.get("chat_template_kwargs") or {}).get(
            "enable_thinking", self.engine.config.thinks_by_default
        )
        return THINKING_TOKENS if self.engine.config.parses_thinking and is_thinking_enabled else 0

    def _message(self) -> None:
        body = self._body()
        for field in ("messages", "max_tokens"):
            self._require_field(body, field)
        try:
            self._check_model_name(body)
            chat = messages.to_chat(body)
            max_tokens = self._parse_max_tokens(body["max_tokens"], "max_completion_tokens")
            self._complete(
                lambda prompt_tokens: MessageAnswer(self._model_name, prompt_tokens),
                chat,
                max_tokens,
                self._thinking_tokens(chat),
            )
        except ApiError as error:
            raise error.to_message_format() from None

    def _count_message_tokens(self) -> None:
        body = self._body()
        self._require_field(body, "messages")
        try:
            self._check_model_name(body)
            self.send(200, messages.token_count_response(len(self._prompt(messages.to_chat(body)))))
        except ApiError as error:
            raise error.to_message_format() from None

    def _response(self) -> None:
        body = self._body()
        if not body.get("tools"):
            body["tool_choice"] = "none"
        self._require_field(body, "input")
        self._check_model_name(body)
        if body.get("background") and not self.engine.stores_responses:
            raise ApiError(400, "invalid_request_error", "background", responses.NO_STORE_MESSAGE)
        chat = responses.to_chat(body)
        max_tokens = self._parse_max_tokens(body.get("max_output_tokens"), "max_output_tokens")
        self._complete(
            lambda prompt_tokens: ResponseAnswer(self._model_name, prompt_tokens, body, self.engine.store_response),
            chat,
            max_tokens,
            self._thinking_tokens(chat),
        )

    def _stored_response(self, response_id: str) -> dict[str, Any]:
        response = self.engine.stored_responses.get(response_id)
        if response is None:
            raise ApiError(404, "invalid_request_error", "response_id", f"Response with id '{response_id}' not found.")
        return response

    def _cancel(self, response_id: str) -> None:
        response = self._stored_response(response_id)
        if response["status"] not in ("queued", "in_progress"):
            message = "Cannot cancel a synchronous response."
            raise ApiError(400, "invalid_request_error", "response_id", message)
        response["status"] = "cancelled"
        self.send(200, response)

    @property
    def _model_name(self) -> str:
        """Name of the model in answers: the requested adapter, or the first served name."""
        return self._adapter.name if self._adapter else self.engine.config.served_names[0]

    def _answer_factory(self, shape: ChatShape | CompletionShape, body: dict[str, Any]) -> Callable[[int], Answer]:
        """Return a function that builds the answer, in OpenAI's format, from the number of prompt tokens."""
        options = body.get("stream_options") or {}
        with_usage = bool(options.get("include_usage"))
        with_chunk_usage = with_usage and bool(options.get("continuous_usage_stats"))
        top_logprobs = int(body.get("top_logprobs") or 0) if body.get("logprobs") is True else None
        engine = self.engine
        seed = hashlib.sha256(f"{engine.version} {engine.config.model}".encode()).hexdigest()
        fingerprint = f"vllm-{engine.version}-{seed[:8]}"
        return lambda prompt_tokens: Answer(
            shape, self._model_name, fingerprint, prompt_tokens, with_usage, with_chunk_usage, top_logprobs
        )

    def _text_completion(self) -> None:
        body = self._body()
        self._check_model_name(body)
        self._require_field(body, "prompt")
        self._complete(self._answer_factory(CompletionShape(), body), body, body.get("max_tokens", 16), 0, plain=True)

    def _embed(self) -> None:
        body = self._body()
        self._check_model_name(body)
        content = body.get("input") or ""
        texts = [str(item) for item in content] if isinstance(content, list) else [str(content)]
        token_count = self._count_text_tokens("".join(texts))
        self.send(
            200,
            answers.embeddings_response(
                self.engine.config.served_names[0], texts, token_count, self.engine.config.hidden_size
            ),
        )

    def _rerank(self) -> None:
        body = self._body()
        self._check_model_name(body)
        self._require_field(body, "documents")
        texts, query = [str(document) for document in body["documents"]], str(body.get("query") or "")
        token_count = self._count_text_tokens("".join([query, *texts]))
        self.send(200, answers.rerank_response(self.engine.config.served_names[0], query, texts, token_count))

    def _count_text_tokens(self, text: str) -> int:
        """Return the number of tokens in a text to embed or rank. Raises ApiError or Aborted if a fault prevents the answer."""
        self._check_text_length(text)
        engine = self.engine
        if engine.fault() == "engine-exits" or engine.dead:
            engine.exit_silently()
            raise ApiError(500, *ENGINE_DEAD_ERROR)
        while engine.fault() == "wedge":
            if self.has_disconnected() or engine.stop_event.wait(POLL_S):
                raise Aborted
        token_count = len(engine.tokenizer.encode(text))
        engine.counters.add_prompt(token_count, 0)
        return token_count

    @staticmethod
    def _require_field(body: dict[str, Any], field: str) -> None:
        if not body.get(field):
            details = f"'type': 'missing', 'loc': 'body.{field}', 'msg': 'Field required', 'input': '<dict of {len(body)} items>'"
            raise ApiError(400, INVALID_TYPE, f"body.{field}", f"1 validation error:\n  {{{details}}}")

    def _complete(
        self,
        build_answer: Callable[[int], Answer | MessageAnswer | ResponseAnswer],
        body: dict[str, Any],
        max_tokens: Any,
        thinking_tokens: int,
        *,
        plain: bool = False,
    ) -> None:
        """Generate the answer and send it in the format of its API.

        Args:
            build_answer: returns the answer, in its API's format, for a number of prompt tokens.
            body: the request, converted to a chat unless `plain`.
            max_tokens: limit set by the request, not validated, or None.
            thinking_tokens: number of thinking tokens before the answer.
            plain: the request is a text completion, which has no tools and no pictures.
        """
        engine, config = self.engine, self.engine.config
        output_limit = self._parse_max_tokens(max_tokens)
        prompt = self._prompt(body)
        answer = build_answer(len(prompt))
        self._check_context_length(prompt, output_limit or 1)
        if engine.fault() == "engine-exits" or engine.dead or engine.has_lost_peer:
            engine.exit_silently()
            raise ApiError(500, *ENGINE_DEAD_ERROR)
        spec = AnswerSpec() if plain else self._answer_spec(body, require_parser=not isinstance(answer, ResponseAnswer))
        spec = replace(spec, adapter=self._adapter.name if self._adapter else "")
        token_limit = config.max_model_len - len(prompt)
        request = self.text_request(
            body, prompt, token_limit, spec, max_tokens=output_limit, thinking_tokens=thinking_tokens
        )
        self._write(answer, request, spec, streamed=bool(body.get("stream")))

    def _write(
        self, answer: Answer | MessageAnswer | ResponseAnswer, request: Request, spec: AnswerSpec, *, streamed: bool
    ) -> None:
        if isinstance(answer, ResponseAnswer) and answer.request_body.get("background"):
            self.send(200, self.engine.store_response(answer.pending_response("queued")))
            return
        try:
            self.write(answer, request, spec, streamed=streamed)
        except GroupBroken:
            self.engine.exit_silently()
            raise ApiError(500, *ENGINE_DEAD_ERROR) from None

    def _answer_spec(self, body: dict[str, Any], *, require_parser: bool) -> AnswerSpec:
        try:
            return answers.chat_answer_spec(self.engine, body, require_parser=require_parser)
        except answers.InvalidRequest as error:
            raise ApiError(400, "BadRequestError", None, str(error)) from None

    def answer_events(self, answer: Any, tokens: Iterator[Token], spec: AnswerSpec) -> Iterator[bytes]:
        """Yield the events of a streamed answer. If a group member is lost, they end with an error."""
        try:
            if isinstance(answer, ResponseAnswer):
                yield from answer.stream(tokens, spec.calls)  # its first events come before the first token
            else:
                yield from super().answer_events(answer, tokens, spec)
        except GroupBroken:
            self.engine.exit_silently()
            yield from answer.abort_events()

    def _body(self) -> dict[str, Any]:
        body = self.body()
        if not isinstance(body, dict):
            message = "1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.0', 'msg': 'JSON decode error'}"
            raise ApiError(400, INVALID_TYPE, "body.0", message)
        return body

    def _check_model_name(self, body: dict[str, Any]) -> None:
        names = self.engine.config.served_names
        self._adapter = self.engine.config.adapters.get(str(body.get("model")))
        if self._adapter is not None:
            return
        if body.get("model") and body["model"] not in names:
            # vLLM replaces a path with <path>, and omits the full stop that follows a name
            aliases_text = ", ".join("<path>" if name.startswith("/") else name for name in names)
            aliases_text += "" if names[-1].startswith("/") else "."
            message = f"The model `{body['model']}` does not exist. Valid aliases: {aliases_text}"
            raise ApiError(404, "NotFoundError", "model", message)

    def _prompt(self, body: dict[str, Any]) -> list[int]:
        """Return the token ids of the messages or prompt in a request."""
        tokenizer, prompt = self.engine.tokenizer, body.get("prompt")
        if body.get("messages"):
            tools = [{"role": "system", "content": json.dumps(body["tools"])}] if body.get("tools") else []
            self._check_text_length("".join(str(message) for message in body["messages"]))
            return tokenizer.encode_chat([*tools, *body["messages"]])
        if isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
            return prompt
        text = "".join(map(str, prompt)) if isinstance(prompt, list) else str(prompt or "")
        self._check_text_length(text)
        return tokenizer.encode(text)

    def _check_text_length(self, text: str) -> None:
        length = self.engine.config.max_model_len
        if len(text) > length * MAX_CHARS_PER_TOKEN:
            message = (
                f"This model's maximum context length is {length} tokens. However, your prompt contains {len(text)} characters (more"
                f" than {length * MAX_CHARS_PER_TOKEN} characters, which is the upper bound for {length} input tokens). Please reduce the"
                f" length of the input prompt. (parameter=input_text, value={len(text)})"
            )
            raise ApiError(400, "BadRequestError", "input_text", message)

    def _parse_max_tokens(self, max_tokens: Any, name: str = "max_tokens") -> int | None:
        length = self.engine.config.max_model_len
        if max_tokens is None:
            return None
        if isinstance(max_tokens, int) and 1 <= max_tokens <= length:
            return max_tokens
        message = f"{name}={max_tokens} cannot be greater than max_model_len={length}."
        message = f"{message} Please request fewer output tokens."
        if not isinstance(max_tokens, int) or max_tokens < 1:
            message = f"{name} must be at least 1, got {max_tokens}."
        raise ApiError(400, "BadRequestError", name, f"{message} (parameter={name}, value={max_tokens})")

    def _check_context_length(self, prompt: list[int], output_tokens: int) -> None:
        length, total = self.engine.config.max_model_len, len(prompt) + output_tokens
        if total > length:
            message = (
                f"This model's maximum context length is {length} tokens. However, you requested {output_tokens} output tokens and your"
                f" prompt contains {len(prompt)} input tokens, for a total of {total} tokens. Please reduce the length of the input"
                f" prompt or the number of requested output tokens. (parameter=input_tokens, value={len(prompt)})"
            )
            raise ApiError(400, "BadRequestError", "input_tokens", message)
