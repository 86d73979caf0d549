"""How a server is asked over HTTP, as data: an engine's paths, its metrics by role, and the keys of its requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sparkwright.engines import api_paths
from sparkwright.engines.api_paths import ApiPath
from sparkwright.engines.command_words import value
from sparkwright.trust.bounds import number_of

#: what a server does for its clients
Task = Literal["generate", "embed", "rerank"]
GENERATE: Task = "generate"

#: roles of metrics, which every engine calls by another name. GENERATED: tokens that were generated; HEARTBEAT: moves at every
#: step while anything is generated. They are one counter where an engine counts as it goes; SGLang and llama.cpp add generated
#: tokens only when a request ends.
GENERATED = "generated"
HEARTBEAT = "heartbeat"
RUNNING = "running"
WAITING = "waiting"
PREEMPTIONS = "preemptions"
PREFIX_QUERIES = "prefix_queries"  # tokens of prompts
PREFIX_HITS = "prefix_hits"  # of them, found in the cache
DRAFTS = "drafts"
ACCEPTED_TOKENS = "accepted_tokens"
#: with a position behind it, from 0: drafts whose token at that position was accepted
ACCEPTED_AT = "accepted_at_"
MOST_POSITIONS = 64
KV_CACHE_USED = "kv_cache_used"  # 0 to 1

#: roles of which one moves at every step of an engine that works, of a long prompt too; and those of the requests that it has
MOVES = (HEARTBEAT, GENERATED, PREFIX_QUERIES, KV_CACHE_USED, PREEMPTIONS)
REQUESTS = (RUNNING, WAITING)

COUNTERS = (GENERATED, HEARTBEAT, PREEMPTIONS, PREFIX_QUERIES, PREFIX_HITS, DRAFTS, ACCEPTED_TOKENS)

_POSITION = re.compile(r'\bposition="(\d{1,3})"')


@dataclass(frozen=True, slots=True)
class Sample:
    """A metric as its text names it. label: `mode="decode"`, which its line must hold; empty for all its lines together."""

    name: str
    label: str = ""


def _version_key(answer: Any) -> str:
    return str(answer.get("version") or "") if isinstance(answer, dict) else ""


def _nothing(answer: Any) -> dict[str, Any]:
    return {}


def _context(row: Mapping[str, Any]) -> Any:
    return row.get("max_model_len")


def _no_priority(command: Sequence[str]) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Http:
    """How one engine's server is asked.

    port: where it listens when nobody says. health: answers 200 once it serves; loading: its answers that mean "not yet";
    health_s: how long it may take, seconds. models: lists the served names; any_name: it serves a request under whatever name,
    so that a name proves nothing. version, version_of: where it tells its version; empty for nowhere. settings, settings_of:
    where it tells what it runs with, by the names of log.state.FIELDS; empty for nowhere. metrics: Prometheus text; empty for
    none. roles: the metrics' names. measured: what a measured stream asks for beside what every OpenAI API takes. plain: turns
    thinking off; thinking: on. removable: keys that are left out, in this order, when a server refuses a request. counted: where a chunk
    carries the tokens so far. public: what it answers without its key. key_variable: of the environment, with its key.
    positions: its metric of accepted tokens by position of a draft, labelled `position`; empty for none.
    prefix_block: tokens of a block in which its prefix cache hits, where it tells none; 1 where it hits to the token.
    recurrent_block: the least of them for a recurrent model, whose states it keeps at ends of such blocks only.
    task: what it does; unlike: roles that other metrics have where that is not generating text.
    hits_apart: its metric of PREFIX_QUERIES leaves out the tokens that PREFIX_HITS has.
    """

    port: int
    roles: Mapping[str, Sample] = field(default_factory=dict)
    health: str = "/health"
    loading: tuple[int, ...] = ()
    health_s: float = 5.0
    models: str = "/v1/models"
    any_name: bool = False
    version: str = "/version"
    version_of: Callable[[Any], str] = _version_key
    settings: str = ""
    settings_of: Callable[[Any], Mapping[str, Any]] = _nothing
    metrics: str = "/metrics"
    measured: Mapping[str, Any] = field(default_factory=dict)
    plain: Mapping[str, Any] = field(default_factory=dict)
    thinking: Mapping[str, Any] = field(default_factory=dict)
    removable: tuple[tuple[str, ...], ...] = ()
    counted: tuple[tuple[str, str], ...] = (("usage", "completion_tokens"),)
    public: frozenset[str] = frozenset(("/health",))
    key_variable: str = ""
    key_option: str = "--api-key"
    context_of: Callable[[Mapping[str, Any]], Any] = _context
    speculation: tuple[str, ...] = ()
    positions: str = ""
    low_priority: Callable[[Sequence[str]], int] = _no_priority
    cache_of: Callable[[str], dict[str, str]] = _nothing
    hits_apart: bool = False
    prefix_block: int = 16
    recurrent_block: int = 1
    task: Task = GENERATE
    unlike: Mapping[str, Sample] = field(default_factory=dict)
    #: paths that make the prompt of a conversation, without generating: the first takes the messages, the second its tokens; empty for none
    render: tuple[str, ...] = ()
    #: seconds for which all of MOVES may stand still on a slow model that works
    still_s: int = 0
    #: what its clients use, and a gateway routes
    paths: tuple[ApiPath, ...] = api_paths.OPENAI

    def api_key(self, command: Sequence[str], env: Sequence[str]) -> str:
        """The key that a server was started with, from its container's command and environment; empty when it wants none."""
        given = dict(pair.partition("=")[::2] for pair in env)
        return value(command, self.key_option) or given.get(self.key_variable, "")

    def speculates(self, command: Sequence[str]) -> bool:
        """Whether a server with this command generates with speculation: how fast depends on the prompt then."""
        return bool(self.speculation) and any(str(word).startswith(self.speculation) for word in command)

    @property
    def apart(self) -> bool:
        """Whether the heartbeat is another counter than that of the generated tokens."""
        return self.roles.get(HEARTBEAT) != self.roles.get(GENERATED)

    def counters(self, metrics_text: str) -> dict[str, float]:
        """Its metrics by role, summed over labels. One that is missing or is no count is left out."""
        wanted: dict[str, list[tuple[str, str]]] = {}
        for role, sample in self.roles.items():
            wanted.setdefault(sample.name, []).append((role, sample.label))
        found: dict[str, float] = {}
        for line in metrics_text.splitlines():
            name, _, rest = line.partition("{")
            for role, label in wanted.get(name.partition(" ")[0], ()):
                value = number_of(line.rpartition(" ")[2]) if label in rest else None
                if value is not None and value >= 0:
                    found[role] = found.get(role, 0.0) + value
            if name == self.positions and (role := _position(rest)):
                value = number_of(line.rpartition(" ")[2])
                found[role] = found.get(role, 0.0) + (value if value is not None and value >= 0 else 0.0)
        if self.hits_apart and PREFIX_QUERIES in found:
            found[PREFIX_QUERIES] += found.get(PREFIX_HITS, 0.0)
        return found


def _position(labels: str) -> str:
    """Return the role of a line of the metric of accepted tokens by position; "" for a position that can't be."""
    found = _POSITION.search(labels)
    return f"{ACCEPTED_AT}{int(found[1])}" if found and int(found[1]) < MOST_POSITIONS else ""
