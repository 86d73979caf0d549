"""The platform of the image, before 20 GB of it are pulled."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.doctor import known
from sparkwright.doctor.findings import Finding
from sparkwright.doctor.host import Host
from sparkwright.host.images.platform import platform_of

NAME = "image platform"


def check(host: Host) -> Iterator[Finding]:
    here, wanted, source = platform_of(host.context.machine), host.wanted, known.PLATFORM.source
    if not wanted.image:
        yield Finding(NAME, "unknown", "the host has no recipe, so no image to check")
    elif not wanted.platforms:
        evidence = f"the platforms of {wanted.image} are not in spark.lock"
        yield Finding(NAME, "unknown", evidence, f"invoke lock --host {wanted.name or 'HOST'}", source)
    elif here in wanted.platforms:
        yield Finding(NAME, "ok", f"{wanted.image} has {here}", source=source)
    else:
        evidence = f"{wanted.image} has {', '.join(wanted.platforms)}, not {here}: {known.PLATFORM.says}"
        yield Finding(NAME, "bad", evidence, "docker buildx imagetools inspect " + wanted.image, source)
