"""The API key of a server: a file mounted into its container, from which every check reads it, too.

A spec names its key and never holds it: "given:SECRET" came with the run, "kept:FINGERPRINT" is a file on this host. A file stays
as long as a container or a verified state may need it, so a rollback restores the server's key as well.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from sparkwright.engines import engine
from sparkwright.engines import http as rules
from sparkwright.errors import Failed, Refused, SparkwrightError
from sparkwright.host.containers import container_labels, containers
from sparkwright.host.containers.container_options import key_fingerprint
from sparkwright.host.module import Context
from sparkwright.host.records import good_states, server_keys
from sparkwright.host.state import StateFolder
from sparkwright.protocol.container import GIVEN, KEPT, ContainerSpec
from sparkwright.protocol.result import arg
from sparkwright.trust import security_words


def resolved(spec: ContainerSpec, context: Context) -> ContainerSpec:
    """Return the spec with its key by fingerprint. Raises Refused if the key was not sent with this run."""
    if not spec.server_key.startswith(GIVEN):
        return spec
    found = server_keys.fingerprint(context.state, _given(spec, context))
    return dataclasses.replace(spec, server_key=KEPT + found)


def mount(spec: ContainerSpec, context: Context, *, everyone: bool) -> dict[str, Any]:
    """Return the mount of a spec's key file, after writing a key that came with the run.

    Args:
        everyone: see `server_keys.keep`.

    Raises:
        Failed: The key of an earlier server is no longer on this host.
    """
    form = engine.of_labels(spec.labels).key
    if form is None:
        raise Refused("this engine reads no server key from a file.", fix="Remove `server_key` from the recipe.")
    if spec.server_key.startswith(GIVEN):
        path = server_keys.keep(context.state, spec.name, _given(spec, context), everyone=everyone, form=form)
    else:
        path = server_keys.path_of(context.state, spec.name, spec.server_key.removeprefix(KEPT), form)
        if not server_keys.read(path):
            raise Failed(f"the server key of {spec.name} is no longer on this host.", fix="`invoke deploy` sets one.")
    return {"Type": "bind", "Source": str(path), "Target": form.mount, "ReadOnly": True}


def link(state: StateFolder, container: Mapping[str, Any]) -> None:
    """Point the docker run script's link to the key of a container that is about to start, which has its own name."""
    if fingerprint := key_fingerprint(container):
        name, form = container_labels.name_of(container), container_labels.engine_of_container(container).key
        server_keys.link(server_keys.path_of(state, name, fingerprint, form), name)


def of_container(state: StateFolder, inspected: Mapping[str, Any]) -> str:
    """Return the key of a container's server; empty if it has none, or an unknown one."""
    fingerprint = key_fingerprint(inspected)
    if fingerprint:
        name = str(inspected["Name"]).lstrip("/").removesuffix(containers.PREVIOUS)
        form = engine.of_labels((inspected.get("Config") or {}).get("Labels")).key
        return server_keys.read(server_keys.path_of(state, name, fingerprint, form))
    config = inspected.get("Config") or {}
    return container_labels.engine_of_container(inspected).http.api_key(
        list(config.get("Cmd") or ()), list(config.get("Env") or ())
    )


def secret_arg() -> Any:
    """Return the argument by which a module that queries a server takes its key; see `for_probe`."""
    return arg("a secret to use instead of the deployed server key", default=engine.of(engine.USUAL).http.key_variable)


def of_good(state: StateFolder) -> str:
    """Return the key of the last verified server; empty if it has none, or the key is no longer kept."""
    spec = good_states.last(state).get("spec") or {}
    fingerprint = str(spec.get("server_key", "")).removeprefix(KEPT)
    form = engine.of_labels(spec.get("labels")).key
    return server_keys.read(server_keys.path_of(state, spec["name"], fingerprint, form)) if fingerprint else ""


def for_probe(context: Context, base_url: str, secret: str) -> str:
    """Return the key for the server at a URL of this host: a secret of this name, else its container's own.

    Empty if none is known: the server will reject the request if it requires one.
    """
    given = context.secrets.get(secret)
    if given:
        return given.reveal()
    if not server_keys.any_kept(context.state):
        return ""
    try:
        found = containers.publishing(context.docker(), urlsplit(base_url).port)
    except SparkwrightError:
        return ""
    return of_container(context.state, found) if found else ""


def tidy(context: Context, name: str) -> None:
    """Remove the keys of a server that none of its containers and no verified state needs."""
    if not server_keys.any_kept(context.state):
        return
    states = list(good_states.of_all_servers(context.state))
    needed = {str((state.get("spec") or {}).get("server_key", "")).removeprefix(KEPT) for state in states}
    here = (containers.inspect(context.docker(), item) for item in (name, name + containers.PREVIOUS))
    server_keys.drop(context.state, name, needed | {key_fingerprint(row) for row in here if row})


def readable_by_its_owner(user: str, security: Iterable[str], dropped: Iterable[str] = ()) -> bool:
    """Return True if a container can read a file that only this user may read.

    Args:
        user: the container's user.
        security: the engine's security options.
        dropped: capabilities that the container does not get; root needs one to read another user's file.
    """
    if any(item.startswith("name=userns") for item in security):
        return False
    account, own = user.partition(":")[0], str(os.getuid())
    overrides = not {"ALL", "DAC_OVERRIDE"} & {*security_words.capabilities(dropped)}
    return account == own or (account in ("", "0", "root") and (overrides or own == "0"))


def _given(spec: ContainerSpec, context: Context) -> str:
    secret = context.secrets.get(spec.server_key.removeprefix(GIVEN))
    if not secret:
        raise Refused("the server key was not sent with this run.", fix="Check `server_key` in the recipe.")
    key = secret.reveal()
    if not rules.valid(key):
        raise Refused(f"the server's key must be {rules.VALID}.", fix=rules.MAKE)
    return key
