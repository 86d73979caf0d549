"""The names of an image: where it comes from, what it is called on a host, and how a host knows it by its digest.

An engine forgets the registry's digest of an image that came by `docker load`, and knows the one of a mirror under the
mirror's name only. So an image that was proved to be a digest is tagged REPOSITORY:sha256-HEX: the engine keeps that name,
`docker save` carries it, and a person can read it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

DOCKER_HUB = "docker.io"


@dataclass(frozen=True, slots=True)
class Name:
    """An image reference in its parts. repository: as the user wrote it, with its registry. tag, digest: empty if absent."""

    repository: str
    tag: str = ""
    digest: str = ""

    @classmethod
    def parse(cls, ref: str) -> Name:
        """Of repository[:tag][@digest]."""
        name, _, digest = ref.partition("@")
        head, _, tail = name.rpartition(":")
        return cls(head, tail, digest) if head and "/" not in tail else cls(name, "", digest)

    @property
    def registry(self) -> str:
        """The registry's host and port; docker.io where none is written."""
        first, slash, _ = self.repository.partition("/")
        return first if slash and ("." in first or ":" in first or first == "localhost") else DOCKER_HUB

    @property
    def path(self) -> str:
        """The repository inside its registry."""
        bare = self.repository.removeprefix(f"{self.registry}/")
        return f"library/{bare}" if self.registry == DOCKER_HUB and "/" not in bare else bare

    @property
    def asked(self) -> str:
        """What a registry or an engine is asked for: by digest where there is one; a tag beside it is only for people."""
        return f"{self.repository}@{self.digest}" if self.digest else f"{self.repository}:{self.tag or 'latest'}"

    @property
    def proved(self) -> str:
        """The tag of an image that was proved to be this digest."""
        return f"{self.repository}:{self.digest.replace(':', '-')}"

    def at(self, mirror: str) -> Name:
        """The same image at a mirror, as HOST[:PORT][/PREFIX]."""
        return Name(f"{mirror.rstrip('/')}/{self.path}", self.tag, self.digest)


def known_as(api: Any, ref: str) -> str:
    """The name under which this engine knows an image; empty when it is not there. Asks no registry.

    As it is written, where the engine takes that, so that a person finds the same in `docker inspect`; else by digest: the
    repository's own, the tag of a proved one, or another repository's (a mirror's) of the same digest.
    """
    from docker.errors import ImageNotFound

    name = Name.parse(ref)
    for one in (ref, name.asked, name.proved) if name.digest else (name.asked,):
        try:
            api.inspect_image(one)
        except ImageNotFound:
            continue
        return one
    if not name.digest:
        return ""
    everyone = (one for image in api.images() for one in image.get("RepoDigests") or ())
    return next((one for one in everyone if one.endswith(f"@{name.digest}")), "")


def digests_of(image: Mapping[str, Any]) -> list[str]:
    """The registry digests of a local image, of its inspect: what the engine remembers, then what was proved."""
    remembered = [ref.partition("@")[2] for ref in image.get("RepoDigests") or ()]
    found = (re.search(r":sha256-([0-9a-f]{64})$", tag) for tag in image.get("RepoTags") or ())
    return list(dict.fromkeys([*remembered, *(f"sha256:{one[1]}" for one in found if one)]))


def name_by_digest(api: Any, image: str, name: Name) -> None:
    """Tag an image that was proved to be this digest, so that the engine keeps knowing it. image: Id or reference."""
    repository, _, tag = name.proved.rpartition(":")
    api.tag(image, repository, tag, force=True)
    if name.tag:
        api.tag(image, name.repository, name.tag, force=True)


def with_content(api: Any, contents: Iterable[str]) -> str:
    """The Id of a local image that is one of these contents; empty when none is.

    contents: the digests of its config, its manifest and its index: overlay2 names an image by the first, containerd's
    store by one of the others. Each is a hash over all that is in the image, so an equal Id is a proof.
    """
    from docker.errors import ImageNotFound

    for digest in contents:
        try:
            return str(api.inspect_image(digest)["Id"])
        except ImageNotFound:
            continue
    return ""
