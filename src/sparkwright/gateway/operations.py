"""Gateway operations for hosts, which read, drain and return their own servers over HTTP on a separate port.

A request consists of a method, a URL and a key, without a body. Each host has its own key, of which a gateway knows only the
SHA-256. HAProxy looks up the host, method and URL in a map of all allowed operations, and its script executes the operation found
there without reading anything that the client sent. `haproxy -c` and reloads need no special handling for this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sparkwright.gateway import answers, listeners, wake
from sparkwright.gateway.model import Gateway

#: URL prefix on the control port
PATH = "/gateway/servers"
#: files with the hosts by the SHA-256 of their keys, their allowed operations, and the script that executes these
OPERATORS, OPERATIONS, SCRIPT = "operators.map", "operations.map", "operate.lua"
#: file of server states that HAProxy reads on a reload, so that drained servers stay drained
STATES = "servers.state"
#: actions: stop new requests; stop also checks, whose tokens would disturb a measurement; resume everything
DRAIN, REST, READY = "drain", "maint", "ready"
METHODS = {DRAIN: "set_drain", REST: "set_maint", READY: "set_ready"}
READ = "read"

#: executes lines of OPERATIONS, "drain BACKEND/SERVER" or "read BACKEND/SERVER BACKEND/SERVER ..."
_SCRIPT = """-- Written by sparkwright. It does what operations.map names, and reads nothing of a request.
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


def url(action: str, backend: str, server: str) -> str:
    """Return the URL for an operation on a server (PUT), below the gateway's address."""
    return f"{PATH}/{backend}/{server}/{action}"


def files(gateway: Gateway) -> dict[str, str]:
    """Return the files with the hosts' allowed operations and the script that executes them."""
    methods = ", ".join(f'{action} = "{method}"' for action, method in METHODS.items())
    return {OPERATIONS: "".join(_allowed(gateway)), SCRIPT: _SCRIPT % methods}


def _allowed(gateway: Gateway) -> Iterator[str]:
    """Yield the lines of OPERATIONS."""
    own: dict[str, list[str]] = {}
    for model in gateway.models:
        for upstream in model.upstreams:
            machine = upstream.machine or upstream.name
            for server in upstream.names:
                own.setdefault(machine, []).append(f"{model.backend}/{server}")
                actions = (*METHODS, wake.ASLEEP) if upstream.wakes and server == upstream.name else METHODS
                for action in actions:
                    yield f"{machine}:PUT:{url(action, model.backend, server)} {action} {model.backend}/{server}\n"
    for machine, servers in own.items():
        yield f"{machine}:GET:{PATH} {READ} {' '.join(servers)}\n"


def hashes_in(text: str, names: Iterable[str]) -> dict[str, str]:
    """Return the hashes of these hosts' keys from a key file."""
    rows = {name: digits for digits, _, name in (line.partition(" ") for line in text.splitlines())}
    return {name: rows[name] for name in names if name in rows}


def in_global() -> Iterator[str]:
    """Yield the lines that load the script and the server states saved before a reload."""
    yield f"server-state-file {STATES}"
    yield f"lua-load {SCRIPT}"


def in_defaults() -> Iterator[str]:
    """Yield the directive that restores the drained servers after a reload."""
    yield "load-server-state-from-file global"


def frontend(gateway: Gateway) -> Iterator[str]:
    """Yield the frontend for the gateway's hosts."""
    yield from listeners.control(gateway)
    yield f"http-request set-var(txn.operator) http_auth_bearer,sha2(256),hex,lower,map_str({OPERATORS})"
    no_key = answers.words(401, "This is for the gateway's own hosts.", "invalid_operator_key")
    yield f"http-request return {no_key} if !{{ var(txn.operator) -m found }}"
    yield listeners.known()
    yield "http-request set-var-fmt(txn.asked) '%[var(txn.operator)]:%[method]:%[url]'"
    yield f"http-request set-var(txn.operation) var(txn.asked),map_str({OPERATIONS})"
    other = answers.words(403, "A host reads, drains and returns its own servers only.", "not_allowed")
    body = "{ req.body_size gt 0 } || { req.fhdr(transfer-encoding) -m found }"
    yield f"http-request return {other} if !{{ var(txn.operation) -m found }} || {body}"
    yield from wake.reports(gateway)
    yield "http-request use-service lua.operate"
