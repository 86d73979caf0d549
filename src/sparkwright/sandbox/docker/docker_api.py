"""The part of the Docker Engine API that the Docker SDK and `docker run` use, on a unix socket."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sparkwright.sandbox.docker.container import DEFAULT_STOP_TIMEOUT_S, NETWORKS, STDERR, STDOUT, Container
from sparkwright.sandbox.docker.containers import Containers, container_row, filter_containers, is_true, parse_filters
from sparkwright.sandbox.docker.images import Images, image_id
from sparkwright.sandbox.http_server import Handler, HttpError

#: end of the error message for an unsupported request
SUPPORTED_COMMANDS = (
    "it supports ps, images, pull, create, run, start, stop, restart, kill, rename, update, wait, top, logs, inspect "
    "and rm"
)
UPGRADE_RESPONSE = (
    b"HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.multiplexed-stream\r\n"
    b"Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
)
API_VERSION = "1.43"
LOG_POLL_S = 0.05
COMM_CHARS = 15  # the kernel truncates process names to this length


@dataclass(frozen=True)
class DockerEngine:
    """The images and containers that the simulated Docker API serves."""

    images: Images
    containers: Containers


class DockerApi(Handler):
    """Handler of requests to the Docker Engine API."""

    server_version = "Docker/24.0.9 (sandbox)"

    @property
    def docker(self) -> DockerEngine:
        return self.server.owner  # type: ignore[attr-defined,no-any-return]

    def route(self) -> None:
        parts = self.parts[1:] if self.parts and self.parts[0].startswith("v1.") else self.parts
        try:
            self._route(parts)
        except HttpError as error:
            self.reply(error.status, {"message": str(error)})

    def _route(self, parts: list[str]) -> None:
        match self.command, parts:
            case _, ["_ping"]:
                self.reply(200, b"OK", {"Api-Version": API_VERSION, "Content-Type": "text/plain"})
            case "GET", ["version"]:
                engine = {"Version": "24.0.9-sandbox", "ApiVersion": API_VERSION, "MinAPIVersion": "1.24"}
                self.reply(200, {**engine, "Os": "linux", "Arch": "arm64"})
            case "GET", ["info"]:
                engine = {"Name": "sandbox", "Driver": "overlay2", "DockerRootDir": "/var/lib/docker"}
                self.reply(200, {**engine, "NCPU": 20})
            case "GET", ["networks"]:
                self.reply(200, [{"Name": name, "Id": name, "Driver": name} for name in NETWORKS])
            case "POST", ["images", "create"]:
                self._pull()
            case "GET", ["distribution", *name, "json"]:
                self.reply(200, self._require_found(self.docker.images.distribution("/".join(name)), "/".join(name)))
            case "GET", ["images", "json"]:
                self._list_images()
            case "POST", ["images", "prune"]:
                self._prune_images()
            case "GET", ["images", *name, "json"]:
                self.reply(200, self.docker.images.inspect(self._find_digest("/".join(name))))
            case "GET", ["images", *name, "get"]:
                self.stream(self.docker.images.save_archive(self._find_digest("/".join(name))), "application/x-tar")
            case "POST", ["images", "load"]:
                self._stream_progress(self.docker.images.load(self.raw_body))
            case "GET", ["events"]:
                self.stream(iter(()), "application/json")
            case "POST", ["images", *name, "tag"]:
                self._tag("/".join(name))
            case "DELETE", ["images", *name]:
                self._delete_image("/".join(name))
            case "GET", ["containers", "json"]:
                self._list_containers()
            case "POST", ["containers", "prune"]:
                self.reply(200, {"ContainersDeleted": self.docker.containers.prune(), "SpaceReclaimed": 0})
            case "POST", ["containers", "create"]:
                container = self.docker.containers.create(self.query.get("name", ""), self.body())
                self.reply(201, {"Id": container.id, "Warnings": []})
            case _, ["containers", key, *actions]:
                self._route_container(self.docker.containers.find(key), actions[0] if actions else "")
            case _:
                raise HttpError(
                    404, f"page not found: the sandbox has no {self.command} {self.path}; {SUPPORTED_COMMANDS}"
                )

    def _stream_progress(self, lines: Iterable[dict[str, Any]]) -> None:
        self.stream((json.dumps(line).encode() + b"\r\n" for line in lines), "application/json")
        self.docker.containers.save()

    def _pull(self) -> None:
        tag = self.query.get("tag", "")
        reference = self.query["fromImage"] + ("@" if tag.startswith("sha256:") else ":" if tag else "") + tag
        self._require_found(self.docker.images.resolve(reference), reference)
        self._stream_progress(self.docker.images.pull(reference))

    @staticmethod
    def _require_found(manifest: Any, reference: str) -> Any:
        if manifest is None:
            raise HttpError(404, f"manifest for {reference} not found: manifest unknown: manifest unknown")
        return manifest

    def _find_digest(self, reference: str) -> str:
        """Return the digest of an image on the host. Raises HttpError if there is none."""
        digest = self.docker.images.find(reference)
        if digest is None:
            raise HttpError(404, f"No such image: {reference}")
        return digest

    def _tag(self, reference: str) -> None:
        digest = self._find_digest(reference)
        self.docker.images.tags[f"{self.query['repo']}:{self.query.get('tag', 'latest')}"] = digest
        self.docker.containers.save()
        self.reply(201)

    def _list_images(self) -> None:
        filters = parse_filters(self.query.get("filters", ""))
        selected_digests = [self.docker.images.find(reference) for reference in filters.get("reference", ())]
        images = [
            self.docker.images.inspect(digest)
            for digest in self.docker.images.local
            if not filters.get("reference") or digest in selected_digests
        ]
        self.reply(
            200, [{**image, "Created": int(datetime.fromisoformat(image["Created"]).timestamp())} for image in images]
        )

    def _delete_image(self, reference: str) -> None:
        images, force, digest = self.docker.images, is_true(self.query.get("force")), self._find_digest(reference)
        tags = [tag for tag, target in images.tags.items() if target == digest]
        if reference in tags and len(tags) > 1:
            self.reply(200, images.untag(reference))
            return
        for container in self.docker.containers.all.values():
            if container.image == digest and (container.running or not force):
                verb, state = ("cannot", "running") if container.running else ("must", "stopped")
                message = f"conflict: unable to delete {short_image_id(digest)} ({verb} be forced)"
                raise HttpError(409, f"{message} - image is being used by {state} container {container.id[:12]}")
        self.reply(200, images.delete(digest))
        self.docker.containers.save()

    def _prune_images(self) -> None:
        """Remove unused images if dangling=false. Otherwise remove nothing, as no image in the sandbox is dangling."""
        filters = parse_filters(self.query.get("filters", ""))
        include_named = filters.get("dangling", ["true"])[0] in ("false", "0")
        used_digests = {container.image for container in self.docker.containers.all.values()}
        unused_digests = (
            [digest for digest in self.docker.images.local if digest not in used_digests] if include_named else []
        )
        freed_bytes = sum(self.docker.images.inspect(digest)["Size"] for digest in unused_digests)
        removed_rows = [row for digest in unused_digests for row in self.docker.images.delete(digest)]
        self.docker.containers.save()
        self.reply(200, {"ImagesDeleted": removed_rows or None, "SpaceReclaimed": freed_bytes})

    def _list_containers(self) -> None:
        rows = filter_containers(list(self.docker.containers.all.values()), self.docker.images, self.query)
        self.reply(200, [container_row(container, image_id(container.image)) for container in rows])

    def _route_container(self, container: Container, action: str) -> None:
        match self.command, action:
            case "GET", "json":
                self.reply(200, container.inspect())
            case "GET", "logs":
                self.stream(log_frames(container, self.query), "application/vnd.docker.multiplexed-stream")
            case "GET", "top":
                self._top(container)
            case "POST", "start":
                self._start(container)
            case "POST", "stop":
                was_running = container.running
                if was_running:
                    container.stop(self._stop_timeout_s())
                self.docker.containers.save()
                self.reply(204 if was_running else 304)
            case "POST", "restart":
                if container.running:
                    container.stop(self._stop_timeout_s())
                container.start()
                self.reply(204)
            case "POST", "kill":
                self._kill(container)
            case "POST", "rename":
                self.docker.containers.rename(container, self.query["name"])
                self.reply(204)
            case "POST", "update":
                container.restart_policy = (self.body().get("RestartPolicy") or {}).get(
                    "Name"
                ) or container.restart_policy
                self.docker.containers.save()
                self.reply(200, {"Warnings": None})
            case "POST", "wait":
                self._wait(container)
            case "POST", "attach":
                self._attach(container)
            case "DELETE", "":
                self.docker.containers.remove(container, force=is_true(self.query.get("force")))
                self.reply(204)
            case _, ("exec" | "archive" | "export" | "stats" | "pause" | "resize") as unsupported:
                raise HttpError(
                    501, f"the sandbox runs no real container, so it has no `{unsupported}`; {SUPPORTED_COMMANDS}"
                )
            case _:
                raise HttpError(404, "page not found")

    def _stop_timeout_s(self) -> float:
        """Return the requested time between SIGTERM and SIGKILL, in seconds."""
        return float(self.query.get("t") or DEFAULT_STOP_TIMEOUT_S)

    def _start(self, container: Container) -> None:
        if container.running:
            self.reply(304)
            return
        container.start()
        self.docker.containers.save()
        self.reply(204)

    def _top(self, container: Container) -> None:
        if not container.running:
            raise HttpError(409, f"container {container.id} is not running")
        rows = [[str(pid), name[:COMM_CHARS]] for pid, name in container.processes]
        self.reply(200, {"Titles": ["PID", "COMMAND"], "Processes": rows})

    def _kill(self, container: Container) -> None:
        if not container.running:
            raise HttpError(409, f"cannot kill container: {container.name}: container {container.id} is not running")
        container.kill(self.query.get("signal") or "SIGKILL")
        self.reply(204)

    def _wait(self, container: Container) -> None:
        """Send the exit code once the container has stopped, has run again (next-exit) or has been removed (removed).

        The response headers are sent immediately: `docker run` starts the container after it has received them.
        """
        condition = self.query.get("condition") or "not-running"
        self.stream(self._wait_for_exit_code(container, condition), "application/json")

    def _attach(self, container: Container) -> None:
        """Upgrade the connection, and send the output of the current run or, if the container is stopped, of the next one."""
        self.close_connection = True
        self.wfile.write(UPGRADE_RESPONSE)
        previous_end, query = container.finished_at, {**self.query, "follow": "1", "since": str(time.time())}
        while (
            not container.running
            and container.finished_at == previous_end
            and container.id in self.docker.containers.all
        ):
            time.sleep(0.02)
        for frame in log_frames(container, query):
            self.wfile.write(frame)

    def _wait_for_exit_code(self, container: Container, condition: str) -> Iterator[bytes]:
        previous_end = container.finished_at
        while (
            container.running
            or (condition == "next-exit" and container.finished_at == previous_end)
            or (condition == "removed" and container.id in self.docker.containers.all)
        ):
            time.sleep(0.02)
        yield json.dumps({"StatusCode": container.exit_code}).encode()


def short_image_id(digest: str) -> str:
    """Return the first 12 hex digits of an image's id."""
    return image_id(digest).removeprefix("sha256:")[:12]


