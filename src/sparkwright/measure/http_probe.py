"""Short HTTP requests to a model server, each with a single deadline, and the counters that it exports."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sparkwright.engines import http as roles
from sparkwright.engines import openai_api, tasks
from sparkwright.engines.http import GENERATE, Http
from sparkwright.errors import Inconclusive
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
from sparkwright.visible import count

SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request."""

    #: HTTP status; 0 if there was no answer
    status: int
    body: bytes = b""
    #: reason if there was no answer: refused, timeout or reset
    error: str = ""

    def json(self) -> Any:
        """Return the body as JSON, or None if it is not JSON."""
        try:
            return bounds.json_of(self.body)
        except ValueError:
            return None

    def message(self) -> str:
        """Return the error message, shortened."""
        return (self.failure or self.body.decode(errors="replace") or self.error)[:SHOWN_CHARS]

    @property
    def failure(self) -> str:
        """The server's own error in the body, regardless of the status; empty if there is none."""
        return message(self.json())


def version(api: Http, base_url: str, *, api_key: str = "", timeout_s: float = 5) -> str | None:
    """Return the engine's version as reported by the server, or None."""
    if not api.version:
        return None
    return api.version_of(ask(base_url, api.version, api_key=api_key, timeout_s=timeout_s).json()) or None


def ask_plainly(
    api: Http,
    base_url: str,
    body: Mapping[str, Any],
    *,
    api_key: str = "",
    timeout_s: float = 5,
    path: str = openai_api.CHAT,
) -> Answer:
    """Request text, and again with fewer options if the server refuses some. Never raises.

    Args:
        api: the engine's HTTP API.
        base_url: URL of the server.
        body: body of the request.
        api_key: key of the server.
        timeout_s: time limit for each attempt.
        path: path of the API.
    """
    while True:
        answer = ask(base_url, path, body=body, api_key=api_key, timeout_s=timeout_s)
        plainer = openai_api.plainer(api, body) if answer.status in openai_api.REFUSALS else None
        if plainer is None:
            return answer
        body = plainer


def ask(base_url: str, path: str, *, body: Any = None, api_key: str = "", timeout_s: float = 5) -> Answer:
    """Send a request on its own connection and return the answer, all within timeout_s. Never raises."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
    payload = None if body is None else json.dumps(body).encode()
    try:
        answer = http.request(
            "GET" if body is None else "POST",
            base_url.rstrip("/") + path,
            headers=headers,
            body=payload,
            timeout_s=timeout_s,
        )
    except TransportError as error:
        return Answer(0, error=_unanswered(error))
    return Answer(answer.status, answer.body)


def _unanswered(error: TransportError) -> str:
    """Return the reason why there was no answer, in a word if possible."""
    if isinstance(error, ConnectFailed) and error.refused:
        return "refused"
    if isinstance(error, TimedOut):
        return "timeout"
    if isinstance(error, Interrupted):
        return "reset"
    if isinstance(error, InvalidHeader):
        return "the key is not valid in an HTTP header"
    if isinstance(error, TooLarge):
        return f"its response has more than {bounds.ANSWER_BYTES // MIB} MiB"
    return f"it {error}"


# A server's own error in an answer with any status: vLLM, SGLang and llama.cpp send errors in streams with status 200.
#
# A body or chunk is an error if it has {"error": ...} (all servers) or {"object": "error"} (vLLM before 0.11), or if a choice
# ended with "error" or "abort". llama.cpp of 2025 sends a line `error: {...}` instead of `data: {...}`.

SERVER_ERROR_SHOWN_CHARS = 500
#: finish reasons of requests that the server gave up
GIVEN_UP = ("error", "abort")


def message(document: Any) -> str:
    """Return the error message of a response body or chunk, or an empty string if it is not an error."""
    if not isinstance(document, dict):
        return ""
    if error := document.get("error"):
        return text(error)
    if document.get("object") == "error":
        return text(document)
    choices = document.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and choice.get("finish_reason") in GIVEN_UP:
            return f"the server ended the request: finish_reason {choice['finish_reason']}"
    return ""


def text(error: Any) -> str:
    """Return an error's message, or the whole error if it has none."""
    return str(error.get("message") or error if isinstance(error, dict) else error)[:SERVER_ERROR_SHOWN_CHARS]


PROMPT = "Say ok."


def ask_token_check(
    http: Http, url: str, model: str, tokens: int = 1, *, timeout_s: float, api_key: str = "", priority: int = 0
) -> Answer:
    """Request a few tokens, and again with fewer options if the server refuses some. Never raises.

    Args:
        http: the engine's HTTP API.
        url: URL of the server.
        model: served name.
        tokens: number of tokens to generate.
        timeout_s: time limit for each attempt.
        api_key: key of the server.
        priority: see `openai_api.generated`.
    """
    if http.task != GENERATE:
        path, request_body = tasks.PROOFS[http.task].request(model)
        return ask(url, path, body=request_body, api_key=api_key, timeout_s=timeout_s)
    body = openai_api.generated(http, model, PROMPT, tokens, priority=priority)
    return ask_plainly(http, url, body, api_key=api_key, timeout_s=timeout_s)


