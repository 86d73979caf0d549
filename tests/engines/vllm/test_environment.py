"""Environment variables that a release of vLLM does not read."""

import pytest
from packaging.version import Version

from sparkwright.engines.vllm import environment, options
from sparkwright.engines.vllm.rules.options import unread_variable
from sparkwright.engines.vllm.rules.rule import Example


@pytest.mark.parametrize(
    ("name", "version", "reason", "successor"),
    [
        ("VLLM_ATTENTION_BACKEND", "0.26.0", "vLLM does not read it from 0.15.0 on", "attention-backend"),
        ("VLLM_USE_FLASHINFER_MOE_FP4", "0.32.0", "vLLM does not read it from 0.24.0 on", "moe-backend"),
        ("VLLM_CACHE_ROTT", "0.32.0", "vLLM 0.32.0 reads no such variable", "VLLM_CACHE_ROOT"),
        ("VLLM_ATTENTION_BACKEND", None, "vLLM does not read it from 0.15.0 on", "attention-backend"),
    ],
)
def test_an_unread_variable_has_a_successor(name: str, version: str | None, reason: str, successor: str) -> None:
    unread = environment.find_unread_variable(name, Version(version) if version else None)
    assert unread is not None
    assert (unread.reason, unread.replacement, unread.is_certain) == (reason, successor, version is not None)


@pytest.mark.parametrize(
    ("name", "version"),
    [
        *(("VLLM_ATTENTION_BACKEND", "0.14.1"), ("VLLM_CACHE_ROOT", "0.33.0")),
        *(("NCCL_DEBUG", "0.33.0"), ("VLLM_PORT", None)),
    ],
)
def test_a_variable_that_is_read_or_foreign_is_not_a_finding(name: str, version: str | None) -> None:
    assert environment.find_unread_variable(name, Version(version) if version else None) is None


def test_a_release_newer_than_the_table_is_uncertain() -> None:
    unread = environment.find_unread_variable("VLLM_NEW_THING", Version("0.40.0"))
    assert unread is not None and not unread.is_certain


def test_every_successor_is_a_known_flag() -> None:
    known = options.reference_options(options.MIDDLE_REFERENCE_RELEASE)
    assert {flag for flag in environment.SUCCESSOR_FLAGS.values() if flag not in known} == set()


def test_lint_names_the_successor_flag() -> None:
    example = Example(env={"VLLM_ATTENTION_BACKEND": "FLASHINFER"}, version="0.26.0")
    (finding,) = unread_variable(example.case())
    assert finding.severity == "warning"
    assert finding.ways_out[0].text == "write attention-backend under vllm: instead"
