"""Parses and builds image references, REPOSITORY[:TAG][@DIGEST]."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sparkwright.errors import Refused
from sparkwright.trust.names import DIGEST
from sparkwright.visible import one_line

DIGEST_SEPARATOR = "@"
DOCKER_HUB = "docker.io"

#: grammar of repositories and tags, from distribution/reference: HOST[:PORT]/PATH and a tag
_LABEL_PATTERN = r"[A-Za-z0-9](?:-*+[A-Za-z0-9])*+"
_HOST_PATTERN = rf"(?:{_LABEL_PATTERN}(?:\.{_LABEL_PATTERN})*|\[[0-9a-fA-F:]+\])(?::[0-9]{{1,5}})?"
_PART_PATTERN = r"[a-z0-9]++(?:(?:\.|__?|-++)[a-z0-9]++)*+"
REPOSITORY_PATTERN = re.compile(rf"(?<![A-Za-z0-9.-])(?:{_HOST_PATTERN}/)?{_PART_PATTERN}(?:/{_PART_PATTERN})*")
TAG_PATTERN = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
MAX_REPOSITORY_BYTES = 255


def with_digest(ref: str, digest: str) -> str:
    """Append a digest to a reference, unless the digest is empty."""
    return f"{ref}{DIGEST_SEPARATOR}{digest}" if digest else ref


def without_digest(ref: str) -> str:
    return ref.partition(DIGEST_SEPARATOR)[0]


def digest_of(ref: str) -> str:
    """Return the digest of a reference; empty if it is not pinned."""
    return ref.partition(DIGEST_SEPARATOR)[2]


@dataclass(frozen=True, slots=True)
class ImageReference:
    """A parsed image reference. An absent tag or digest is empty."""

    #: as the user wrote it, including the registry
    repository: str
    tag: str = ""
    digest: str = ""

    @classmethod
    def parse(cls, ref: str) -> ImageReference:
        name = without_digest(ref)
        head, _, tail = name.rpartition(":")
        return cls(head, tail, digest_of(ref)) if head and "/" not in tail else cls(name, "", digest_of(ref))

    @classmethod
    def parse_checked(cls, ref: str) -> ImageReference:
        """Parse an image reference from a user, recipe or lock. Raises Refused if it is invalid."""
        reason = check_image(ref)
        if reason:
            raise Refused(f"the image '{one_line(ref, max_chars=80)}' {reason}.")
        return cls.parse(ref)

    @property
    def registry(self) -> str:
        """Host and port of the registry; docker.io by default."""
        first, slash, _ = self.repository.partition("/")
        return first if slash and ("." in first or ":" in first or first == "localhost") else DOCKER_HUB

    @property
    def path(self) -> str:
        """Path of the repository in its registry."""
        bare = self.repository.removeprefix(f"{self.registry}/")
        return f"library/{bare}" if self.registry == DOCKER_HUB and "/" not in bare else bare

    @property
    def pull_reference(self) -> str:
        """Reference for pulls: REPOSITORY@DIGEST, or REPOSITORY:TAG without a digest."""
        return with_digest(self.repository, self.digest) if self.digest else self.by_tag

    @property
    def by_tag(self) -> str:
        """REPOSITORY:TAG, as in spark.lock."""
        return f"{self.repository}:{self.tag or 'latest'}"

    @property
    def verified_tag(self) -> str:
        """Local tag for an image whose digest has been verified. The tag itself proves nothing."""
        return f"{self.repository}:{self.digest.replace(':', '-')}"

    def at_mirror(self, mirror: str) -> ImageReference:
        """Return the reference of the same image on a mirror, HOST[:PORT][/PREFIX]."""
        return ImageReference(f"{mirror.rstrip('/')}/{self.path}", self.tag, self.digest)


def check_image(ref: str) -> str:
    """Return the reason why a string is not REPOSITORY[:TAG][@DIGEST]; empty if it is valid.

    A valid reference is safe in a URL's path and as a command's argument.
    """
    name, separator, digest = ref.partition(DIGEST_SEPARATOR)
    head, colon, tail = name.rpartition(":")
    repository, tag = (head, tail) if colon and "/" not in tail else (name, None)
    if len(repository) > MAX_REPOSITORY_BYTES:
        return "is too long"
    if not REPOSITORY_PATTERN.fullmatch(repository):
        return "is not REPOSITORY:TAG; a repository has lowercase letters, digits and . _ - /"
    if tag is not None and not TAG_PATTERN.fullmatch(tag):
        return "has an invalid tag: at most 128 letters, digits and _ . -"
    return "has a digest that is not sha256: and 64 hex digits" if separator and not DIGEST.fullmatch(digest) else ""
