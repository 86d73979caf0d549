"""The variables of a gateway's playbook: its container, its files, and the names of the secrets in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sparkwright.app.connect import Selection
from sparkwright.app.plans import recipes
from sparkwright.engines import http
from sparkwright.errors import Refused, SparkwrightError
from sparkwright.fleet.fleet import Fleet
from sparkwright.fleet.member import Member, hang_up
from sparkwright.gateway import model, render
from sparkwright.project import gateway_certificate, gateway_routes
from sparkwright.project.gateway_servers import Server
from sparkwright.project.inventory import secret_source
from sparkwright.project.inventory.groups import Gateway
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.inventory import Inventory
from sparkwright.protocol.container import ContainerSpec, locked_ids
from sparkwright.secret import Secret
from sparkwright.trust.image_name import pinned
from sparkwright.units import MIB

#: working directory of the container, with its files
INSIDE = "/etc/gateway/files"


def of_host(inventory: Inventory, host: Host) -> Gateway:
    """Return the gateway that runs on a host. Raises Refused if there is none."""
    found = next((gateway for gateway in inventory.gateways.values() if gateway.host == host.name), None)
    if found is None:
        fix = f"In hosts/groups.yml: `lab: {{gateway: {{host: {host.name}, port: 8080, tls: none}}}}`."
        raise Refused(f"{host.name} is the host of no gateway.", where=host.where, fix=fix)
    return found


def base_url(inventory: Inventory, gateway: Gateway) -> tuple[str, str]:
    """Return the URL for a gateway's clients, and a hint on how to reach it, which is empty if none is needed."""
    file = gateway.file
    url, way = recipes.address(inventory.machines[gateway.host], file.port, loopback=file.publish == "loopback")
    return f"{url if file.tls == 'none' else url.replace('http:', 'https:', 1)}/v1", way


def refuse_without_key(gateway: Gateway) -> None:
    """Raise Refused, with file and line, if the clients' key is missing or unsuitable.

    A key that comes from a command is read later, during planning, because the command may prompt the user and should do so once.
    """
    if gateway.file.key is not None and gateway.file.key.command is None:
        _own_key(gateway)


def refuse_without_haproxy(inventory: Inventory, gateway: Gateway) -> None:
    """Raise Refused, with file and line, if the gateway's host is a sandbox and HAProxy is not installed on this machine."""
    if inventory.machines[gateway.host].connection == "sandbox":
        from sparkwright.sandbox import haproxy

        haproxy.refuse_without(gateway.where("host"))


def scope(
    selection: Selection, host: Host, image: Mapping[str, Any] | None, operators: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, Secret]]:
    """Return the playbook's `gateway` variable and the secrets that belong to it.

    Args:
        image: the lock's entry of the gateway's image.
        operators: SHA-256 of each host's key, by host name; empty for hosts that did not answer.

    Raises:
        Refused: with file and line, for a mistake in the files.
    """
    root, inventory = selection.project.root, selection.inventory
    gateway = of_host(inventory, host)
    made, found = gateway_routes.routed(root, inventory, gateway)
    secrets = _secrets(root, gateway, found)
    names = {name: name if name in secrets else "" for name in (_client_key(gateway), _certificate(gateway))}
    spec = container_spec(gateway, made, image)
    about = {
        "name": gateway.name,
        "port": made.port,
        "spec": spec.to_json(),
        "lock": {"manifests": (image or {}).get("manifests")},
        "files": render.files(made),
        "models": [name for served in made.models for name in served.names],
        "proof": _proof(made),
        "client_key": names[_client_key(gateway)],
        "clients": {name: _key_of(gateway, name) for name in gateway.file.clients},
        "certificate": names[_certificate(gateway)],
        "operators": dict(operators),
        "server_keys": {model.backend: model.key for model in made.models if model.key},
        "options": [list(option) for option in spec.docker_options()],
    }
    return about, secrets


def key(selection: Selection, host: Host) -> tuple[str, dict[str, Secret]]:
    """Return the name of the clients' key (`gateway_key` in a rollback) and the key itself.

    Raises Refused if the key can't be read.
    """
    gateway = of_host(selection.inventory, host)
    secrets = _own_key(gateway)
    return next(iter(secrets), ""), secrets


