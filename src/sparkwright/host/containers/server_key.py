"""A server's API key, in a file that is mounted into its container and that every check reads.

A spec contains a reference, never the key: "given:SECRET" names a secret sent with the run, and "kept:FINGERPRINT" a file on
this host. The file is kept as long as a container or a verified state may need it, so a rollback also restores the server's key.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from sparkwright.engines import engine
from sparkwright.engines import http as engine_http
from sparkwright.errors import Failed, Refused, SparkwrightError
from sparkwright.host.containers import container_labels, containers
from sparkwright.host.containers.container_options import key_fingerprint
from sparkwright.host.module import Context
from sparkwright.host.records import server_keys, verified_states
from sparkwright.host.state import StateFolder
from sparkwright.protocol.container import FINGERPRINT_PREFIX, SECRET_PREFIX, ContainerSpec
from sparkwright.protocol.result import arg
from sparkwright.trust import security_option_rules


def resolve_key(spec: ContainerSpec, context: Context) -> ContainerSpec:
    """Return the spec with its key replaced by the key's fingerprint. Raises Refused if the key was not sent with this run."""
    if not spec.server_key.startswith(SECRET_PREFIX):
        return spec
    fingerprint = server_keys.fingerprint(context.state, _sent_key(spec, context))
    return dataclasses.replace(spec, server_key=FINGERPRINT_PREFIX + fingerprint)


def prepare_mount(spec: ContainerSpec, context: Context, *, world_readable: bool) -> dict[str, Any]:
    """Return the mount of a spec's key file, after writing a key that came with the run.

    Args:
        world_readable: see `server_keys.save_key`.

    Raises:
        Failed: The key of an earlier server is no longer on this host.
    """
    key_format = engine.from_labels(spec.labels).key
    if key_format is None:
        raise Refused("this engine cannot read a server key from a file.", fix="Remove `server_key` from the recipe.")
    if spec.server_key.startswith(SECRET_PREFIX):
        path = server_keys.save_key(
            context.state, spec.name, _sent_key(spec, context), world_readable=world_readable, key_format=key_format
        )
    else:
        path = server_keys.key_path(
            context.state, spec.name, spec.server_key.removeprefix(FINGERPRINT_PREFIX), key_format
        )
        if not server_keys.read_key(path):
            raise Failed(f"the server key of {spec.name} is no longer on this host.", fix="`invoke deploy` sets one.")
    return {"Type": "bind", "Source": str(path), "Target": key_format.mount, "ReadOnly": True}


def update_link(state: StateFolder, container: Mapping[str, Any]) -> None:
    """Point the docker run script's link to the key of a container that is about to start with its final name."""
    if fingerprint := key_fingerprint(container):
        name, key_format = containers.name_of(container), container_labels.engine_of_container(container).key
        server_keys.update_link(server_keys.key_path(state, name, fingerprint, key_format), name)


def read_container_key(state: StateFolder, inspected: Mapping[str, Any]) -> str:
    """Return the API key of a container's server; empty if the server has none or the key is unknown."""
    fingerprint = key_fingerprint(inspected)
    if fingerprint:
        name = containers.name_of(inspected).removesuffix(containers.PREVIOUS_SUFFIX)
        key_format = engine.from_labels((inspected.get("Config") or {}).get("Labels")).key
        return server_keys.read_key(server_keys.key_path(state, name, fingerprint, key_format))
    config = inspected.get("Config") or {}
    return container_labels.engine_of_container(inspected).http.api_key(
        list(config.get("Cmd") or ()), list(config.get("Env") or ())
    )


def secret_arg() -> Any:
    """Return the module argument for the name of the secret that holds a server's key; see `find_probe_key`."""
    return arg(
        "a secret to use instead of the deployed server key",
        default=engine.get_engine(engine.DEFAULT_ENGINE).http.key_variable,
    )


def read_verified_key(state: StateFolder) -> str:
    """Return the key of the last verified server; empty if it has none, or the key is no longer on this host."""
    spec = verified_states.load_last(state).spec
    fingerprint = spec.get("server_key", "").removeprefix(FINGERPRINT_PREFIX)
    key_format = engine.from_labels(spec.get("labels")).key
    return (
        server_keys.read_key(server_keys.key_path(state, spec["name"], fingerprint, key_format)) if fingerprint else ""
    )


def find_probe_key(context: Context, base_url: str, secret: str) -> str:
    """Return the key for the server at a URL of this host: the named secret if it was sent, else the container's key.

    Empty if neither exists; a server that requires a key then rejects the request.
    """
    override = context.secrets.get(secret)
    if override:
        return override.reveal()
    if not server_keys.has_keys(context.state):
        return ""
    try:
        container = containers.find_by_port(context.docker(), urlsplit(base_url).port)
    except SparkwrightError:
        return ""
    return read_container_key(context.state, container) if container else ""


def remove_unneeded(context: Context, name: str) -> None:
    """Remove the keys of a server, except those that its containers or verified states need."""
    if not server_keys.has_keys(context.state):
        return
    states = verified_states.iter_all_servers(context.state)
    needed_fingerprints = {verified.spec.get("server_key", "").removeprefix(FINGERPRINT_PREFIX) for verified in states}
    names = (name, name + containers.PREVIOUS_SUFFIX)
    inspected_containers = (containers.inspect(context.docker(), container_name) for container_name in names)
    server_keys.remove_unneeded(
        context.state, name, needed_fingerprints | {key_fingerprint(row) for row in inspected_containers if row}
    )


def can_read_private_file(user: str, security_options: Iterable[str], dropped_capabilities: Iterable[str] = ()) -> bool:
    """Return True if a container can read a file that only this user may read.

    Args:
        security_options: Docker's security options.
        dropped_capabilities: root needs DAC_OVERRIDE to read another user's file.
    """
    if any(option.startswith("name=userns") for option in security_options):
        return False
    account, own_uid = user.partition(":")[0], str(os.getuid())
    can_override = not {"ALL", "DAC_OVERRIDE"} & {*security_option_rules.normalize_capabilities(dropped_capabilities)}
    return account == own_uid or (account in ("", "0", "root") and (can_override or own_uid == "0"))


def _sent_key(spec: ContainerSpec, context: Context) -> str:
    secret = context.secrets.get(spec.server_key.removeprefix(SECRET_PREFIX))
    if not secret:
        raise Refused("the server key was not sent with this run.", fix="Check `server_key` in the recipe.")
    key = secret.reveal()
    if not engine_http.is_valid_key(key):
        raise Refused(f"the server's key must be {engine_http.VALID_KEY_RULE}.", fix=engine_http.GENERATE_KEY_HINT)
    return key
