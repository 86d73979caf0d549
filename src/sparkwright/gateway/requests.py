"""HAProxy rules that find the model that a request names, or the response that it refers to, for each path.

A model is named in a JSON body or in a field of a multipart form. A request about an earlier response names no model and goes to
the server that made the response, which is stored in a table by the response's id. A reload clears the table, because HAProxy
transfers tables only through a TCP port (a unix socket was tested with 2.6.12).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator

from sparkwright.engines.api_paths import ID, RESPONSES, ApiPath, Names
from sparkwright.gateway import answers
from sparkwright.gateway.model import Gateway, Model

#: file with the backends by their servers' numbers, and the script that reads forms
MAKERS, SCRIPT = "makers.map", "forms.lua"
#: backend with the table of responses, which is a name that no model can have
TABLE = "-responses"
#: maximum number of responses in the table, and how long they are kept in hours
MOST_RESPONSES, KEPT_H = 20_000, 24
#: maximum length of a response's id, and the number of bytes at the beginning of an answer that contain it
ID_CHARS, BEGIN_BYTES = 64, 4096
#: how long to wait for an answer to begin, in seconds, and the least number of bytes that contain its id
BEGIN_S, LEAST_BYTES = 60, 60
NAME = "[A-Za-z0-9_-]"
UNKNOWN_RESPONSE = (
    "The gateway knows no server that made a response of this name; it forgets them when it reloads its files."
)
#: reads forms, whose bodies are binary, because HAProxy's own regular expressions end at the first zero byte
_SCRIPT = """-- Written by sparkwright. It returns the field `model` of a multipart form, or nothing.
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


def files(gateway: Gateway) -> dict[str, str]:
    """Return the files that these rules read."""
    rows = (
        f"{number(model, name)} {model.backend}\n"
        for model in gateway.models
        for upstream in model.upstreams
        for name in upstream.names
    )
    return {MAKERS: "".join(rows), SCRIPT: _SCRIPT}


def number(model: Model, server: str) -> int:
    """Return the number of a server, which is the same in all configurations regardless of their other content."""
    return 1 + zlib.crc32(f"{model.backend}/{server}".encode()) % (2**31 - 2)


def of(gateway: Gateway, names: Names) -> tuple[ApiPath, ...]:
    """Return the paths whose requests name their model in the given way."""
    return tuple(path for path in gateway.paths if path.model == names)


def in_global(gateway: Gateway) -> Iterator[str]:
    """Yield the line that loads the script."""
    if of(gateway, "form"):
        yield f"lua-load {SCRIPT}"


def sections(gateway: Gateway) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield the section with the table of responses."""
    if _keeps(gateway):
        table = f"stick-table type string len {ID_CHARS} size {MOST_RESPONSES} expire {KEPT_H}h store gpt0"
        yield f"backend {TABLE}", iter([table])


def refusals(gateway: Gateway) -> Iterator[str]:
    """Yield the rules that refuse requests by path and method, before the body is read."""
    paths = gateway.paths
    named = [path.path for path in paths if path.model != "response"]
    kept = [_pattern(path) for path in of(gateway, "response")]
    unknown = answers.words(404, answers.unknown_path(path.path for path in paths), "unknown_url")
    others = f" !{{ path -m reg {' '.join(kept)} }}" if kept else ""
    yield f"http-request return {unknown} if !{{ path -m str {' '.join(named)} }}{others}"
    read = [_pattern(path) for path in of(gateway, "response") if path.method == "GET"]
    if read:
        yield f"acl read path -m reg {' '.join(read)}"
        yield f"http-request return {answers.words(405, 'Use GET.', 'method_not_allowed', allow='GET')} if read !{{ method GET }}"
    post = answers.words(405, "Use POST.", "method_not_allowed")
    yield f"http-request return {post} if !{{ method POST }}{' !read' if read else ''}"


def routes(gateway: Gateway, routes_file: str) -> Iterator[str]:
    """Yield the rules that set `txn.backend`, and `txn.made` to the server that made a response.

    Args:
        gateway: the gateway.
        routes_file: name of the file with the backends by model.
    """
    if form := of(gateway, "form"):
        yield f"acl form path -m str {' '.join(path.path for path in form)}"
        yield "http-request set-var(txn.model) lua.form_model if form"
    body = " if !form" if form else ""
    yield f"http-request set-var(txn.model) req.body,json_query('$.model'){body}"
    kept = _keeps(gateway)
    if kept:
        yield from _makers(gateway)
    missing = answers.words(400, answers.NO_MODEL, "model_missing")
    yield f"http-request return {missing} if !{{ var(txn.model) -m found }}{' !kept' if kept else ''}"
    if form:
        field = answers.words(400, answers.NO_FIELD, "model_missing")
        yield f"http-request return {field} if form {{ var(txn.model) -m len 0 }}"
    named = " if !kept" if kept else ""
    yield f"http-request set-var(txn.backend) var(txn.model),map_str({routes_file}){named}"
    unknown = answers.words(404, answers.UNKNOWN_MODEL, "model_not_found")
    yield f"http-request return {unknown} if !{{ var(txn.backend) -m found }}"


def _makers(gateway: Gateway) -> Iterator[str]:
    """Yield the rules that find the server of a response, and that record the server of a new response."""
    patterns = " ".join(_pattern(path) for path in of(gateway, "response"))
    depth = RESPONSES.count("/") + 2
    yield f"acl kept path -m reg {patterns}"
    yield f"http-request set-var(txn.made) path,field({depth},/),table_gpt0({TABLE}) if kept"
    yield f"http-request set-var(txn.backend) var(txn.made),map_str({MAKERS}) if kept"
    unknown = answers.words(404, UNKNOWN_RESPONSE, "response_not_found")
    yield f"http-request return {unknown} if kept !{{ var(txn.backend) -m found }}"
    made = f"{{ path {RESPONSES} }}"
    yield f"http-request set-var(txn.makes) bool(true) if {made}"
    before = f"req.body,json_query('$.previous_response_id'),table_gpt0({TABLE})"
    yield f"http-request set-var(txn.made) {before} if {made}"
    makes = "{ var(txn.makes) -m bool } { status 200 }"
    yield f"http-response wait-for-body time {BEGIN_S}s at-least {LEAST_BYTES} if {makes}"
    found = f'regsub("(?s)^.*?\\"id\\": ?\\"(resp_{NAME}+)\\".*$","\\\\1")'
    yield f"http-response set-var(txn.response) 'res.body,bytes(0,{BEGIN_BYTES}),{found}' if {makes}"
    named = "{ var(txn.response) -m beg resp_ }"
    yield f"http-response track-sc1 var(txn.response) table {TABLE} if {named}"
    yield f"http-response sc-set-gpt0(1) srv_id if {named}"


def servers(gateway: Gateway, model: Model) -> Iterator[str]:
    """Yield the rules of a backend that send requests about a response to the server that made it, if it is up."""
    if not _keeps(gateway) or sum(len(upstream.names) for upstream in model.upstreams) == 1:
        return
    for upstream in model.upstreams:
        for name in upstream.names:
            yield f"use-server {name} if {{ var(txn.made) -m int {number(model, name)} }}"


def _keeps(gateway: Gateway) -> bool:
    """Return True if an engine of the gateway's servers stores responses."""
    return bool(of(gateway, "response"))


def _pattern(path: ApiPath) -> str:
    return f"^{re.escape(path.path).replace(re.escape(ID), NAME + '+')}$"
