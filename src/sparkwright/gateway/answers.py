"""The gateway's own answers: errors as OpenAI's and Anthropic's APIs have them, and the directives and script that hold them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from sparkwright.engines.api_paths import MESSAGES, RESPONSES

#: Retry-After of an answer, seconds
RETRY_S = 5
JSON = "content-type application/json"

#: kinds of errors by status, as OpenAI's API names them
KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    500: "server_error",
    502: "server_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
#: headers of an answer in addition to Content-Type
HEADERS = {
    401: "hdr WWW-Authenticate Bearer",
    405: "hdr Allow POST",
    **dict.fromkeys((429, 503), f"hdr Retry-After {RETRY_S}"),
}


NO_KEY = "The gateway asks for its API key, as `Authorization: Bearer KEY` or `x-api-key: KEY`."
NO_MODEL = "The gateway reads no `model` in the body: it must be JSON with `model` as a string, and not deep below it."
NO_FIELD = "The gateway reads no field `model` in the form."
UNKNOWN_MODEL = "The gateway serves no model of this name; /v1/models lists those that it serves."
NOT_UP = "No server of this model is up. Try again."


def unknown_path(paths: Iterable[str]) -> str:
    """Return the error message for a path that is not routed.

    Args:
        paths: the paths that are routed.
    """
    return f"The gateway has no such path; it routes {', '.join(paths)}."


def too_large(most_bytes: int) -> str:
    """Return the error message for a request that is too large."""
    return f"The request is larger than {most_bytes} bytes."


def quoted(text: str) -> str:
    """Return a text quoted as one word of the configuration."""
    return "'" + text.replace("'", "'\\''") + "'"


def body(status: int, message: str, code: str) -> str:
    """Return an error that clients of OpenAI's API and of Anthropic's can both read.

    Anthropic's API has `"type": "error"` around the same `error`, and its clients read `type` and `message` in it.
    """
    about = {"message": message, "type": KINDS[status], "param": None, "code": code}
    return json.dumps({"type": "error", "error": about}, separators=(",", ":"))


def words(status: int, message: str, code: str, *, allow: str = "POST") -> str:
    """Return an error as arguments of `http-request return` and `http-error`.

    Args:
        status: HTTP status.
        message: the error message.
        code: the error code.
        allow: for a wrong method, the allowed one.
    """
    headers = f" {HEADERS[status]}" if status in HEADERS else ""
    headers = headers.replace("Allow POST", f"Allow {allow}")
    return f"status {status} {JSON} string {quoted(body(status, message, code))}{headers}"


#: what HAProxy answers by itself, and which of them stand for what
OWN = {
    400: ("The request is not valid HTTP.", "bad_request"),
    408: ("The request did not arrive in time.", "request_timeout"),
    500: ("The gateway failed.", "gateway_error"),
    502: ("The server ended the connection before it answered.", "server_gone"),
    503: ("All servers of this model are busy or gone. Try again.", "overloaded"),
    504: ("The server did not answer in time.", "server_timeout"),
}

#: the filter that adds an error to a stream whose server is gone or silent, and the first HAProxy that calls filters then (2.6.12
#: and 3.0.11 were tried; in the source of 2.8 and newer `http_response_forward_body` no longer returns before them)
SCRIPT, SINCE = "cut.lua", "2.8"
BROKEN = "The server ended, or was silent for too long, in the middle of this answer."
#: APIs whose streams name each event
NAMED_EVENTS = (MESSAGES, RESPONSES)
#: The connection still breaks off after the error, so that no client takes the answer for a whole one.
_SCRIPT = """-- Written by sparkwright. It adds an error to a stream whose server is gone.
local named = { %(named)s }
local error = '\\n\\ndata: %(error)s\\n\\n'
local Cut = { id = "cut", flags = filter.FLT_CFG_FL_HTX }
Cut.__index = Cut

function Cut:new()
    return setmetatable({}, Cut)
end

function Cut:http_headers(txn, message)
    if not message:is_resp() then
        self.path = string.match(message:get_stline()["uri"], "^[^?]*")
        return filter.CONTINUE
    end
    local headers = message:get_headers()
    local kind = headers["content-type"] and headers["content-type"][0] or ""
    if string.sub(kind, 1, 17) == "text/event-stream" and not headers["content-encoding"] then
        self.error = named[self.path] and string.gsub(error, "data", "event: error\\ndata", 1) or error
        filter.register_data_filter(self, message.channel)
    end
    return filter.CONTINUE
end

function Cut:http_payload(txn, message)
    if self.error and not message.channel:may_recv() and not message:eom() then
        message:append(self.error)
        self.error = nil
    end
end

core.register_filter("cut", Cut, function(made)
    return made
end)
"""


def files() -> dict[str, str]:
    """Return the script of the filter."""
    message = BROKEN.replace("'", "")
    more = {"code": "server_gone", "message": message, "sequence_number": 0}
    event = json.dumps({**json.loads(body(502, message, "server_gone")), **more}, separators=(",", ":"))
    named = ", ".join(f'["{path}"] = true' for path in NAMED_EVENTS)
    return {SCRIPT: _SCRIPT % {"named": named, "error": event}}


def since(lines: Iterable[str]) -> Iterator[str]:
    """Yield these lines for a HAProxy that has the filter called when a server is gone."""
    yield f".if version_atleast({SINCE})"
    yield from lines
    yield ".endif"
