"""Module that creates and starts a server's container."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sparkwright.errors import Failed, SparkwrightError
from sparkwright.host.containers import (
    compile_caches,
    container_options,
    containers,
    lifecycle,
    mount_sources,
    ownership,
    recipe_files,
    replacement,
    server_key,
)
from sparkwright.host.images import image_names
from sparkwright.host.images.image_names import machine_platform
from sparkwright.host.memory import host_outage
from sparkwright.host.memory.start_guard import configuration_key
from sparkwright.host.module import Context, StateModule
from sparkwright.host.records import turns, verified_states
from sparkwright.host.records.verified_states import VerifiedState
from sparkwright.modules.server.start import start_guarded
from sparkwright.protocol.container import ContainerSpec
from sparkwright.protocol.result import Change, arg
from sparkwright.trust import process_option_rules
from sparkwright.visible import format_count

#: files in a model's repository that no engine reads
UNREAD_FILE_PATTERN = re.compile(
    r"(\.md|\.png|\.jpe?g|\.svg|\.gif|\.pdf|\.gitattributes|LICEN[CS]E[^/]*|NOTICE[^/]*)$", re.I
)


@dataclass(frozen=True, slots=True)
class ContainerState:
    """The server's container on this host, with the spec and the last verified state to compare it with."""

    #: the intended container, with the server's key as a fingerprint
    spec: ContainerSpec
    #: Docker's inspection of the container; empty if there is none
    container: dict[str, Any]
    #: Docker's inspection of its image; empty if there is no container
    image: dict[str, Any]
    #: Id of the last verified container
    verified_id: str
    #: model of the last verified container: commit, and files with their hashes
    verified_model: Mapping[str, Any]
    #: spec of the last verified container; None if none was verified
    verified_spec: ContainerSpec | None = None
    #: contents of the recipe's files, by SHA-256
    file_contents: Mapping[str, str] = field(default_factory=dict)
    #: whether sparkwright created the container
    is_ours: bool = True
    #: ids of the replacement containers that were never started, by name
    unstarted_ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def running(self) -> bool:
        return bool(self.container and self.container["State"]["Running"])


