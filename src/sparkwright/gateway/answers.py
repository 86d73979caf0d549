"""Error responses that the gateway itself sends, in a format for both OpenAI's and Anthropic's API."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from sparkwright.engines.api_paths import MESSAGES_PATH, RESPONSES_PATH

#: value of Retry-After
RETRY_AFTER_S = 5
JSON_CONTENT_TYPE = "content-type application/json"

#: OpenAI's error types, by status
ERROR_TYPES = {
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
#: response headers in addition to Content-Type, by status
STATUS_HEADERS = {
    401: "hdr WWW-Authenticate Bearer",
    405: "hdr Allow POST",
    **dict.fromkeys((429, 503), f"hdr Retry-After {RETRY_AFTER_S}"),
}


NO_KEY_MESSAGE = "The gateway requires its API key, as `Authorization: Bearer KEY` or `x-api-key: KEY`."
NO_MODEL_MESSAGE = (
    "The gateway found no `model` in the body: it must be a JSON object with a string `model`, not deeply nested."
)
NO_FIELD_MESSAGE = "The gateway found no field `model` in the form."
UNKNOWN_MODEL_MESSAGE = "The gateway serves no model with this name; /v1/models lists its models."
NOT_UP_MESSAGE = "No server of this model is up. Try again."


def unknown_path_message(paths: Iterable[str]) -> str:
    """Return the error message for a path that the gateway does not route. paths: the routed paths."""
    return f"The gateway does not route this path; it routes {', '.join(paths)}."


def too_large_message(max_bytes: int) -> str:
    """Return the error message for a request larger than `max_bytes`."""
    return f"The request is larger than {max_bytes} bytes."


def quote(text: str) -> str:
    """Quote a string as one argument in the configuration."""
    return "'" + text.replace("'", "'\\''") + "'"


def error_body(status: int, message: str, code: str) -> str:
    """Return an error as JSON that clients of both OpenAI's and Anthropic's API can read.

    The outer `"type": "error"` is Anthropic's; `type` and `message` of the inner object are common to both.
    """
    error = {"message": message, "type": ERROR_TYPES[status], "param": None, "code": code}
    return json.dumps({"type": "error", "error": error}, separators=(",", ":"))


def error_arguments(status: int, message: str, code: str, *, allow: str = "POST") -> str:
    """Return an error as arguments of `http-request return` and `http-error`.

    Args:
        allow: the allowed methods, separated by commas, for status 405.
    """
    headers = f" {STATUS_HEADERS[status]}" if status in STATUS_HEADERS else ""
    headers = headers.replace("Allow POST", f"Allow {allow}")
    return f"status {status} {JSON_CONTENT_TYPE} string {quote(error_body(status, message, code))}{headers}"


#: messages and codes for HAProxy's own errors, by status
HAPROXY_ERRORS = {
    400: ("The request is not valid HTTP.", "bad_request"),
    408: ("The request did not arrive in time.", "request_timeout"),
    500: ("The gateway failed.", "gateway_error"),
    502: ("The server closed the connection before it answered.", "server_gone"),
    503: ("All servers of this model are busy or down. Try again.", "overloaded"),
    504: ("The server did not answer in time.", "server_timeout"),
}

#: script with the filter that adds an error to a stream whose server exited or is silent
SCRIPT_FILE = "cut.lua"
#: first version of HAProxy that calls filters in that case (2.6.12 and 3.0.11 were tested; from 2.8 on,
#: `http_response_forward_body` no longer returns before them)
MIN_HAPROXY_VERSION = "2.8"
BROKEN_STREAM_MESSAGE = "The server exited or was silent for too long, so this answer is incomplete."
#: APIs whose streams have named events
NAMED_EVENT_PATHS = (MESSAGES_PATH, RESPONSES_PATH)
#: After the error the connection is still closed without a proper end, so that clients treat the answer as incomplete.
_SCRIPT = """-- Written by sparkwright. It adds an error to a stream whose server exited or is silent.
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


def render_files() -> dict[str, str]:
    """Return the script of the filter."""
    message = BROKEN_STREAM_MESSAGE.replace("'", "")
    fields = {"code": "server_gone", "message": message, "sequence_number": 0}
    event = json.dumps({**json.loads(error_body(502, message, "server_gone")), **fields}, separators=(",", ":"))
    named_paths = ", ".join(f'["{path}"] = true' for path in NAMED_EVENT_PATHS)
    return {SCRIPT_FILE: _SCRIPT % {"named": named_paths, "error": event}}


def require_version(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines inside a condition on HAProxy's version: MIN_HAPROXY_VERSION or newer."""
    yield f".if version_atleast({MIN_HAPROXY_VERSION})"
    yield from lines
    yield ".endif"
