"""The client side of a peer: the token for its requests, and the addresses that answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from sparkwright.errors import Failed
from sparkwright.host.cluster import wire
from sparkwright.host.peers.peer_server import DONE, HERE
from sparkwright.protocol import cluster
from sparkwright.secret import Secret
from sparkwright.transport import http
from sparkwright.transport.connection import TransportError
from sparkwright.trust.names import PEER_URL, matched

TOKEN = "NEIGHBOUR_TOKEN"
REACH_S, ANSWER_BYTES = 3.0, 4096


def token(secrets: Mapping[str, Secret], purpose: str) -> Secret | None:
    """Return the token that authorizes a copy: the one made for it, or, in a cluster, one derived from the cluster's token.

    The cluster's token itself never travels over HTTP: an eavesdropper can read the copied files, and nothing else.
    """
    if TOKEN in secrets or cluster.TOKEN not in secrets:
        return secrets.get(TOKEN)
    return wire.derived(secrets[cluster.TOKEN], purpose)


def headers(token: Secret | None) -> dict[str, str]:
    """Return the headers for each request."""
    return {"Authorization": f"Bearer {token.reveal()}"} if token else {}


@contextmanager
def all_reached(urls: Sequence[str], name: str, token: Secret | None, else_: str) -> Iterator[list[str]]:
    """Yield all of a peer's addresses that answer, and notify each at the end of the copy. Raises Failed if none does."""
    found = [url for url in _known(urls, name) if asked(url + HERE, headers(token))]
    if not found:
        raise _unreachable(urls, name, else_)
    try:
        yield found
    finally:
        for url in found:
            asked(url + DONE, headers(token))


def _known(urls: Sequence[str], name: str) -> Sequence[str]:
    for given in urls:
        matched(PEER_URL, given, f"where {name} hands it out")
    return urls


def _unreachable(urls: Sequence[str], name: str, else_: str) -> Failed:
    fix = f"Check the network and firewall between the hosts, or {else_}."
    return Failed(f"cannot reach {name} from here at {', '.join(urls)}.", fix=fix)


@contextmanager
def reached(urls: Sequence[str], name: str, token: Secret | None, else_: str) -> Iterator[str]:
    """Yield the first of a peer's addresses that answers, and notify it at the end of the copy. Raises Failed if none does.

    Args:
        else_: an alternative for the user.
    """
    url = next((url for url in _known(urls, name) if asked(url + HERE, headers(token))), None)
    if url is None:
        raise _unreachable(urls, name, else_)
    try:
        yield url
    finally:
        asked(url + DONE, headers(token))


def asked(url: str, headers: Mapping[str, str]) -> bool:
    """Return True if a peer answers 204, as it does to HERE and DONE."""
    try:
        return http.request("GET", url, headers=headers, timeout_s=REACH_S, most_bytes=ANSWER_BYTES).status == 204
    except TransportError:
        return False