class Container(StateModule["Container.Args", ContainerState]):
    """Create and start the server's container as the spec describes it.

    The existing container is compared with the spec, field by field, on top of the image's defaults. If there is none, it
    is created from the verified image (see `docker_image`) and started. A new container starts with the restart policy `no`;
    `grant_restart` sets the spec's policy once it is verified. A container that differs is not replaced: stop and keep it
    first (`stop_and_keep`).

    With `state: created` the server keeps running, and its replacement is created as NAME-replacement but not started, so
    that the Docker Engine reports errors while the server is still serving. The same run later starts the replacement under
    the server's name, or removes it if the run ends first. Replacements left by interrupted runs are removed. Nothing is
    created if the server matches the spec.

    Returns: differs, running, exists, verified (running, as last verified, and with the spec's restart policy), ours
    (created by sparkwright), drift (fields), id, left (a NAME-replacement that was never started exists on this host).

    Refused if a foreign container (not created by sparkwright) has the name and differs, or has the name that is needed to
    keep the previous server. A foreign container that is running and matches is adopted. Fails if a container of this name
    differs and was not stopped and kept, if the image is missing, if the port is in use (the message names the program), or
    if Docker has no NVIDIA runtime. A container that cannot be started is removed.
    """

    @dataclass(frozen=True)
    class Args:
        spec: dict[str, Any] = arg("the container, in the format of the variable `container`")
        model: dict[str, Any] = arg(
            "its model, with commit and files, to compare with the verified one; empty: do not compare",
            default_factory=dict,
        )
        files: dict[str, str] = arg(
            "contents of the recipe's files, by SHA-256; an empty string for a file that is already on the host",
            default_factory=dict,
        )
        state: Literal["started", "created"] = arg(
            "created: create the server's replacement without starting it", default="started"
        )
        anew: bool = arg("with `state: created`: create it even if the server matches the spec", default=False)

    def read(self, args: Args, context: Context) -> ContainerState:
        client = context.docker()
        container = replacement.find_current(context, args.spec["name"])
        image = containers.image_of(client, container) if container else {}
        verified_state = verified_states.load_last(context.state)
        spec = server_key.resolve_key(ContainerSpec.from_json(args.spec), context)
        model, verified_id = verified_state.model, verified_state.container_id
        recipe_files.require_available(context.state, spec, args.files)
        mount_sources.refuse_unsafe_spec(context, spec)
        is_ours = ownership.is_ours(context, container)
        state = ContainerState(
            spec,
            container,
            image,
            verified_id,
            model,
            verified_spec(verified_state),
            file_contents=recipe_files.read_contents(context.state, spec, container, args.files),
            is_ours=is_ours,
            unstarted_ids=replacement.unstarted_ids(context),
        )
        if not container or find_drift(args.model, state) or not (is_ours or state.running):
            replacement.require_free_names(context, spec.name)
        if context.check and self.differences(args, state):
            host_outage.refuse_forbidden(context, host_outage.forbidden_reason(context.state, args.spec))
        return state

    def differences(self, args: Args, observed: ContainerState) -> list[Change]:
        if args.state == "created":
            return _creation_changes(args, observed)
        if not observed.container:
            return [Change("container", None, observed.spec.name, "no such container")]
        changes = find_drift(args.model, observed)
        if not changes and not observed.running:
            return [Change("state", observed.container["State"]["Status"], "running", "it is stopped")]
        return recipe_files.with_contents(changes, observed.spec, observed.container, observed.file_contents)

    def describe(self, args: Args, observed: ContainerState) -> dict[str, Any]:
        changes = (
            [dataclasses.asdict(change) for change in find_drift(args.model, observed)] if observed.container else []
        )
        has_intended_policy = (
            bool(observed.container)
            and observed.container["HostConfig"]["RestartPolicy"]["Name"] == observed.spec.restart
        )
        is_last_verified = bool(observed.container) and observed.container["Id"] == observed.verified_id
        differs = not observed.container or bool(changes)
        return {
            "exists": bool(observed.container),
            "running": observed.running,
            "differs": differs,
            "verified": observed.running and has_intended_policy and is_last_verified and not differs,
            "ours": observed.is_ours,
            "drift": changes,
            "id": observed.container.get("Id", ""),
            "left": bool(observed.unstarted_ids),
            "msg": _describe_container(observed, changes) if args.state == "started" else "",
        }

    def act(self, args: Args, observed: ContainerState, changes: list[Change], context: Context) -> dict[str, Any]:
        if args.state == "created":
            return _create_replacement(args, observed, changes, context)
        return self._start_container(args, observed, changes, context)

    def _start_container(
        self, args: Args, observed: ContainerState, changes: list[Change], context: Context
    ) -> dict[str, Any]:
        from docker.errors import APIError

        turns.require_awake(context.state)
        forbidden_reason = host_outage.forbidden_reason(context.state, args.spec, str(observed.container.get("Id", "")))
        host_outage.refuse_forbidden(context, forbidden_reason, Failed)
        spec = ContainerSpec.from_json(args.spec)
        if observed.container and changes[0].field != "state":
            field_names = ", ".join(change.field for change in changes)
            fix = "Stop and keep it first (module `stop_and_keep`)."
            raise Failed(f"container {spec.name} differs ({field_names}).", fix=fix)
        new_id = ""
        try:
            if not observed.container:
                new_id = _adopt_created(spec, observed, context) or _create_container(
                    spec, args.files, context, spec.name
                )
            container_id = new_id or str(observed.container["Id"])
            start_guarded(context, container_id, configuration_key(args.spec))
        except (APIError, SparkwrightError, OSError) as error:
            if new_id:
                lifecycle.force_remove(context, new_id)
            if isinstance(error, APIError):
                raise containers.build_creation_error(error) from None
            raise
        return {"differs": False, "running": True, "exists": True, "ours": True, "id": container_id, "msg": ""}


