"""What an image's engine says of itself: its version and its options, asked once per image and kept in the state folder.

The image's label or variable is believed first; else the engine prints its version in a throw-away container, without GPU or
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
    """version: None when nothing says it. options: as the engine's `image.difference` keeps them; None: not printed. listed: the
    same, whole."""

    version: str | None
    options: Mapping[str, Any] | None = None
    listed: Mapping[str, str] = field(default_factory=dict)


def ask(context: Context, ref: str, ids: Collection[str] = (), engine: Engine | None = None) -> EngineImage | None:
    """What the engine of this image says; None when the image is not on the host. ids: what proves it, see `image_names.find`."""
    api: Any = context.docker().api
    image = image_names.find(api, ref, ids)
    if not image:
        return None
    engine = engine or of(USUAL)
    request = engine.image
    if request is None:
        return EngineImage(None)
    own = "" if engine.name == USUAL else f"-{engine.name}"
    name = f"engines/{image['Id'].removeprefix('sha256:')[:16]}{own}"
    kept = context.state.read(name)
    if kept is not None and "options" in kept and request.is_current(kept["options"]):
        return EngineImage(kept["version"], kept["options"], request.applied(kept["options"]))
    context.note("reading the image's version and options (once)")
    version = request.version_of(image.get("Config") or {})
    version = version or request.version_in(_run(context, image["Id"], request.ASK_VERSION))
    shapes = request.listed(_run(context, image["Id"], request.ASK_OPTIONS))
    options = request.difference(shapes) if shapes else None
    if not context.check:
        context.state.write(name, {"ref": ref, "version": version, "options": options})
    return EngineImage(version, options, request.applied(options))


def _run(context: Context, image_id: str, words: tuple[str, ...]) -> str:
    """What a program with its words prints in a container of its own; nothing when it fails or takes too long."""
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
