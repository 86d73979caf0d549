"""Builds and checks a gateway's configuration from the inventory and its servers' recipes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sparkwright import visible
from sparkwright.engines import api_paths, dialects
from sparkwright.engines.advice import ServerRequest
from sparkwright.engines.http import GENERATE, HEARTBEAT, PROGRESS_ROLES, REQUEST_ROLES, Http, Task
from sparkwright.engines.openai_api import build_request
from sparkwright.engines.tasks import PROOFS
from sparkwright.errors import Refused
from sparkwright.gateway import model, render
from sparkwright.project import gateway_certificate, gateway_servers, recipe
from sparkwright.project.documents.validation import suggest_name
from sparkwright.project.gateway_servers import Server, load_server
from sparkwright.project.inventory.groups import Gateway
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.inventory import Inventory
from sparkwright.project.inventory.models import ClientFile
from sparkwright.project.inventory.rules import Mistake, refuse_first
from sparkwright.project.recipe.rules import is_loopback, published_addresses
from sparkwright.units import MIB, format_gib

LOOPBACK, ALL_ADDRESSES = "127.0.0.1", "*"
#: name of the gateway's container
CONTAINER_NAME = "gateway"


def build_routes(project: Path, inventory: Inventory, gateway: Gateway) -> tuple[model.Gateway, list[Server]]:
    """Return the gateway's configuration, and the servers to which it routes.

    Raises Refused with file and line for the first mistake.
    """
    servers = load_servers(project, inventory, gateway)
    refuse_first(_find_mistakes(inventory, gateway, servers))
    gateway_certificate.check(project, gateway)
    configuration = _build_gateway(project, inventory, gateway, servers)
    memory_bytes = render.max_memory_bytes(configuration)
    if memory_bytes > render.MAX_MEMORY_BYTES:
        size = f"{format_gib(memory_bytes)} GiB of memory, more than the {format_gib(render.MAX_MEMORY_BYTES)} allowed"
        message = f"{configuration.clients} clients with requests of up to {configuration.body_bytes // MIB} MiB can take {size}."
        raise Refused(message, where=gateway.where("limits"), fix="Lower `limits.clients` or `limits.body_mib`.")
    return configuration, servers


def refuse_conflicts(project: Path, inventory: Inventory, gateway: Gateway, deployed_hosts: Collection[str]) -> None:
    """Raise Refused if deploying these hosts would cause a conflict of model names or ports at the gateway.

    Other hosts with unreadable recipes are ignored.
    """
    servers = list(load_readable_servers(project, inventory, gateway))
    for server in (server for server in servers if server.host.name in deployed_hosts):
        names = set(server.recipe.served_names)
        group = [server, *(other for other in servers if other is not server and names & {*other.recipe.served_names})]
        checks = ((_check_same_name, group), (_check_shared_names, group), (_check_ports, [server]))
        refuse_first(*(check(inventory, gateway, affected) for check, affected in checks))


def load_readable_servers(project: Path, inventory: Inventory, gateway: Gateway) -> Iterator[Server]:
    """Yield the servers of `load_servers`, except those with unreadable recipes."""
    for host in _serving_hosts(inventory, gateway):
        with contextlib.suppress(Refused):
            yield load_server(project, host)


def load_servers(project: Path, inventory: Inventory, gateway: Gateway) -> list[Server]:
    """Return the servers of a gateway's group; a cluster is one server, on its head. Raises Refused for an invalid recipe."""
    return [load_server(project, host) for host in _serving_hosts(inventory, gateway)]


def _serving_hosts(inventory: Inventory, gateway: Gateway) -> Iterator[Host]:
    hosts = (host for name in gateway.members for host in inventory.servers_of(name))
    yield from (host for host in hosts if host.recipe and not host.is_worker)


def _build_gateway(project: Path, inventory: Inventory, gateway: Gateway, servers: list[Server]) -> model.Gateway:
    file, servers_by_model = gateway.file, _group_by_model(servers)
    is_simulated = inventory.machines[gateway.host].connection == "sandbox"
    models = tuple(_build_model(project, inventory, gateway, name, group) for name, group in servers_by_model.items())
    body_bytes = (
        file.limits.body_mib * MIB
        if file.limits.body_mib
        else model.max_body_bytes([entry.context for entry in models])
    )
    return model.Gateway(
        name=gateway.name,
        address=ALL_ADDRESSES if file.publish == "lan" and not is_simulated else LOOPBACK,
        port=file.port,
        control_port=gateway.control_port,
        tls=file.tls != "none",
        keyed=file.key is not None,
        affinity=file.affinity,
        clients=file.limits.clients,
        body_bytes=body_bytes,
        queue_s=file.limits.queue_s,
        answer_s=file.limits.answer_s,
        check_s=file.limits.check_s,
        stuck_s=file.limits.stuck_s,
        models=models,
        paths=api_paths.merge_paths(server.recipe.engine.http.paths for server in servers),
        waits=file.not_up == "wait",
        usages=tuple(dict.fromkeys(usage for server in servers for usage in server.recipe.engine.http.usage_keys)),
        named_clients=tuple(_build_client(name, client) for name, client in sorted(file.clients.items())),
    )


