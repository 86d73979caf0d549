"""SGLang's HTTP interface, from the source of 0.5.9 to 0.5.23; not tested with a real server.

/health generates a token unless the server generated one for another request just before. It answers 503 during startup and shutdown,
and if no token arrives within 20 s. /server_info (formerly /get_server_info) returns the resolved arguments. /metrics needs
--enable-metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkwright.engines import http
from sparkwright.engines.api_paths import (
    COUNT_TOKENS_PATH,
    MESSAGES_PATH,
    OPENAI_PATHS,
    STORED_RESPONSE_PATHS,
    TRANSCRIPTIONS_PATH,
    ApiPath,
)
from sparkwright.engines.http import Http, MetricSample
from sparkwright.trust.bounds import count_or_none, parse_number

PORT = 30000
#: default of SGLANG_HEALTH_CHECK_TIMEOUT, in seconds
HEALTH_TIMEOUT_S = 20.0
MAX_TEXT_CHARS = 200
#: default tokens per page: `page_size` resolves to 1 (0.5.9 server_args.py, 0.5.23 arg_groups/overrides.py). With some attention
#: backends and models it is 16 to 256; /server_info has the resolved value
PAGE_TOKENS = 1
#: a recurrent model's states are cached at chunk ends: every 64 tokens, or the config's mamba_chunk_size, up to 256 for Mamba 2
STATE_CHUNK_TOKENS = 256


def parse_version(info: Any) -> str:
    """Return the release in a response from /server_info; empty if there is none."""
    return (_text_or_none(info.get("version")) or "") if isinstance(info, dict) else ""


def parse_settings(info: Any) -> dict[str, Any]:
    """Return the settings in a response from /server_info; missing ones are omitted.

    max_model_len is present only if a flag sets it; /v1/models always contains it. slots is the maximum number of concurrent requests, and
    mem_fraction_static the share of all memory for weights and KV cache.
    """
    if not isinstance(info, dict):
        return {}
    chunk_tokens, radix_off = _number_or_none(info.get("chunked_prefill_size")), info.get("disable_radix_cache")
    reported = {
        "version": parse_version(info) or None,
        "chunked_prefill": None if chunk_tokens is None else chunk_tokens > 0,
        "prefix_caching": not radix_off if isinstance(radix_off, bool) else None,
        "block_size": count_or_none(info.get("page_size")) or None,
        "kv_cache_dtype": _text_or_none(info.get("kv_cache_dtype")),
        "kv_cache_tokens": count_or_none(info.get("max_total_num_tokens")),
        "max_model_len": count_or_none(info.get("context_length")),
        "attention_backend": _text_or_none(info.get("attention_backend")),
        "quantization": _text_or_none(info.get("quantization")),
        "slots": count_or_none(info.get("max_running_requests")),
        "mem_fraction_static": _number_or_none(info.get("mem_fraction_static")),
        "model_path": _text_or_none(info.get("model_path")),
        "served_name": _text_or_none(info.get("served_model_name")),
    }
    return {name: value for name, value in reported.items() if value is not None}


def context_length(model: Mapping[str, Any]) -> Any:
    """Return the maximum sequence length in tokens from a model's entry in /v1/models; None if it is missing."""
    return model.get("max_model_len")


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= MAX_TEXT_CHARS else None


def _number_or_none(value: Any) -> float | None:
    return None if isinstance(value, bool) or not isinstance(value, int | float) else parse_number(repr(value))


#: routes in the packages of 0.5.6 to 0.5.23
PATHS = (
    *OPENAI_PATHS,
    ApiPath(MESSAGES_PATH, since="0.5.9"),
    ApiPath(COUNT_TOKENS_PATH, since="0.5.9"),
    *STORED_RESPONSE_PATHS,
    ApiPath(TRANSCRIPTIONS_PATH, since="0.5.11", model_location="form"),
    *map(ApiPath, ("/v1/classify", "/v1/tokenize", "/v1/detokenize", "/tokenize", "/detokenize")),
)

HTTP = Http(
    port=PORT,
    roles={
        http.GENERATED: MetricSample("sglang:generation_tokens_total"),  # updated when a request ends
        http.HEARTBEAT: MetricSample(
            "sglang:realtime_tokens_total", 'mode="decode"'
        ),  # updated every decode-log-interval steps
        http.RUNNING: MetricSample("sglang:num_running_reqs"),
        http.WAITING: MetricSample("sglang:num_queue_reqs"),
        http.PREFIX_QUERIES: MetricSample("sglang:prompt_tokens_total"),
        http.PREFIX_HITS: MetricSample("sglang:cached_tokens_total"),
        http.KV_CACHE_USED: MetricSample("sglang:token_usage"),
    },
    task_roles={http.HEARTBEAT: MetricSample("sglang:prompt_tokens_total")},  # updated when a request ends
    # the heartbeat changes every decode-log-interval (40) steps: every 27 s at 1.5 steps per second
    max_unchanged_s=27,
    loading_statuses=(503,),
    accepts_any_name=True,
    health_timeout_s=HEALTH_TIMEOUT_S,
    version_path="/server_info",
    parse_version=parse_version,
    settings_path="/server_info",
    parse_settings=parse_settings,
    measurement_keys={"ignore_eos": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    no_thinking_keys={"chat_template_kwargs": {"enable_thinking": False}},
    thinking_keys={"chat_template_kwargs": {"enable_thinking": True}},
    removable_keys=(("chat_template_kwargs",), ("ignore_eos",), ("stream_options",), ("logprobs", "top_logprobs")),
    paths=PATHS,
    public_paths=frozenset(("/health", "/health_generate", "/ready", "/metrics")),
    parse_context=context_length,
    prefix_block_tokens=PAGE_TOKENS,
    recurrent_block_tokens=STATE_CHUNK_TOKENS,
    speculation_prefixes=("--speculative-",),
)
