"""The engine version and options of an image, read once per image and kept in the state folder.

The image's label or variable comes first; without them the engine prints its version in a temporary container, without GPU or
network.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright.engines.engine import USUAL, Engine, of
from sparkwright.host.containers import lifecycle, ownership
from sparkwright.host.images import image_names
from sparkwright.host.module import Context

ASK_S = 90
MEMORY = 4 << 30


@dataclass(frozen=True, slots=True)
class EngineImage:
    """The engine of an image."""

    #: None if unknown
    version: str | None
    #: in the form of the engine's `image.difference`; None if the engine did not print them
    options: Mapping[str, Any] | None = None
    #: all options, in full
    listed: Mapping[str, str] = field(default_factory=dict)


def ask(context: Context, ref: str, ids: Collection[str] = (), engine: Engine | None = None) -> EngineImage | None:
    """Return the engine version and options of an image, or None if the image is not on the host.

    Args:
        ids: the Ids that prove the image, see `image_names.find`.
    """
    api: Any = context.docker().api
    image = image_names.find(api, ref, ids)
    if not image:
        return None
    engine = engine or of(USUAL)
    own_image = engine.image
    if own_image is None:
        return EngineImage(None)
    own = "" if engine.name == USUAL else f"-{engine.name}"
    name = f"engines/{image['Id'].removeprefix('sha256:')[:16]}{own}"
    kept = context.state.read(name)
    if kept is not None and "options" in kept and own_image.is_current(kept["options"]):
        return EngineImage(kept["version"], kept["options"], own_image.applied(kept["options"]))
    context.note("reading the image's version and options (once)", detail=True)
    version = own_image.version_of(image.get("Config") or {})
    version = version or own_image.version_in(_run(context, image["Id"], own_image.ASK_VERSION))
    shapes = own_image.listed(_run(context, image["Id"], own_image.ASK_OPTIONS))
    options = own_image.difference(shapes) if shapes else None
    if not context.check:
        context.state.write(name, {"ref": ref, "version": version, "options": options})
    return EngineImage(version, options, own_image.applied(options))


def _run(context: Context, image_id: str, words: tuple[str, ...]) -> str:
    """Run a command in a temporary container and return its output; empty if it fails or times out."""
    from docker.errors import APIError
    from requests import RequestException

    api: Any = context.docker().api
    created = ""
    try:
        command = {"Image": image_id, "Entrypoint": [words[0]], "Cmd": list(words[1:])}
        config = {**command, "HostConfig": {"Memory": MEMORY, "NetworkMode": "none"}}
        created = lifecycle.create(context, config, ownership.HELPER)
        lifecycle.start(context, created)
        ended = api.wait(created, timeout=ASK_S)
        if ended.get("StatusCode") != 0:
            return ""
        text: bytes = api.logs(created, stdout=True, stderr=False) or api.logs(created, stdout=False, stderr=True)
        return text.decode(errors="replace")
    except (APIError, RequestException):
        return ""
    finally:
        if created:
            lifecycle.discard(context, created)
