"""Who may use the server, and who reads its key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sparkwright.engines.vllm import key_file
from sparkwright.engines.vllm.exposure import OPEN_SENTENCE, OPEN_WAY
from sparkwright.engines.vllm.flags import flags
from sparkwright.engines.vllm.rules.rule import Case, Example, Finding, Way, graded, rule

LOOPBACK = ("127.", "localhost", "::1")
#: the oldest release whose log was seen to hide the key
LOG_HIDES_KEY_SINCE = "0.32.0"


@rule(
    "api-key-in-arguments",
    sources=(
        "docker inspect and `ps` show a container's arguments to everyone with the socket",
        f"a secret {key_file.VARIABLE} of sparkwright reaches no container: without the flag the server would ask for no key",
    ),
    example=Example({"api-key": "sk-1"}),
)
def api_key(case: Case) -> Iterator[Finding]:
    """An API key among the flags is readable for everyone on the host.
    Arguments stand in `ps`, `docker inspect`, the recipe and the log of older releases. `server_key` in the recipe reaches the engine in
    its configuration file, which only its container reads, and every check of sparkwright knows it.
    """
    if case.flag(key_file.KEY):
        said = "api-key stands in the arguments, where `ps` and `docker inspect` show it."
        way = Way("take it out and name its source in the recipe: `server_key: {env: SPARK_KEY}`", {key_file.KEY: None})
        yield Finding("error", "api-key-in-arguments", said, (way,), "docker inspect", key_file.KEY)


@rule(
    "open-to-network",
    sources=(
        "docker's documentation: a published port without an address is open on every address of the host, past its firewall",
    ),
    example=Example(open_to_network=True),
)
def open_to_network(case: Case) -> Iterator[Finding]:
    """A server that is published beyond the loopback and asks for no key serves everyone who reaches the host.
    Docker publishes past ufw. `server_key` asks clients for a key; `publish: loopback` leaves the server to programs of the host, a
    proxy in front of it or an ssh tunnel.
    """
    if case.asked.open_to_network:
        yield Finding(
            "warning", "open-to-network", f"{OPEN_SENTENCE}.", (Way(OPEN_WAY),), "docker's documentation", "publish"
        )


#: options that take the server away from a published port: which values do, what comes of it
OUT_OF_REACH: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("host", lambda said: str(said).strip("[]").startswith(LOOPBACK), "the server listens inside its container only"),
    ("uds", bool, "the server listens on a socket file of its container, and on no port"),
    ("headless", lambda said: said is True, "a headless engine answers no requests"),
    ("ssl-certfile", bool, "the server takes HTTPS only, and every check of sparkwright asks it over HTTP"),
    ("ssl-keyfile", bool, "the server takes HTTPS only, and every check of sparkwright asks it over HTTP"),
)


@rule(
    "out-of-reach",
    sources=(
        "docker's documentation: a published port leads to the container's own address, not to its loopback",
        "vLLM 0.32.0, `vllm serve --help=all`: host, port, uds, headless, ssl-certfile; entrypoints/openai/api_server.py",
        "without a port of its own the server listens on 8000",
    ),
    example=Example({"host": "127.0.0.1"}),
)
def out_of_reach(case: Case) -> Iterator[Finding]:
    """The server must listen where the container's published port leads.
    Otherwise it starts, loads its model for minutes, and never answers: the deploy fails after the old server was stopped. The first of
    `container.ports` is the server's; on the loopback of a container nobody else reaches it. For HTTPS put a proxy in front.
    """
    for name, applies, outcome in OUT_OF_REACH:
        if case.flag(name) is not None and applies(case.flag(name)):
            yield Finding(
                "error",
                "out-of-reach",
                f"{name}: {outcome}.",
                (Way("leave it out", {name: None}),),
                "docker's documentation",
                name,
            )
    listens = flags.port(case.asked.flags)
    if case.asked.published in (None, listens):
        return
    leads = f"leads to {case.asked.published}" if case.asked.published else "is none for TCP"
    said = f"the server listens on port {listens} of its container, and the first published port {leads}."
    written = flags.PORT if case.flag(flags.PORT) is not None else "publish"
    way = Way(f"begin `container.ports` with one that ends in :{listens}")
    yield Finding("error", "out-of-reach", said, (way,), "docker's documentation", written)


@rule(
    "key-in-log",
    sources=(
        "a real start of 0.32.0: \"non-default args: {..., 'api_key': '***'}\"; older releases print the key there",
    ),
    example=Example(server_key=True, version="0.19.1"),
)
def key_in_log(case: Case) -> Iterator[Finding]:
    """Before 0.32, the engine writes its key into its own log when it starts.
    Docker keeps that log on the host, for root and the docker group. sparkwright hides the key in what it shows and keeps of it.
    """
    if case.asked.server_key and graded(case.within("", LOG_HIDES_KEY_SINCE)) is not None:
        said = f"{case.engine} may write its key into its own log, which Docker keeps on the host."
        way = Way("take an image of 0.32 or newer")
        yield Finding("warning", "key-in-log", said, (way,), "a real start of 0.32.0", "server_key")
