"""What an image's engine says of itself: its version and its options, asked once per image and kept in the state folder.

The image's label or variable is believed first; else `vllm --version` runs in a throw-away container, without GPU or network.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright.engines.vllm import image as vllm_image
from sparkwright.engines.vllm.flags import flag_shapes
from sparkwright.host.images import image_names
from sparkwright.host.module import Context

ASK_S = 90
MEMORY = "4g"


@dataclass(frozen=True, slots=True)
class EngineImage:
    """version: None when nothing says it. options: of `vllm serve`, as `flag_shapes.difference` keeps them; None: not printed."""

    version: str | None
    options: Mapping[str, Any] | None = None
    listed: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "listed", flag_shapes.applied(self.options))


def ask(context: Context, ref: str, ids: Collection[str] = ()) -> EngineImage | None:
    """What the engine of this image says; None when the image is not on the host. ids: what proves it, see `image_names.find`."""
    api: Any = context.docker().api
    image = image_names.find(api, ref, ids)
    if not image:
        return None
    name = f"engines/{image['Id'].removeprefix('sha256:')[:16]}"
    kept = context.state.read(name)
    if kept is not None and "options" in kept and flag_shapes.is_current(kept["options"]):
        return EngineImage(kept["version"], kept["options"])
    context.note("reading the image's version and options (once)")
    version = vllm_image.version_of(image.get("Config") or {})
    version = version or vllm_image.version_in(_run(api, image["Id"], ["--version"]))
    shapes = flag_shapes.listed(_run(api, image["Id"], ["serve", "--help=all"]))
    found = EngineImage(version, flag_shapes.difference(shapes) if shapes else None)
    if not context.check:
        context.state.write(name, {"ref": ref, "version": found.version, "options": found.options})
    return found


def _run(api: Any, image_id: str, words: list[str]) -> str:
    """What `vllm WORDS` prints in a container of its own; nothing when it fails or takes too long."""
    from docker.errors import APIError
    from requests import RequestException

    created = ""
    try:
        host = api.create_host_config(mem_limit=MEMORY, network_mode="none")
        created = api.create_container(image_id, words, entrypoint=["vllm"], host_config=host)["Id"]
        api.start(created)
        ended = api.wait(created, timeout=ASK_S)
        text: bytes = api.logs(created, stdout=True, stderr=False)
        return text.decode(errors="replace") if ended.get("StatusCode") == 0 else ""
    except (APIError, RequestException):
        return ""
    finally:
        if created:
            api.remove_container(created, force=True)
