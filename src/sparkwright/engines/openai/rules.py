"""Lint rules for recipes of a custom server (`openai:`): contradictory settings, and problems that health checks would miss."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.engines import http as engine_http
from sparkwright.engines import shared_rules
from sparkwright.engines.advice import ServerRequest
from sparkwright.engines.findings import Finding, Fix, Rules
from sparkwright.engines.flags import option_value
from sparkwright.engines.openai import flags
from sparkwright.engines.shared_rules import DOCKER_SOURCE, LOOPBACK_PREFIXES, key_in_arguments, wrong_published_port
from sparkwright.trust.secret_names import is_secret

#: programs that listen on loopback by default
LOOPBACK_PROGRAMS = ("trtllm-serve",)

RULES: Rules[ServerRequest, ServerRequest] = Rules(
    describe_example=lambda request: {"engine": "openai", "flags": request.flags, "image": request.image}
)
rule = RULES.rule


@rule("memory-unknown", sources=("sparkwright's memory check",), example=ServerRequest({"served_name": "m"}))
def memory_unknown(request: ServerRequest) -> Iterator[Finding]:
    """Without memory_gib, the server's memory use cannot be checked before a start.
    sparkwright cannot estimate the memory of a custom server. A server that needs too much fails, or exhausts the
    host's memory, only after the previous server has been stopped.
    """
    if request.flags and request.flags.get(flags.MEMORY) is None:
        fix = Fix(f"set {flags.MEMORY} to its memory use in GiB: weights, KV cache and buffers")
        message = f"{flags.MEMORY} is not set: the server's memory use is unknown before it starts."
        yield Finding("warning", message, (fix,), "sparkwright's memory check", flags.MEMORY)


@rule(
    "no-heartbeat",
    sources=("sparkwright's health check",),
    example=ServerRequest({"served_name": "m", "memory_gib": 8}),
)
def no_heartbeat(request: ServerRequest) -> Iterator[Finding]:
    """Without a heartbeat, a stalled server looks like a busy one.
    A heartbeat is a counter that increases with every step while the server generates; a counter that increases only when a request
    ends belongs under `generated` instead. Without a heartbeat, every health check requests a token, and fails if that request
    waits in a long queue.
    """
    metrics = request.flags.get("metrics") or {}
    if request.flags and engine_http.HEARTBEAT not in metrics:
        fix = Fix("set `heartbeat` under `metrics` to a counter that increases with every step, if the server has one")
        message = "metrics has no heartbeat: a health check cannot tell a stall from a long queue."
        yield Finding("info", message, (fix,), "sparkwright's health check", "metrics")


@rule(
    "secret-in-command",
    sources=("docker's documentation: `docker inspect` shows a container's command",),
    example=ServerRequest({"served_name": "m", "memory_gib": 8, "command": ["serve", "--api-key", "hunter2-hunter2"]}),
)
def secret_in_command(request: ServerRequest) -> Iterator[Finding]:
    """A secret in the command is readable by every user of the host.
    `ps`, `docker inspect` and the deploy history show it.
    """
    words = flags.command_words(request.flags)
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        value = value if equals else "".join(words[index + 1 : index + 2])
        if name.startswith("--") and is_secret(name.lstrip("-"), value):
            fix = Fix(
                "remove it from the command; to pass the key as a file, set `server_key`, and `key` under `openai`"
            )
            yield from key_in_arguments(name, fix, DOCKER_SOURCE, flags.COMMAND)


@rule(
    "open-to-network",
    sources=(f"{DOCKER_SOURCE}: a published port bypasses the host's firewall",),
    example=ServerRequest(open_to_network=True),
)
def open_to_network(request: ServerRequest) -> Iterator[Finding]:
    """A server published beyond loopback without an API key is open to everyone on the network.
    If the server supports a key, set `server_key`, and `key` under `openai`. Otherwise publish the server on loopback only.
    """
    yield from shared_rules.open_to_network(request, has_key=bool(request.flags.get("key")))


@rule(
    "out-of-reach",
    sources=(f"{DOCKER_SOURCE}: a published port forwards to the container's own address",),
    example=ServerRequest({"served_name": "m", "memory_gib": 8, "command": ["serve", "--host", "127.0.0.1"]}),
)
def out_of_reach(request: ServerRequest) -> Iterator[Finding]:
    """The server must listen on the port that the container publishes, and not only on loopback.
    sparkwright adds nothing to the command in the recipe. trtllm-serve listens on loopback by default.
    """
    words, listening_port = flags.command_words(request.flags), flags.port(request.flags)
    host, port = str(flags.value(request.flags, flags.HOST) or ""), option_value(words, "--port")
    is_loopback_program = not host and any(word.rpartition("/")[2] in LOOPBACK_PROGRAMS for word in words)
    if (host.startswith(LOOPBACK_PREFIXES) or is_loopback_program) and request.container.get("network") != "host":
        message = f"{f'host {host}' if host else 'without --host, the server'} is only reachable inside the container."
        yield Finding("error", message, (Fix("add --host 0.0.0.0 to the command"),), DOCKER_SOURCE, flags.COMMAND)
    if port and port != str(listening_port):
        message = f"the command has --port {port}, but `port` is {listening_port}."
        yield Finding("error", message, (Fix(f"set `port: {port}`"),), DOCKER_SOURCE, flags.COMMAND)
    else:
        yield from wrong_published_port(request, listening_port, flags.PORT)
