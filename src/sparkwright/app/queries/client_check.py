"""`client --check`: send a request as a client does, and check the answer."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from sparkwright.app.queries.client_formats import ClientFormat, Endpoint
from sparkwright.engines import dialects
from sparkwright.engines.dialects import Dialect
from sparkwright.engines.probes import fields
from sparkwright.engines.probes.probe import Reply, quote_text
from sparkwright.engines.tasks import PROOF_TEXT
from sparkwright.errors import Failed, Inconclusive, Refused, Unreachable
from sparkwright.measure import http_probe, stream
from sparkwright.transport import http
from sparkwright.transport.connection import TransportError, Untrusted
from sparkwright.trust import bounds
from sparkwright.visible import format_count, one_line

#: time limit for the complete answer, in seconds
ANSWER_TIMEOUT_S = 180.0
MAX_SHOWN_CHARS = 300
#: request for clients that are not agents; the token limit leaves room for reasoning
CHAT_REQUEST = {"messages": [{"role": "user", "content": PROOF_TEXT}], "max_tokens": 1024}


def check(client_format: ClientFormat, endpoint: Endpoint) -> str:
    """Send a streaming request to the API that a client uses, and describe the answer. An agent's request includes a tool.

    Raises:
        Refused: the key's environment variable is not set.
        Unreachable: the server does not answer.
        Inconclusive: the answer ended too early for a verdict.
        Failed: the server rejected the request, or the client can't use the answer.
    """
    dialect = dialects.DIALECTS_BY_PATH[client_format.path]
    body = dialect.convert_request(
        {
            "model": endpoint.model,
            **(fields.TOOL_CALL_PROBE.body if client_format.is_agent else CHAT_REQUEST),
            "stream": True,
        }
    )
    started_s = time.monotonic()
    events = _request_events(dialect, endpoint, body)
    summary = f"{client_format.path}, streamed, in {time.monotonic() - started_s:.1f} s"
    if disorder := dialect.find_order_error(events):
        raise Failed(f"{summary}: {disorder}.", where=endpoint.url)
    answer = dialect.assemble_answer(events)
    return f"{summary}: {_describe_answer(client_format, Reply(200, '', answer), endpoint)}{_describe_usage(answer)}"


def _request_events(dialect: Dialect, endpoint: Endpoint, body: dict[str, Any]) -> list[Any]:
    url = f"{endpoint.url}{dialect.path}"
    headers = {"Content-Type": "application/json"}
    if endpoint.key_variable:
        key = os.environ.get(endpoint.key_variable, "")
        if not key:
            raise Refused(
                f"{endpoint.key_variable} is not set.", where="--check", fix="Export the key that clients send."
            )
        headers["Authorization"] = f"Bearer {key}"
    try:
        answer = http.request("POST", url, headers=headers, body=json.dumps(body).encode(), timeout_s=ANSWER_TIMEOUT_S)
    except TransportError as error:
        fix = "If it is self-signed, set SSL_CERT_FILE to its file." if isinstance(error, Untrusted) else ""
        raise Unreachable(f"no answer: it {error}.", where=url, fix=fix) from None
    if answer.status != 200:
        raise Failed(f"refused with {answer.status}: {_error_text(answer.body)}", where=url)
    try:
        return stream.parse_event_stream(answer.body, dialect.last_event_types)
    except stream.StreamError as error:
        raise Failed(f"{error}.", where=url) from None


def _error_text(body: bytes) -> str:
    try:
        message = http_probe.extract_error(bounds.parse_json(body))
    except ValueError:
        message = ""
    return one_line(message or body[:MAX_SHOWN_CHARS].decode(errors="replace"), max_chars=MAX_SHOWN_CHARS)


def _describe_answer(client_format: ClientFormat, reply: Reply, endpoint: Endpoint) -> str:
    """Describe the tool call or text in an answer. Raises Failed or Inconclusive, as `check` does."""
    if client_format.is_agent:
        observation = fields.evaluate_tool_call(reply)
        if observation.verdict == "disproved":
            raise Failed(f"{observation.evidence}.", where=f"{endpoint.url}{client_format.path}")
        if observation.verdict == "inconclusive":
            raise Inconclusive(f"{observation.evidence}.", where=f"{endpoint.url}{client_format.path}")
        return observation.evidence
    if not reply.content:
        error_class = Inconclusive if reply.is_truncated else Failed
        raise error_class("the answer contains no text.", where=f"{endpoint.url}{client_format.path}")
    return quote_text(reply.content)


def _describe_usage(answer: dict[str, Any]) -> str:
    usage = answer.get("usage") or {}
    prompt_tokens, generated_tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if prompt_tokens is None or generated_tokens is None:
        return ""
    return f" ({format_count(prompt_tokens, 'token')} read, {generated_tokens} generated)"
