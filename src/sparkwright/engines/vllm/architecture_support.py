"""The releases of vLLM that can load a model architecture, according to the model registries of 0.10.2 to 0.33.0.

Source: the registries in releases.json, from each release's wheel; Qwen3.5 was added in 0.17.0 (merged 2026-02-09, not in 0.16.0).
An architecture may also have been added or removed in a release that the tables skip.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from packaging.version import Version

from sparkwright.engines.vllm import releases
from sparkwright.engines.vllm.releases import ReleaseRun
from sparkwright.engines.vllm.versions import parse

RELEASES = releases.release_names()
#: newest release in the tables
NEWEST_RELEASE = RELEASES[-1]
#: first releases with these architectures, which the tables skip
FIRST_RELEASES = dict.fromkeys(("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"), "0.17.0")
#: recurrent architectures that none of the registries contains
UNSUPPORTED_ARCHITECTURES = (
    *("BailingMoeLinearV2ForCausalLM", "RecurrentGemmaForCausalLM", "Rwkv7ForCausalLM", "RwkvForCausalLM"),
    "ZambaForCausalLM",
)


@dataclass(frozen=True, slots=True)
class Support:
    """The releases that can load an architecture."""

    since: str | None = None  # oldest release known to load it; None if unknown
    until: str | None = None  # newest release known to load it; None if unknown, or if it was not removed
    newest_without: str | None = None  # newest release before `since` known not to load it; None if unknown
    removed_in: str | None = None  # oldest release known to have removed it; None if it was not removed
    #: temporary removals: the last release before the removal, and the first one with the architecture again
    gaps: tuple[tuple[str, str], ...] = ()


def _build_support(name: str, runs: Sequence[ReleaseRun]) -> Support:
    first, last = runs[0][0], runs[-1][1]
    is_dropped = last < len(RELEASES) - 1
    return Support(
        FIRST_RELEASES.get(name) or RELEASES[first],
        RELEASES[last] if is_dropped else None,
        RELEASES[first - 1] if first else None,
        releases.find_introduction(last + 1) if is_dropped else None,
        tuple((RELEASES[before[1]], RELEASES[after[0]]) for before, after in itertools.pairwise(runs)),
    )


SUPPORT: dict[str, Support] = {
    **{name: _build_support(name, runs) for name, runs in releases.release_runs("architectures").items()},
    **dict.fromkeys(UNSUPPORTED_ARCHITECTURES, Support(newest_without=NEWEST_RELEASE)),
    # removed before the oldest release in the tables
    "Phi3SmallForCausalLM": Support(until="0.9.2", removed_in=RELEASES[0]),
}


def is_supported(name: str, version: str) -> bool | None:
    """Return True if this release of vLLM can load the architecture; None if unknown.

    Args:
        name: architectures[0] of config.json.
        version: as the engine reports it. Suffixes such as +cu130 and .post1 are ignored.
    """
    support = SUPPORT.get(name)
    release = _parse_release(version)
    if support is None or release is None:
        return None
    if support.newest_without and release <= Version(support.newest_without):
        return False
    if support.removed_in and release >= Version(support.removed_in):
        return False
    if any(Version(before) < release < Version(after) for before, after in support.gaps):
        return None
    return (
        True
        if support.since and Version(support.since) <= release <= Version(support.until or NEWEST_RELEASE)
        else None
    )


def describe_support(name: str) -> str:
    """Describe the releases that can load an architecture, as in "0.17.0 and newer; none up to 0.16.0"; "" if unknown."""
    support = SUPPORT.get(name)
    if support is None:
        return ""
    if support.since and support.until:
        return f"{support.since} to {support.until}, not since"
    if support.until:
        return f"up to {support.until}, not since"
    if support.since:
        older = f"none up to {support.newest_without}" if support.newest_without else "older ones unknown"
        return f"{support.since} and newer; {older}"
    return f"none up to {support.newest_without}"


def _parse_release(text: str) -> Version | None:
    version = parse(text)
    return Version(version.base_version) if version and (version.is_postrelease or version.local) else version
