"""From the inventory and its recipes to what a gateway routes. Raises Refused with file and line for what cannot be."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from sparkwright.engines.advice import Asked
from sparkwright.engines.http import GENERATE
from sparkwright.engines.openai_api import generated
from sparkwright.engines.tasks import PROOFS
from sparkwright.errors import Refused
from sparkwright.gateway import model, render
from sparkwright.project import recipe
from sparkwright.project.gateway import certificate, interim
from sparkwright.project.gateway.server import Server, load
from sparkwright.project.inventory.gateway import Gateway
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.inventory import Inventory
from sparkwright.project.inventory.naming import Mistake
from sparkwright.project.recipe.rules import addresses, is_loopback
from sparkwright.units import MIB, gib

LOOPBACK, EVERYWHERE = "127.0.0.1", "*"
#: how the gateway's container is called
CONTAINER = "gateway"


def routed(project: Path, inventory: Inventory, gateway: Gateway) -> tuple[model.Gateway, list[Server]]:
    """What the gateway routes, and to which servers. Raises Refused, with file and line, before anything is touched."""
    found = servers(project, inventory, gateway)
    for message, where, fix in _mistakes(project, inventory, gateway, found):
        raise Refused(message, where=where, fix=fix)
    certificate.refuse(project, gateway)
    made = _gateway(project, inventory, gateway, found)
    if render.memory_bytes(made) > render.MOST_MEMORY_BYTES:
        size = f"{gib(render.memory_bytes(made))} GiB of {gib(render.MOST_MEMORY_BYTES)} allowed"
        message = f"{made.clients} clients with requests of up to {made.body_bytes // MIB} MiB can take {size}."
        raise Refused(message, where=gateway.where("limits"), fix="Lower `limits.clients` or `limits.body_mib`.")
    return made, found


def refuse_conflicts(project: Path, inventory: Inventory, gateway: Gateway, deployed: Collection[str]) -> None:
    """Raises Refused for what a deploy of these hosts would break at a gateway: a model name of another model, its own port.

    A recipe of another host that cannot be read is that one's business.
    """
    found = list(readable(project, inventory, gateway))
    for one in (one for one in found if one.host.name in deployed):
        same = [other for other in found if other is not one and other.recipe.served_name == one.recipe.served_name]
        for message, where, fix in [*_claims(inventory, gateway, [one, *same]), *_ports(inventory, gateway, [one])]:
            raise Refused(message, where=where, fix=fix)


def readable(project: Path, inventory: Inventory, gateway: Gateway) -> Iterator[Server]:
    """As `servers`, without those whose recipes cannot be read."""
    for host in _answering(inventory, gateway):
        with contextlib.suppress(Refused):
            yield load(project, host)


def servers(project: Path, inventory: Inventory, gateway: Gateway) -> list[Server]:
    """The members of a gateway's group that answer requests: of a cluster its head."""
    return [load(project, one) for one in _answering(inventory, gateway)]


def _answering(inventory: Inventory, gateway: Gateway) -> Iterator[Host]:
    hosts = (host for name in gateway.members for host in inventory.servers_of(name))
    yield from (one for one in hosts if one.recipe and (one.cluster is None or one.cluster.head == one.name))


def _gateway(project: Path, inventory: Inventory, gateway: Gateway, found: list[Server]) -> model.Gateway:
    file, by_name = gateway.file, _by_name(found)
    simulated = inventory.machines[gateway.host].connection == "sandbox"
    models = tuple(_model(project, inventory, gateway, name, group) for name, group in by_name.items())
    body = file.limits.body_mib * MIB if file.limits.body_mib else model.body_bytes([one.context for one in models])
    return model.Gateway(
        name=gateway.name,
        address=EVERYWHERE if file.publish == "lan" and not simulated else LOOPBACK,
        port=file.port,
        control_port=gateway.control_port,
        tls=file.tls != "none",
        keyed=file.key is not None,
        affinity=file.affinity,
        clients=file.limits.clients,
        body_bytes=body,
        queue_s=file.limits.queue_s,
        answer_s=file.limits.answer_s,
        check_s=file.limits.check_s,
        models=models,
        waits=file.not_up == "wait",
    )


def _by_name(found: Iterable[Server]) -> dict[str, list[Server]]:
    groups: dict[str, list[Server]] = {}
    for one in found:
        groups.setdefault(one.recipe.served_name, []).append(one)
    return dict(sorted(groups.items()))


def _model(project: Path, inventory: Inventory, gateway: Gateway, name: str, group: list[Server]) -> model.Model:
    first = group[0].recipe
    contexts = [one.recipe.engine.flags.context(one.recipe.file.flags) or 0 for one in group]
    task = first.file.task
    check = generated(first.engine.http, name, "1", 1) if task == GENERATE else PROOFS[task].request(name)[1]
    return model.Model(
        name=name,
        upstreams=tuple(_upstream(project, inventory, gateway, one) for one in group),
        context=min(contexts),
        check=json.dumps(check, separators=(",", ":")),
        key=first.key_secret if first.file.server_key else "",
        task=task,
        on_demand=all(one.host.turns for one in group),
    )


