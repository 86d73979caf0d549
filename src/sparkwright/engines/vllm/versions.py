"""vLLM's versions, parsed according to PEP 440: releases, NGC's local parts (0.29.0+nv26.09), nightlies (0.16.1rc1.dev42+g1234).

Comparisons return True, False, or None if unknown: a nightly may or may not have the changes of the next release.
"""

from __future__ import annotations

import re

from packaging.version import InvalidVersion, Version

#: development versions below this are ignored: a build from a clone without tags is called 0.1.dev20073+g8e685d198, from a fork
#: with old tags 0.3.1.dev3+g1234. Real nightlies that old are not in use
FIRST_TAGGED_RELEASE = (0, 10)

#: an official image with a release tag, optionally a variant such as -ubuntu2404
OFFICIAL_IMAGE_PATTERN = re.compile(r"^(?:docker\.io/)?vllm/vllm-openai:v(?P<version>\d+\.\d+\.\d+)(?:-[\w.-]+)?$")


def parse_image_tag(image: str) -> Version | None:
    """Return the version in the tag of an official image; None for other images."""
    match = OFFICIAL_IMAGE_PATTERN.match(image)
    return parse(match["version"]) if match else None


def parse(text: str | None) -> Version | None:
    """Return the version in a string; None for other strings, such as `nightly`, and for development versions before FIRST_TAGGED_RELEASE."""
    try:
        version = Version(text) if text else None
    except InvalidVersion:
        return None
    return None if version and version.is_devrelease and version.release < FIRST_TAGGED_RELEASE else version


def at_least(version: Version | None, since: str) -> bool | None:
    """Return True if a version has the changes of the release `since`; None if unknown.

    A development version is named after the last tag: 0.16.1rc1.dev42 was built between 0.16.0 and 0.17.0. It has the changes of
    0.16.0, may have those of 0.17.0, and lacks those of later releases.
    """
    if version is None:
        return None
    threshold = Version(since)
    if not version.is_devrelease:
        return version.release >= threshold.release
    major, minor = version.release[:2]
    included = (major, minor) if version.micro else (major, minor - 1)
    if threshold.release[:2] <= included and not (version.micro and threshold.release > (major, minor, 0)):
        return True
    return None if threshold.release[:2] <= (included[0], included[1] + 1) else False


def within(version: Version | None, since: str = "", until: str = "") -> bool | None:
    """Return True if a version is in [since, until), None if unknown. An empty bound is open."""
    has_begun = at_least(version, since) if since else True
    has_ended = at_least(version, until) if until else False
    if has_begun is False or has_ended is True:
        return False
    return None if has_begun is None or has_ended is None else True
