"""The containers of the simulated Docker Engine, and operations on them; they are restored after a restart."""

from __future__ import annotations

import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from sparkwright.sandbox.docker.container import Container, SharedState, network_mode
from sparkwright.sandbox.docker.images import Images
from sparkwright.sandbox.http_server import HttpError

PORT_RELEASE_TIMEOUT_S = 2.0  # the ports of a killed daemon are released slightly later than its lock
CONTAINER_NAME_PATTERN = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+")
STATUSES = ("created", "restarting", "running", "removing", "paused", "exited", "dead")
LOG_DRIVERS = ("awslogs", "fluentd", "gcplogs", "gelf", "journald", "json-file", "local", "none", "splunk", "syslog")


class Containers:
    """The containers of a simulated Spark, saved in a file that survives the daemon."""

    def __init__(self, images: Images, shared: SharedState, file: Path) -> None:
        self._images = images
        self._shared = shared
        self._file = file
        shared.remove = lambda container: self.remove(container, force=True)
        self._mutex = threading.RLock()
        self.all: dict[str, Container] = {}

    def restore(self) -> None:
        """Load the saved containers and images, and restart the containers that have a restart policy, as after a reboot."""
        if not self._file.exists():
            return
        saved_state = json.loads(self._file.read_text())
        self._images.local.update(saved_state["images"])
        self._images.tags.update(saved_state["tags"])
        for fields in saved_state["containers"]:
            container = Container(fields["name"], fields["body"], fields["image"], self._images, self._shared)
            container.id, container.restart_policy = fields["id"], fields["policy"]
            container.status = "exited" if fields.get("started", True) else "created"
            container.stop_requested, container.has_fault = bool(fields.get("stopped")), bool(fields.get("sick"))
            container.created_s = float(fields.get("born_s") or container.created_s)
            self.all[container.id] = container
            self.restart_by_policy(container)

    @staticmethod
    def restart_by_policy(container: Container) -> None:
        """Restart a container after a reboot if its restart policy requires it."""
        policy = container.restart_policy
        if policy == "always" or (policy == "unless-stopped" and not container.stop_requested):
            _retry_start(container)

    def add_image(self, digest: str, tag: str) -> None:
        self._images.local[digest] = tag

    def save(self) -> None:
        """Save the containers and images."""
        with self._mutex:
            rows = [container.to_json() for container in self.all.values()]
            text = json.dumps({"containers": rows, "images": self._images.local, "tags": self._images.tags})
            temporary_file = self._file.with_suffix(".new")  # without fsync, because it is written often
            temporary_file.write_text(text)
            temporary_file.replace(self._file)

    def find(self, name_or_id: str) -> Container:
        """Return a container by its name, its id or the beginning of its id. Raises HttpError if there is none."""
        with self._mutex:
            for container in self.all.values():
                if container.name == name_or_id or container.id.startswith(name_or_id):
                    return container
        raise HttpError(404, f"No such container: {name_or_id}")

    def create(self, name: str, body: dict[str, Any]) -> Container:
        """Create a container. Raises HttpError for an invalid or taken name, or a missing image, log driver or mount."""
        name = name or f"sandbox_{secrets.token_hex(4)}"
        if not CONTAINER_NAME_PATTERN.fullmatch(name):
            raise HttpError(400, f"Invalid container name ({name}), only [a-zA-Z0-9][a-zA-Z0-9_.-] are allowed")
        body["HostConfig"] = body.get("HostConfig") or {}
        with self._mutex:
            self._check_name_free(name)
            image = self._images.find(body["Image"])
            if image is None:
                raise HttpError(404, f"No such image: {body['Image']}")
            sources = [mount["Source"] for mount in body["HostConfig"].get("Mounts") or ()]
            if missing_sources := [source for source in sources if not Path(source).exists()]:
                message = 'invalid mount config for type "bind": bind source path does not exist:'
                raise HttpError(400, f"{message} {missing_sources[0]}")
            _check_log_driver(body["HostConfig"])
            container = Container(name, body, image, self._images, self._shared)
            self.all[container.id] = container
        self.save()
        return container

    def rename(self, container: Container, name: str) -> None:
        """Rename a container. Raises HttpError if the name is taken."""
        with self._mutex:
            self._check_name_free(name)
            container.name, container.has_fault = name, False
        self.save()

    def _check_name_free(self, name: str) -> None:
        owner = next((container for container in self.all.values() if container.name == name), None)
        if owner is not None:
            message = f'Conflict. The container name "/{name}" is already in use by container "{owner.id}".'
            advice = "You have to remove (or rename) that container to be able to reuse that name."
            raise HttpError(409, f"{message} {advice}")

    def prune(self) -> list[str]:
        """Remove all stopped containers. Return their ids."""
        stopped_containers = [container for container in self.all.values() if not container.running]
        for container in stopped_containers:
            self.remove(container, force=False)
        return [container.id for container in stopped_containers]

    def remove(self, container: Container, *, force: bool) -> None:
        """Remove a container. Raises HttpError if it is running, unless `force` is set."""
        if container.running and not force:
            advice = "Stop the container before attempting removal"
            raise HttpError(409, f"You cannot remove a running container {container.id}. {advice}")
        if container.running:
            container.kill()
        with self._mutex:
            self.all.pop(container.id, None)
        self.save()


