"""vLLM's HTTP interface. It is the same from 0.11 to 0.33 unless stated otherwise."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from sparkwright.engines import http
from sparkwright.engines.api_paths import (
    COUNT_TOKENS_PATH,
    MESSAGES_PATH,
    OPENAI_PATHS,
    STORED_RESPONSE_PATHS,
    TRANSCRIPTIONS_PATH,
    TRANSLATIONS_PATH,
    ApiPath,
)
from sparkwright.engines.flags import option_value
from sparkwright.engines.http import Http, MetricSample, ServerKey

#: metric whose labels are the cache settings
CACHE_CONFIG_METRIC = "vllm:cache_config_info"
#: limit for the length of the labels, which contain about twenty settings
MAX_LABELS_CHARS = 1 << 16
_LABEL_PATTERN = re.compile(r'(?<!\w)(\w+)="([^"]*)"')

LOWEST_PRIORITY = 1000


def parse_cache_config(metrics_text: str) -> dict[str, str]:
    """Return the engine's cache settings as text, such as "True", "16" or "None"; empty if the metric is missing."""
    for line in metrics_text.splitlines():
        if line.startswith(CACHE_CONFIG_METRIC + "{"):
            return dict(_LABEL_PATTERN.findall(line[:MAX_LABELS_CHARS]))
    return {}


def lowest_priority(command: Sequence[str]) -> int:
    """Return the lowest request priority; 0 if the server does not schedule by priority."""
    return LOWEST_PRIORITY if option_value(command, "--scheduling-policy") == "priority" else 0


#: routes in the packages of 0.10.2 to 0.33.0; the startup log lists the routes of a server
PATHS = (
    *OPENAI_PATHS,
    ApiPath(MESSAGES_PATH, since="0.11.2"),
    ApiPath(COUNT_TOKENS_PATH, since="0.17.1"),
    *STORED_RESPONSE_PATHS,
    *(ApiPath(path, model_location="form") for path in (TRANSCRIPTIONS_PATH, TRANSLATIONS_PATH)),
    *map(ApiPath, ("/v2/rerank", "/rerank", "/score", "/pooling", "/classify", "/tokenize", "/detokenize")),
)

#: /health: 200 with an empty body, 503 if the engine is dead. A 200 does not mean that it can generate. The port is closed while the
#: model loads. Metrics: >= 0.11.
HTTP = Http(
    port=8000,
    roles={
        http.GENERATED: MetricSample("vllm:generation_tokens_total"),
        http.HEARTBEAT: MetricSample("vllm:generation_tokens_total"),
        http.RUNNING: MetricSample("vllm:num_requests_running"),
        http.WAITING: MetricSample("vllm:num_requests_waiting"),
        http.PREEMPTIONS: MetricSample("vllm:num_preemptions_total"),
        http.PREFIX_QUERIES: MetricSample("vllm:prefix_cache_queries_total"),
        http.PREFIX_HITS: MetricSample("vllm:prefix_cache_hits_total"),
        http.DRAFTS: MetricSample("vllm:spec_decode_num_drafts_total"),
        http.ACCEPTED_TOKENS: MetricSample("vllm:spec_decode_num_accepted_tokens_total"),
        http.KV_CACHE_USED: MetricSample("vllm:kv_cache_usage_perc"),
    },
    # a pooling model counts prompt tokens only (0.32.0 on a CPU)
    task_roles={http.HEARTBEAT: MetricSample("vllm:prompt_tokens_total")},
    parse_cache_settings=parse_cache_config,
    measurement_keys={"ignore_eos": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    no_thinking_keys={"chat_template_kwargs": {"enable_thinking": False}},
    thinking_keys={"chat_template_kwargs": {"enable_thinking": True}},
    removable_keys=(("chat_template_kwargs",), ("ignore_eos",), ("stream_options",), ("logprobs", "top_logprobs")),
    public_paths=frozenset(("/health", "/metrics", "/version")),
    key_variable="VLLM_API_KEY",
    # speculative-config, and the separate options of older releases
    speculation_prefixes=("--speculative-", "--spec-", "-sc"),
    # v1/spec_decode/metrics.py, the same in 0.11.2 and 0.32.0
    position_metric="vllm:spec_decode_num_accepted_tokens_per_pos_total",
    lowest_priority=lowest_priority,
    # entrypoints/serve/tokenize, the same in 0.10.2 and 0.33.0
    render_paths=("/tokenize", "/detokenize"),
    paths=PATHS,
)


# The API key is passed in vLLM's configuration file instead of an argument or environment variable.
#
# `vllm serve MODEL --config FILE` reads FILE (its name must end in .yaml or .yml) as if its keys preceded the other flags, so
# flags on the command line override it. It accepts only one configuration file. Observed on 0.32.0: 401 without the key, `***`
# in the log, and the key is in no process's command line or environment. /health, /metrics and /version need no key.

KEY_FILE_FLAG = "config"
KEY_FLAG = "api-key"
KEY_VARIABLE = "VLLM_API_KEY"
#: path of the file in the container
KEY_FILE_MOUNT = "/run/sparkwright/engine.yaml"


def render_key_file(key: str) -> str:
    """Return the contents of a configuration file with this key. A JSON string is valid YAML."""
    return f"{KEY_FLAG}: {json.dumps(key)}\n"


def parse_key_file(content: str) -> str:
    """Return the key in a file that `render_key_file` rendered, or ""."""
    name, _, value = content.partition(":")
    try:
        key = json.loads(value) if name == KEY_FLAG else ""
    except ValueError:
        return ""
    return key if isinstance(key, str) else ""


SERVER_KEY = ServerKey(
    flag=KEY_FLAG,
    variable=KEY_VARIABLE,
    option=KEY_FILE_FLAG,
    mount=KEY_FILE_MOUNT,
    conflict_reason="vLLM reads one configuration file, which holds the key",
    render_file=render_key_file,
    parse_file=parse_key_file,
)
