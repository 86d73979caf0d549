"""The listeners of a gateway, and their limits on connections, in total and per client address.

An address is known if it has sent a valid key within the last KNOWN_ADDRESS_MINUTES minutes. Unknown addresses can use only
part of the connections, and a request's head must arrive within seconds, so that clients without a key can't block clients with
a key. The gateway's hosts have a separate port, and the check of a deploy has a separate socket, so that clients can't exhaust
their connections.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.gateway.model import Gateway

#: folder of the sockets, relative to HAProxy's working directory
SOCKETS_FOLDER = "../sockets"
#: socket of the serving process
ADMIN_SOCKET = "admin.sock"
#: socket of the master process
MASTER_SOCKET = "master.sock"
#: socket for a deploy's requests
PROOF_SOCKET = "proof.sock"
CERTIFICATE_FILE = "tls.pem"

#: time limit for the head of a request
HEAD_TIMEOUT_S = 10
KNOWN_ADDRESS_MINUTES = 60
#: maximum number of addresses in the table; an IPv6 /64 network counts as one
MAX_ADDRESSES = 65536
#: maximum number of connections of a deploy's check
MAX_PROOF_CONNECTIONS = 8
#: maximum number of connections of the gateway's hosts
MAX_HOST_CONNECTIONS = 64
#: limit on new connections from an unknown address in RATE_WINDOW_S seconds
MAX_NEW_CONNECTIONS, RATE_WINDOW_S = 300, 10


def frontend_lines(gateway: Gateway) -> Iterator[str]:
    """Yield the lines of the clients' frontend that decide which clients may connect."""
    yield f"bind {gateway.address}:{gateway.port} maxconn {gateway.clients}{_tls_arguments(gateway)}"
    yield f"bind unix@{SOCKETS_FOLDER}/{PROOF_SOCKET} mode 600{_tls_arguments(gateway)}"
    yield f"maxconn {gateway.clients + MAX_PROOF_CONNECTIONS}"
    yield from _admission_rules(gateway.clients)


def control_lines(gateway: Gateway) -> Iterator[str]:
    """Yield the lines of the frontend for the gateway's hosts that decide which hosts may connect."""
    yield f"bind {gateway.address}:{gateway.control_port} maxconn {MAX_HOST_CONNECTIONS}{_tls_arguments(gateway)}"
    yield f"maxconn {MAX_HOST_CONNECTIONS}"
    yield f"timeout client {HEAD_TIMEOUT_S}s"
    yield from _admission_rules(MAX_HOST_CONNECTIONS)


def max_connections(gateway: Gateway) -> int:
    """Return the maximum number of connections to clients and hosts."""
    return gateway.clients + MAX_PROOF_CONNECTIONS + MAX_HOST_CONNECTIONS


def mark_known_rule() -> str:
    """Return the rule that marks the address of a request as known."""
    return "http-request sc-set-gpt0(0) 1"


def known_address_limit(total: int) -> int:
    """Return the maximum number of connections of one known address: less than a frontend's total, so others can connect."""
    return max(1, total * 7 // 8)


def unknown_address_limit(total: int) -> int:
    """Return the maximum number of connections of one unknown address, for a frontend's total."""
    return max(4, total // 4)


def all_unknown_limit(total: int) -> int:
    """Return the maximum number of connections of all unknown addresses together, for a frontend's total."""
    return max(4, total * 3 // 4)


def _tls_arguments(gateway: Gateway) -> str:
    return f" ssl crt {CERTIFICATE_FILE} alpn http/1.1" if gateway.tls else ""


def _admission_rules(total: int) -> Iterator[str]:
    """Yield the rules that apply before the first byte is read.

    HTTP/2 is disabled, because one connection could have a hundred requests, each with its own buffers.
    """
    unknown_condition = "{ sc0_get_gpt0 eq 0 }"
    yield "option disable-h2-upgrade"
    counters = f"gpt0,conn_cur,conn_rate({RATE_WINDOW_S}s)"
    yield f"stick-table type ipv6 size {MAX_ADDRESSES} expire {KNOWN_ADDRESS_MINUTES}m store {counters}"
    yield "tcp-request connection track-sc0 src,ipmask(32,64)"
    yield f"tcp-request connection reject if {{ sc0_conn_cur gt {known_address_limit(total)} }}"
    yield f"tcp-request connection reject if {unknown_condition} {{ sc0_conn_cur gt {unknown_address_limit(total)} }}"
    yield f"tcp-request connection reject if {unknown_condition} {{ sc0_conn_rate gt {MAX_NEW_CONNECTIONS} }}"
    yield f"tcp-request connection track-sc1 ipv6(::) if {unknown_condition}"
    yield f"tcp-request connection reject if {{ sc1_conn_cur gt {all_unknown_limit(total)} }}"
