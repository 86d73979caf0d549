"""The images of the simulated registry, and those on the simulated host."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from sparkwright.sandbox.docker.programs import OF_TAG, REPOSITORIES, Repository

LAYERS = (3_400_000_000, 2_900_000_000, 1_800_000_000, 900_000_000, 120_000_000, 31_000_000)
PULL_S = 2.0
_NAMED = "image.json"


def digest_of(tag: str, *, moved: bool = False) -> str:
    """Return the digest that a tag has in the registry."""
    return "sha256:" + hashlib.sha256(f"sandbox {tag} {'moved' if moved else ''}".encode()).hexdigest()


class Images:
    """The images of the simulated host and their registry.

    Args:
        fault: returns the name of the active fault.
        instant: pull without delay.
    """

    def __init__(self, fault: Callable[[], str], *, instant: bool) -> None:
        self._fault = fault
        self._instant = instant
        self._mutex = threading.Lock()
        self.local: dict[str, str] = {}  # digest -> tag
        self.tags: dict[str, str] = {}  # "repository:tag" -> digest

    def resolve(self, reference: str) -> tuple[str, str] | None:
        """Return (tag, digest) of a registry reference, or None if the registry does not have it."""
        name, _, digest = reference.partition("@")
        repository, _, tag = name.rpartition(":") if ":" in name.rsplit("/", 1)[-1] else (name, "", "")
        repository = repository.removeprefix("docker.io/")
        if repository not in REPOSITORIES:
            return None
        tags = REPOSITORIES[repository].tags
        if digest:
            known = {digest_of(tag, moved=moved): tag for tag in tags for moved in (False, True)}
            return (known[digest], digest) if digest in known else None
        if (tag or "latest") not in tags:
            return None
        return tag or "latest", digest_of(tag or "latest", moved=self._fault() == "moved-tag")

    def distribution(self, reference: str) -> dict[str, Any] | None:
        """Return the registry's distribution information of a reference, or None if it is unknown."""
        found = self.resolve(reference)
        if found is None:
            return None
        architectures = ["amd64"] if self._fault() == "wrong-arch" else ["amd64", "arm64"]
        kind = "application/vnd.oci.image.index.v1+json"
        return {
            "Descriptor": {"mediaType": kind, "digest": found[1], "size": 1609},
            "Platforms": [{"architecture": architecture, "os": "linux"} for architecture in architectures],
        }

    def pull(self, reference: str) -> Iterator[dict[str, Any]]:
        """Yield the progress of a pull. The image is on the host after the last line."""
        found = self.resolve(reference)
        assert found is not None
        tag, digest = found
        yield {"status": f"Pulling from {OF_TAG[tag]}", "id": digest}
        if digest not in self.local:
            ids = [hashlib.sha256(f"{digest}{n}".encode()).hexdigest()[:12] for n in range(len(LAYERS))]
            steps = 1 if self._instant else 20
            for step in range(1, steps + 1):
                for name, size in zip(ids, LAYERS, strict=True):
                    detail = {"current": size * step // steps, "total": size}
                    yield {"status": "Downloading", "progressDetail": detail, "id": name}
                if self._fault() == "no-space":
                    yield _error(f"failed to register layer: write /usr/lib/{ids[0]}: no space left on device")
                    return
                time.sleep(0 if self._instant else PULL_S / steps)
            for name in ids:
                yield {"status": "Pull complete", "progressDetail": {}, "id": name}
        with self._mutex:
            self.local[digest] = tag
            if "@" not in reference:
                self.tags[_tagged(reference)] = digest
        yield {"status": f"Digest: {digest}"}
        yield {"status": f"Status: Downloaded newer image for {reference}"}

    def saved(self, digest: str) -> Iterator[bytes]:
        """Yield the archive of a local image: a tar that names the image but holds no layers."""
        data, info, out = (
            json.dumps({"digest": digest, "tag": self.local[digest]}).encode(),
            tarfile.TarInfo(_NAMED),
            io.BytesIO(),
        )
        info.size = len(data)
        with tarfile.open(fileobj=out, mode="w") as archive:
            archive.addfile(info, io.BytesIO(data))
        yield out.getvalue()

    def load(self, archive: bytes) -> Iterator[dict[str, Any]]:
        """Yield the progress of a load. The image is on the host after the last line."""
        try:
            with tarfile.open(fileobj=io.BytesIO(archive)) as read:
                found = json.load(read.extractfile(_NAMED) or io.BytesIO())
            tag, digest = str(found["tag"]), str(found["digest"])
            OF_TAG[tag]
        except (ValueError, LookupError, TypeError, tarfile.TarError):
            yield _error("invalid tar header")
            return
        if self._fault() == "no-space":
            yield _error("write /var/lib/docker/tmp: no space left on device")
            return
        with self._mutex:
            self.local[digest] = tag
        yield {"stream": f"Loaded image ID: {image_id(digest)}\n"}

    def find(self, reference: str) -> str | None:
        """Return the digest of a local image by repository@digest, repository:tag or id."""
        with self._mutex:
            for digest in self.local:
                if reference.endswith(f"@{digest}") or reference in (digest, image_id(digest)):
                    return digest
            return self.tags.get(_tagged(reference)) if "@" not in reference else None

    def untag(self, name: str) -> list[dict[str, str]]:
        """Remove one name of an image."""
        with self._mutex:
            self.tags.pop(name)
        return [{"Untagged": name}]

    def delete(self, digest: str) -> list[dict[str, str]]:
        """Remove an image with all its names."""
        names = [name for name, target in self.tags.items() if target == digest]
        rows = [row for name in names for row in self.untag(name)]
        with self._mutex:
            tag = self.local.pop(digest)
        return [*rows, {"Untagged": f"{OF_TAG[tag]}@{digest}"}, {"Deleted": image_id(digest)}]

    def repository(self, digest: str) -> Repository:
        """Return the repository of a local image."""
        return REPOSITORIES[OF_TAG[self.local[digest]]]

    def inspect(self, digest: str) -> dict[str, Any]:
        """Return a local image as `docker image inspect` shows it."""
        tag = self.local[digest]
        named = [name for name, target in self.tags.items() if target == digest]
        return {
            "Id": image_id(digest),
            "RepoTags": named,
            "RepoDigests": [f"{OF_TAG[tag]}@{digest}"],
            "Created": "2026-04-22T03:11:09Z",
            "Architecture": "arm64",
            "Os": "linux",
            "Size": sum(LAYERS) * 2,
            "Config": REPOSITORIES[OF_TAG[tag]].config(tag),
        }


def image_id(digest: str) -> str:
    """Return an id that differs from the digest, as in the overlay2 store."""
    return "sha256:" + hashlib.sha256(digest.encode()).hexdigest()


def _tagged(reference: str) -> str:
    """Return a name with its tag, as an engine stores it."""
    name = reference.removeprefix("docker.io/")
    return name if ":" in name.rsplit("/", 1)[-1] else f"{name}:latest"


def _error(message: str) -> dict[str, Any]:
    return {"errorDetail": {"message": message}, "error": message}