def _upstream(project: Path, inventory: Inventory, gateway: Gateway, one: Server) -> model.Upstream:
    asked = Asked(one.recipe.file.flags, one.recipe.image)
    slots = one.recipe.engine.advice.effective(asked, {}, None).max_num_seqs
    address = _address(inventory, gateway, one.host)
    second = interim.port(project, inventory, one)
    return model.Upstream(one.host.upstream, address, one.port, slots, one.host.machine, second)


def _address(inventory: Inventory, gateway: Gateway, host: Host) -> str:
    """Where the gateway reaches a host. Simulated and local hosts are on one machine."""
    here = host.machine == gateway.host or host.connection != "ssh"
    return gateway.file.addresses.get(host.machine) or (LOOPBACK if here else host.address)


def _mistakes(project: Path, inventory: Inventory, gateway: Gateway, found: list[Server]) -> Iterator[Mistake]:
    if not found:
        message = f"no host of {gateway.name} has a recipe: the gateway would serve nothing."
        yield message, gateway.where("host"), "Add `recipe: NAME` to a host of the group."
    for rule in (_names, _claims, _ports, _reach):
        yield from rule(inventory, gateway, found)


def _names(inventory: Inventory, gateway: Gateway, found: list[Server]) -> Iterator[Mistake]:
    """Yield the names of models that cannot be routed."""
    for server in found:
        recipe = server.recipe
        if why := model.why_not_a_name(recipe.served_name):
            message = f"the model name '{recipe.served_name}' of {recipe.name} {why} behind a gateway."
            yield message, recipe.source.where(recipe.file.engine), "Set another served name in the recipe."


def _claims(inventory: Inventory, gateway: Gateway, found: list[Server]) -> Iterator[Mistake]:
    """Servers of one name that do not serve the same, or not under the same key."""
    for name, (first, *others) in _by_name(found).items():
        for other in others:
            recipes = f"the recipes {first.recipe.name} ({first.host.name}) and {other.recipe.name} ({other.host.name})"
            models = [(one.recipe.file.model.id, one.recipe.file.model.chosen) for one in (first, other)]
            if models[0] != models[1]:
                shown = " and ".join(" ".join(filter(None, one)) for one in models)
                message = f"{recipes} both serve `{name}` with different models, {shown}."
                yield (
                    message,
                    other.recipe.source.where("model", "id"),
                    "Give one another served name, or group them apart.",
                )
            if first.recipe.file.task != other.recipe.file.task:
                message = f"{recipes} both serve `{name}` for different tasks."
                yield message, other.recipe.source.where("task"), "Give one another served name."
            if first.recipe.file.server_key != other.recipe.file.server_key:
                message = f"{recipes} both serve `{name}`, and their servers ask for different keys."
                yield message, other.recipe.source.where("server_key"), "Write the same `server_key` in both."


def _ports(inventory: Inventory, gateway: Gateway, found: list[Server]) -> Iterator[Mistake]:
    """Yield the gateway's ports where something of this host listens already."""
    host = inventory.machines[gateway.host]
    for key, port in gateway.ports.items():
        for server in found:
            same = server.host.machine == host.name or "ssh" not in (server.host.connection, host.connection)
            if same and port in server.published:
                yield _taken(gateway, key, f"is the port of the server of {server.host.name}")
        if host.cluster is not None and port in (host.cluster.barrier_port, host.cluster.port):
            yield _taken(gateway, key, f"is a port of the cluster {host.cluster.name}")
    if gateway.control_port == gateway.file.port:
        yield _taken(gateway, "control_port", "is the port for its clients")


def _taken(gateway: Gateway, key: str, why: str) -> Mistake:
    default = key == "control_port" and gateway.file.control_port is None
    shown = f"`{gateway.name}.gateway.{key}`{', which is `port` + 1 by default' if default else ''}"
    fix = "Set `control_port`, or choose another `port`." if default else "Choose another one."
    return f"{shown}: {gateway.ports[key]} {why}.", gateway.where(key), fix


def _reach(inventory: Inventory, gateway: Gateway, found: list[Server]) -> Iterator[Mistake]:
    """Servers that the gateway's host cannot reach."""
    host = inventory.machines[gateway.host]
    for one in found:
        far = one.host.machine != host.name and "ssh" in (one.host.connection, host.connection)
        if far and one.host.connection != host.connection:
            message = f"{one.host.name} is a {one.host.connection} host, and the gateway's host {host.name} is not."
            yield message, gateway.where("host"), "Put hosts of one kind into the group."
        if far and all(map(is_loopback, addresses(one.recipe.file)[:1])):
            message = f"the server of {one.host.name} answers on its loopback only: {host.name} cannot reach it."
            fix = f"In recipes/{one.recipe.name}.yml: `publish: lan` and `server_key: {{env: SPARK_KEY}}`."
            yield message, one.recipe.source.where("publish"), fix


def secrets_of(found: Iterable[Server]) -> Mapping[str, recipe.Recipe]:
    """The recipes whose servers ask for a key, by the secret's name."""
    return {one.recipe.key_secret: one.recipe for one in found if one.recipe.file.server_key}
