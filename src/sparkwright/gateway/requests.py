"""HAProxy rules that select a request's backend by path and model, or by the earlier response that the request refers to.

The model is in a JSON body or in a field of a multipart form. A request about an earlier response names no model and goes to
the server that created the response; a table maps the response's ID to that server. A reload clears the table, because
HAProxy can transfer tables only through a TCP port (not through a unix socket, tested with 2.6.12).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator

from sparkwright.engines.api_paths import RESPONSE_ID_PLACEHOLDER, RESPONSES_PATH, ApiPath, ModelLocation
from sparkwright.gateway import answers
from sparkwright.gateway.model import Gateway, Model

#: map from each server's number to its backend
SERVER_BACKENDS_FILE = "makers.map"
#: script that reads forms
SCRIPT_FILE = "forms.lua"
#: backend with the table of responses; no model can have this name
TABLE_BACKEND = "-responses"
#: maximum number of responses in the table
MAX_RESPONSES = 20_000
#: number of hours for which the table keeps a response
RETENTION_H = 24
#: maximum length of a response's ID
MAX_ID_CHARS = 64
#: number of bytes at the beginning of an answer that are searched for the ID
ID_SEARCH_BYTES = 4096
#: how long to wait for the start of a response body, and how many bytes to wait for
RESPONSE_BODY_TIMEOUT_S, MIN_RESPONSE_BODY_BYTES = 60, 60
ID_CHARACTER_PATTERN = "[A-Za-z0-9_-]"
UNKNOWN_RESPONSE_MESSAGE = "The gateway has no record of this response; its records are lost when it reloads its files."
#: a script, because a form's body is binary and HAProxy's regular expressions end at the first zero byte
_SCRIPT = """-- Written by sparkwright. It returns the field `model` of a multipart form; empty if there is none.
core.register_fetches("form_model", function(txn)
    local body = txn.f:req_body() or ""
    local _, named = string.find(body, 'name="model"', 1, true)
    local _, start = string.find(body, "\\r\\n\\r\\n", named or #body + 1, true)
    local stop = string.find(body, "\\r\\n", start or #body + 1, true)
    if not named or not start or not stop or stop - start > 201 then
        return ""
    end
    return string.sub(body, start + 1, stop - 1)
end)
"""


def render_files(gateway: Gateway) -> dict[str, str]:
    """Return the files that these rules read."""
    rows = (
        f"{server_number(model, name)} {model.backend}\n"
        for model in gateway.models
        for upstream in model.upstreams
        for name in upstream.names
    )
    return {SERVER_BACKENDS_FILE: "".join(rows), SCRIPT_FILE: _SCRIPT}


def server_number(model: Model, server: str) -> int:
    """Return the number of a server: a hash of its name, so that it is the same in every configuration."""
    return 1 + zlib.crc32(f"{model.backend}/{server}".encode()) % (2**31 - 2)


def select_paths(gateway: Gateway, location: ModelLocation) -> tuple[ApiPath, ...]:
    """Return the paths whose requests name the model in this location."""
    return tuple(path for path in gateway.paths if path.model_location == location)


def global_lines(gateway: Gateway) -> Iterator[str]:
    """Yield the line that loads the script."""
    if select_paths(gateway, "form"):
        yield f"lua-load {SCRIPT_FILE}"


def sections(gateway: Gateway) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield the section with the table of responses."""
    if _has_responses(gateway):
        table = f"stick-table type string len {MAX_ID_CHARS} size {MAX_RESPONSES} expire {RETENTION_H}h store gpt0"
        yield f"backend {TABLE_BACKEND}", iter([table])


def refusal_rules(gateway: Gateway) -> Iterator[str]:
    """Yield the rules that reject requests by path and method, before the body is read."""
    paths = gateway.paths
    exact_paths = [path.path for path in paths if path.model_location != "response"]
    response_patterns = [_path_pattern(path) for path in select_paths(gateway, "response")]
    unknown_path_refusal = answers.error_arguments(
        404, answers.unknown_path_message(path.path for path in paths), "unknown_url"
    )
    unless_response = f" !{{ path -m reg {' '.join(response_patterns)} }}" if response_patterns else ""
    yield f"http-request return {unknown_path_refusal} if !{{ path -m str {' '.join(exact_paths)} }}{unless_response}"
    read_patterns = [_path_pattern(path) for path in select_paths(gateway, "response") if path.method == "GET"]
    if read_patterns:
        yield f"acl read path -m reg {' '.join(read_patterns)}"
        yield (
            f"http-request return {answers.error_arguments(405, 'Use GET.', 'method_not_allowed', allow='GET')} if read "
            f"!{{ method GET }}"
        )
    use_post_refusal = answers.error_arguments(405, "Use POST.", "method_not_allowed")
    yield f"http-request return {use_post_refusal} if !{{ method POST }}{' !read' if read_patterns else ''}"


def routing_rules(gateway: Gateway, routes_file: str) -> Iterator[str]:
    """Yield the rules that set `txn.backend`, and `txn.made` to the number of the server that created a response.

    Args:
        routes_file: name of the file with the backends by model.
    """
    if form_paths := select_paths(gateway, "form"):
        yield f"acl form path -m str {' '.join(path.path for path in form_paths)}"
        yield "http-request set-var(txn.model) lua.form_model if form"
    unless_form = " if !form" if form_paths else ""
    yield f"http-request set-var(txn.model) req.body,json_query('$.model'){unless_form}"
    has_responses = _has_responses(gateway)
    if has_responses:
        yield from _response_rules(gateway)
    no_model_refusal = answers.error_arguments(400, answers.NO_MODEL_MESSAGE, "model_missing")
    yield f"http-request return {no_model_refusal} if !{{ var(txn.model) -m found }}{' !kept' if has_responses else ''}"
    if form_paths:
        no_field_refusal = answers.error_arguments(400, answers.NO_FIELD_MESSAGE, "model_missing")
        yield f"http-request return {no_field_refusal} if form {{ var(txn.model) -m len 0 }}"
    unless_response = " if !kept" if has_responses else ""
    yield f"http-request set-var(txn.backend) var(txn.model),map_str({routes_file}){unless_response}"
    unknown_model_refusal = answers.error_arguments(404, answers.UNKNOWN_MODEL_MESSAGE, "model_not_found")
    yield f"http-request return {unknown_model_refusal} if !{{ var(txn.backend) -m found }}"


def _response_rules(gateway: Gateway) -> Iterator[str]:
    """Yield the rules that look up the server that created a response, and that record the server of a new response."""
    patterns = " ".join(_path_pattern(path) for path in select_paths(gateway, "response"))
    id_field_number = RESPONSES_PATH.count("/") + 2
    yield f"acl kept path -m reg {patterns}"
    yield f"http-request set-var(txn.made) path,field({id_field_number},/),table_gpt0({TABLE_BACKEND}) if kept"
    yield f"http-request set-var(txn.backend) var(txn.made),map_str({SERVER_BACKENDS_FILE}) if kept"
    unknown_response_refusal = answers.error_arguments(404, UNKNOWN_RESPONSE_MESSAGE, "response_not_found")
    yield f"http-request return {unknown_response_refusal} if kept !{{ var(txn.backend) -m found }}"
    creation_condition = f"{{ path {RESPONSES_PATH} }}"
    yield f"http-request set-var(txn.makes) bool(true) if {creation_condition}"
    previous_server_sample = f"req.body,json_query('$.previous_response_id'),table_gpt0({TABLE_BACKEND})"
    yield f"http-request set-var(txn.made) {previous_server_sample} if {creation_condition}"
    recording_condition = "{ var(txn.makes) -m bool } { status 200 }"
    yield (
        f"http-response wait-for-body time {RESPONSE_BODY_TIMEOUT_S}s at-least {MIN_RESPONSE_BODY_BYTES} "
        f"if {recording_condition}"
    )
    id_extraction = f'regsub("(?s)^.*?\\"id\\": ?\\"(resp_{ID_CHARACTER_PATTERN}+)\\".*$","\\\\1")'
    yield f"http-response set-var(txn.response) 'res.body,bytes(0,{ID_SEARCH_BYTES}),{id_extraction}' if {recording_condition}"
    id_condition = "{ var(txn.response) -m beg resp_ }"
    yield f"http-response track-sc1 var(txn.response) table {TABLE_BACKEND} if {id_condition}"
    yield f"http-response sc-set-gpt0(1) srv_id if {id_condition}"


def server_rules(gateway: Gateway, model: Model) -> Iterator[str]:
    """Yield a backend's rules that send requests about a response to the server that created it, if it is up."""
    if not _has_responses(gateway) or sum(len(upstream.names) for upstream in model.upstreams) == 1:
        return
    for upstream in model.upstreams:
        for name in upstream.names:
            yield f"use-server {name} if {{ var(txn.made) -m int {server_number(model, name)} }}"


def _has_responses(gateway: Gateway) -> bool:
    """Return True if the gateway's servers store responses."""
    return bool(select_paths(gateway, "response"))


def _path_pattern(path: ApiPath) -> str:
    return f"^{re.escape(path.path).replace(re.escape(RESPONSE_ID_PLACEHOLDER), ID_CHARACTER_PATTERN + '+')}$"
