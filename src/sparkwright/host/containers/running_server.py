"""A container as it runs, from its inspect: its model, image and arguments. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkwright import units
from sparkwright.host.containers import container_options, containers
from sparkwright.host.images.image_names import digests_of
from sparkwright.trust import secret_patterns
from sparkwright.trust.image_name import pinned, tagged

#: prefix of Docker's zero time
NEVER = "0001-"


@dataclass(frozen=True, slots=True)
class Running:
    """A container as it runs, with the inspect of its image."""

    #: its inspect
    container: dict[str, Any]
    #: the inspect of its image; empty if the image is gone
    made_from: dict[str, Any]

    @property
    def id(self) -> str:
        return str(self.container["Id"])

    @property
    def name(self) -> str:
        return str(self.container["Name"]).lstrip("/")

    @property
    def url(self) -> str:
        """Its URL on this host; empty if it publishes no port."""
        return containers.url_of(self.container)

    @property
    def port(self) -> int:
        """Its port on the host; 0 if it publishes none."""
        return int(self.url.rpartition(":")[2] or 0)

    @property
    def loopback(self) -> bool:
        """True if only programs of the host can reach it."""
        rows = [
            item for some in (self.container["HostConfig"].get("PortBindings") or {}).values() for item in some or ()
        ]
        return any(str(row.get("HostIp") or "").startswith(("127.", "::1")) for row in rows[:1])

    @property
    def image(self) -> str:
        """Its image as repository:tag@digest; without a registry digest, its Id."""
        named = tagged(str(self.container["Config"].get("Image") or ""))
        digest = next(iter(digests_of(self.made_from)), str(self.container["Image"]))
        return digest if not named or named == digest else pinned(named, digest)

    @property
    def words(self) -> list[str]:
        """Its command line: entrypoint and command."""
        return container_options.words_of(self.container)

    @property
    def flags(self) -> dict[str, Any]:
        """Its flags by name; a bare switch is True. Values of flags named like a secret are masked."""
        found = container_options.flags_of(self.words)
        return {
            name.lstrip("-"): secret_patterns.value(name, value) or True
            for name, value in found.items()
            if name.startswith("-")
        }

    @property
    def age_s(self) -> float:
        """Seconds since its last start."""
        return max(0.0, time.time() - containers.started_s(self.container))

    @property
    def model_dir(self) -> str:
        """The host's folder that it serves its model from; empty if none of its mounts is in its command line."""
        words = {word.rstrip("/") for item in self.words for word in (item, item.partition("=")[2])}
        for bind in self.container["HostConfig"].get("Binds") or ():
            outside, _, rest = str(bind).partition(":")
            inside = rest.partition(":")[0]
            if inside.rstrip("/") in words - {""}:
                return outside
        return ""


def start_of(container: Mapping[str, Any]) -> dict[str, Any]:
    """Return the identity of a container's start: id, started (in the engine's spelling), restarts (by its policy)."""
    started = str(container["State"].get("StartedAt") or "")
    return {"id": container["Id"], "started": started, "restarts": int(container.get("RestartCount") or 0)}


def ended_ago(container: Mapping[str, Any]) -> str:
    """Return the time since a container exited, in words; "never started" if it was not started."""
    text = str(container["State"].get("FinishedAt") or "")
    if text.startswith(NEVER):
        return "never started"
    ended_s = containers.moment(text)
    return "time unknown" if ended_s is None else f"{units.about(time.time() - ended_s)} ago"
