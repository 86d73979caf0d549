"""How a server's own host drains it at the gateway, and returns it: HAProxy's statistics page, for those that have a key to it.

Each host has a key of its own, and a gateway knows the SHA-256 of it only. What a host may ask for is a list of exact requests:
those that are about its own servers. `haproxy -c` and a reload see nothing special in any of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sparkwright.gateway import answers
from sparkwright.gateway.model import Gateway

#: below the gateway's address
PATH = "/gateway/servers"
TABLE = f"{PATH};csv"
#: the files: the hosts by the SHA-256 of their keys; and what each of them may ask for
OPERATORS, OPERATIONS = "operators.map", "operations"
#: where HAProxy finds which servers were drained when it reads its files anew
STATES = "servers.state"
#: no new requests; nor checks, whose tokens would disturb a measurement; all of it again
DRAIN, REST, READY = "drain", "maint", "ready"
#: HAProxy's answer to a request that it has done
DONE = ";st=DONE"
WAIT_S = 5


def request(action: str, backend: str, server: str) -> str:
    """The body of a request, as it must be to the letter."""
    return f"action={action}&b={backend}&s={server}"


def files(gateway: Gateway) -> dict[str, str]:
    """What each host may ask for."""
    rows = [
        f"{one.machine or one.name} {request(action, model.backend, name)}\n"
        for model in gateway.models
        for one in model.upstreams
        for name in one.names
        for action in (DRAIN, REST, READY)
    ]
    return {OPERATIONS: "".join(rows)}


def operators(hashes: Mapping[str, str]) -> str:
    """The file of the hosts' keys. hashes: SHA-256 as hexadecimal digits, by host."""
    return "".join(f"{found} {name}\n" for name, found in sorted(hashes.items()))


def hashes_in(text: str, names: Iterable[str]) -> dict[str, str]:
    """The keys of these hosts that such a file has."""
    rows = {name: found for found, _, name in (line.partition(" ") for line in text.splitlines())}
    return {name: rows[name] for name in names if name in rows}


def in_global() -> Iterator[str]:
    """So that a reload knows what was drained."""
    yield f"server-state-file {STATES}"


def in_defaults() -> Iterator[str]:
    """The same."""
    yield "load-server-state-from-file global"


def in_frontend() -> Iterator[str]:
    """Before the rules that ask for the clients' key."""
    asked, known = f"{{ path_beg {PATH} }}", "{ var(txn.operator) -m found }"
    key = f"http_auth_bearer,sha2(256),hex,lower,map_str({OPERATORS})"
    yield f"http-request set-var(txn.operator) {key} if {asked}"
    no_key = answers.words(401, "This is for the gateway's own hosts.", "invalid_operator_key")
    yield f"http-request return {no_key} if {asked} !{known}"
    yield f"http-request wait-for-body time {WAIT_S}s if {asked}"
    yield f"http-request set-var-fmt(txn.operation) '%[var(txn.operator)] %[req.body]' if {asked}"
    other = answers.words(403, "A host drains and returns its own servers only.", "not_allowed")
    yield f"http-request return {other} if {asked} {{ method POST }} !{{ var(txn.operation) -m str -f {OPERATIONS} }}"
    yield f"http-request allow if {asked}"
    yield "stats enable"
    yield "stats hide-version"
    yield f"stats uri {PATH}"
    yield f"stats admin if {known}"