def _build_client(name: str, file: ClientFile) -> model.Client:
    expiry = datetime.combine(file.until, datetime.min.time(), UTC) + timedelta(days=1) if file.until else None
    return model.Client(
        name,
        models=tuple(file.models),
        requests_per_minute=file.requests_per_minute or 0,
        concurrent=file.concurrent or 0,
        tokens_per_day=file.tokens_per_day or 0,
        expires_at_s=int(expiry.timestamp()) if expiry else 0,
    )


def _group_by_model(servers: Iterable[Server]) -> dict[str, list[Server]]:
    groups: dict[str, list[Server]] = {}
    for server in servers:
        groups.setdefault(server.recipe.served_name, []).append(server)
    return dict(sorted(groups.items()))


def _build_model(project: Path, inventory: Inventory, gateway: Gateway, name: str, group: list[Server]) -> model.Model:
    first_recipe = group[0].recipe
    contexts = [server.recipe.engine.flags.context(server.recipe.file.flags) or 0 for server in group]
    task = first_recipe.file.task
    check_request = (
        build_request(first_recipe.engine.http, name, "1", 1) if task == GENERATE else PROOFS[task].request(name)[1]
    )
    return model.Model(
        name=name,
        upstreams=tuple(_build_upstream(project, inventory, gateway, server) for server in group),
        context=min(contexts),
        check_body=json.dumps(check_request, separators=(",", ":")),
        key=first_recipe.key_secret if first_recipe.file.server_key else "",
        task=task,
        on_demand=all(server.host.turns for server in group),
        aliases=_model_aliases(gateway, group[0]),
        adapters=first_recipe.adapter_names,
        dialects=tuple(name for name in dialects.OTHER_DIALECTS if name in first_recipe.file.expect.probes),
    )


def _model_aliases(gateway: Gateway, server: Server) -> tuple[str, ...]:
    """Return additional names of a server's model: first those of its recipe, then those of the group's `models`."""
    first, *others = server.recipe.served_names
    aliases = [alias for alias, name in gateway.file.models.items() if name in (first, *others)]
    return tuple(dict.fromkeys(name for name in (*others, *aliases) if name != first))


def _build_upstream(project: Path, inventory: Inventory, gateway: Gateway, server: Server) -> model.Upstream:
    request = ServerRequest(server.recipe.file.flags, server.recipe.image)
    slots = server.recipe.engine.advice.effective_settings(request, {}, None).max_num_seqs
    address = _upstream_address(gateway, server.host)
    interim_port = gateway_servers.interim_port(project, inventory, server)
    progress = progress_metrics(server.recipe.engine.http, server.recipe.file.task)
    wakes = server.host.wake.on_request
    return model.Upstream(
        server.host.upstream, address, server.port, slots, server.host.machine, interim_port, progress, wakes
    )


def progress_metrics(http: Http, task: Task) -> model.Progress | None:
    """Return the metrics that show an engine's progress; None if the engine has no heartbeat metric."""
    roles = {**http.roles, **(http.task_roles if task != GENERATE else {})}
    if not http.metrics_path or HEARTBEAT not in roles:
        return None
    progress_samples, request_samples = (
        [roles[role] for role in names if role in roles] for names in (PROGRESS_ROLES, REQUEST_ROLES)
    )
    return model.Progress(
        http.metrics_path, tuple(dict.fromkeys(progress_samples)), tuple(request_samples), http.max_unchanged_s
    )


def _upstream_address(gateway: Gateway, host: Host) -> str:
    """Return the address at which the gateway reaches a host. Simulated and local hosts are on the same machine."""
    is_same_machine = host.machine == gateway.host or host.connection != "ssh"
    return gateway.file.addresses.get(host.machine) or (LOOPBACK if is_same_machine else host.address)


def _find_mistakes(inventory: Inventory, gateway: Gateway, servers: list[Server]) -> Iterator[Mistake]:
    if not servers:
        message = f"no host of {gateway.name} has a recipe: the gateway would serve nothing."
        yield message, gateway.where("host"), "Add `recipe: NAME` to a host of the group."
    for rule in (
        _check_names,
        _check_same_name,
        _check_shared_names,
        _check_aliases,
        _check_wakes,
        _check_clients,
        _check_ports,
        _check_reachability,
    ):
        yield from rule(inventory, gateway, servers)


