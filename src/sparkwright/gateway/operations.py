"""Gateway operations for hosts: a host reads, drains and resumes its own servers over HTTP on a separate port.

A request consists of a method, a URL and a key, without a body. Each host has its own key, of which the gateway has only the
SHA-256. HAProxy looks up the host, method and URL in a map of all allowed operations. A script executes the operation from the
map and reads nothing from the request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sparkwright.gateway import answers, listeners, wake
from sparkwright.gateway.model import Gateway

#: URL prefix on the control port
URL_PREFIX = "/gateway/servers"
#: files with the hosts by the SHA-256 of their keys, with the allowed operations, and with the script that executes them
OPERATORS_FILE, OPERATIONS_FILE, SCRIPT_FILE = "operators.map", "operations.map", "operate.lua"
#: server states that HAProxy reads on a reload, so that drained servers stay drained
STATES_FILE = "servers.state"
#: actions. DRAIN: send no new requests. MAINTENANCE: also send no health checks, because their tokens would distort a
#: measurement. READY: resume
DRAIN, MAINTENANCE, READY = "drain", "maint", "ready"
METHODS = {DRAIN: "set_drain", MAINTENANCE: "set_maint", READY: "set_ready"}
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
    methods = ", ".join(f'{action} = "{method}"' for action, method in METHODS.items())
    return {OPERATIONS_FILE: "".join(_operation_lines(gateway)), SCRIPT_FILE: _SCRIPT % methods}


def _operation_lines(gateway: Gateway) -> Iterator[str]:
    """Yield the lines of OPERATIONS_FILE."""
    servers_by_machine: dict[str, list[str]] = {}
    for model in gateway.models:
        for upstream in model.upstreams:
            machine = upstream.machine or upstream.name
            for server in upstream.names:
                servers_by_machine.setdefault(machine, []).append(f"{model.backend}/{server}")
                actions = (*METHODS, wake.ASLEEP) if upstream.wakes and server == upstream.name else METHODS
                for action in actions:
                    yield f"{machine}:PUT:{operation_url(action, model.backend, server)} {action} {model.backend}/{server}\n"
    for machine, servers in servers_by_machine.items():
        yield f"{machine}:GET:{URL_PREFIX} {READ} {' '.join(servers)}\n"


def parse_key_hashes(text: str, names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of each host's key, by host, from the content of OPERATORS_FILE. Hosts that it lacks are omitted."""
    hashes = {name: digits for digits, _, name in (line.partition(" ") for line in text.splitlines())}
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
    yield f"http-request set-var(txn.operator) http_auth_bearer,sha2(256),hex,lower,map_str({OPERATORS_FILE})"
    no_key_refusal = answers.error_arguments(401, "This is for the gateway's own hosts.", "invalid_operator_key")
    yield f"http-request return {no_key_refusal} if !{{ var(txn.operator) -m found }}"
    yield listeners.mark_known_rule()
    yield "http-request set-var-fmt(txn.asked) '%[var(txn.operator)]:%[method]:%[url]'"
    yield f"http-request set-var(txn.operation) var(txn.asked),map_str({OPERATIONS_FILE})"
    not_allowed_refusal = answers.error_arguments(
        403, "A host reads, drains and returns its own servers only.", "not_allowed"
    )
    has_body = "{ req.body_size gt 0 } || { req.fhdr(transfer-encoding) -m found }"
    yield f"http-request return {not_allowed_refusal} if !{{ var(txn.operation) -m found }} || {has_body}"
    yield from wake.report_rules(gateway)
    yield "http-request use-service lua.operate"
