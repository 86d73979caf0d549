"""The caches of an engine: its prefix cache, as it reports about it and as a test proves it, and its compile caches."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from sparkwright.engines.options import concept_flags

if TYPE_CHECKING:
    from packaging.version import Version


class PrefixCache(Protocol):
    """A reader of one engine's reports about its prefix cache. cache: the labels of its metric about it."""

    def block_tokens(self, cache: Mapping[str, str]) -> int:
        """Return the block size in which prefixes hit, in tokens; 0 if the engine reports none."""

    def is_off(self, cache: Mapping[str, str]) -> bool | None:
        """Return True if the engine reports that prefix caching is off; None if it reports nothing."""

    def is_hybrid(self, cache: Mapping[str, str]) -> bool:
        """Return True if the cache holds recurrent states too."""

    def why(self, version: Version | None) -> tuple[str, str]:
        """Return why a recurrent model may not hit, as a sentence to append, and what helps; empty strings if nothing is known."""


class UnreportedPrefixCache:
    """The reader for an engine that reports nothing about its prefix cache."""

    def block_tokens(self, cache: Mapping[str, str]) -> int:
        """See PrefixCache."""
        return 0

    def is_off(self, cache: Mapping[str, str]) -> bool | None:
        """See PrefixCache."""
        return None

    def is_hybrid(self, cache: Mapping[str, str]) -> bool:
        """See PrefixCache."""
        return False

    def why(self, version: Version | None) -> tuple[str, str]:
        """See PrefixCache."""
        return "", ""


# The test of the prefix cache: the length of the prefix, and the verdict on the hits.
#
# An engine's own reports, and reasons why a recurrent model may not hit there, are in its folder. Counters are in tokens.

PREFIX_CACHE_CONCEPT = "the prefix cache"
#: least cached share of the tokens in whole blocks of the prefix at which the cache works
MIN_HIT_SHARE = 0.5

Verdict = Literal["hits", "few hits", "no hits", "off", "unknown"]


@dataclass(frozen=True, slots=True)
class PrefixMeasurement:
    """A request with the shared prefix."""

    ttft_s: float
    prompt_tokens: int
    #: increase of the server's counter, tokens; None without counters
    queries: float | None
    #: increase of the server's counter, tokens; None without counters
    hits: float | None


@dataclass(frozen=True, slots=True)
class PrefixCacheVerdict:
    """The verdict on a prefix cache."""

    verdict: Verdict
    sentence: str
    fix: str = ""
    #: cached share, at the best repeated request, of the tokens in whole blocks of the prefix (of the prompt, if their number is
    #: not known)
    share: float | None = None


def recipe_line(engine: str) -> str:
    """Return the line of a recipe that turns prefix caching on; empty if the engine has no flag for it."""
    name = next(iter(concept_flags(engine, PREFIX_CACHE_CONCEPT)), "")
    return f"{name}: {str(not name.startswith('disable-')).lower()} in the recipe" if name else ""


def is_requested(engine: str, flags: Mapping[str, Any]) -> bool:
    """Return True if flags, under their own names, turn prefix caching on: its flag is on, or the one that disables it is off."""
    names = concept_flags(engine, PREFIX_CACHE_CONCEPT)
    return any(flags.get(name) is not name.startswith("disable-") for name in names if flags.get(name) is not None)


def off_verdict(engine: str) -> PrefixCacheVerdict:
    """Return the verdict on a server that reports that prefix caching is off."""
    return PrefixCacheVerdict("off", "the engine says that it is off", recipe_line(engine))


def evaluate_prefix_cache(
    engine: str,
    reports: PrefixCache,
    measurements: Sequence[PrefixMeasurement],
    prefix_tokens: int,
    block_tokens: int,
    cache: Mapping[str, str],
    version: Version | None,
    *,
    hybrid: bool = False,
) -> PrefixCacheVerdict:
    """Return the verdict on repeated requests with the same prefix, the first of them cold.

    engine: its name. prefix_tokens: the least number of tokens in the prefix alone.
    """
    if reports.is_off(cache):
        return off_verdict(engine)
    repeated = [sighting for sighting in measurements[1:] if sighting.hits is not None]
    if not repeated:
        return PrefixCacheVerdict("unknown", "the server has no counters of its prefix cache")
    cached_tokens, prompt_tokens = max((observation.hits or 0, observation.prompt_tokens) for observation in repeated)
    expected_tokens = prefix_tokens // block_tokens * block_tokens
    if (
        cached_tokens > expected_tokens
    ):  # the tokenizer made more tokens of the prefix than it has words; the prompt is no shorter
        expected_tokens = prompt_tokens // block_tokens * block_tokens
    share = cached_tokens / expected_tokens if expected_tokens else 0.0
    cold, warm = measurements[0].ttft_s, min(sighting.ttft_s for sighting in measurements[1:])
    times = f"first token after {cold * 1000:.0f} ms cold, {warm * 1000:.0f} ms warm"
    counted = f"{cached_tokens:.0f} of {expected_tokens} cached tokens" + (
        f" in blocks of {block_tokens}" if block_tokens > 1 else ""
    )
    if share >= MIN_HIT_SHARE:
        return PrefixCacheVerdict("hits", f"{counted}; {times}", share=share)
    message = f"{counted} although seen {len(measurements)} times; {times}"
    is_recurrent = hybrid or reports.is_hybrid(cache)
    why, fix = reports.why(version) if is_recurrent else ("", "look for evictions: is the KV cache full?")
    verdict: Verdict = "few hits" if cached_tokens else "no hits"
    return PrefixCacheVerdict(verdict, f"{message}{why}", fix, share)


