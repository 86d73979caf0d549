"""vLLM's versions, parsed by PEP 440: releases, NGC's local parts (0.29.0+nv26.09), nightlies (0.16.1rc1.dev42+g1234).

A comparison has three answers. A nightly between two releases may or may not hold what the next release brought: unknown.
"""

from __future__ import annotations

import re

from packaging.version import InvalidVersion, Version

#: a development version counts from the last tag that its builder's repository had: a clone without tags gives
#: 0.1.dev20073+g8e685d198, a fork with old ones 0.3.1.dev3+g1234. No build between releases older than this one is in use
TAGGED_SINCE = (0, 10)


#: the tag of a release in the project's own repository, with variants such as -ubuntu2404
OFFICIAL_IMAGE = re.compile(r"^(?:docker\.io/)?vllm/vllm-openai:v(?P<version>\d+\.\d+\.\d+)(?:-[\w.-]+)?$")


def parse_image_tag(image: str) -> Version | None:
    """Return the version in the tag of an official image; None for any other image."""
    match = OFFICIAL_IMAGE.match(image)
    return parse(match["version"]) if match else None


def parse(text: str | None) -> Version | None:
    """Return the version in a text; None if it holds none.

    A tag such as `nightly` holds none, and neither does a development version before TAGGED_SINCE: it may be of any release, and
    the image's own help and configuration decide.
    """
    try:
        version = Version(text) if text else None
    except InvalidVersion:
        return None
    return None if version and version.is_devrelease and version.release < TAGGED_SINCE else version


def at_least(version: Version | None, since: str) -> bool | None:
    """Return True if an engine of this version has what the release `since` brought; None if that is not known.

    A development version is counted from the tag before it: 0.16.1rc1.dev42 was made after 0.16.0 and before 0.17.0, so it surely
    has what 0.16.0 had and surely lacks what came after 0.17.
    """
    if version is None:
        return None
    threshold = Version(since)
    if not version.is_devrelease:
        return version.release >= threshold.release
    major, minor = version.release[:2]
    have = (major, minor) if version.micro else (major, minor - 1)
    if threshold.release[:2] <= have and not (version.micro and threshold.release > (major, minor, 0)):
        return True
    return None if threshold.release[:2] <= (have[0], have[1] + 1) else False


def within(version: Version | None, since: str = "", until: str = "") -> bool | None:
    """Return True if a version lies in [since, until); an empty bound is open. None if that is not known."""
    is_from = at_least(version, since) if since else True
    is_past = at_least(version, until) if until else False
    if is_from is False or is_past is True:
        return False
    return None if is_from is None or is_past is None else True