def _check_log_driver(host_config: dict[str, Any]) -> None:
    driver = (host_config.get("LogConfig") or {}).get("Type")
    if driver and driver not in LOG_DRIVERS:
        raise HttpError(400, f'error looking up logging plugin {driver}: plugin "{driver}" not found')


def _retry_start(container: Container) -> None:
    """Start a container, retrying because its port may still be taken. After a failure it stays stopped, as in Docker."""
    deadline_s = time.monotonic() + PORT_RELEASE_TIMEOUT_S
    while True:
        try:
            container.start()
            return
        except HttpError as error:
            if time.monotonic() > deadline_s:
                print(f"could not restart {container.name}: {error}", flush=True)
                return
            time.sleep(0.02)


def filter_containers(containers: Iterable[Container], images: Images, query: dict[str, str]) -> list[Container]:
    """Return the containers that match a query, newest first. Raises HttpError for an unknown filter."""
    filters = parse_filters(query.get("filters", ""))
    unknown_filter = next((name for name in filters if name not in FILTERS and name != "label"), None)
    if unknown_filter is not None:
        raise HttpError(400, f"invalid filter '{unknown_filter}'")
    include_stopped = is_true(query.get("all")) or "status" in filters or "exited" in filters
    matching_containers = [
        container
        for container in containers
        if (include_stopped or container.running) and _matches(container, images, filters)
    ]
    matching_containers.sort(key=lambda container: container.created_s, reverse=True)
    return matching_containers[: int(query["limit"])] if int(query.get("limit") or -1) > 0 else matching_containers


def parse_filters(text: str) -> dict[str, list[str]]:
    """Return filters as {"name": ["a"]}. Older clients send {"name": {"a": true}}. Raises HttpError for invalid JSON."""
    try:
        filters = json.loads(text) if text else {}
    except ValueError:
        raise HttpError(400, "invalid filter") from None
    return {name: [str(value) for value in values] for name, values in filters.items()}


def is_true(text: str | None) -> bool:
    """Return True if a query parameter is 1 or true."""
    return text in ("1", "true", "True")


def _matches(container: Container, images: Images, filters: dict[str, list[str]]) -> bool:
    if not all(_has_label(container, expected) for expected in filters.get("label", ())):
        return False
    conditions = ((FILTERS[name], values) for name, values in filters.items() if name != "label")
    return all(any(condition(container, images, expected) for expected in values) for condition, values in conditions)


def _has_label(container: Container, expected: str) -> bool:
    name, separator, value = expected.partition("=")
    labels = container.labels()
    return name in labels and (not separator or labels[name] == value)


def _has_status(container: Container, images: Images, expected: str) -> bool:
    if expected not in STATUSES:
        raise HttpError(400, f"invalid filter 'status={expected}'")
    return container.status == expected


def _has_ancestor(container: Container, images: Images, expected: str) -> bool:
    return expected == container.body["Image"] or container.image == images.find(expected)


FILTERS: dict[str, Callable[[Container, Images, str], bool]] = {
    "name": lambda container, images, expected: bool(
        re.search(expected, container.name) or re.search(expected, f"/{container.name}")
    ),
    "id": lambda container, images, expected: container.id.startswith(expected),
    "status": _has_status,
    "ancestor": _has_ancestor,
    "exited": lambda container, images, expected: container.status == "exited" and str(container.exit_code) == expected,
}


def container_row(container: Container, image_id: str) -> dict[str, Any]:
    """Return a container's entry in the API's list of containers."""
    return {
        "Id": container.id,
        "Names": [f"/{container.name}"],
        "Image": container.body["Image"],
        "ImageID": image_id,
        "Command": " ".join(container.argv()),
        "Created": int(container.created_s),
        "Ports": container.ports(),
        "Labels": container.labels(),
        "State": container.status,
        "Status": container.status.capitalize(),
        "HostConfig": {"NetworkMode": network_mode(container.body)},
        "Mounts": container.mounts(),
    }
