"""Compare a container with its spec, and build the request that creates it. The options are in option_table.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sparkwright.engines import engine
from sparkwright.host.containers import compile_caches, mount_sources, recipe_files
from sparkwright.host.containers.option_table import OPTIONS, Inspect
from sparkwright.host.images.image_names import digests_of, has_digest
from sparkwright.protocol.container import FINGERPRINT_PREFIX, ContainerSpec
from sparkwright.protocol.result import Change
from sparkwright.trust import process_option_rules, secret_patterns
from sparkwright.trust.container_option_rules import port_bindings
from sparkwright.trust.image_name import digest_of


def differences(spec: ContainerSpec, container: Inspect, image: Inspect) -> list[Change]:
    """Return a change for every option, and for every flag of the command, that differs from the spec.

    Secrets are masked: a server that was started without sparkwright may have some in its command and environment.

    Args:
        image: the inspect data of the container's image; empty if the image is gone.
    """
    changes = _compare_image(spec, image or {"Id": container.get("Image")})
    changes += _compare_entrypoint(spec, container, image)
    for option in OPTIONS:
        expected, actual = (read(spec, container, image) for read in (option.read_expected, option.read_actual))
        if expected is not None and expected != actual:
            changes.append(Change(option.field, actual, expected, option.why))
    changes += recipe_files.differences(spec, container)
    changes += _compare_command(spec, container, image) + _compare_description(spec, container)
    changes += _compare_server_key(spec, container) + _compare_caches(spec, container)
    mask = secret_patterns.mask_field
    return [
        replace(change, before=mask(change.field, change.before), after=mask(change.field, change.after))
        for change in changes
    ]


def removed_options(
    spec: ContainerSpec, created_from: ContainerSpec, container: Inspect, image: Inspect
) -> list[Change]:
    """Return the options that the container was created with but that the spec now leaves to Docker's configuration.

    `differences` skips them (docs/decisions/0016): only the spec that the container was created from shows that they were set.
    """
    rows = (
        (option, option.read_expected(created_from, container, image))
        for option in OPTIONS
        if option.has_daemon_default
    )
    return [
        Change(option.field, expected, None, option.why or "no longer set")
        for option, expected in rows
        if expected is not None and option.read_expected(spec, container, image) is None
    ]


def key_fingerprint(container: Inspect) -> str:
    """Return the fingerprint of a container's server key, from the name of the file it mounts; empty if there is none."""
    mounts = (container.get("HostConfig") or {}).get("Mounts") or ()
    key = engine.from_labels((container.get("Config") or {}).get("Labels")).key
    source = next((str(mount.get("Source")) for mount in mounts if key and mount.get("Target") == key.mount), "")
    return source.rpartition("/")[2].rpartition(".")[0].rpartition("-")[2]


def build_create_body(spec: ContainerSpec) -> dict[str, Any]:
    """Return the body of `POST /containers/create`; the restart policy is `no` until the server is verified."""
    entrypoint = list(spec.entrypoint or ())
    sections: dict[str, dict[str, Any]] = {
        "HostConfig": {"RestartPolicy": {"Name": "no", "MaximumRetryCount": 0}},
        "Config": {},
    }
    for option in OPTIONS:
        if option.key and (expected := option.build_requested(spec)) is not None:
            sections[option.section][option.key] = expected
    body: dict[str, Any] = {
        **sections["Config"],
        "Image": spec.image,
        "Cmd": [*entrypoint[1:], *spec.command],
        "Env": [f"{name}={value}" for name, value in sorted(spec.env.items())],
        "Labels": dict(spec.labels),
        "ExposedPorts": {key: {} for key in port_bindings(spec.ports)},
        "HostConfig": sections["HostConfig"],
    }
    network, aliases = process_option_rules.parse_network(spec.network)
    if aliases:
        body["NetworkingConfig"] = {"EndpointsConfig": {network: {"Aliases": aliases}}}
    return {**body, "Entrypoint": entrypoint[:1]} if entrypoint else body


def _compare_image(spec: ContainerSpec, image: Inspect) -> list[Change]:
    """Compare the image by the Ids that the lock allows, else by Docker's RepoDigests. Tags are ignored."""
    expected_digest = digest_of(spec.image)
    digests = digests_of(image)
    if not expected_digest or has_digest(image, expected_digest, spec.image_ids):
        return []
    before = digests[0] if digests else image.get("Id", "unknown")
    return [Change("image", before, expected_digest, "the lock pins another digest")]


