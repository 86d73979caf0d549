"""Images of a test: pushed to its registry, locked, pulled, and archived."""

import io
import json
import tarfile
from dataclasses import dataclass
from typing import Any

from sparkwright.modules.image.docker_image import DockerImage
from sparkwright.modules.spark_lock import LockImage
from sparkwright.protocol.result import Result
from tests.modules.context import RecordingContext
from tests.registry.server import Registry


@dataclass(frozen=True)
class Images:
    """A repository that only this test uses, and the host that locks and pulls its images."""

    registry: Registry
    repository: str
    context: RecordingContext

    @property
    def name(self) -> str:
        return f"{self.registry.address}/{self.repository}"

    def push(self, tag: str = "v1", **image: Any) -> str:
        """Push an image. Return its digest."""
        return self.registry.push(self.repository, tag, **image)

    def push_and_lock(self, tag: str = "v1", address: str = "", **image: Any) -> tuple[str, dict[str, Any]]:
        """Push an image. Return its reference and its entry in spark.lock. address: of a proxy of the registry."""
        self.push(tag, **image)
        ref = f"{address or self.registry.address}/{self.repository}:{tag}"
        return ref, self.lock(ref)

    def lock(self, ref: str) -> dict[str, Any]:
        return LockImage().run(LockImage.Args(ref), self.context).data

    def pull(self, ref: str, entry: dict[str, Any], **arguments: Any) -> Result:
        args = DockerImage.Args(f"{ref}@{entry['digest']}", manifests=entry["manifests"], **arguments)
        return DockerImage().run(args, self.context)

    def delete(self, digest: str) -> None:
        self.registry.delete(self.repository, digest)

    def check_context(self) -> RecordingContext:
        """Return a context of the same host in which modules change nothing."""
        return RecordingContext(self.context.machine.home, architecture="x86_64", check=True)


def save_archive(engine: Any, image: str, tags: list[str]) -> bytes:
    """Return an image's archive as `docker save` writes it, with these tags."""
    saved = io.BytesIO(b"".join(engine.get_image(image)))
    out = io.BytesIO()
    with tarfile.open(fileobj=saved) as read, tarfile.open(fileobj=out, mode="w") as rewritten:
        for member in read.getmembers():
            data = read.extractfile(member).read() if member.isfile() else b""  # type: ignore[union-attr]
            if member.name == "repositories":
                continue
            if member.name == "manifest.json":
                data = json.dumps([{**row, "RepoTags": tags} for row in json.loads(data)]).encode()
                member.size = len(data)
            rewritten.addfile(member, io.BytesIO(data) if member.isfile() else None)
    return out.getvalue()


def load_archive(engine: Any, data: bytes) -> None:
    list(engine.load_image(io.BytesIO(data)))
