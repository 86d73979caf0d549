"""A flag of another engine is distinguished from a typing error, and its equivalent is named."""

import pytest
from packaging.version import Version

from sparkwright.engines.advice import ServerRequest
from sparkwright.engines.engine import get_engine
from sparkwright.engines.llama_cpp import flags
from sparkwright.engines.options import TITLES, describe_owner, load_concepts, translate_flag
from sparkwright.engines.vllm import options


@pytest.mark.parametrize(
    ("engine", "name", "owner", "equivalent"),
    [
        ("llama_cpp", "max-model-len", "vLLM's", "llama.cpp has ctx-size for the longest context"),
        ("llama_cpp", "max_seq_len", "TensorRT-LLM's", "llama.cpp has ctx-size for the longest context"),
        ("llama_cpp", "kv-cache-dtype", "vLLM's and SGLang's",
         "llama.cpp has cache-type-k and cache-type-v for the type of the KV cache"),
        ("llama_cpp", "gpu-memory-utilization", "vLLM's", "llama.cpp has no flag for the share of memory"),
        ("vllm", "ctx-size", "llama.cpp's", "vLLM has max-model-len for the longest context"),
        ("vllm", "--mem-fraction-static", "SGLang's", "vLLM has gpu-memory-utilization for the share of memory"),
        ("sglang", "max_num_seqs", "vLLM's", "SGLang has max-running-requests for requests at a time"),
    ],
)  # fmt: skip
def test_the_owner_of_a_flag_is_described(engine: str, name: str, owner: str, equivalent: str) -> None:
    assert describe_owner(engine, name) == f"{name} is {owner}; {equivalent}"


@pytest.mark.parametrize(
    ("engine", "name"), [("vllm", "max-model-len"), ("llama_cpp", "port"), ("llama_cpp", "nonsense")]
)
def test_known_and_unknown_flags_have_no_other_owner(engine: str, name: str) -> None:
    assert describe_owner(engine, name) == ""


@pytest.mark.parametrize(
    ("engine", "name", "translation"),
    [
        ("llama_cpp", "max-num-seqs", "parallel"),
        ("llama_cpp", "served-model-name", "alias"),
        ("vllm", "context-length", "max-model-len"),
        ("llama_cpp", "max-model-len", ""),  # llama.cpp's is for all slots together
        ("sglang", "enable-prefix-caching", ""),  # the opposite
        ("llama_cpp", "kv-cache-dtype", ""),  # two flags
        ("llama_cpp", "gpu-memory-utilization", ""),
        ("vllm", "nonsense", ""),
    ],
)
def test_only_flags_with_the_same_meaning_are_translated(engine: str, name: str, translation: str) -> None:
    assert translate_flag(engine, name) == translation


def test_lint_names_the_owner_of_a_foreign_flag() -> None:
    findings = get_engine("vllm").advice.check(ServerRequest({"ctx-size": 8192}), {}, Version("0.32.0"))
    finding = next(item for item in findings if item.rule == "unknown-flag")
    assert finding.sentence.startswith("ctx-size is llama.cpp's; vLLM has max-model-len for")
    assert [(way.text, way.changes) for way in finding.ways_out] == [("use max-model-len instead", {"ctx-size": None})]


def test_every_translation_names_a_known_flag() -> None:
    rows = load_concepts().values()
    assert {item for row in rows for item in row["vllm"]} - {"model"} <= options.all_options()
    assert {item for row in rows for item in row["llama_cpp"]} <= set(flags.TABLE.all_options)
    assert all(set(row) == set(TITLES) for row in rows)
