"""The Docker Engine API on a unix socket, as far as the docker SDK is used."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sparkwright.sandbox.containers import Container, Refused
from sparkwright.sandbox.images import image_id
from sparkwright.sandbox.web import Handler

if TYPE_CHECKING:
    from sparkwright.sandbox.daemon import Spark

API_VERSION = "1.43"


class DockerApi(Handler):
    """One request to the engine."""

    server_version = "Docker/24.0.9 (sandbox)"

    @property
    def spark(self) -> Spark:
        return self.server.owner  # type: ignore[attr-defined,no-any-return]

    def route(self) -> None:
        parts = self.parts[1:] if self.parts and self.parts[0].startswith("v1.") else self.parts
        try:
            self._route(parts)
        except Refused as refused:
            self.reply(refused.status, {"message": str(refused)})

    def _route(self, parts: list[str]) -> None:
        match self.command, parts:
            case _, ["_ping"]:
                self.reply(200, b"OK", {"Api-Version": API_VERSION, "Content-Type": "text/plain"})
            case "GET", ["version"]:
                about = {"Version": "24.0.9-sandbox", "ApiVersion": API_VERSION, "MinAPIVersion": "1.24"}
                self.reply(200, {**about, "Os": "linux", "Arch": "arm64"})
            case "GET", ["info"]:
                self.reply(
                    200, {"Name": "sandbox", "Driver": "overlay2", "DockerRootDir": "/var/lib/docker", "NCPU": 20}
                )
            case "GET", ["system", "df"]:
                self.reply(200, {"Images": [self.spark.images.inspect(one) for one in self.spark.images.local]})
            case "DELETE", ["images", *name]:
                self._remove_image("/".join(name))
            case "POST", ["images", "create"]:
                self._pull()
            case "GET", ["distribution", *name, "json"]:
                found = self.spark.images.distribution("/".join(name))
                self._or_unknown(found, "/".join(name))
            case "GET", ["images", "json"]:
                self.reply(200, [self.spark.images.inspect(digest) for digest in self.spark.images.local])
            case "GET", ["images", *name, "json"]:
                self._inspect_image("/".join(name))
            case "POST", ["images", *name, "tag"]:
                self._tag("/".join(name))
            case "GET", ["containers", "json"]:
                self._list()
            case "POST", ["containers", "create"]:
                one = self.spark.containers.create(self.query["name"], self.body())
                self.reply(201, {"Id": one.id, "Warnings": []})
            case _, ["containers", key, *verb]:
                self._container(self.spark.containers.find(key), verb[0] if verb else "")
            case _:
                raise Refused(404, f"page not found: {self.path}")

    # -- images --------------------------------------------------------------------------------------------------

    def _pull(self) -> None:
        tag = self.query.get("tag", "")
        reference = self.query["fromImage"] + ("@" if tag.startswith("sha256:") else ":" if tag else "") + tag
        if self.spark.images.resolve(reference) is None:
            self._or_unknown(None, reference)
            return
        self.stream(
            (json.dumps(line).encode() + b"\r\n" for line in self.spark.images.pull(reference)), "application/json"
        )
        self.spark.containers.save()

    def _or_unknown(self, found: Any, reference: str) -> None:
        if found is None:
            said = f"manifest for {reference} not found: manifest unknown: manifest unknown"
            raise Refused(404, said)
        self.reply(200, found)

    def _inspect_image(self, reference: str) -> None:
        digest = self.spark.images.find(reference)
        if digest is None:
            raise Refused(404, f"No such image: {reference}")
        self.reply(200, self.spark.images.inspect(digest))

    def _remove_image(self, reference: str) -> None:
        digest = self.spark.images.find(reference)
        if digest is None:
            raise Refused(404, f"No such image: {reference}")
        users = [one.name for one in self.spark.containers.all.values() if one.inspect()["Image"] == image_id(digest)]
        if users:
            raise Refused(409, f"conflict: unable to remove {reference}: container {users[0]} is using it")
        self.spark.images.remove(digest)
        self.spark.containers.save()
        self.reply(200, [{"Deleted": image_id(digest)}])

    def _tag(self, reference: str) -> None:
        digest = self.spark.images.find(reference)
        if digest is None:
            raise Refused(404, f"No such image: {reference}")
        self.spark.images.tags[f"{self.query['repo']}:{self.query.get('tag', 'latest')}"] = digest
        self.spark.containers.save()
        self.reply(201)

    # -- containers ----------------------------------------------------------------------------------------------

    def _list(self) -> None:
        everyone = self.query.get("all") in ("1", "true", "True")
        rows = [one for one in self.spark.containers.all.values() if everyone or one.running]
        self.reply(
            200,
            [
                {
                    "Id": one.id,
                    "Names": [f"/{one.name}"],
                    "Image": one.body["Image"],
                    "ImageID": one.inspect()["Image"],
                    "State": one.status,
                    "Ports": one.ports(),
                }
                for one in rows
            ],
        )

    def _container(self, one: Container, verb: str) -> None:
        match self.command, verb:
            case "GET", "json":
                self.reply(200, one.inspect())
            case "GET", "logs":
                self._logs(one)
            case "POST", "start":
                self._start(one)
            case "POST", "stop" | "kill":
                was_running = one.running
                one.stop()
                self.reply(204 if was_running or verb == "kill" else 304)
            case "POST", "rename":
                self.spark.containers.rename(one, self.query["name"])
                self.reply(204)
            case "POST", "update":
                one.policy = (self.body().get("RestartPolicy") or {}).get("Name") or one.policy
                self.spark.containers.save()
                self.reply(200, {"Warnings": None})
            case "POST", "wait":
                while one.running:
                    time.sleep(0.05)
                self.reply(200, {"StatusCode": one.exit_code})
            case "DELETE", "":
                self.spark.containers.remove(one, force=self.query.get("force") in ("1", "true", "True"))
                self.reply(204)
            case _:
                raise Refused(404, "page not found")

    def _start(self, one: Container) -> None:
        if one.running:
            self.reply(304)
            return
        one.start()
        self.reply(204)

    def _logs(self, one: Container) -> None:
        lines = list(one.logs)
        tail = self.query.get("tail", "all")
        since = float(self.query.get("since", 0) or 0)
        lines = [line for line in lines if line[0] >= since]
        if tail != "all":
            lines = lines[-int(tail) :] if int(tail) else []
        self.stream(_frames(line for _, line in lines), "application/vnd.docker.raw-stream")


def _frames(lines: Iterator[str]) -> Iterator[bytes]:
    """Docker's framing: stream number, length, bytes."""
    for line in lines:
        data = line.encode() + b"\n"
        yield struct.pack(">BxxxL", 1, len(data)) + data