def _proof(made: model.Gateway) -> dict[str, Any]:
    """Return the arguments of `gateway_proof`, which are saved with the gateway's state for a rollback."""
    requests = {
        name: {
            "task": served.task,
            "body": {**json.loads(served.check), "model": name},
            "on_demand": served.on_demand,
            "waits": made.waits,
            "dialects": list(served.dialects),
        }
        for served in made.models
        for name in served.names
    }
    return {"name": made.name, "port": made.port, "keyed": made.keyed, "tls": made.tls, "models": requests}


def container_spec(gateway: Gateway, made: model.Gateway, image: Mapping[str, Any] | None) -> ContainerSpec:
    """Return the arguments of `docker run`. The host fills in its user and the folder of the files."""
    address = "" if made.address == gateway_routes.EVERYWHERE else f"{made.address}:"
    return ContainerSpec(
        name=gateway_routes.CONTAINER,
        image=pinned(gateway.file.image, image["digest"] if image else ""),
        gpus="",
        ipc="",
        ports=tuple(f"{address}{port}:{port}" for port in (made.port, made.control_port)),
        env=dict(render.ENVIRONMENT),
        ulimits={"nofile": str(4 * made.clients + 2048)},
        network="host",
        memory=f"{render.container_bytes(made) // MIB}m",
        cap_drop=("ALL",),
        security_opt=("no-new-privileges",),
        working_dir=INSIDE,
        stop_signal="SIGUSR1",
        log_driver="json-file",
        log_options={"max-size": "20m", "max-file": "3"},
        entrypoint=("haproxy",),
        command=render.COMMAND,
        image_ids=locked_ids(image),
    )


def _client_key(gateway: Gateway) -> str:
    return f"gateway key of {gateway.name}"


def _own_key(gateway: Gateway) -> dict[str, Secret]:
    """Return the clients' key under its name; empty if the gateway needs none."""
    if gateway.file.key is None:
        return {}
    shown = f"{gateway.name}.gateway.key"
    return {_client_key(gateway): secret_source.server_key(gateway.file.key, gateway.where("key"), shown)}


def _key_of(gateway: Gateway, client: str) -> str:
    return f"gateway key of {gateway.name}: {client}"


def _clients_keys(gateway: Gateway, own: Mapping[str, Secret]) -> dict[str, Secret]:
    """Return the keys of named clients, by the secret's name.

    Raises:
        Refused: a key is missing, unsuitable, or the same as another; with file and line.
    """
    found: dict[str, Secret] = {}
    owners = {secret.reveal(): "`key`" for secret in own.values()}
    where = gateway.where("clients")
    for name, client in gateway.file.clients.items():
        shown = f"{gateway.name}.gateway.clients.{name}.key"
        secret = secret_source.server_key(client.key, where, shown)
        if owner := owners.get(secret.reveal()):
            message = f"`{shown}` is the same key as that of {owner}: their requests could not be told apart."
            raise Refused(message, where=where, fix=f"Give {name} a key of its own; {http.MAKE}")
        owners[secret.reveal()] = name
        found[_key_of(gateway, name)] = secret
    return found


def _certificate(gateway: Gateway) -> str:
    return f"gateway certificate of {gateway.name}"


def _secrets(root: Path, gateway: Gateway, found: list[Server]) -> dict[str, Secret]:
    """Return all secrets in the gateway's files, by the names under which they are sent."""
    own = _own_key(gateway)
    secrets = {**own, **_clients_keys(gateway, own)}
    if gateway.file.tls != "none":
        secrets[_certificate(gateway)] = Secret(gateway_certificate.pem(root, gateway))
    for recipe in gateway_routes.secrets_of(found).values():
        secrets |= recipe.secrets()
    return secrets


def hashes(selection: Selection, at: Member, *, check: bool, tell: Callable[[str], None]) -> dict[str, str]:
    """Return the SHA-256 of each host's key, by host name; empty for a host that does not answer, which is reported.

    Args:
        at: the gateway's own host.
        check: True in check mode, where no host creates a key.
    """
    from sparkwright.app.questions.host_requests import ask_module, run_module

    found: dict[str, str] = {}
    servers = gateway_routes.servers(selection.project.root, selection.inventory, of_host(selection.inventory, at.host))
    for name in dict.fromkeys(server.host.machine for server in servers):
        member = at if name == at.host.machine else Member(selection.inventory.machines[name])
        try:
            found[name] = (ask_module if check else run_module)(Fleet([member]), member, "gateway_own_key", {})[
                "sha256"
            ]
        except SparkwrightError as error:
            found[name] = ""
            tell(f"{name} could not be asked for its key, and cannot drain itself with a new one: {error.message}")
        finally:
            if member is not at:
                hang_up([member])
    return found
