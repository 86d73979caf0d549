"""The variables and secrets of a gateway's playbook."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from sparkwright.app.connect import Selection
from sparkwright.app.plans import recipes
from sparkwright.engines import http
from sparkwright.errors import Refused, SparkwrightError
from sparkwright.fleet.fleet import Fleet
from sparkwright.fleet.member import Member, close_links
from sparkwright.gateway import model, render
from sparkwright.project import gateway_certificate, gateway_routes
from sparkwright.project.gateway_servers import Server
from sparkwright.project.inventory import secret_source
from sparkwright.project.inventory.groups import Gateway
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.inventory import Inventory
from sparkwright.protocol.container import ContainerSpec, locked_ids
from sparkwright.secret import Secret
from sparkwright.trust.image_name import with_digest
from sparkwright.units import MIB

#: working directory of the container, where its files are
CONTAINER_FOLDER = "/etc/gateway/files"


def find_gateway(inventory: Inventory, host: Host) -> Gateway:
    """Return the gateway that runs on a host. Raises Refused if there is none."""
    gateway = next((gateway for gateway in inventory.gateways.values() if gateway.host == host.name), None)
    if gateway is None:
        fix = f"In hosts/groups.yml: `lab: {{gateway: {{host: {host.name}, port: 8080, tls: none}}}}`."
        raise Refused(f"no gateway runs on {host.name}.", where=host.where, fix=fix)
    return gateway


def base_url(inventory: Inventory, gateway: Gateway) -> tuple[str, str]:
    """Return the URL for a gateway's clients, and the ssh tunnel that the URL requires; empty if none."""
    file = gateway.file
    url, access_hint = recipes.server_url(
        inventory.machines[gateway.host], file.port, loopback=file.publish == "loopback"
    )
    return f"{url if file.tls == 'none' else url.replace('http:', 'https:', 1)}/v1", access_hint


def check_client_key(gateway: Gateway) -> None:
    """Raise Refused, with file and line, if the clients' key can't be read or is unsuitable.

    A key from a command is not checked, because the command may prompt the user; planning runs it once.
    """
    if gateway.file.key is not None and gateway.file.key.command is None:
        _load_key(gateway)


def check_haproxy(inventory: Inventory, gateway: Gateway) -> None:
    """Raise Refused, with file and line, if the gateway's host is a sandbox and HAProxy is not installed on the laptop."""
    if inventory.machines[gateway.host].connection == "sandbox":
        from sparkwright.sandbox import haproxy

        haproxy.require_installed(gateway.where("host"))


def build_variables(
    selection: Selection, host: Host, image: Mapping[str, Any] | None, host_key_hashes: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, Secret]]:
    """Return the playbook's `gateway` variable and the secrets that its files contain.

    Args:
        image: the lock's entry for the gateway's image.
        host_key_hashes: SHA-256 of each host's key, by host name; empty for a host that could not be queried.

    Raises:
        Refused: a mistake in the user's files; with file and line.
    """
    root, inventory = selection.project.root, selection.inventory
    gateway = find_gateway(inventory, host)
    config, servers = gateway_routes.build_routes(root, inventory, gateway)
    secrets = _load_secrets(root, gateway, servers)
    secret_names = {
        name: name if name in secrets else "" for name in (_key_secret_name(gateway), _certificate_secret_name(gateway))
    }
    spec = container_spec(gateway, config, image)
    variables = {
        "name": gateway.name,
        "port": config.port,
        "spec": spec.to_json(),
        "lock": {"manifests": (image or {}).get("manifests")},
        "files": render.render_files(config),
        "models": [name for served in config.models for name in served.names],
        "proof": _proof_arguments(config, servers),
        "client_key": secret_names[_key_secret_name(gateway)],
        "clients": {name: _client_key_secret_name(gateway, name) for name in gateway.file.clients},
        "certificate": secret_names[_certificate_secret_name(gateway)],
        "operators": dict(host_key_hashes),
        "server_keys": {model.backend: model.key for model in config.models if model.key},
        "options": [list(option) for option in spec.docker_options()],
    }
    return variables, secrets


def load_client_key(selection: Selection, host: Host) -> tuple[str, dict[str, Secret]]:
    """Return the name of the clients' key, empty if the gateway has none, and the key by that name.

    Raises Refused if the key can't be read.
    """
    secrets = _load_key(find_gateway(selection.inventory, host))
    return next(iter(secrets), ""), secrets


def _proof_arguments(config: model.Gateway, servers: Iterable[Server]) -> dict[str, Any]:
    """Return the arguments of `gateway_proof`, which the host saves for a rollback."""
    requests = {
        name: {
            "task": served.task,
            "body": {**json.loads(served.check_body), "model": name},
            "on_demand": served.on_demand,
            "waits": config.waits,
            "dialects": list(served.dialects),
            "hosts": [
                server.host.cluster.name if server.host.cluster else server.host.name
                for server in servers
                if server.recipe.served_name == served.name
            ],
        }
        for served in config.models
        for name in served.names
    }
    return {"name": config.name, "port": config.port, "keyed": config.keyed, "tls": config.tls, "models": requests}


