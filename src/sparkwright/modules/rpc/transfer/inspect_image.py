from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sparkwright.host.images import image_archive, image_copy, image_names, image_stream, loads
from sparkwright.host.images.image_names import digests_of
from sparkwright.host.images.platform import platform_of
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg
from sparkwright.trust.image_name import Name

NOT_OURS = ("lo", "docker", "br-", "veth", "virbr")


class InspectImage(Module["InspectImage.Args"]):
    """Report what a host knows about an image, and how other hosts can reach it. Changes nothing, asks no registry.

    Returns: present, id, digests, layers (hashes of their content), platform (the image's), size_bytes, host_platform, free_bytes
    (where the engine stores images; null when that can't be seen), tools, addresses (the fastest network first), impostor (the Id
    of an image that has the name and is not proved to be it), names (of all images here), intake (the shell command that takes an
    archive of at most so many bytes in here).
    """

    @dataclass(frozen=True)
    class Args:
        ref: str = arg("repository:tag[@sha256:digest]")
        ids: list[str] = arg("the Ids that the lock allows for the digest", default_factory=list)
        most_bytes: int = arg("how many bytes the archive may unpack to, for `intake`", default=0)

    def run(self, args: Args, context: Context) -> Result:
        api: Any = context.docker().api
        name = Name.given(args.ref)
        image = image_names.find(api, args.ref, args.ids)
        tagged = "" if image else image_names.inspect(api, name.proved if name.digest else name.asked).get("Id", "")
        data = {
            "present": bool(image),
            "impostor": tagged,
            "id": image.get("Id", ""),
            "digests": digests_of(image),
            "layers": (image.get("RootFS") or {}).get("Layers") or [],
            "platform": image_names.platform_of(image) if image else "",
            "size_bytes": image.get("Size", 0),
            "host_platform": platform_of(context.machine),
            "free_bytes": image_copy.free_bytes(context.machine, api.info()),
            "tools": image_stream.tools(),
            "addresses": _addresses(),
            "names": asdict(loads.names(api)),
            "intake": image_archive.command(args.most_bytes),
        }
        return Result(msg="present" if image else "not on the host", data=data)


def _addresses() -> list[str]:
    """Return the host's IPv4 addresses on its own networks, the fastest first: two Sparks' ConnectX before the office's."""
    import psutil

    up = {name: stat for name, stat in psutil.net_if_stats().items() if stat.isup and not name.startswith(NOT_OURS)}
    rows = [(name, row) for name, rows in psutil.net_if_addrs().items() if name in up for row in rows]
    found = [(-up[name].speed, row.address) for name, row in rows if row.family.name == "AF_INET"]
    return [address for _, address in sorted(found)]