def _creation_changes(args: Container.Args, observed: ContainerState) -> list[Change]:
    """Return the changes of `state: created`: leftover replacements removed, and a new one created if it is needed."""
    is_needed = args.anew or not observed.container or bool(find_drift(args.model, observed))
    changes = [
        Change("container", f"{name} (never started)", None, "left by an interrupted run")
        for name in observed.unstarted_ids
    ]
    name = f"{observed.spec.name}{containers.REPLACEMENT_SUFFIX} (created)"
    return [*changes, Change("container", None, name, "before the server is stopped")] if is_needed else changes


def _create_replacement(
    args: Container.Args, observed: ContainerState, changes: list[Change], context: Context
) -> dict[str, Any]:
    """Create NAME-replacement without touching the server. Raises Failed with the Docker Engine's error message."""
    from docker.errors import APIError

    for container_id in observed.unstarted_ids.values():
        lifecycle.force_remove(context, container_id)
    if changes[-1].after is None:
        return {"left": False}
    spec, name = ContainerSpec.from_json(args.spec), args.spec["name"] + containers.REPLACEMENT_SUFFIX
    try:
        new_id = _create_container(spec, args.files, context, name)
    except APIError as error:
        failure = containers.build_creation_error(error)
        unaffected_note = f" {containers.name_of(observed.container)} is still serving." if observed.running else ""
        raise Failed(failure.message + unaffected_note, fix=failure.fix) from None
    context.created_container = replacement.CreatedContainer(new_id, spec)
    return {"left": True}


def _adopt_created(spec: ContainerSpec, observed: ContainerState, context: Context) -> str:
    """Rename this run's replacement container to the server's name. Returns its id; empty if there is none.

    Replacement containers of other runs are removed.
    """
    new_container, unstarted_ids = context.created_container, {*observed.unstarted_ids.values()}
    for container_id in unstarted_ids - {new_container.id if new_container else ""}:
        lifecycle.force_remove(context, container_id)
    if new_container is None or new_container.spec != spec or new_container.id not in unstarted_ids:
        return ""
    lifecycle.rename(context, {"Id": new_container.id}, spec.name)
    context.created_container = None
    return new_container.id


def _create_container(spec: ContainerSpec, files: Mapping[str, str], context: Context, name: str) -> str:
    """Create the container from the verified image, and return its id.

    Raises Failed, leaving no container, if the image is missing, or if its tag has moved to another image.
    """
    api: Any = context.docker().api
    image = image_names.find(api, spec.image, spec.image_ids, machine_platform(context.machine))
    if not image:
        raise Failed(f"{spec.image} is not on the host, or not verified.", fix="`invoke deploy` pulls it.")
    config = container_options.build_create_body(spec)
    config["Image"] = image_names.name_of(api, spec.image, image["Id"])
    mounts = recipe_files.prepare_mounts(context.state, spec, files)
    cache_options = compile_caches.prepare_container(context, spec, image)
    if cache_options:
        mounts += cache_options["Mounts"]
        config["Env"] += cache_options["Env"]
    if spec.server_key:
        mounts.append(_build_key_mount(spec, image, context))
    if mounts:
        config["HostConfig"]["Mounts"] = mounts
    is_interim = spec.name.endswith(containers.INTERIM_SUFFIX)
    role = ownership.INTERIM_SERVER if is_interim else ownership.SERVER
    server = spec.name.removesuffix(containers.INTERIM_SUFFIX)
    container_id = lifecycle.create(context, config, role, server=server, name=name)
    try:
        container = api.inspect_container(container_id)
        if container["HostConfig"]["LogConfig"]["Type"] == "none":
            fix = "Set `container.log_driver: json-file` in the recipe, or another default in /etc/docker/daemon.json."
            message = "Docker keeps no log of the new container (log driver none), and a deploy reads the engine's log."
            raise Failed(message, fix=fix)
        image_id = container["Image"]
        if image_id != image["Id"]:
            message = f"the tag {config['Image']} moved to {image_id} while {spec.name} was being created."
            raise Failed(message, fix="Run the command again.")
        for network, aliases in map(process_option_rules.parse_network, spec.networks):
            lifecycle.connect(context, container_id, network, aliases or None)
    except Exception:
        lifecycle.force_remove(context, container_id)
        raise
    return container_id


