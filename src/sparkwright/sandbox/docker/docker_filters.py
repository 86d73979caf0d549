"""Docker's container list filters, each a function of a container and one wanted value."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from sparkwright.sandbox.docker import network
from sparkwright.sandbox.docker.container import Container
from sparkwright.sandbox.docker.images import Images
from sparkwright.sandbox.web import Refused

STATUSES = ("created", "restarting", "running", "removing", "paused", "exited", "dead")


def chosen(everyone: Iterable[Container], images: Images, query: dict[str, str]) -> list[Container]:
    """Return the containers that match a query, the newest first. Raises Refused for an unknown filter."""
    filters = parse(query.get("filters", ""))
    unknown = next((name for name in filters if name not in TESTS and name != "label"), None)
    if unknown is not None:
        raise Refused(400, f"invalid filter '{unknown}'")
    stopped_too = is_true(query.get("all")) or "status" in filters or "exited" in filters
    rows = [
        container
        for container in everyone
        if (stopped_too or container.running) and _passes(container, images, filters)
    ]
    rows.sort(key=lambda container: container.born_s, reverse=True)
    return rows[: int(query["limit"])] if int(query.get("limit") or -1) > 0 else rows


def parse(text: str) -> dict[str, list[str]]:
    """Return filters as {"name": ["a"]}; older clients write {"name": {"a": true}}."""
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        raise Refused(400, "invalid filter") from None
    return {name: [str(value) for value in values] for name, values in found.items()}


def is_true(text: str | None) -> bool:
    """Return True if a query parameter is set to true."""
    return text in ("1", "true", "True")


def _passes(container: Container, images: Images, filters: dict[str, list[str]]) -> bool:
    if not all(_label(container, wanted) for wanted in filters.get("label", ())):
        return False
    others = ((TESTS[name], values) for name, values in filters.items() if name != "label")
    return all(any(test(container, images, wanted) for wanted in values) for test, values in others)


def _label(container: Container, wanted: str) -> bool:
    name, equals, value = wanted.partition("=")
    labels = container.labels()
    return name in labels and (not equals or labels[name] == value)


def _status(container: Container, images: Images, wanted: str) -> bool:
    if wanted not in STATUSES:
        raise Refused(400, f"invalid filter 'status={wanted}'")
    return container.status == wanted


def _ancestor(container: Container, images: Images, wanted: str) -> bool:
    return wanted == container.body["Image"] or container.image == images.find(wanted)


TESTS: dict[str, Callable[[Container, Images, str], bool]] = {
    "name": lambda container, images, wanted: bool(
        re.search(wanted, container.name) or re.search(wanted, f"/{container.name}")
    ),
    "id": lambda container, images, wanted: container.id.startswith(wanted),
    "status": _status,
    "ancestor": _ancestor,
    "exited": lambda container, images, wanted: container.status == "exited" and str(container.exit_code) == wanted,
}


def row(container: Container, image_id: str) -> dict[str, Any]:
    """Return a container as a listing shows it."""
    return {
        "Id": container.id,
        "Names": [f"/{container.name}"],
        "Image": container.body["Image"],
        "ImageID": image_id,
        "Command": " ".join(container.argv()),
        "Created": int(container.born_s),
        "Ports": container.ports(),
        "Labels": container.labels(),
        "State": container.status,
        "Status": container.status.capitalize(),
        "HostConfig": {"NetworkMode": network.mode(container.body)},
        "Mounts": container.mounts(),
    }