def _check_names(inventory: Inventory, gateway: Gateway, servers: list[Server]) -> Iterator[Mistake]:
    """Yield a mistake for each model name that cannot be routed."""
    for server_recipe in (server.recipe for server in servers):
        where = server_recipe.source.where(server_recipe.file.engine)
        for name in server_recipe.served_names:
            if reason := model.model_name_error(name):
                message = (
                    f"the model name '{visible.display_name(name)}' of {server_recipe.name} {reason} behind a gateway."
                )
                yield message, where, "Set another served name in the recipe."


def _check_same_name(inventory: Inventory, gateway: Gateway, servers: list[Server]) -> Iterator[Mistake]:
    """Yield a mistake for servers with the same model name but different models, tasks or keys."""
    for name, (first, *others) in _group_by_model(servers).items():
        for other in others:
            recipes = f"the recipes {first.recipe.name} ({first.host.name}) and {other.recipe.name} ({other.host.name})"
            models = [(server.recipe.file.model.id, server.recipe.file.model.file_key) for server in (first, other)]
            if models[0] != models[1]:
                descriptions = " and ".join(" ".join(filter(None, id_and_files)) for id_and_files in models)
                message = f"{recipes} both serve `{name}` with different models, {descriptions}."
                fix = "Give one of them a different served name, or put their hosts into separate groups."
                yield message, other.recipe.source.where("model", "id"), fix
            if adapter := _find_adapter_conflict(first.recipe, other.recipe):
                message = f"{recipes} both serve the adapter `{adapter}` of `{name}`, from different repositories or revisions."
                fix = "Use the same adapter in both, or rename one."
                yield message, other.recipe.source.where("adapters"), fix
            if first.recipe.file.task != other.recipe.file.task:
                message = f"{recipes} both serve `{name}` for different tasks."
                yield message, other.recipe.source.where("task"), "Give one of them a different served name."
            if first.recipe.file.server_key != other.recipe.file.server_key:
                message = f"{recipes} both serve `{name}`, but their servers require different keys."
                yield message, other.recipe.source.where("server_key"), "Set the same `server_key` in both."


def _find_adapter_conflict(first: recipe.Recipe, other: recipe.Recipe) -> str:
    """Return the first adapter that has different sources in two recipes; empty if there is no conflict."""
    sources, other_sources = (
        {adapter.name: (adapter.id, adapter.revision, adapter.file) for adapter in server_recipe.file.adapters}
        for server_recipe in (first, other)
    )
    return next((name for name, source in sources.items() if other_sources.get(name, source) != source), "")


def _check_shared_names(inventory: Inventory, gateway: Gateway, servers: list[Server]) -> Iterator[Mistake]:
    """Yield a mistake for each additional served name that two models share, or that some servers of a model lack."""
    groups, main_names = _group_by_model(servers), {name: name for name in _group_by_model(servers)}
    for main_name, group in groups.items():
        for server in group:
            where = server.recipe.source.where(server.recipe.file.engine)
            for name in server.recipe.served_names[1:]:
                quoted_name = f"`{visible.display_name(name)}`"
                if main_names.setdefault(name, main_name) != main_name:
                    message = f"{quoted_name} is a served name of both `{main_names[name]}` and `{main_name}`."
                    yield (
                        message,
                        where,
                        "Give one of them a different served name, or put their hosts into separate groups.",
                    )
                lacking_server = next((other for other in group if name not in other.recipe.served_names), None)
                if lacking_server is not None:
                    message = (
                        f"{server.host.name} also serves `{main_name}` as {quoted_name}, but {lacking_server.host.name} "
                        "does not: a request could go to either."
                    )
                    yield (
                        message,
                        where,
                        "Serve the same names in both recipes, or put their hosts into separate groups.",
                    )


def _check_aliases(inventory: Inventory, gateway: Gateway, servers: list[Server]) -> Iterator[Mistake]:
    """Yield a mistake for each name in the group's `models` that cannot be routed."""
    servers_by_name = {name: server for server in servers for name in server.recipe.served_names}
    for alias, name in gateway.file.models.items():
        subject, where = f"`{gateway.name}.gateway.models`: `{visible.display_name(alias)}`", gateway.where("models")
        if reason := model.model_name_error(alias):
            yield f"{subject} {reason}.", where, "Choose another name."
        elif name not in servers_by_name:
            message = f"{subject} refers to `{visible.display_name(name)}`, which no server serves."
            yield message, where, suggest_name(name, servers_by_name)
        elif name in servers_by_name[name].recipe.adapter_names:
            message = f"{subject} refers to the adapter `{name}`, which can't have another name at a gateway."
            yield message, where, f"Rename it in `adapters` of recipes/{servers_by_name[name].recipe.name}.yml."
        elif (
            alias in servers_by_name
            and servers_by_name[alias].recipe.served_name != servers_by_name[name].recipe.served_name
        ):
            owner = servers_by_name[alias].recipe
            yield f"{subject} is already a served name of {owner.name}.", where, "Choose another name."
        else:
            yield from _check_alias_accepted(
                subject, alias, [server for server in servers if name in server.recipe.served_names]
            )


