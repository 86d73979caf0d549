"""The verdict on requests with the same prefix, and the compile caches of a recipe's container."""

import pytest
from packaging.version import Version

from sparkwright.engines import engine as engines
from sparkwright.engines import prefix_cache
from sparkwright.engines.compile_caches import CACHE_MOUNT, find_cache_variables
from sparkwright.engines.prefix_cache import PrefixCacheVerdict, PrefixMeasurement, evaluate_prefix_cache
from sparkwright.engines.vllm.caches import CACHES
from sparkwright.engines.vllm.http import HTTP


@pytest.mark.parametrize(
    ("env", "mounts", "kept"),
    [
        ({}, ["/models/qwen35", "/root/.cache/huggingface"], False),
        ({"HF_HOME": "/hf"}, [], False),
        ({"VLLM_CACHE_ROOT": "/mine"}, [], True),
        ({}, ["/root/.cache/vllm"], True),
        ({}, ["/root/.cache/vllm/torch_compile_cache/"], True),
        ({}, ["/root/.cache"], True),
        ({}, ["/home/vllm/.triton/cache"], True),
        ({}, ["/home/vllm/.triton"], True),
        ({}, ["/root"], True),
        ({}, [CACHE_MOUNT], True),
    ],
)
def test_a_recipe_may_keep_its_own_caches(env: dict[str, str], mounts: list[str], kept: bool) -> None:
    assert CACHES.is_managed_by_recipe(env, mounts) is kept


def test_only_flags_that_may_change_compilation_are_relevant() -> None:
    flags = {"port": 8001, "tool-call-parser": "hermes", "max-num-seqs": 8, "a-flag-of-tomorrow": True}
    assert CACHES.relevant_flags(flags) == {"max-num-seqs": 8, "a-flag-of-tomorrow": True}


def test_cache_variables_are_distinct_and_recognized() -> None:
    assert find_cache_variables({**CACHES.environment, "HF_HOME": "/hf"}) == set(CACHES.variables)
    assert len(set(CACHES.environment.values())) == len(CACHES.variables)


ALIGN = {"block_size": "2096", "enable_prefix_caching": "True", "mamba_cache_mode": "align"}


def evaluate(
    *hits: float | None,
    cache: dict[str, str] = ALIGN,
    version: str = "0.32.0",
    engine: str = "vllm",
    hybrid: bool = False,
) -> PrefixCacheVerdict:
    """Return the verdict on requests with a prefix of 4800 tokens, the first of them cold."""
    measurements = [
        PrefixMeasurement(0.5 if number == 0 else 0.05, 4800, None if hit is None else 4800, hit)
        for number, hit in enumerate(hits)
    ]
    reports = engines.get_engine(engine).prefix_cache
    return evaluate_prefix_cache(engine, reports, measurements, 4800, 2096, cache, Version(version), hybrid=hybrid)


def test_hits_are_counted_in_whole_blocks() -> None:
    verdict = evaluate(0, 4192, 4192)
    assert (verdict.verdict, verdict.share) == ("hits", 1.0)
    assert "500 ms cold, 50 ms warm" in verdict.sentence


@pytest.mark.parametrize(
    ("hits", "cache", "verdict"),
    [
        ([0, 0, 4192], ALIGN, "hits"),
        ([None, None, None], {}, "unknown"),
        ([], {"enable_prefix_caching": "False"}, "off"),
    ],
    ids=["hit at the third request", "no counters", "disabled"],
)
def test_verdict_depends_on_hits_and_settings(hits: list[float | None], cache: dict[str, str], verdict: str) -> None:
    assert evaluate(*hits, cache=cache).verdict == verdict


@pytest.mark.parametrize(
    ("version", "reason", "fix"),
    [
        ("0.11.0", "turns it off for recurrent models", "from 0.26"),
        ("0.14.0", "only for Mamba models", "from 0.15.0"),
        ("0.17.1", "issue 36493", "from 0.26.0 on, prefix-match-unit"),
        ("0.32.0", "issue 36493", "prefix-match-unit allows"),
    ],
)
def test_missing_hits_on_a_recurrent_hybrid_are_explained_by_release(version: str, reason: str, fix: str) -> None:
    verdict = evaluate(0, 0, 0, version=version)
    assert verdict.verdict == "no hits"
    assert reason in verdict.sentence
    assert fix in verdict.fix


def test_missing_hits_on_a_dense_model_are_not_blamed_on_recurrence() -> None:
    cache = {"block_size": "16", "enable_prefix_caching": "True", "mamba_cache_mode": "none"}
    assert "36493" not in evaluate(0, 0, 0, cache=cache).sentence


@pytest.mark.parametrize("block", [16, 256, 1056, 2096])
def test_the_prefix_is_longer_than_two_blocks(block: int) -> None:
    assert prefix_cache.prefix_length_tokens(block) > 2 * block


def test_the_effective_block_size_outranks_the_configured_one() -> None:
    block_tokens = engines.get_engine("vllm").prefix_cache.block_tokens
    assert block_tokens({"block_size": "256", "effective_attention_block_size": "None"}) == 256
    assert block_tokens({"block_size": "16", "effective_attention_block_size": "2096"}) == 2096
    assert block_tokens({}) == 0


@pytest.mark.parametrize("name", ["llama_cpp", "sglang", "openai"])
def test_vllm_reasons_are_not_given_for_other_engines(name: str) -> None:
    verdict = evaluate(0, 0, 0, engine=name, hybrid=True)
    assert verdict.verdict == "no hits"
    assert "vllm" not in f"{verdict.sentence} {verdict.fix}".lower()


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("vllm", "enable-prefix-caching: true in the recipe"),
        ("llama_cpp", "cache-prompt: true in the recipe"),
        ("sglang", "disable-radix-cache: false in the recipe"),
        ("openai", ""),
    ],
)
def test_the_recipe_line_uses_the_flag_of_the_engine(name: str, line: str) -> None:
    assert prefix_cache.recipe_line(name) == line


def test_the_cache_config_is_read_from_metrics() -> None:
    line = 'vllm:cache_config_info{block_size="256",enable_prefix_caching="True",engine="0"} 1.0\n'
    assert HTTP.parse_cache_settings("# HELP x\n" + line)["block_size"] == "256"
    assert HTTP.parse_cache_settings("") == {}


def test_a_cached_prefix_is_never_larger_than_the_prompt() -> None:
    """llama.cpp with a byte tokenizer: 35 words are 280 tokens, and its cache hits single tokens."""
    measurements = [
        PrefixMeasurement(0.01, prompt, prompt, hits) for prompt, hits in ((310, 0), (312, 281), (330, 281))
    ]
    verdict = evaluate_prefix_cache("vllm", engines.get_engine("vllm").prefix_cache, measurements, 35, 1, {}, None)
    assert (verdict.verdict, verdict.share) == ("hits", 281 / 330)
    assert verdict.sentence.startswith("281 of 330 cached tokens; ")