def prefix_length_tokens(block_tokens: int) -> int:
    """Return the length of the test's prefix in tokens: more than two blocks."""
    return math.ceil(2.25 * block_tokens) + 32


# Compile caches of an engine: their location in the container, and what their contents depend on.
#
# A new container starts without them, unless the folders are kept on the host. They hold code that the engine runs,
# made for one image, one model and one set of arguments; nothing else ever gets them.

#: mount point in the container of the folder that the host keeps for it
CACHE_MOUNT = "/var/cache/sparkwright"
#: the host's folder for the caches, below the user's home; see host/containers/compile_caches.py
HOST_FOLDER = ".local/share/sparkwright/compile-caches"
#: below the folder of a key: LIVE_FOLDER/NAME/CACHE_FOLDER is mounted at CACHE_MOUNT in the container NAME
LIVE_FOLDER, CACHE_FOLDER = "live", "cache"


@dataclass(frozen=True, slots=True)
class CompileCaches:
    """The compile caches of one engine."""

    #: environment variables, each with the folder below CACHE_MOUNT that it is set to
    variables: Mapping[str, str]
    #: ends of the folders that hold the caches without these variables: a recipe that mounts one keeps its caches itself
    usual: tuple[str, ...]
    #: flags that change nothing of what is compiled
    indifferent: frozenset[str]
    #: folders of the container that no variable moves, each with the name of its own folder on the host
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that move every cache below CACHE_MOUNT."""
        return {name: f"{CACHE_MOUNT}/{folder}" for name, folder in self.variables.items()}

    def sources(self, live: str) -> dict[str, str]:
        """Return the folders of the host that a container mounts, by mount point.

        They lie side by side: a container that could write to the folder above one of them could put a link in its place, and its
        next start would mount whatever the link names.

        Args:
            live: The folder above them on the host, see `live_folder_path`.
        """
        return {
            CACHE_MOUNT: f"{live}/{CACHE_FOLDER}",
            **{place: f"{live}/{name}" for place, name in self.places.items()},
        }

    def is_kept_by_recipe(self, env: Mapping[str, str], mounted: Iterable[str]) -> bool:
        """Return True if a recipe keeps the caches itself: it sets one of the variables, or mounts a folder over their usual
        places.

        mounted: folders of the container.
        """
        return any(name in env for name in self.variables) or any(map(self._is_cache_folder, mounted))

    def _is_cache_folder(self, folder: str) -> bool:
        inside = folder.rstrip("/")
        above = (item.rpartition("/")[0] for item in self.usual)
        within = any(f"{item}/" in f"{inside}/" for item in self.usual)
        return within or inside in ("/root", CACHE_MOUNT) or any(item and inside.endswith(item) for item in above)

    def relevant_flags(self, flags: Mapping[str, Any]) -> dict[str, Any]:
        """Return the flags that may affect what is compiled."""
        return {name: value for name, value in flags.items() if name not in self.indifferent}


def live_folder_path(home: str, key: str, container: str) -> str:
    """Return the folder above a container's cache folders for a key; no container mounts the folder itself.

    Args:
        home: The home folder of the host's user.
        key: See `compile_cache_key`.
        container: The name of the container. Two containers never share a folder.
    """
    return f"{home}/{HOST_FOLDER}/{key}/{LIVE_FOLDER}/{container}"


def compile_cache_key(inputs: Mapping[str, Any]) -> str:
    """Return the name of the folder for what was compiled from these inputs; any other value gives another folder."""
    text = json.dumps(inputs, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def own_variables(environment: Mapping[str, str]) -> set[str]:
    """Return the variables of a container that point below CACHE_MOUNT."""
    return {name for name, value in environment.items() if value.startswith(f"{CACHE_MOUNT}/")}
