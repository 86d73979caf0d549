"""The listeners of a gateway, with limits on connections, in total and per client address.

An address is known if it has sent a valid key within the last KNOWN_MIN minutes. Unknown addresses share only a part of the
connections and have seconds to send the head of a request, so that clients without a key can't lock out those with one. The
gateway's own hosts have a separate port, and the check of a deploy has a separate socket, which clients can't fill.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.gateway.model import Gateway

#: folder of the sockets, relative to HAProxy's working directory
SOCKETS = "../sockets"
#: sockets for the operator: of the serving process, of the master process, and for requests like a client's
SOCKET, MASTER_SOCKET, PROOF_SOCKET = "admin.sock", "master.sock", "proof.sock"
CERTIFICATE = "tls.pem"

#: time limits in seconds for the head of a request, and for an idle connection between requests (aiohttp keeps one for 15 s)
HEAD_S, IDLE_S = 10, 20
KNOWN_MIN = 60
#: size of the table of addresses, in which an IPv6 network of 64 bits counts as one
ADDRESSES = 65536
#: maximum number of connections of a deploy's check, and of the gateway's hosts
PROOFS, HOSTS = 8, 64
#: limit on new connections from an unknown address in RATE_S seconds
RATE, RATE_S = 300, 10


def frontend(gateway: Gateway) -> Iterator[str]:
    """Yield the lines of the clients' frontend that decide which clients may connect."""
    yield f"bind {gateway.address}:{gateway.port} maxconn {gateway.clients}{_tls(gateway)}"
    yield f"bind unix@{SOCKETS}/{PROOF_SOCKET} mode 600{_tls(gateway)}"
    yield f"maxconn {gateway.clients + PROOFS}"
    yield from _admission(gateway.clients)


def control(gateway: Gateway) -> Iterator[str]:
    """Yield the same lines for the frontend of the gateway's hosts."""
    yield f"bind {gateway.address}:{gateway.control_port} maxconn {HOSTS}{_tls(gateway)}"
    yield f"maxconn {HOSTS}"
    yield f"timeout client {HEAD_S}s"
    yield from _admission(HOSTS)


def connections(gateway: Gateway) -> int:
    """Return the maximum number of connections to clients and hosts."""
    return gateway.clients + PROOFS + HOSTS


def known() -> str:
    """Return the rule that marks the address of a request as known."""
    return "http-request sc-set-gpt0(0) 1"


def of_known(most: int) -> int:
    """Return the number of a frontend's connections that one address may have, so that some remain for others."""
    return max(1, most * 7 // 8)


def of_unknown(most: int) -> int:
    """Return the number of a frontend's connections that one unknown address may have."""
    return max(4, most // 4)


def of_all_unknown(most: int) -> int:
    """Return the number of a frontend's connections that all unknown addresses may have together."""
    return max(4, most * 3 // 4)


def _tls(gateway: Gateway) -> str:
    return f" ssl crt {CERTIFICATE} alpn http/1.1" if gateway.tls else ""


def _admission(most: int) -> Iterator[str]:
    """Yield the rules that apply before the first byte is read.

    HTTP/2 is disabled, because a connection could carry a hundred requests, each with its own buffers.
    """
    unknown = "{ sc0_get_gpt0 eq 0 }"
    yield "option disable-h2-upgrade"
    yield f"stick-table type ipv6 size {ADDRESSES} expire {KNOWN_MIN}m store gpt0,conn_cur,conn_rate({RATE_S}s)"
    yield "tcp-request connection track-sc0 src,ipmask(32,64)"
    yield f"tcp-request connection reject if {{ sc0_conn_cur gt {of_known(most)} }}"
    yield f"tcp-request connection reject if {unknown} {{ sc0_conn_cur gt {of_unknown(most)} }}"
    yield f"tcp-request connection reject if {unknown} {{ sc0_conn_rate gt {RATE} }}"
    yield f"tcp-request connection track-sc1 ipv6(::) if {unknown}"
    yield f"tcp-request connection reject if {{ sc1_conn_cur gt {of_all_unknown(most)} }}"
