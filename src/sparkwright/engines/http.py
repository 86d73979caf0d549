"""Description of an engine's HTTP interface: paths, metrics by role, request keys and the API key."""

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

#: roles of metrics; engines use different names for the same role. GENERATED: counts generated tokens. HEARTBEAT: changes with
#: every step while tokens are generated. An engine that counts each token immediately has one counter for both; SGLang and llama.cpp
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

#: roles of which at least one changes with every step, including prefill
PROGRESS_ROLES = (HEARTBEAT, GENERATED, PREFIX_QUERIES, KV_CACHE_USED, PREEMPTIONS)
#: roles that count requests
REQUEST_ROLES = (RUNNING, WAITING)

COUNTER_ROLES = (GENERATED, HEARTBEAT, PREEMPTIONS, PREFIX_QUERIES, PREFIX_HITS, DRAFTS, ACCEPTED_TOKENS)

_POSITION_LABEL_PATTERN = re.compile(r'\bposition="(\d{1,3})"')


@dataclass(frozen=True, slots=True)
class MetricSample:
    """A metric in Prometheus text format."""

    name: str
    #: only lines with this label count, such as `mode="decode"`; all lines if empty
    label: str = ""


@dataclass(frozen=True, slots=True)
class UsageKeys:
    """The keys under which an answer reports its token counts."""

    #: the object with the other keys
    object: str
    #: the keys whose sum is the number of prompt tokens; only the first is always present
    prompt: tuple[str, ...]
    #: the key with the number of generated tokens
    generated: str