@dataclass(frozen=True, slots=True)
class TokenCheck:
    """The outcome of a request for a token."""

    #: "none" if not in time, "refused" if the server requires an API key
    token: Literal["made", "none", "refused", "error"]
    error: str = ""
    #: how long it took, in seconds
    token_s: float = 0.0


def token_check(http: Http, url: str, model: str, *, timeout_s: float, api_key: str, priority: int) -> TokenCheck:
    """Request a token and judge the answer. Takes the arguments of `ask_token_check`. Never raises."""
    began_s = time.monotonic()
    answer = ask_token_check(http, url, model, timeout_s=timeout_s, api_key=api_key, priority=priority)
    token_s = time.monotonic() - began_s
    if answer.status == 200 and not answer.failure:
        lacks = missing(http, answer.json())
        return (
            TokenCheck("error", f"the response was 200 {lacks}", token_s) if lacks else TokenCheck("made", "", token_s)
        )
    if answer.error == "timeout":
        return TokenCheck("none", token_s=token_s)
    if answer.status in (401, 403):
        return TokenCheck("refused", token_s=token_s)
    return TokenCheck("error", f"{answer.status}: {answer.message()}" if answer.status else answer.error, token_s)


def missing(http: Http, answer: Any) -> str:
    """Return what a response with status 200 lacks, such as "without a token"; empty if it lacks nothing.

    A wrong order by a reranker is not an error here, because `verify_health` checks the order.

    Args:
        http: the engine's HTTP API.
        answer: JSON of the response.
    """
    if http.task == GENERATE:
        return "" if openai_api.tokens_of(answer) > 0 else "without a token"
    judged = tasks.PROOFS[http.task].judge(answer)
    return "" if judged.holds else judged.why_not


IDLE = "Try again when the server is idle."


def read_counters(http: Http, base_url: str, api_key: str) -> tuple[dict[str, float], dict[str, str]]:
    """Return the counters by role, and the cache's settings; both are empty if the server exports none."""
    if not http.metrics:
        return {}, {}
    answer = ask(base_url, http.metrics, api_key=api_key)
    text = answer.body.decode(errors="replace") if answer.status == 200 else ""
    return http.counters(text), http.cache_of(text)


def busy_requests(counters: Mapping[str, float]) -> float | None:
    """Return the number of running and waiting requests, or None if unknown."""
    if roles.RUNNING not in counters:
        return None
    return counters[roles.RUNNING] + counters.get(roles.WAITING, 0)


def wait_until_idle(counters: Callable[[], Mapping[str, float]], within_s: float) -> Mapping[str, float]:
    """Wait until the server is idle and return its counters. Raises Inconclusive if it is still busy after within_s seconds."""
    until_s = time.monotonic() + within_s
    while running := busy_requests(found := counters()):
        if time.monotonic() > until_s:
            message = f"other traffic: {count(int(running), 'request')} running or waiting"
            raise Inconclusive(f"{message}; measuring now would be inconclusive.", fix=IDLE)
        time.sleep(0.1)
    return found


#: tolerated difference, as a share of the server's tokens
MISMATCH = 0.01
#: tokens that a server may still generate after the client has ended the request
CUT_SHORT = 8
#: delay of the server's counters after the last token, in seconds
SETTLES_S = 1.0


def uncounted(served: float, streamed: int, capped: int) -> bool:
    """Return True if the server generated tokens that this client did not request.

    Args:
        served: number of tokens by the server's counters.
        streamed: number of tokens by this client's count.
        capped: number of requests that the client ended early.
    """
    return served - streamed > max(MISMATCH * served, CUT_SHORT * capped)


def miscounted(served: float, streamed: int, capped: int) -> bool:
    """Return True if the two counts disagree in either direction. Takes the arguments of `uncounted`."""
    return uncounted(served, streamed, capped) or streamed - served > MISMATCH * served


def risen(before: Mapping[str, float], after: Mapping[str, float], name: str) -> float | None:
    """Return the increase of a counter, or None if it is missing before or after."""
    return after[name] - before[name] if name in before and name in after else None


def settled(
    read: Callable[[], Mapping[str, float]], wrong: Callable[[Mapping[str, float]], object]
) -> Mapping[str, float]:
    """Return the counters after a measurement. They are read again while `wrong` holds, as they may lag behind."""
    until_s = time.monotonic() + SETTLES_S
    while wrong(after := read()) and time.monotonic() <= until_s:
        time.sleep(0.05)
    return after