def log_frames(container: Container, query: dict[str, str]) -> Iterator[bytes]:
    """Yield the requested log lines as frames; if follow=1, until the container exits. Raises HttpError."""
    streams = {number for name, number in (("stdout", STDOUT), ("stderr", STDERR)) if is_true(query.get(name))}
    if not streams:
        raise HttpError(400, "Bad parameters: you must choose at least one stream")
    return _encode_frames(_log_lines(container, query, streams), timestamps=is_true(query.get("timestamps")))


def _log_lines(container: Container, query: dict[str, str], streams: set[int]) -> Iterator[tuple[float, str, int]]:
    since_s, until_s = float(query.get("since") or 0), float(query.get("until") or 0)

    def select_lines(start: int, end: int) -> list[tuple[float, str, int]]:
        rows = container.logs[start:end]
        return [row for row in rows if row[0] >= since_s and (not until_s or row[0] <= until_s) and row[2] in streams]

    line_count, tail = len(container.logs), query.get("tail", "all")
    rows = select_lines(0, line_count)
    yield from rows if not tail.isdigit() else rows[len(rows) - min(int(tail), len(rows)) :]
    has_ended = False
    while is_true(query.get("follow")) and not has_ended and (not until_s or time.time() < until_s):
        has_ended = not container.running  # read before the lines, so that the last ones are not missed
        # read once for both uses, because the program may add lines at any time
        start, line_count = line_count, len(container.logs)
        yield from select_lines(start, line_count)
        time.sleep(0 if has_ended else LOG_POLL_S)


def _encode_frames(rows: Iterator[tuple[float, str, int]], *, timestamps: bool) -> Iterator[bytes]:
    """Yield each line as a frame: stream number, length, text."""
    for time_s, line, stream in rows:
        stamp = datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z ") if timestamps else ""
        data = (stamp + line).encode() + b"\n"
        yield struct.pack(">BxxxL", stream, len(data)) + data