def _check_wakes(inventory: Inventory, gateway: Gateway, servers: list[Server]) -> Iterator[Mistake]:
    """Yield a mistake for each model that a request would start on two hosts."""
    for name, group in _group_by_model(servers).items():
        waking_hosts = [server.host for server in group if server.host.wake.on_request]
        for host in waking_hosts[1:]:
            message = f"`wake: on_request` on {waking_hosts[0].name} and on {host.name}: a request for `{name}` would wake both."
            yield message, host.set_at["recipe"], "Remove it from one of them."


def _check_clients(inventory: Inventory, gateway: Gateway, servers: list[Server]) -> Iterator[Mistake]:
    """Yield a mistake for clients of a gateway without a key, and for each model of a client that no server serves."""
    file, where = gateway.file, gateway.where("clients")
    if file.clients and file.key is None:
        message = f"`{gateway.name}.gateway.clients` needs `key` too: without it anyone can use the gateway."
        yield message, where, "Add `key`, your own key: it has no limits, and `gateway.deploy` uses it for its checks."
    served_names = {name for server in servers for name in server.recipe.served_names} | {*file.models}
    for name, client in file.clients.items():
        for model_name in client.models:
            if model_name not in served_names:
                message = (
                    f"`{gateway.name}.gateway.clients.{name}.models`: no server serves "
                    f"`{visible.display_name(model_name)}`."
                )
                yield message, where, suggest_name(model_name, served_names)


def _check_alias_accepted(subject: str, alias: str, group: list[Server]) -> Iterator[Mistake]:
    """Yield a mistake for each server whose engine would refuse this name: a gateway does not change request bodies."""
    for server_recipe in (server.recipe for server in group):
        if server_recipe.engine.http.accepts_any_name or alias in server_recipe.served_names:
            continue
        imports = server_recipe.engine.imports
        option = imports.served_name_flag if imports else "served_name"
        where = server_recipe.source.where(server_recipe.file.engine)
        fix = f"Add it to `{option}` in recipes/{server_recipe.name}.yml, after `{server_recipe.served_name}`."
        yield f"{subject} would be refused by {server_recipe.name}'s server.", where, fix


def _check_ports(inventory: Inventory, gateway: Gateway, servers: list[Server]) -> Iterator[Mistake]:
    """Yield a mistake for each port of the gateway that a server or cluster on the same machine uses."""
    host = inventory.machines[gateway.host]
    for key, port in gateway.ports.items():
        for server in servers:
            is_same_machine = server.host.machine == host.name or "ssh" not in (server.host.connection, host.connection)
            if is_same_machine and port in server.used_ports:
                yield _port_conflict(gateway, key, f"is the port of the server of {server.host.name}")
        if host.cluster is not None and port in (host.cluster.barrier_port, host.cluster.port):
            yield _port_conflict(gateway, key, f"is a port of the cluster {host.cluster.name}")
    if gateway.control_port == gateway.file.port:
        yield _port_conflict(gateway, "control_port", "is also its `port`")


def _port_conflict(gateway: Gateway, key: str, reason: str) -> Mistake:
    is_default = key == "control_port" and gateway.file.control_port is None
    subject = f"`{gateway.name}.gateway.{key}`{', which is `port` + 1 by default' if is_default else ''}"
    fix = "Set `control_port`, or choose another `port`." if is_default else "Choose another one."
    return f"{subject}: {gateway.ports[key]} {reason}.", gateway.where(key), fix


def _check_reachability(inventory: Inventory, gateway: Gateway, servers: list[Server]) -> Iterator[Mistake]:
    """Yield a mistake for each server that the gateway's host cannot reach."""
    host = inventory.machines[gateway.host]
    for server in servers:
        is_remote = server.host.machine != host.name and "ssh" in (server.host.connection, host.connection)
        if is_remote and server.host.connection != host.connection:
            message = (
                f"{server.host.name} is a {server.host.connection} host, and the gateway's host {host.name} is not."
            )
            yield message, gateway.where("host"), "Put hosts of one kind into the group."
        if is_remote and all(map(is_loopback, published_addresses(server.recipe.file)[:1])):
            message = f"the server of {server.host.name} listens on loopback only: {host.name} cannot reach it."
            fix = f"In recipes/{server.recipe.name}.yml: `publish: lan` and `server_key: {{env: SPARK_KEY}}`."
            yield message, server.recipe.source.where("publish"), fix


def recipes_by_secret(servers: Iterable[Server]) -> Mapping[str, recipe.Recipe]:
    """Return the recipes whose servers require a key, by the name of the secret."""
    return {server.recipe.key_secret: server.recipe for server in servers if server.recipe.file.server_key}
