"""The `container` module."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from sparkwright.modules import container_options, containers
from sparkwright.modules.base import Change, Context, StateModule, arg
from sparkwright.modules.image_names import known_as
from sparkwright.plan.container import ContainerSpec


@dataclass(frozen=True, slots=True)
class Found:
    """container and image: inspects, empty when there is none. verified_id: of the last verified container."""

    container: dict[str, Any]
    image: dict[str, Any]
    verified_id: str

    @property
    def running(self) -> bool:
        return bool(self.container and self.container["State"]["Running"])


class Container(StateModule["Container.Args", Found]):
    """The server's container is what the spec says, and runs.

    It compares what runs with the spec, field by field, and creates and starts what is missing. A new container starts
    with the restart policy `no`; `grant_restart` gives it the spec's once it is verified. A container that differs is never
    replaced silently: set it aside first.

    Returns: differs, running, exists, verified (proved once, and the policy granted), drift (fields), id.

    Fails when a container of this name differs and was not set aside, when the port is taken (it says by what), when the
    engine has no GPU runtime. What a refused start leaves behind is removed.
    """

    @dataclass(frozen=True)
    class Args:
        spec: dict[str, Any] = arg("the container, as `container` in scope holds it")

    def read(self, args: Args, context: Context) -> Found:
        client = context.docker()
        container = containers.inspect(client, args.spec["name"]) or {}
        image = containers.image_of(client, container) if container else {}
        return Found(container, image, str((context.state.read("verified") or {}).get("container_id", "")))

    def differences(self, args: Args, found: Found) -> list[Change]:
        spec = ContainerSpec.from_json(args.spec)
        if not found.container:
            return [Change("container", None, spec.name, "there is none")]
        changes = container_options.differences(spec, found.container, found.image)
        if not changes and not found.running:
            return [Change("state", found.container["State"]["Status"], "running", "it is stopped")]
        return changes

    def describe(self, args: Args, found: Found) -> dict[str, Any]:
        spec = ContainerSpec.from_json(args.spec)
        drift = (
            [dataclasses.asdict(c) for c in container_options.differences(spec, found.container, found.image)]
            if found.container
            else []
        )
        granted = bool(found.container) and found.container["HostConfig"]["RestartPolicy"]["Name"] == spec.restart
        known = bool(found.container) and found.container["Id"] == found.verified_id
        differs = not found.container or bool(drift)
        return {
            "exists": bool(found.container),
            "running": found.running,
            "differs": differs,
            "verified": found.running and granted and known and not differs,
            "drift": drift,
            "id": found.container.get("Id", ""),
            "msg": _sentence(found, drift),
        }

    def act(self, args: Args, found: Found, changes: list[Change], context: Context) -> dict[str, Any]:
        from docker.errors import APIError

        from sparkwright.errors import Failed

        spec = ContainerSpec.from_json(args.spec)
        client: Any = context.docker()
        if found.container and changes[0].field != "state":
            fields = ", ".join(change.field for change in changes)
            raise Failed(f"container {spec.name} differs ({fields}).", fix="Set it aside first (module `set_aside`).")
        created = ""
        try:
            if not found.container:
                config = container_options.create_arguments(spec)
                config["Image"] = known_as(client.api, spec.image) or spec.image
                created = client.api.create_container_from_config(config, spec.name)["Id"]
            client.api.start(spec.name)
        except APIError as error:
            if created:
                client.api.remove_container(created, force=True)
            raise containers.refused_start(error, context.machine, client, spec.ports) from None
        now = containers.inspect(client, spec.name) or {}
        return {"differs": False, "running": True, "exists": True, "id": now.get("Id", ""), "msg": ""}


def _sentence(found: Found, drift: list[dict[str, Any]]) -> str:
    if not found.container:
        return "there is none yet"
    if drift:
        return f"differs in {', '.join(one['field'] for one in drift)}"
    return "as the recipe says" if found.running else f"as the recipe says, but {found.container['State']['Status']}"
