"""llama-server's HTTP interface, as observed on builds b10434 and b11549; tests/real_llama tests it against the latter.

The port is open before the model is loaded; every path answers 503 until then. The field `model` of requests is not checked. /v1/models
needed no key in b10434 and needs one in b11549, so it counts as protected. A prompt longer than the context is answered with 400
`exceed_context_size_error`; unknown fields are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkwright.engines import http
from sparkwright.engines.api_paths import COUNT_TOKENS_PATH, MESSAGES_PATH, OPENAI_PATHS, ApiPath
from sparkwright.engines.http import USAGE_KEYS, Http, MetricSample, ServerKey, UsageKeys
from sparkwright.trust.bounds import count_or_none

PORT = 8080
#: flag with the API key, which every user of the host can read
KEY_FLAG = "api-key"
#: environment variable with the API key
KEY_VARIABLE = "LLAMA_API_KEY"


def parse_build(props: Any) -> str:
    """Return the build in a response from /props, such as "b11549-7e4c0a9"; empty if there is none."""
    return str(props.get("build_info") or "") if isinstance(props, dict) else ""


def parse_settings(props: Any) -> dict[str, Any]:
    """Return the settings in a response from /props; missing ones are omitted.

    max_model_len is the number of tokens per slot, max_concurrency the number of slots. Both may differ from the flags.
    """
    if not isinstance(props, dict):
        return {}
    defaults = props.get("default_generation_settings")
    reported = {
        "version": parse_build(props) or None,
        "max_model_len": count_or_none(defaults.get("n_ctx")) if isinstance(defaults, dict) else None,
        "max_concurrency": count_or_none(props.get("total_slots")),
        "model_path": props.get("model_path"),
        "served_name": props.get("model_alias"),
    }
    return {name: value for name, value in reported.items() if value is not None}


def slot_context(model: Mapping[str, Any]) -> Any:
    """Return a slot's context in tokens from a model's entry in /v1/models; None if it is missing."""
    meta = model.get("meta")
    return meta.get("n_ctx") if isinstance(meta, dict) else None


#: routes of b11549
PATHS = (*OPENAI_PATHS, *map(ApiPath, (MESSAGES_PATH, COUNT_TOKENS_PATH, "/tokenize", "/detokenize", "/infill")))

HTTP = Http(
    port=PORT,
    roles={
        http.GENERATED: MetricSample("llamacpp:tokens_predicted_total"),  # updated when a request ends
        http.HEARTBEAT: MetricSample("llamacpp:n_decode_total"),  # counts every step, except a draft model's
        http.RUNNING: MetricSample("llamacpp:requests_processing"),
        http.WAITING: MetricSample("llamacpp:requests_deferred"),
        http.PREFIX_QUERIES: MetricSample("llamacpp:prompt_tokens_total"),
        http.PREFIX_HITS: MetricSample("llamacpp:prompt_tokens_cached_total"),
        http.DRAFTS: MetricSample("llamacpp:spec_decode_num_drafts_total"),
        http.ACCEPTED_TOKENS: MetricSample("llamacpp:spec_decode_num_accepted_tokens_total"),
    },
    queries_exclude_hits=True,
    prefix_block_tokens=1,
    loading_statuses=(503,),
    accepts_any_name=True,
    version_path="/props",
    parse_version=parse_build,
    settings_path="/props",
    parse_settings=parse_settings,
    measurement_keys={"ignore_eos": True, "stream_options": {"include_usage": True}, "timings_per_token": True},
    no_thinking_keys={"chat_template_kwargs": {"enable_thinking": False}},
    thinking_keys={"chat_template_kwargs": {"enable_thinking": True}},
    removable_keys=(("chat_template_kwargs",), ("timings_per_token",), ("ignore_eos",), ("stream_options",)),
    token_count_keys=(("usage", "completion_tokens"), ("timings", "predicted_n")),
    # a stream ends with `timings`, even if the client did not request `usage`
    usage_keys=(*USAGE_KEYS, UsageKeys("timings", ("prompt_n", "cache_n"), "predicted_n")),
    public_paths=frozenset(("/health",)),
    render_paths=("/apply-template",),
    paths=PATHS,
    key_variable=KEY_VARIABLE,
    parse_context=slot_context,
    speculation_prefixes=(
        "--spec-",
        "--model-draft",
        "-md",
        "--hf-repo-draft",
        "-hfd",
        "-hfrd",
        "--lookup-cache",
        "-lcs",
        "-lcd",
    ),
)


# The API key is passed in a file with one key per line, so that it is in neither the arguments nor the environment.
#
# Observed on b11549 (tests/real_llama/test_http.py): 401 without the key; the key is not in the log; /health needs no key.
SERVER_KEY = ServerKey(
    flag=KEY_FLAG,
    variable=KEY_VARIABLE,
    option="api-key-file",
    mount="/run/sparkwright/engine.key",
    conflict_reason="llama-server reads a single file of keys, which contains this one",
)
