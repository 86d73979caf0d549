"""Rules for the options of a recipe's container: combinations that Docker refuses at the start, or partly ignores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sparkwright.engines import engine
from sparkwright.engines.flags import spelling
from sparkwright.project.documents.document import Document, Place
from sparkwright.trust import container_words, network_words, process_words, security_words

#: message, place in the file, and fix
Mistake = tuple[str, Place, str]


def mistakes(file: Any, source: Document) -> Iterator[Mistake]:
    """Yield the mistakes in a recipe's container. file: the RecipeFile."""
    for rule in _RULES:
        yield from rule(file)


def on_host_network(file: Any) -> bool:
    """Return True if the container has no addresses of its own: its server listens on the host's."""
    return bool(network_words.parts(file.container.network)[0] == network_words.HOST)


def _unreachable(file: Any) -> Iterator[Mistake]:
    if file.container.network == network_words.NONE:
        message = "`container.network: none`: nothing can reach the server."
        yield message, ("container", "network"), "Remove it, or name a network."


def _ports_of_the_host(file: Any) -> Iterator[Mistake]:
    """Yield ports on the host's network: nothing is published there, as the server listens on the host itself."""
    if not on_host_network(file):
        return
    if "ports" in file.container.model_fields_set and file.container.ports:
        message = "`container.ports` has no meaning with `network: host`: the server listens on its engine's own port."
        yield message, ("container", "ports"), "Remove it; the engine's flag `port` sets the port."
    if file.publish == "loopback":
        message = (
            "`publish: loopback` has no meaning with `network: host`: the server listens on all addresses of the host."
        )
        yield message, ("publish",), "Remove it; the engine's flag `host: 127.0.0.1` limits the server to the host."


def _networks(file: Any) -> Iterator[Mistake]:
    box = file.container
    names = [network_words.parts(network)[0] for network in box.networks]
    first = network_words.parts(box.network)[0] or network_words.BRIDGE
    if names and first in (network_words.HOST, network_words.NONE):
        message = f"`container.networks`: with `network: {first}` a container joins no other network."
        yield message, ("container", "networks"), "Remove one of them."
    for n, name in enumerate(names):
        if name in (first, *names[:n]):
            yield f"`container.networks` joins '{name}' twice.", ("container", "networks", n), "Remove one of them."


def _sysctls(file: Any) -> Iterator[Mistake]:
    box = file.container
    for name in box.sysctls:
        of_network = security_words.is_of_network(name)
        option, shared = ("network", on_host_network(file)) if of_network else ("ipc", box.ipc == "host")
        if shared:
            message = f"`container.sysctls`: {name} is the host's own with `{option}: host`."
            fix = f"Set it on the host with sysctl, or use another `{option}`."
            yield message, ("container", "sysctls", name), fix


def _memory(file: Any) -> Iterator[Mistake]:
    box = file.container
    if not box.memory_swap:
        return
    if not box.memory:
        message = "`container.memory_swap` needs `memory`: it is the limit of both together."
        yield message, ("container", "memory_swap"), "Set `memory` too."
    elif 0 <= process_words.swap_bytes(box.memory_swap) < container_words.size_bytes(box.memory):
        message = "`container.memory_swap` is less than `memory`: it is the limit of both together."
        yield message, ("container", "memory_swap"), "Set it to `memory` for no swap, or higher."


def _log(file: Any) -> Iterator[Mistake]:
    box = file.container
    if box.log_driver == "none" and box.log_options:
        yield "`container.log_options`: the log driver `none` has none.", ("container", "log_options"), "Remove them."


def _devices(file: Any) -> Iterator[Mistake]:
    rows = [security_words.device_row(device)["PathInContainer"] for device in file.container.devices]
    for n, inside in enumerate(rows):
        if inside in rows[:n]:
            message = f"`container.devices`: '{inside}' is in the container already."
            yield message, ("container", "devices", n), "Remove one of them."


_RULES: tuple[Callable[[Any], Iterator[Mistake]], ...] = (
    _unreachable,
    _ports_of_the_host,
    _networks,
    _sysctls,
    _memory,
    _log,
    _devices,
)


def flag_place(source: Document, name: str) -> tuple[str, ...]:
    """Return the place of a flag in a recipe, however it is spelled there; the flags' section if it is not set.

    name: the flag's own name.
    """
    section = _section(source)
    written = spelling(engine.of(section).flags, written_flags(source), name)
    return (section, written) if written else (section,)


def _section(source: Document) -> str:
    held = source.data.get("engine") if isinstance(source.data, dict) else None
    return str(held or engine.USUAL)


def written_flags(source: Document) -> list[str]:
    """Return the keys of the flags' section of a recipe, as they are spelled there."""
    held = source.data.get(_section(source)) if isinstance(source.data, dict) else None
    return list(held) if isinstance(held, dict) else []
