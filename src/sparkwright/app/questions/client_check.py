"""`client --check`: send one request as a client would, and check the answer."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from sparkwright.app.questions.client_formats import Endpoint, Format
from sparkwright.engines import dialects
from sparkwright.engines.dialects import Dialect
from sparkwright.engines.probes import fields
from sparkwright.engines.probes.probe import Reply, quoted
from sparkwright.errors import Failed, Inconclusive, Refused, Unreachable
from sparkwright.measure import http_probe, stream
from sparkwright.transport import http
from sparkwright.transport.connection import TransportError
from sparkwright.trust import bounds
from sparkwright.visible import count, one_line

#: time limit for the whole answer, in seconds
TIMEOUT_S = 180.0
SHOWN_CHARS = 300
#: request of a client that is not an agent; a reasoning model needs room to think
SAY = {"messages": [{"role": "user", "content": "Say ok."}], "max_tokens": 1024}


def check(form: Format, endpoint: Endpoint) -> str:
    """Send a streamed request through the API that a client uses, with a tool for an agent, and return the result as text.

    Raises:
        Refused: the environment does not hold the key.
        Unreachable: the server does not answer.
        Inconclusive: the answer ended too early to judge.
        Failed: the server refuses, breaks off, or returns an answer that the client can't use.
    """
    dialect = dialects.BY_PATH[form.path]
    body = dialect.request(
        {"model": endpoint.model, **(fields.TOOL_CALL_PROBE.body if form.agent else SAY), "stream": True}
    )
    began_s = time.monotonic()
    events = _events(dialect, endpoint, body)
    took = f"{form.path}, streamed, in {time.monotonic() - began_s:.1f} s"
    if disorder := dialect.disorder(events):
        raise Failed(f"{took}: {disorder}.", where=endpoint.url)
    read = dialect.assembled(events)
    return f"{took}: {_seen(form, Reply(200, '', read), endpoint)}{_usage(read)}"


def _events(dialect: Dialect, endpoint: Endpoint, body: dict[str, Any]) -> list[Any]:
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
        answer = http.request("POST", url, headers=headers, body=json.dumps(body).encode(), timeout_s=TIMEOUT_S)
    except TransportError as error:
        raise Unreachable(f"no answer: it {error}.", where=url) from None
    if answer.status != 200:
        raise Failed(f"refused with {answer.status}: {_words(answer.body)}", where=url)
    try:
        return stream.events_in(answer.body, dialect.last)
    except stream.StreamError as error:
        raise Failed(f"{error}.", where=url) from None


def _words(body: bytes) -> str:
    try:
        words = http_probe.message(bounds.json_of(body))
    except ValueError:
        words = ""
    return one_line(words or body[:SHOWN_CHARS].decode(errors="replace"), at_most=SHOWN_CHARS)


def _seen(form: Format, reply: Reply, endpoint: Endpoint) -> str:
    """Describe the content of the answer.


    Raises Failed for a wrong answer, and Inconclusive for one that ended too early to judge.
    """
    if form.agent:
        seen = fields.judge_tool_call(reply)
        if seen.verdict == "disproved":
            raise Failed(f"{seen.evidence}.", where=f"{endpoint.url}{form.path}")
        if seen.verdict == "inconclusive":
            raise Inconclusive(f"{seen.evidence}.", where=f"{endpoint.url}{form.path}")
        return seen.evidence
    if not reply.content:
        kind = Inconclusive if reply.cut else Failed
        raise kind("the answer has no text.", where=f"{endpoint.url}{form.path}")
    return quoted(reply.content)


def _usage(read: dict[str, Any]) -> str:
    usage = read.get("usage") or {}
    prompt, made = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if prompt is None or made is None:
        return ""
    return f" ({count(prompt, 'token')} read, {made} generated)"
