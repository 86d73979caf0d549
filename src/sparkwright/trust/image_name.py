"""Parsing and building of image references, REPOSITORY[:TAG][@DIGEST]."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sparkwright.errors import Refused
from sparkwright.trust.names import DIGEST
from sparkwright.visible import one_line

DIGEST_SEPARATOR = "@"
DOCKER_HUB = "docker.io"

#: an image's repository and tag as in distribution/reference: HOST[:PORT]/path/of/it, tag
_LABEL = r"[A-Za-z0-9](?:-*+[A-Za-z0-9])*+"
_HOST = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]{{1,5}})?"
_PART = r"[a-z0-9]++(?:(?:\.|__?|-++)[a-z0-9]++)*+"
REPOSITORY = re.compile(rf"(?<![A-Za-z0-9.-])(?:{_HOST}/)?{_PART}(?:/{_PART})*")
TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
MAX_REPOSITORY_BYTES = 255


def with_digest(ref: str, digest: str) -> str:
    """Return a reference with a digest added; unchanged if the digest is empty."""
    return f"{ref}{DIGEST_SEPARATOR}{digest}" if digest else ref


def without_digest(ref: str) -> str:
    """Return a reference without its digest."""
    return ref.partition(DIGEST_SEPARATOR)[0]


def digest_of(ref: str) -> str:
    """Return the digest of a reference; empty if it is not pinned."""
    return ref.partition(DIGEST_SEPARATOR)[2]


@dataclass(frozen=True, slots=True)
class ImageReference:
    """The parts of an image reference."""

    #: repository as the user wrote it, including the registry
    repository: str
    #: tag; empty if absent
    tag: str = ""
    #: digest; empty if absent
    digest: str = ""

    @classmethod
    def parse(cls, ref: str) -> ImageReference:
        """Parse repository[:tag][@digest]."""
        name = without_digest(ref)
        head, _, tail = name.rpartition(":")
        return cls(head, tail, digest_of(ref)) if head and "/" not in tail else cls(name, "", digest_of(ref))

    @classmethod
    def parse_checked(cls, ref: str) -> ImageReference:
        """Parse the image reference of a user, a recipe or a lock. Raises Refused if it is not one."""
        reason = check_image(ref)
        if reason:
            raise Refused(f"the image '{one_line(ref, max_chars=80)}' {reason}.")
        return cls.parse(ref)

    @property
    def registry(self) -> str:
        """The registry's host and port; docker.io by default."""
        first, slash, _ = self.repository.partition("/")
        return first if slash and ("." in first or ":" in first or first == "localhost") else DOCKER_HUB

    @property
    def path(self) -> str:
        """The repository inside its registry."""
        bare = self.repository.removeprefix(f"{self.registry}/")
        return f"library/{bare}" if self.registry == DOCKER_HUB and "/" not in bare else bare

    @property
    def pull_reference(self) -> str:
        """The reference for a registry or engine: by digest if there is one, in which case the tag is informational."""
        return with_digest(self.repository, self.digest) if self.digest else self.by_tag

    @property
    def by_tag(self) -> str:
        """REPOSITORY:TAG, as in spark.lock."""
        return f"{self.repository}:{self.tag or 'latest'}"

    @property
    def verified_tag(self) -> str:
        """The tag for an image that was verified to have this digest. The tag itself proves nothing."""
        return f"{self.repository}:{self.digest.replace(':', '-')}"

    def at_mirror(self, mirror: str) -> ImageReference:
        """Return the same image at a mirror, HOST[:PORT][/PREFIX]."""
        return ImageReference(f"{mirror.rstrip('/')}/{self.path}", self.tag, self.digest)


def check_image(ref: str) -> str:
    """Return the reason why a text is not REPOSITORY[:TAG][@DIGEST]; empty if it is.

    A valid reference is safe in a URL's path and as a single argument.
    """
    name, at, digest = ref.partition(DIGEST_SEPARATOR)
    head, colon, tail = name.rpartition(":")
    repository, tag = (head, tail) if colon and "/" not in tail else (name, None)
    if len(repository) > MAX_REPOSITORY_BYTES:
        return "is too long"
    if not REPOSITORY.fullmatch(repository):
        return "is not REPOSITORY:TAG; a repository has small letters, digits and . _ - /"
    if tag is not None and not TAG.fullmatch(tag):
        return "has a tag that is not valid: letters, digits and _ . -, at most 128"
    return "has a digest that is not sha256: and 64 hex digits" if at and not DIGEST.fullmatch(digest) else ""
