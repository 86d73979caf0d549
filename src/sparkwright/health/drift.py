"""Drift: how a container and its model files differ from the last verified state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkwright.health.record import FILE
from sparkwright.host.containers import container_options, containers
from sparkwright.host.models.manifest import Manifest
from sparkwright.host.module import Context
from sparkwright.host.records import good_states
from sparkwright.protocol.container import ContainerSpec


def found(context: Context, good: Mapping[str, Any], inspected: dict[str, Any]) -> tuple[str, ...]:
    """Return the fields and files that differ from the last verified state. Raises as docker's client does."""
    if not good["spec"].get("image"):
        return ("image",)  # the verified state is damaged: no server can match it
    spec = ContainerSpec.from_json(good["spec"])
    image = containers.image_of(context.docker(), inspected)
    fields = [difference.field for difference in container_options.differences(spec, inspected, image)]
    if inspected["Id"] == good.get("container_id"):  # a container's image can't change; that image's names can
        fields = [field for field in fields if field != "image"]
    name = str(inspected["Name"]).lstrip("/")
    fields = ["name", *fields] if name != spec.name else fields  # somebody renamed it
    return (*dict.fromkeys(fields), *(f"{FILE}{path}" for path in changed_files(context, good)))


def changed_files(context: Context, good: Mapping[str, Any]) -> list[str]:
    """Return the files of the server's models that differ from the verified ones. A stat each."""
    found = []
    for model in good_states.models_of(good):
        if folder := model.get("dir"):
            role = f"{model['role']}: " if model.get("role") else ""
            changed = Manifest.of(context.state, context.machine.expand(folder)).changed()
            found += [f"{role}{path}" for path in changed]
    return found