#: usage in OpenAI's chat API, and in its Responses API and Anthropic's Messages API, which count cached tokens separately
USAGE_KEYS = (
    UsageKeys("usage", ("prompt_tokens",), "completion_tokens"),
    UsageKeys("usage", ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"), "output_tokens"),
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
    #: path that answers 200 once the server is ready
    health_path: str = "/health"
    #: status codes of `health_path` that mean "still loading"
    loading_statuses: tuple[int, ...] = ()
    #: timeout for `health_path`, in seconds
    health_timeout_s: float = 5.0
    #: path that lists the served models
    models_path: str = "/v1/models"
    #: the server accepts any model name in requests
    accepts_any_name: bool = False
    #: path that reports the version; empty if there is none
    version_path: str = "/version"
    #: returns the version in a response from `version_path`
    parse_version: Callable[[Any], str] = _read_version
    #: path that reports the server's settings; empty if there is none
    settings_path: str = ""
    #: returns the settings in a response from `settings_path`, named as in log.state.FIELDS
    parse_settings: Callable[[Any], Mapping[str, Any]] = _no_data
    #: path of the Prometheus metrics; empty if there are none
    metrics_path: str = "/metrics"
    #: extra keys for measured requests, which not every OpenAI-compatible API accepts
    measurement_keys: Mapping[str, Any] = field(default_factory=dict)
    #: request keys that turn thinking off
    no_thinking_keys: Mapping[str, Any] = field(default_factory=dict)
    #: request keys that turn thinking on
    thinking_keys: Mapping[str, Any] = field(default_factory=dict)
    #: groups of keys that are removed, one group at a time, if a server refuses a request
    removable_keys: tuple[tuple[str, ...], ...] = ()
    #: (object, key) under which a chunk reports the number of tokens so far
    token_count_keys: tuple[tuple[str, str], ...] = (("usage", "completion_tokens"),)
    #: keys of the token counts in a complete answer or in the last chunk of a stream
    usage_keys: tuple[UsageKeys, ...] = USAGE_KEYS
    #: paths that need no API key
    public_paths: frozenset[str] = frozenset(("/health",))
    #: environment variable with the API key
    key_variable: str = ""
    #: option with the API key
    key_option: str = "--api-key"
    #: returns the context length in tokens from a row of `models_path`
    parse_context: Callable[[Mapping[str, Any]], Any] = _read_context
    #: prefixes of the options that turn on speculative decoding
    speculation_prefixes: tuple[str, ...] = ()
    #: metric of accepted tokens by draft position, labelled `position`; empty if there is none
    position_metric: str = ""
    #: returns the lowest request priority, given the server's command; 0 if the server does not schedule by priority
    lowest_priority: Callable[[Sequence[str]], int] = _no_priority
    #: returns the cache settings in the text of the metrics
    parse_cache_settings: Callable[[str], dict[str, str]] = _no_data
    #: the PREFIX_QUERIES metric excludes the tokens of PREFIX_HITS
    queries_exclude_hits: bool = False
    #: tokens per block of the prefix cache, if the server does not report it; 1 if it matches single tokens
    prefix_block_tokens: int = 16
    #: minimum block size in tokens for a recurrent model, whose states are cached only at the ends of blocks
    recurrent_block_tokens: int = 1
    #: task of the server
    task: Task = GENERATE
    #: metrics of tasks other than text generation that differ from `roles`
    task_roles: Mapping[str, MetricSample] = field(default_factory=dict)
    #: paths that render a chat's prompt without generating: the first takes messages, the second tokens
    render_paths: tuple[str, ...] = ()
    #: maximum time for which all PROGRESS_ROLES stay unchanged while a slow model generates, in seconds
    max_unchanged_s: int = 0
    #: paths for clients, which a gateway routes
    paths: tuple[ApiPath, ...] = api_paths.OPENAI_PATHS

    def api_key(self, command: Sequence[str], env: Sequence[str]) -> str:
        """Return the API key in a container's command or environment; empty if it has none."""
        variables = dict(pair.partition("=")[::2] for pair in env)
        return option_value(command, self.key_option) or variables.get(self.key_variable, "")

    def speculates(self, command: Sequence[str]) -> bool:
        """Return True if a server with this command uses speculative decoding."""
        return bool(self.speculation_prefixes) and any(
            str(word).startswith(self.speculation_prefixes) for word in command
        )

    @property
    def has_separate_heartbeat(self) -> bool:
        return self.roles.get(HEARTBEAT) != self.roles.get(GENERATED)

    def counters(self, metrics_text: str) -> dict[str, float]:
        """Return the metrics by role, summed over labels. Missing and invalid metrics are omitted."""
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
            if name == self.position_metric and (role := _position_role(rest)):
                value = parse_number(line.rpartition(" ")[2])
                totals[role] = totals.get(role, 0.0) + (value if value is not None and value >= 0 else 0.0)
        if self.queries_exclude_hits and PREFIX_QUERIES in totals:
            totals[PREFIX_QUERIES] += totals.get(PREFIX_HITS, 0.0)
        return totals


def _position_role(labels: str) -> str:
    """Return the role for a line of `Http.position_metric`; "" for an invalid position."""
    match = _POSITION_LABEL_PATTERN.search(labels)
    return f"{ACCEPTED_AT_PREFIX}{int(match[1])}" if match and int(match[1]) < MAX_POSITIONS else ""


#: characters valid in an Authorization header and as an argument; the minimum length keeps keys from being guessed
_KEY_PATTERN = re.compile(r"[A-Za-z0-9._~+/=][A-Za-z0-9._~+/=-]{15,511}")
VALID_KEY_RULE = "16 to 512 letters, digits or . _ ~ + / = -, the first not a dash"
#: fix if a server requires a key that sparkwright does not know
SET_KEY_FIX = "Set `server_key` in the recipe and deploy; the checks then use that key."
GENERATE_KEY_HINT = "Generate one with `openssl rand -hex 24`."


def is_valid_key(key: str) -> bool:
    """Return True if a string meets VALID_KEY_RULE."""
    return _KEY_PATTERN.fullmatch(key) is not None


def format_key_line(key: str) -> str:
    """Return the contents of a key file with one key."""
    return f"{key}\n"


def parse_key_lines(file_text: str) -> str:
    """Return the first key in a key file with one key per line; empty if it contains no key."""
    lines = (line.strip() for line in file_text.splitlines())
    return next((line for line in lines if line and not line.startswith("#")), "")


@dataclass(frozen=True, slots=True)
class ServerKey:
    """The file in the container from which an engine reads its key; other users of the host cannot read it."""

    #: flag with the key itself, which other users of the host can read
    flag: str
    #: environment variable with the key itself
    variable: str
    #: flag with the file's path; if empty, a shell in the container sets `variable` from the file before the engine starts
    option: str
    #: path of the file in the container
    mount: str
    #: reason why recipes cannot set `option`, as the end of a sentence
    conflict_reason: str
    #: returns the file's contents for a key
    render_file: Callable[[str], str] = format_key_line
    #: returns the key in the file's contents; empty if there is none
    parse_file: Callable[[str], str] = parse_key_lines

    @property
    def words(self) -> tuple[str, ...]:
        """The engine's arguments for the key file."""
        return (f"--{self.option}", self.mount) if self.option else ()

    def program(self, entrypoint: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Return an entrypoint that passes the key to the engine."""
        if self.option or entrypoint is None:
            return entrypoint
        return "sh", "-c", f'export {self.variable}="$(cat {self.mount})"; exec "$@"', "sh", *entrypoint

    @property
    def suffix(self) -> str:
        return PurePath(self.mount).suffix


OPEN_SERVER_PROBLEM = "anyone on the network can use this server"
OPEN_SERVER_ON_HOST_NETWORK_FIX = (
    "set `server_key` in the recipe, or the engine's flag `host: 127.0.0.1`; or remove `network: host`"
)
OPEN_SERVER_FIX = "set `server_key` or `publish: loopback` in the recipe"