def command_line_of(container: Inspect) -> list[str]:
    """Return the container's command line: the words of its entrypoint and its command."""
    config = container["Config"]
    return [*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())]


def _expected_entrypoint(spec: ContainerSpec, container: Inspect, image: Inspect) -> list[str]:
    """Return the expected entrypoint: the spec's, else the image's; if the image is gone, the container's.

    An empty first word is docker's `--entrypoint ""`: no entrypoint, not even the image's.
    """
    if spec.entrypoint:
        return list(spec.entrypoint if spec.entrypoint[0] else spec.entrypoint[1:])
    config: Inspect = image.get("Config") or {} if image else container["Config"]
    return list(config.get("Entrypoint") or ())


def _compare_entrypoint(spec: ContainerSpec, container: Inspect, image: Inspect) -> list[Change]:
    expected = _expected_entrypoint(spec, container, image)
    if command_line_of(container)[: len(expected)] == expected:
        return []
    return [Change("entrypoint", container["Config"].get("Entrypoint"), list(spec.entrypoint or ()) or None)]


def _compare_command(spec: ContainerSpec, container: Inspect, image: Inspect) -> list[Change]:
    entrypoint, words = _expected_entrypoint(spec, container, image), command_line_of(container)
    same_entrypoint = words[: len(entrypoint)] == entrypoint
    actual = words[len(entrypoint) :] if same_entrypoint else list(container["Config"].get("Cmd") or ())
    expected = list(spec.command)
    if not expected and not spec.entrypoint:
        expected = list((image.get("Config") or {}).get("Cmd") or ()) if image else actual
    if expected == actual:
        return []
    before, after = parse_flags(actual), parse_flags(expected)
    names = [*after, *(name for name in before if name not in after)]
    changes = [Change(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)]
    return changes or [Change("command", " ".join(actual), " ".join(expected), "the same flags in another order")]


def _compare_description(spec: ContainerSpec, container: Inspect) -> list[Change]:
    """Return the differences in the recipe's description of how checks query the server, one for each key.

    The description is a label, and a container's labels cannot be changed.
    """
    all_labels = (container["Config"].get("Labels"), spec.labels)
    before, after = (engine.from_labels(labels).description for labels in all_labels)
    names = sorted(before.keys() | after.keys())
    reason = "how checks query the server"
    return [
        Change(f"engine {name}", before.get(name), after.get(name), reason)
        for name in names
        if before.get(name) != after.get(name)
    ]


def _compare_server_key(spec: ContainerSpec, container: Inspect) -> list[Change]:
    """Return a change if the server's key differs from the spec's. It contains neither key nor fingerprint."""
    actual, expected = key_fingerprint(container), spec.server_key.removeprefix(FINGERPRINT_PREFIX)
    if actual == expected and bool(actual) == bool(spec.server_key):
        return []
    after = ("changed" if actual else "set") if spec.server_key else None
    return [Change("server_key", "set" if actual else None, after, "clients need the new key")]


def _compare_caches(spec: ContainerSpec, container: Inspect) -> list[Change]:
    """Return a change for a cache that must be removed, and one for each nested mount, which earlier versions created for caches.

    A missing cache, or one with another key, is not a difference: the container gets the right cache when it is replaced for
    another reason.
    """
    if not spec.caches and compile_caches.mounted_key(container):
        return [Change("compile caches", "kept on the host", None, "the recipe turned them off, or mounts its own")]
    reason = "the container could replace one with a link, and mount any folder of the host at its next start"
    return [
        Change("mounts", f"{inner} is inside {outer}", "side by side", reason)
        for inner, outer in mount_sources.find_nested(container)
    ]


def parse_flags(words: list[str]) -> dict[str, str]:
    """Return the flags of a command line with their values; the value of a switch is ""."""
    flags: dict[str, str] = {}
    name = "command"
    for word in words:
        if word.startswith("--"):
            name, _, value = word.partition("=")
            flags[name] = value
        else:
            flags[name] = f"{flags.get(name, '')} {word}".strip()
    return flags
