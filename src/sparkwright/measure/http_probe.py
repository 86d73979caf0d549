"""Short HTTP requests to a model server, each with a single deadline."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sparkwright import defaults
from sparkwright.engines import openai_api, tasks
from sparkwright.engines.http import GENERATE, Http
from sparkwright.transport import http
from sparkwright.transport.connection import (
    ConnectFailed,
    Interrupted,
    InvalidHeader,
    TimedOut,
    TooLarge,
    TransportError,
)
from sparkwright.trust import bounds
from sparkwright.units import MIB

MAX_MESSAGE_CHARS, MAX_SERVER_ERROR_CHARS = 200, 500
#: time limit of requests that need no tokens
SHORT_TIMEOUT_S = 5.0
#: finish reasons of requests that the server aborted
ABORTED_FINISH_REASONS = ("error", "abort")


@dataclass(frozen=True, slots=True)
class Response:
    """The response to a request."""

    #: HTTP status; 0 if there was no response
    status: int
    body: bytes = b""
    #: reason why there was no response: refused, timeout, reset or a clause; empty if there was one
    error: str = ""

    def json(self) -> Any:
        """Return the body as JSON, or None if it is not JSON."""
        try:
            return bounds.parse_json(self.body)
        except ValueError:
            return None

    def message(self) -> str:
        """Return the error message in the body, or else the body or `error`; truncated."""
        return (self.failure or self.body.decode(errors="replace") or self.error)[:MAX_MESSAGE_CHARS]

    @property
    def failure(self) -> str:
        """The error in the body, regardless of the status; empty if there is none."""
        return extract_error(self.json())


@dataclass(frozen=True)
class Target:
    """A model server, with what requests to it need."""

    #: the engine's HTTP API
    http: Http
    #: URL such as http://127.0.0.1:8000
    base_url: str
    #: name under which the server serves the model
    model: str = ""
    api_key: str = field(default="", repr=False)
    #: time limit of a request, and maximum time between two tokens of a stream
    timeout_s: float = defaults.TOKEN_TIMEOUT_S

    def send(self, path: str, *, body: Any = None, timeout_s: float | None = None) -> Response:
        """Send a request as `send_request` does. timeout_s: None for the target's."""
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        return send_request(self.base_url, path, body=body, api_key=self.api_key, timeout_s=limit_s)


def query_version(target: Target, *, timeout_s: float = SHORT_TIMEOUT_S) -> str | None:
    """Return the engine's version; None if the server does not report it."""
    path = target.http.version_path
    return (target.http.parse_version(target.send(path, timeout_s=timeout_s).json()) if path else "") or None


def send_with_fewer_options(target: Target, body: Mapping[str, Any], *, path: str = openai_api.CHAT_PATH) -> Response:
    """Send a request, and retry with fewer options if the server rejects some. Never raises. path: path of the API."""
    while True:
        response = target.send(path, body=body)
        is_refused = response.status in openai_api.REFUSAL_STATUSES
        reduced_body = openai_api.remove_refused_keys(target.http, body) if is_refused else None
        if reduced_body is None:
            return response
        body = reduced_body


def send_request(
    base_url: str, path: str, *, body: Any = None, api_key: str = "", timeout_s: float = SHORT_TIMEOUT_S
) -> Response:
    """Send a request on a new connection and return the response, all within `timeout_s`. Never raises."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
    payload = None if body is None else json.dumps(body).encode()
    try:
        response = http.request(
            "GET" if body is None else "POST",
            base_url.rstrip("/") + path,
            headers=headers,
            body=payload,
            timeout_s=timeout_s,
        )
    except TransportError as error:
        return Response(0, error=_describe_failure(error))
    return Response(response.status, response.body)


def _describe_failure(error: TransportError) -> str:
    if isinstance(error, ConnectFailed) and error.refused:
        return "refused"
    if isinstance(error, TimedOut):
        return "timeout"
    if isinstance(error, Interrupted):
        return "reset"
    if isinstance(error, InvalidHeader):
        return "the key is not valid in an HTTP header"
    if isinstance(error, TooLarge):
        return f"the response has more than {bounds.MAX_ANSWER_BYTES // MIB} MiB"
    return f"the server {error}"


def extract_error(document: Any) -> str:
    """Return the error message of a response body or a chunk of a stream; empty if it is not an error.

    vLLM, SGLang and llama.cpp also send errors with status 200, in streams. An error has {"error": ...} (all servers) or
    {"object": "error"} (vLLM before 0.11), or a choice with the finish reason "error" or "abort". llama.cpp builds from 2025
    send a line `error: {...}` instead of `data: {...}`.
    """
    if not isinstance(document, dict):
        return ""
    if error := document.get("error"):
        return error_text(error)
    if document.get("object") == "error":
        return error_text(document)
    choices = document.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and choice.get("finish_reason") in ABORTED_FINISH_REASONS:
            return f"the server aborted the request: finish_reason {choice['finish_reason']}"
    return ""


def error_text(error: Any) -> str:
    """Return an error's message, or the whole error if it has none."""
    return str(error.get("message") or error if isinstance(error, dict) else error)[:MAX_SERVER_ERROR_CHARS]


def request_tokens(target: Target, max_tokens: int = 1, *, priority: int = 0) -> Response:
    """Request a few tokens or, if the server's task is not generation, send that task's check request. Never raises.

    Args:
        max_tokens: number of tokens to generate.
        priority: see `openai_api.build_request`.
    """
    if target.http.task != GENERATE:
        path, request_body = tasks.PROOFS[target.http.task].request(target.model)
        return target.send(path, body=request_body)
    body = openai_api.build_request(target.http, target.model, tasks.PROOF_TEXT, max_tokens, priority=priority)
    return send_with_fewer_options(target, body)


@dataclass(frozen=True, slots=True)
class TokenCheck:
    """The outcome of a request for a token."""

    #: "made" if the server generated a token, "none" after a timeout, "refused" if the API key is missing or wrong
    token: Literal["made", "none", "refused", "error"]
    error: str = ""
    #: duration of the request
    token_s: float = 0.0


def check_token(target: Target, *, priority: int) -> TokenCheck:
    """Request a token and evaluate the response. Never raises. priority: see `request_tokens`."""
    began_s = time.monotonic()
    response = request_tokens(target, priority=priority)
    token_s = time.monotonic() - began_s
    if response.status == 200 and not response.failure:
        missing_part = describe_missing_part(target.http, response.json())
        return TokenCheck(
            "error" if missing_part else "made", f"the response was 200 {missing_part}" if missing_part else "", token_s
        )
    if response.error == "timeout":
        return TokenCheck("none", token_s=token_s)
    if response.status in (401, 403):
        return TokenCheck("refused", token_s=token_s)
    error = f"{response.status}: {response.message()}" if response.status else response.error
    return TokenCheck("error", error, token_s)


def describe_missing_part(api: Http, document: Any) -> str:
    """Describe what a response with status 200 lacks, such as "without a token"; empty if it is complete.

    The order in a reranker's response is not checked here but by `verify_health`.
    """
    if api.task == GENERATE:
        return "" if openai_api.count_tokens(document) > 0 else "without a token"
    verdict = tasks.PROOFS[api.task].evaluate(document)
    return "" if verdict.content else verdict.problem
