"""The `look_image` module."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwright.host.images import image_stream
from sparkwright.host.images.image_names import digests_of, known_as
from sparkwright.modules.base import Context, Module, Result, arg

NOT_OURS = ("lo", "docker", "br-", "veth", "virbr")


class LookImage(Module["LookImage.Args"]):
    """What a host knows of an image, and how other hosts may reach it. Changes nothing, asks no registry.

    Returns: present, known_as, id, digests, layers (hashes of their content), platform (the image's), size_bytes, host_platform,
    free_bytes (where the engine stores images; null when that can't be seen), tools, addresses (the fastest network first).
    """

    @dataclass(frozen=True)
    class Args:
        ref: str = arg("repository:tag[@sha256:digest]")

    def run(self, args: Args, context: Context) -> Result:
        from sparkwright.modules.docker_image import platform_of

        api: Any = context.docker().api
        known = known_as(api, args.ref)
        image: dict[str, Any] = api.inspect_image(known) if known else {}
        data = {
            "present": bool(known),
            "known_as": known,
            "id": image.get("Id", ""),
            "digests": digests_of(image),
            "layers": (image.get("RootFS") or {}).get("Layers") or [],
            "platform": f"{image.get('Os', 'linux')}/{image['Architecture']}" if image else "",
            "size_bytes": image.get("Size", 0),
            "host_platform": platform_of(context.machine),
            "free_bytes": _free_bytes(str(api.info().get("DockerRootDir") or "")),
            "tools": image_stream.tools(),
            "addresses": _addresses(),
        }
        return Result(msg="present" if known else "not on the host", data=data)


def _free_bytes(folder: str) -> int | None:
    for path in (Path(folder), *Path(folder).parents) if folder else ():
        try:
            return shutil.disk_usage(path).free
        except OSError:
            continue
    return None


def _addresses() -> list[str]:
    """This host's IPv4 addresses on networks of its own, the fastest first: two Sparks' ConnectX before the office's."""
    import psutil

    stats = psutil.net_if_stats()
    found: list[tuple[int, str]] = []
    for name, rows in psutil.net_if_addrs().items():
        up = stats.get(name)
        if up is None or not up.isup or name.startswith(NOT_OURS):
            continue
        found += [(-up.speed, row.address) for row in rows if row.family.name == "AF_INET"]
    return [address for _, address in sorted(found)]
