"""Gateway operations for hosts: a host reads, drains and resumes its own servers over HTTP on a separate port.

A request consists of a method, a URL and a key, without a body. Each host has its own key, and the gateway has only the key's
SHA-256. HAProxy looks up the host, method and URL in a map of all allowed operations. A script executes the operation from the
map and reads nothing from the request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sparkwright.gateway import answers, listeners, wake
from sparkwright.gateway.model import Gateway

#: URL prefix on the control port
URL_PREFIX = "/gateway/servers"
#: map from the SHA-256 of a key to its host
HOST_KEYS_FILE = "operators.map"
#: map from host, method and URL to the operation that is allowed
OPERATIONS_FILE = "operations.map"
#: script that executes the operations
SCRIPT_FILE = "operate.lua"
#: file with the server states, which HAProxy reads on a reload so that drained servers stay drained
STATES_FILE = "servers.state"
#: action that sends no new requests to a server
DRAIN = "drain"
#: action that also sends no health checks, because their tokens would distort a measurement
MAINTENANCE = "maint"
#: action that resumes requests and health checks
READY = "ready"
#: method of HAProxy's Lua class Server, by action
SERVER_METHODS = {DRAIN: "set_drain", MAINTENANCE: "set_maint", READY: "set_ready"}
READ = "read"

#: executes lines of OPERATIONS_FILE, "drain BACKEND/SERVER" or "read BACKEND/SERVER BACKEND/SERVER ..."
_SCRIPT = """-- Written by sparkwright. It executes operations from operations.map, and reads nothing from a request.
local methods = { %s }

core.register_service("operate", "http", function(applet)
    local action, names = string.match(applet:get_var("txn.operation"), "^(%%S+) (.+)$")
    local rows = {}
    for backend, name in string.gmatch(names, "([^%%s/]+)/(%%S+)") do
        local server = core.backends[backend].servers[name]
        if methods[action] then
            server[methods[action]](server)
        end
        local stats = server:get_stats()
        local row = '{"backend":"%%s","server":"%%s","status":"%%s","running":%%d,"requests":%%d}'
        table.insert(rows, string.format(row, backend, name, stats["status"], stats["scur"], stats["stot"]))
    end
    local body = '{"servers":[' .. table.concat(rows, ",") .. "]}\\n"
    applet:set_status(200)
    applet:add_header("content-type", "application/json")
    applet:add_header("content-length", #body)
    applet:start_response()
    applet:send(body)
end)
"""


def operation_url(action: str, backend: str, server: str) -> str:
    """Return the path of the PUT request for an operation on a server."""
    return f"{URL_PREFIX}/{backend}/{server}/{action}"


def render_files(gateway: Gateway) -> dict[str, str]:
    """Return the files with the hosts' allowed operations and the script that executes them."""
    methods = ", ".join(f'{action} = "{method}"' for action, method in SERVER_METHODS.items())
    return {OPERATIONS_FILE: "".join(_operation_lines(gateway)), SCRIPT_FILE: _SCRIPT % methods}


def _operation_lines(gateway: Gateway) -> Iterator[str]:
    """Yield the lines of OPERATIONS_FILE."""
    servers_by_host: dict[str, list[str]] = {}
    for model in gateway.models:
        for upstream in model.upstreams:
            host = upstream.host or upstream.name
            for server in upstream.names:
                servers_by_host.setdefault(host, []).append(f"{model.backend}/{server}")
                actions = (
                    (*SERVER_METHODS, wake.ASLEEP_OPERATION)
                    if upstream.wakes and server == upstream.name
                    else SERVER_METHODS
                )
                for action in actions:
                    yield f"{host}:PUT:{operation_url(action, model.backend, server)} {action} {model.backend}/{server}\n"
    for host, servers in servers_by_host.items():
        yield f"{host}:GET:{URL_PREFIX} {READ} {' '.join(servers)}\n"


def parse_key_hashes(text: str, names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of each host's key, by host, from the contents of HOST_KEYS_FILE. Hosts without a key are omitted."""
    hashes = {name: key_hash for key_hash, _, name in (line.partition(" ") for line in text.splitlines())}
    return {name: hashes[name] for name in names if name in hashes}


def global_lines() -> Iterator[str]:
    """Yield the lines that load the script and set the file of server states."""
    yield f"server-state-file {STATES_FILE}"
    yield f"lua-load {SCRIPT_FILE}"


def defaults_lines() -> Iterator[str]:
    """Yield the directive that restores the server states."""
    yield "load-server-state-from-file global"


def frontend_lines(gateway: Gateway) -> Iterator[str]:
    """Yield the lines of the frontend for the gateway's hosts."""
    yield from listeners.control_lines(gateway)
    yield f"http-request set-var(txn.operator) http_auth_bearer,sha2(256),hex,lower,map_str({HOST_KEYS_FILE})"
    no_key_refusal = answers.error_arguments(
        401, "Only the gateway's own hosts may use this port.", "invalid_operator_key"
    )
    yield f"http-request return {no_key_refusal} if !{{ var(txn.operator) -m found }}"
    yield listeners.mark_known_rule()
    yield "http-request set-var-fmt(txn.asked) '%[var(txn.operator)]:%[method]:%[url]'"
    yield f"http-request set-var(txn.operation) var(txn.asked),map_str({OPERATIONS_FILE})"
    not_allowed_refusal = answers.error_arguments(
        403, "A host may read, drain and resume only its own servers.", "not_allowed"
    )
    body_condition = "{ req.body_size gt 0 } || { req.fhdr(transfer-encoding) -m found }"
    yield f"http-request return {not_allowed_refusal} if !{{ var(txn.operation) -m found }} || {body_condition}"
    yield from wake.report_rules(gateway)
    yield "http-request use-service lua.operate"
