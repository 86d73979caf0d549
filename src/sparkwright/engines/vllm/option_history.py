"""Look up whether a release of `vllm serve` has an option, in a table of additions and removals and the lists in releases.json."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from packaging.version import Version

from sparkwright.engines.options import find_similar
from sparkwright.engines.vllm import options, releases
from sparkwright.engines.vllm.versions import at_least

#: evidence for the release of a change. read: the release's source or help. dates: the merge date of the change and the release dates, or
#: reports about the parser. near: the release may be off by one
Certainty = Literal["read", "dates", "near"]
#: the oldest supported release; an unknown release is assumed to have at least its options
OLDEST_RELEASE = "0.11.0"


@dataclass(frozen=True, slots=True)
class OptionChange:
    """An option that was added or removed."""

    flag: str
    #: first release with it; empty if older than all releases in the tables
    since: str = ""
    #: first release without it; empty if it was not removed
    removed_in: str = ""
    #: replacement, or "nothing" with an optional reason
    replacement: str = ""
    source: str = ""
    certainty: Certainty = "dates"
    #: release in which it was added again; empty if it was not
    added_again: str = ""


OPTION_CHANGES: tuple[OptionChange, ...] = (
    # removed
    OptionChange(
        "disable-log-requests",
        "",
        "0.17.0",
        "nothing: request logging is off by default",
        "#21739",
        added_again="0.33.0",
    ),
    OptionChange("swap-space", removed_in="0.18.0", replacement="nothing: it had no effect", source="#36216"),
    OptionChange("calculate-kv-scales", removed_in="0.28.0", replacement="nothing", source="#49389", certainty="read"),
    OptionChange("max-num-partial-prefills", removed_in="0.27.0", replacement="nothing", source="0.22.1 and 0.32.0"),
    OptionChange("max-long-partial-prefills", removed_in="0.27.0", replacement="nothing", source="0.22.1 and 0.32.0"),
    OptionChange("override-attention-dtype", removed_in="0.28.0", replacement="nothing", source="0.22.1 and 0.32.0"),
    OptionChange(
        "enable-bf16x3-router-gemm",
        "0.26.0",
        "0.30.0",
        "nothing",
        "the releases 0.24.0 to 0.30.0; the help of 0.28.0",
        "near",
    ),
    OptionChange("disable-frontend-multiprocessing", "", "0.19.0", "nothing", "the help of 0.17.1 and 0.19.1", "near"),
    OptionChange("task", removed_in="0.13.0", replacement="runner and convert (mostly: nothing)", source="#21470"),
    OptionChange(
        "guided-decoding-backend",
        "",
        "0.11.0",
        "structured-outputs-config.backend",
        "#22772; the wheels of 0.10.2 to 0.33.0",
        "read",
    ),
    OptionChange(
        "guided-decoding-disable-fallback",
        "",
        "0.11.0",
        "structured-outputs-config",
        "the wheels of 0.10.2 to 0.33.0",
        "read",
    ),
    OptionChange("rope-scaling", removed_in="0.11.1", replacement="hf-overrides", source="#24542"),
    OptionChange("rope-theta", removed_in="0.11.1", replacement="hf-overrides", source="#24542"),
    OptionChange(
        "max-seq-len-to-capture", removed_in="0.11.0", replacement="max-cudagraph-capture-size", source="#25543"
    ),
    OptionChange(
        "cuda-graph-sizes",
        removed_in="0.13.0",
        replacement="cudagraph-capture-sizes",
        source="#26016",
        certainty="near",
    ),
    OptionChange("num-scheduler-steps", removed_in="0.10.1", replacement="nothing", source="V0's multi-step"),
    OptionChange("multi-step-stream-outputs", removed_in="0.10.1", replacement="nothing", source="V0's multi-step"),
    OptionChange("use-v2-block-manager", removed_in="0.10.0", replacement="nothing", certainty="near"),
    OptionChange("preemption-mode", removed_in="0.11.0", replacement="nothing", source="V0's removal"),
    OptionChange("scheduler-delay-factor", removed_in="0.11.0", replacement="nothing", source="V0's removal"),
    OptionChange("disable-async-output-proc", removed_in="0.11.0", replacement="nothing", source="V0's removal"),
    OptionChange("enable-reasoning", removed_in="0.10.0", replacement="reasoning-parser alone", source="#21470"),
    OptionChange("device", removed_in="0.10.0", replacement="the variable CUDA_VISIBLE_DEVICES", source="#21349"),
    OptionChange("speculative-model", removed_in="0.8.3", replacement="speculative-config", source="#14893"),
    OptionChange("num-speculative-tokens", removed_in="0.8.3", replacement="speculative-config", source="#14893"),
    OptionChange(
        "disable-mm-preprocessor-cache", removed_in="0.13.0", replacement="mm-processor-cache-gb: 0", source="#22762"
    ),
    OptionChange("logits-processor-pattern", removed_in="0.17.0", replacement="logits-processors"),
    OptionChange("enable-prompt-adapter", removed_in="0.10.2", replacement="nothing"),
    OptionChange(
        "enable-mamba-fine-grained-prefix-cache",
        "0.30.0",
        "0.31.0",
        source="the wheels of 0.10.2 to 0.33.0",
        certainty="read",
    ),
    # added
    OptionChange("enable-log-requests", since="0.10.1", source="#21739"),
    OptionChange("structured-outputs-config", since="0.11.0", source="#22772"),
    OptionChange("runner", since="0.10.1"),
    OptionChange("convert", since="0.10.1"),
    OptionChange("default-chat-template-kwargs", since="0.14.0", source="#31343"),
    OptionChange("mamba-cache-mode", since="0.15.0", source="#30877"),
    OptionChange("mamba-block-size", since="0.11.1"),
    OptionChange("kv-cache-memory-bytes", since="0.10.2", source="the wheels of 0.10.2 to 0.33.0", certainty="near"),
    OptionChange("attention-backend", since="0.13.0"),
    OptionChange("performance-mode", since="0.17.0", source="#34936"),
    OptionChange("language-model-only", since="0.17.0"),
    OptionChange("optimization-level", since="0.12.0", source="#26847"),
    OptionChange("async-scheduling", since="0.10.0"),
    OptionChange("stream-interval", since="0.11.1", source="the wheels of 0.10.2 to 0.33.0", certainty="read"),
    OptionChange("moe-backend", since="0.17.0"),
    OptionChange("linear-backend", since="0.22.0"),
    OptionChange("prefix-match-unit", since="0.26.0", source="#46384"),
    OptionChange("device-memory-utilization", since="0.31.0", certainty="near"),
)
CHANGES_BY_FLAG = {row.flag: row for row in OPTION_CHANGES}
#: releases with a complete list of options, oldest first
RELEASES = releases.release_names()


@dataclass(frozen=True, slots=True)
class Existence:
    """The existence of an option in a release."""

    #: None if unknown
    exists: bool | None
    #: reason as a clause, such as "it was removed in 0.18.0"
    reason: str = ""
    #: replacement; empty if unknown
    replacement: str = ""
    source: str = ""
    #: an existing option with a similar name; empty if there is none
    similar: str = ""


def find_existence(flag: str, version: Version | None, listed_options: Collection[str] = ()) -> Existence:
    """Return whether an engine has an option, and why.

    Args:
        flag: name without leading dashes, optionally with `.field`.
        version: the engine's version; None if unknown.
        listed_options: options in the engine's own help. If given, only they determine whether the option exists, and the table adds the reason.
    """
    name = flag.replace("_", "-").partition(".")[0]
    row = CHANGES_BY_FLAG.get(name)
    if listed_options:
        return _find_in_list(name, row, listed_options)
    row_existence = _find_in_rows(row, version)
    if row_existence.exists is not None:
        return row_existence
    return _find_in_releases(name, row, version) or _find_in_reference_releases(name, version) or row_existence


def _find_in_list(name: str, row: OptionChange | None, listed_options: Collection[str]) -> Existence:
    matches = options.complete_name(name, listed_options)
    if len(matches) == 1 or f"no-{name}" in listed_options:
        return Existence(True, "the engine lists it")
    if matches:
        return Existence(False, f"it could mean {', '.join(matches)}", matches[0])
    closest = "" if row else find_similar(name, listed_options)
    return Existence(
        False, f"the engine does not list it{_describe_history(row)}", *_replacement_and_source(row), similar=closest
    )


def _find_in_rows(row: OptionChange | None, version: Version | None) -> Existence:
    if row is None:
        return Existence(None)
    if row.added_again and at_least(version, row.added_again):
        return Existence(True, source=row.source)
    was_added = _has_been_added(row, version)
    was_removed = at_least(version, row.removed_in) if row.removed_in else False
    if was_removed:
        return Existence(False, f"it was removed in {row.removed_in}", *_replacement_and_source(row))
    if was_added is False:
        return Existence(False, f"it was added in {row.since}", *_replacement_and_source(row))
    if was_removed is False and was_added:
        return Existence(True, source=row.source)
    return Existence(None, _describe_history(row).removeprefix("; "), *_replacement_and_source(row))


def _has_been_added(row: OptionChange, version: Version | None) -> bool | None:
    """Return True if an option was added in a release or earlier; None if unknown. If the release is unknown, the oldest supported one is assumed."""
    if not row.since:
        return True
    return at_least(version, row.since) if version else at_least(Version(OLDEST_RELEASE), row.since) or None


def _find_in_releases(name: str, row: OptionChange | None, version: Version | None) -> Existence | None:
    """Return the existence according to the nearest RELEASES.

    None if the releases before and after this version differ, or if the version is older or newer than all of them.
    """
    if version is None or at_least(version, releases.FIRST_RELEASE_AFTER_TABLES) is not False:
        return None
    earlier_releases = [release for release in RELEASES if at_least(version, release)]
    later_releases = [release for release in RELEASES if at_least(version, release) is not True]
    if not earlier_releases:
        return None
    nearest_releases = {
        earlier_releases[-1],
        later_releases[0] if later_releases and version.base_version != earlier_releases[-1] else earlier_releases[-1],
    }
    matches = [options.complete_name(name, options.release_options(release)) for release in nearest_releases]
    counts = {len(names) for names in matches}
    if counts not in ({0}, {1}):
        return None
    if matches[0]:
        return Existence(True, source=row.source if row else "")
    releases_with = [release for release in RELEASES if name in options.release_options(release)]
    reason = f"no release from {RELEASES[0]} to {RELEASES[-1]} has it"
    if releases_with and releases_with[0] in later_releases:
        reason = f"it was added in {releases_with[0]}"
    elif releases_with:
        removed_in = next(
            release for release in RELEASES[RELEASES.index(releases_with[0]) :] if release not in releases_with
        )
        reason = f"it was removed in {removed_in}"
    closest = "" if releases_with else find_similar(name, options.reference_options(options.NEWEST_REFERENCE_RELEASE))
    return Existence(False, reason, *_replacement_and_source(row), similar=closest)


def _find_in_reference_releases(name: str, version: Version | None) -> Existence | None:
    """Return the existence according to the releases in REFERENCE_RELEASES; None if they do not determine it."""
    matches = [
        options.complete_name(name, options.reference_options(release)) for release in options.REFERENCE_RELEASES
    ]
    if len(matches[-1]) > 1:
        return Existence(False, f"it could mean {', '.join(matches[-1])}", matches[-1][0])
    if name in CHANGES_BY_FLAG:
        return None
    presence = [len(names) == 1 for names in matches]
    is_older = version is not None and at_least(version, options.OLDEST_REFERENCE_RELEASE) is False
    if not any(presence):
        reason = f"no release from {options.OLDEST_REFERENCE_RELEASE} to {options.NEWEST_REFERENCE_RELEASE} has it"
        is_known = (
            version is not None and not is_older and at_least(version, releases.FIRST_RELEASE_AFTER_TABLES) is False
        )
        return Existence(
            False if is_known else None,
            reason,
            similar=find_similar(name, options.reference_options(options.NEWEST_REFERENCE_RELEASE)),
        )
    if is_older and not (options.opposite_switch(name) and not any(presence[:-1])):
        return None
    return _find_between_references(presence, version)


def _find_between_references(presence: Sequence[bool], version: Version | None) -> Existence:
    """Return the existence of an option that at least one of REFERENCE_RELEASES has. presence: whether each of them has it."""
    if all(presence):
        return Existence(True)
    version_index = sum(at_least(version, release) is True for release in options.REFERENCE_RELEASES) - 1
    first_index = presence.index(True)
    if version_index >= first_index:
        return Existence(True)
    introduced_in, newest_without = options.REFERENCE_RELEASES[first_index], options.REFERENCE_RELEASES[first_index - 1]
    if version is not None and version.release[:2] <= Version(newest_without).release[:2]:
        is_newest = introduced_in == options.NEWEST_REFERENCE_RELEASE
        return Existence(
            False, f"it was added in {introduced_in}" if is_newest else f"it was added after {newest_without}"
        )
    return Existence(None, f"it was added after {newest_without}, in {introduced_in} at the latest")


def _describe_history(row: OptionChange | None) -> str:
    if row is None:
        return ""
    return (
        f"; it was removed in {row.removed_in}"
        if row.removed_in
        else f"; it was added in {row.since}"
        if row.since
        else ""
    )


def _replacement_and_source(row: OptionChange | None) -> tuple[str, str]:
    return (row.replacement, row.source) if row else ("", "")
