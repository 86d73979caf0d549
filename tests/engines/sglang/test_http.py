"""SGLang's answers, written according to its source (0.5.23), not recorded from a real server."""

from typing import Any

import pytest

from sparkwright.engines import engine, http
from sparkwright.engines.log.state import FIELDS

HTTP = engine.get_engine("sglang").http
INFO: dict[str, Any] = {
    "version": "0.5.23", "model_path": "/models/qwen38", "served_model_name": "qwen3.8-27b", "api_key": None,
    "mem_fraction_static": 0.85, "max_running_requests": 48, "max_total_num_tokens": 400000, "context_length": None,
    "chunked_prefill_size": 2048, "disable_radix_cache": False, "page_size": 64, "attention_backend": "flashinfer",
    "kv_cache_dtype": "auto", "quantization": None, "internal_states": [{"last_gen_throughput": 12.5}],
}  # fmt: skip


def test_settings_are_read_from_server_info() -> None:
    settings = HTTP.parse_settings(INFO)
    logged = {"version": "0.5.23", "chunked_prefill": True, "prefix_caching": True, "block_size": 64}
    logged |= {"kv_cache_dtype": "auto", "kv_cache_tokens": 400000, "attention_backend": "flashinfer"}
    others = {"slots": 48, "mem_fraction_static": 0.85, "model_path": "/models/qwen38", "served_name": "qwen3.8-27b"}
    assert settings == logged | others
    assert set(logged) <= set(FIELDS), "the names are those of the log's settings"
    assert HTTP.parse_version(INFO) == "0.5.23"


@pytest.mark.parametrize(("size", "on"), [(-1, False), (0, False), (8192, True), (None, None), ("8192", None)])
def test_chunked_prefill_is_on_if_its_size_is_positive(size: Any, on: bool | None) -> None:
    assert HTTP.parse_settings({**INFO, "chunked_prefill_size": size}).get("chunked_prefill") is on


@pytest.mark.parametrize(
    "answer", [None, [], "text", {}, {"version": {}, "disable_radix_cache": "no"}, {"version": "9" * 9999}]
)
def test_a_malformed_answer_gives_no_settings(answer: Any) -> None:
    assert HTTP.parse_settings(answer) == {}
    assert HTTP.parse_version(answer) == ""


METRICS = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="a"} 2.0
sglang:num_queue_reqs{model_name="a"} 1.0
sglang:token_usage{model_name="a"} 0.25
sglang:prompt_tokens_total{model_name="a"} 900.0
sglang:cached_tokens_total{model_name="a",cache_source="device"} 100.0
sglang:cached_tokens_total{model_name="a",cache_source="host"} 20.0
sglang:generation_tokens_total{model_name="a"} 0.0
sglang:realtime_tokens_total{mode="prefill_compute",model_name="a"} 780.0
sglang:realtime_tokens_total{mode="decode",model_name="a"} 160.0
"""


def test_the_heartbeat_counts_tokens_of_running_requests() -> None:
    assert HTTP.has_separate_heartbeat
    assert HTTP.counters(METRICS) == {
        http.RUNNING: 2,
        http.WAITING: 1,
        http.KV_CACHE_USED: 0.25,
        http.PREFIX_QUERIES: 900,
        http.PREFIX_HITS: 120,
        http.GENERATED: 0,
        http.HEARTBEAT: 160,
    }


def test_paths_keys_and_public_paths() -> None:
    assert (HTTP.port, HTTP.health_path, HTTP.loading_statuses, HTTP.health_timeout_s) == (30000, "/health", (503,), 20)
    assert {"/health", "/metrics"} <= HTTP.public_paths
    assert not {"/server_info", "/v1/models"} & HTTP.public_paths
    assert HTTP.parse_context({"id": "a", "max_model_len": 131072}) == 131072
    assert HTTP.api_key(["--api-key", "sk-1"], []) == "sk-1"
    assert HTTP.api_key([], ["SGLANG_KEY=x"]) == ""
    assert HTTP.accepts_any_name
    assert HTTP.speculates(["--speculative-algorithm", "EAGLE"])