def container_spec(gateway: Gateway, config: model.Gateway, image: Mapping[str, Any] | None) -> ContainerSpec:
    """Return the gateway's container. The host adds its user and the folder of the files."""
    address = "" if config.address == gateway_routes.ALL_ADDRESSES else f"{config.address}:"
    return ContainerSpec(
        name=gateway_routes.CONTAINER_NAME,
        image=with_digest(gateway.file.image, image["digest"] if image else ""),
        gpus="",
        ipc="",
        ports=tuple(f"{address}{port}:{port}" for port in (config.port, config.control_port)),
        env=dict(render.ENVIRONMENT),
        ulimits={"nofile": str(4 * config.clients + 2048)},
        network="host",
        memory=f"{render.container_limit_bytes(config) // MIB}m",
        cap_drop=("ALL",),
        security_opt=("no-new-privileges",),
        working_dir=CONTAINER_FOLDER,
        stop_signal="SIGUSR1",
        log_driver="json-file",
        log_options={"max-size": "20m", "max-file": "3"},
        entrypoint=("haproxy",),
        command=render.HAPROXY_ARGUMENTS,
        image_ids=locked_ids(image),
    )


def _key_secret_name(gateway: Gateway) -> str:
    return f"gateway key of {gateway.name}"


def _load_key(gateway: Gateway) -> dict[str, Secret]:
    """Return the clients' key by the secret's name; empty if the gateway has none."""
    if gateway.file.key is None:
        return {}
    setting = f"{gateway.name}.gateway.key"
    return {_key_secret_name(gateway): secret_source.read_server_key(gateway.file.key, gateway.where("key"), setting)}


def _client_key_secret_name(gateway: Gateway, client: str) -> str:
    return f"gateway key of {gateway.name}: {client}"


def _load_client_keys(gateway: Gateway, gateway_keys: Mapping[str, Secret]) -> dict[str, Secret]:
    """Return the keys of named clients, by the secret's name.

    Raises:
        Refused: a key is missing, unsuitable, or the same as another; with file and line.
    """
    client_keys: dict[str, Secret] = {}
    owners = {secret.reveal(): "`key`" for secret in gateway_keys.values()}
    where = gateway.where("clients")
    for name, client in gateway.file.clients.items():
        setting = f"{gateway.name}.gateway.clients.{name}.key"
        secret = secret_source.read_server_key(client.key, where, setting)
        if owner := owners.get(secret.reveal()):
            message = f"`{setting}` is the same key as that of {owner}, so their requests could not be distinguished."
            raise Refused(message, where=where, fix=f"Use a different key for {name}. {http.GENERATE_KEY_HINT}")
        owners[secret.reveal()] = name
        client_keys[_client_key_secret_name(gateway, name)] = secret
    return client_keys


def _certificate_secret_name(gateway: Gateway) -> str:
    return f"gateway certificate of {gateway.name}"


def _load_secrets(root: Path, gateway: Gateway, servers: list[Server]) -> dict[str, Secret]:
    """Return all secrets in the gateway's files, by their names."""
    gateway_keys = _load_key(gateway)
    secrets = {**gateway_keys, **_load_client_keys(gateway, gateway_keys)}
    if gateway.file.tls != "none":
        secrets[_certificate_secret_name(gateway)] = Secret(gateway_certificate.read_pem(root, gateway))
    for recipe in gateway_routes.recipes_by_secret(servers).values():
        secrets |= recipe.secrets()
    return secrets


def query_key_hashes(
    selection: Selection, gateway_member: Member, *, check: bool, report: Callable[[str], None]
) -> dict[str, str]:
    """Return the SHA-256 of the key with which each host drains its server, by host name; empty if the query fails.

    Args:
        gateway_member: the gateway's host.
        check: in check mode, hosts without a key do not create one.
        report: called with a message for each host whose query fails.
    """
    from sparkwright.app.queries.host_requests import query_module, run_module

    hashes_by_host: dict[str, str] = {}
    inventory = selection.inventory
    gateway, query = find_gateway(inventory, gateway_member.host), query_module if check else run_module
    servers = gateway_routes.load_servers(selection.project.root, inventory, gateway)
    for name in dict.fromkeys(server.host.machine for server in servers):
        member = gateway_member if name == gateway_member.host.machine else Member(inventory.machines[name])
        try:
            hashes_by_host[name] = query(Fleet([member]), member, "gateway_own_key", {})["sha256"]
        except SparkwrightError as error:
            hashes_by_host[name] = ""
            report(
                f"the key of {name} could not be read: if it has changed, {name} cannot drain its server at the gateway:"
                f" {error.message}"
            )
        finally:
            if member is not gateway_member:
                close_links([member])
    return hashes_by_host