def _build_key_mount(spec: ContainerSpec, image: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return the mount of the server's key file, which the container's user can read."""
    api: Any = context.docker().api
    user = spec.user or str((image.get("Config") or {}).get("User") or "")
    owner_only = server_key.can_read_private_file(user, api.info().get("SecurityOptions") or (), spec.cap_drop)
    return server_key.prepare_mount(spec, context, world_readable=not owner_only)


def verified_spec(verified_state: VerifiedState) -> ContainerSpec | None:
    """Return the spec of a verified state; None if the state is empty."""
    return ContainerSpec.from_json(verified_state.spec) if verified_state else None


def find_drift(model: Mapping[str, Any], observed: ContainerState) -> list[Change]:
    """Return how a container differs from its spec, and its loaded model revisions from `model` (commit and files)."""
    if (name := containers.name_of(observed.container)) != observed.spec.name:
        return [Change("name", name, observed.spec.name, "the server of another recipe")]
    changes = container_options.differences(observed.spec, observed.container, observed.image)
    if observed.container.get("Id") != observed.verified_id:
        return changes
    if observed.verified_spec is not None:
        changes += container_options.removed_options(
            observed.spec, observed.verified_spec, observed.container, observed.image
        )
    changes += _revision_changes("model", observed.verified_model, model)
    loaded_models, expected_models = (
        {str(extra["role"]): extra for extra in main_model.get("models", ()) if extra.get("role")}
        for main_model in (observed.verified_model, model)
    )
    # an added or removed model already shows as a difference in the mounts
    for role in loaded_models.keys() & expected_models.keys():
        name = role if role.startswith("adapter ") else f"{role} model"
        changes += _revision_changes(name, loaded_models[role], expected_models[role])
    return changes


def _revision_changes(name: str, loaded_model: Mapping[str, Any], expected_model: Mapping[str, Any]) -> list[Change]:
    """Return the change of a model's revision; empty if unknown, or if all files that the engine reads are the same."""
    loaded_commit, expected_commit = loaded_model.get("commit"), expected_model.get("commit")
    loaded_hashes, expected_hashes = _engine_file_hashes(loaded_model), _engine_file_hashes(expected_model)
    if not loaded_commit or not expected_commit or loaded_commit == expected_commit or loaded_hashes == expected_hashes:
        return []
    paths = loaded_hashes.keys() | expected_hashes.keys()
    changed_count = sum(loaded_hashes.get(path) != expected_hashes.get(path) for path in paths)
    reason = f"{format_count(changed_count, 'file')} changed on disk; the engine still has the old version loaded"
    return [Change(f"{name} revision", loaded_commit[:12], expected_commit[:12], reason)]


def _engine_file_hashes(model: Mapping[str, Any]) -> dict[str, str]:
    files = model.get("files") or []
    return {
        file["path"]: file["sha256"] or file["blob_id"]
        for file in files
        if not UNREAD_FILE_PATTERN.search(file["path"])
    }


def _describe_container(observed: ContainerState, changes: list[dict[str, Any]]) -> str:
    if not observed.container:
        return "no server running yet"
    if (name := containers.name_of(observed.container)) != observed.spec.name:
        return f"replaces {name}, the server of another recipe"
    if changes:
        return f"differs in {', '.join(row['field'] for row in changes)}"
    return (
        "matches the recipe" if observed.running else f"matches the recipe, but {observed.container['State']['Status']}"
    )
