"""Description of an engine's HTTP interface: paths, metrics by role, keys of requests, and the API key."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal

from sparkwright.engines import api_paths
from sparkwright.engines.api_paths import ApiPath
from sparkwright.engines.flags import option_value
from sparkwright.trust.bounds import parse_number

#: task of a server
Task = Literal["generate", "embed", "rerank"]
GENERATE: Task = "generate"

#: roles of metrics, whose names differ between engines. GENERATED: generated tokens; HEARTBEAT: changes with every step while
#: anything is generated. Both are the same counter in an engine that counts each token immediately; SGLang and llama.cpp
#: count generated tokens only when a request ends.
GENERATED = "generated"
HEARTBEAT = "heartbeat"
RUNNING = "running"
WAITING = "waiting"
PREEMPTIONS = "preemptions"
PREFIX_QUERIES = "prefix_queries"  # prompt tokens
PREFIX_HITS = "prefix_hits"  # prompt tokens found in the cache
DRAFTS = "drafts"
ACCEPTED_TOKENS = "accepted_tokens"
#: prefix of a role, followed by a position from 0: drafts whose token at that position was accepted
ACCEPTED_AT_PREFIX = "accepted_at_"
MAX_POSITIONS = 64
KV_CACHE_USED = "kv_cache_used"  # 0 to 1

#: roles of which at least one changes with every step, prefill included; and roles that count requests
PROGRESS_ROLES = (HEARTBEAT, GENERATED, PREFIX_QUERIES, KV_CACHE_USED, PREEMPTIONS)
REQUEST_ROLES = (RUNNING, WAITING)

COUNTER_ROLES = (GENERATED, HEARTBEAT, PREEMPTIONS, PREFIX_QUERIES, PREFIX_HITS, DRAFTS, ACCEPTED_TOKENS)

_POSITION_LABEL = re.compile(r'\bposition="(\d{1,3})"')


@dataclass(frozen=True, slots=True)
class MetricSample:
    """A metric by its name in the Prometheus text."""

    name: str
    #: a label that a line must have, such as `mode="decode"`; empty: the sum over all lines
    label: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """The keys of an answer that hold its token counts."""

    #: the object that has these keys
    object: str
    #: the keys that add up to the prompt's tokens; the first is always there
    prompt: tuple[str, ...]
    generated: str


#: usage in OpenAI's chat API; and in its responses API and Anthropic's messages API, where cached tokens are counted separately
USAGES = (
    Usage("usage", ("prompt_tokens",), "completion_tokens"),
    Usage("usage", ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"), "output_tokens"),
)


def _read_version(answer: Any) -> str:
    return str(answer.get("version") or "") if isinstance(answer, dict) else ""


def _no_data(answer: Any) -> dict[str, Any]:
    return {}


def _read_context(row: Mapping[str, Any]) -> Any:
    return row.get("max_model_len")


def _no_priority(command: Sequence[str]) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Http:
    """The HTTP interface of one engine's server."""

    #: default port
    port: int
    #: metrics by role
    roles: Mapping[str, MetricSample] = field(default_factory=dict)
    #: path that answers 200 once the server serves
    health: str = "/health"
    #: status codes of `health` that mean "still loading"
    loading: tuple[int, ...] = ()
    #: timeout of a request for `health`, seconds
    health_s: float = 5.0
    #: path that lists the served names
    models: str = "/v1/models"
    #: the server answers requests under any model name, so a name proves nothing
    any_name: bool = False
    #: path that reports the version; empty if there is none
    version: str = "/version"
    #: returns the version in that answer
    version_of: Callable[[Any], str] = _read_version
    #: path that reports the server's settings; empty if there is none
    settings: str = ""
    #: returns the settings in that answer, by the names of log.state.FIELDS
    settings_of: Callable[[Any], Mapping[str, Any]] = _no_data
    #: path of the Prometheus metrics; empty if there are none
    metrics: str = "/metrics"
    #: keys of a measured request beyond those that every OpenAI API takes
    measured: Mapping[str, Any] = field(default_factory=dict)
    #: keys that turn thinking off
    plain: Mapping[str, Any] = field(default_factory=dict)
    #: keys that turn thinking on
    thinking: Mapping[str, Any] = field(default_factory=dict)
    #: keys to leave out, in this order, if a server refuses a request
    removable: tuple[tuple[str, ...], ...] = ()
    #: keys of a chunk that hold the number of tokens so far
    counted: tuple[tuple[str, str], ...] = (("usage", "completion_tokens"),)
    #: keys of a complete answer, or of the last chunk of a stream, that hold its token counts
    usages: tuple[Usage, ...] = USAGES
    #: paths that need no API key
    public: frozenset[str] = frozenset(("/health",))
    #: environment variable with the API key
    key_variable: str = ""
    #: option with the API key
    key_option: str = "--api-key"
    #: returns the longest context in tokens from a row of `models`
    context_of: Callable[[Mapping[str, Any]], Any] = _read_context
    #: prefixes of the options that turn on speculative decoding
    speculation: tuple[str, ...] = ()
    #: metric of accepted tokens by draft position, labelled `position`; empty if there is none
    positions: str = ""
    #: returns the priority with which a request yields to all others, from the server's command
    low_priority: Callable[[Sequence[str]], int] = _no_priority
    #: returns the cache settings in the metrics' text
    cache_of: Callable[[str], dict[str, str]] = _no_data
    #: the PREFIX_QUERIES metric leaves out the tokens that PREFIX_HITS counts
    hits_apart: bool = False
    #: tokens per block of the prefix cache, if the server does not report it; 1 if it matches single tokens
    prefix_block: int = 16
    #: minimum block size in tokens for a recurrent model, whose states are only kept at the ends of blocks
    recurrent_block: int = 1
    #: task of the server
    task: Task = GENERATE
    #: metrics that differ from `roles` if the task is not text generation
    unlike: Mapping[str, MetricSample] = field(default_factory=dict)
    #: paths that render a conversation's prompt without generating: the first takes messages, the second tokens
    render: tuple[str, ...] = ()
    #: seconds for which all of PROGRESS_ROLES may stay unchanged while a slow model works
    still_s: int = 0
    #: paths that clients use and a gateway routes
    paths: tuple[ApiPath, ...] = api_paths.OPENAI_PATHS

    def api_key(self, command: Sequence[str], env: Sequence[str]) -> str:
        """Return the API key in a container's command and environment; empty if the server needs none."""
        variables = dict(pair.partition("=")[::2] for pair in env)
        return option_value(command, self.key_option) or variables.get(self.key_variable, "")

    def speculates(self, command: Sequence[str]) -> bool:
        """Return True if a server with this command uses speculative decoding; its speed then depends on the prompt."""
        return bool(self.speculation) and any(str(word).startswith(self.speculation) for word in command)

    @property
    def has_separate_heartbeat(self) -> bool:
        """True if the heartbeat and the generated tokens are different counters."""
        return self.roles.get(HEARTBEAT) != self.roles.get(GENERATED)

    def counters(self, metrics_text: str) -> dict[str, float]:
        """Return the metrics by role, summed over labels. A metric that is missing or not a count is left out."""
        roles_by_metric: dict[str, list[tuple[str, str]]] = {}
        for role, sample in self.roles.items():
            roles_by_metric.setdefault(sample.name, []).append((role, sample.label))
        totals: dict[str, float] = {}
        for line in metrics_text.splitlines():
            name, _, rest = line.partition("{")
            for role, label in roles_by_metric.get(name.partition(" ")[0], ()):
                value = parse_number(line.rpartition(" ")[2]) if label in rest else None
                if value is not None and value >= 0:
                    totals[role] = totals.get(role, 0.0) + value
            if name == self.positions and (role := _position_role(rest)):
                value = parse_number(line.rpartition(" ")[2])
                totals[role] = totals.get(role, 0.0) + (value if value is not None and value >= 0 else 0.0)
        if self.hits_apart and PREFIX_QUERIES in totals:
            totals[PREFIX_QUERIES] += totals.get(PREFIX_HITS, 0.0)
        return totals


def _position_role(labels: str) -> str:
    """Return the role for a line of the metric of accepted tokens by position; "" for an impossible position."""
    match = _POSITION_LABEL.search(labels)
    return f"{ACCEPTED_AT_PREFIX}{int(match[1])}" if match and int(match[1]) < MAX_POSITIONS else ""


#: valid both in an Authorization header and as an argument; the minimum length is our choice, as short keys can be guessed
_KEY_PATTERN = re.compile(r"[A-Za-z0-9._~+/=][A-Za-z0-9._~+/=-]{15,511}")
VALID_KEY_RULE = "16 to 512 letters, digits or . _ ~ + / = -, the first not a dash"
#: fix for a server that needs an unknown key
SET_KEY_FIX = "Set `server_key` in the recipe and deploy; the checks then use that key."
MAKE_KEY_HINT = "`openssl rand -hex 24` makes one."


def is_valid_key(key: str) -> bool:
    """Return True if a text can be a server's key, see VALID_KEY_RULE."""
    return _KEY_PATTERN.fullmatch(key) is not None


def format_key_line(key: str) -> str:
    """Return the content of a key file with one key per line."""
    return f"{key}\n"


def parse_key_lines(written: str) -> str:
    """Return the first key in a key file; empty if it holds none."""
    lines = (line.strip() for line in written.splitlines())
    return next((line for line in lines if line and not line.startswith("#")), "")


@dataclass(frozen=True, slots=True)
class ServerKey:
    """The way an engine reads its key from a file that is only visible in its container."""

    #: flag that takes the key itself, readable by everybody
    flag: str
    #: environment variable that takes the key itself, readable by everybody
    variable: str
    #: flag that names the file; if empty, a shell in the container sets `variable` from the file before the engine starts
    option: str
    #: path of the file in the container
    mount: str
    #: the end of a sentence that explains why recipes can't set `option`
    alone: str
    #: returns the file's content for a key
    text: Callable[[str], str] = format_key_line
    #: returns the key in such a file, empty if it holds none
    key_of: Callable[[str], str] = parse_key_lines

    @property
    def words(self) -> tuple[str, ...]:
        """The arguments that name the file."""
        return (f"--{self.option}", self.mount) if self.option else ()

    def program(self, entrypoint: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Return an entrypoint that passes the key to the engine."""
        if self.option or entrypoint is None:
            return entrypoint
        return "sh", "-c", f'export {self.variable}="$(cat {self.mount})"; exec "$@"', "sh", *entrypoint

    @property
    def suffix(self) -> str:
        """The suffix of the file's name."""
        return PurePath(self.mount).suffix


OPEN_SENTENCE = "anyone on the network can use this server"
OPEN_WAY_OF_HOST = "set `server_key` in the recipe, or the engine's flag `host: 127.0.0.1`; or remove `network: host`"
OPEN_WAY = "set `server_key` or `publish: loopback` in the recipe"
