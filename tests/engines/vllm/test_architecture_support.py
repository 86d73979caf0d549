"""Releases that support an architecture; unknown between two registries that were read."""

import pytest
from packaging.version import Version

from sparkwright.engines.model import architecture_tables as tables
from sparkwright.engines.vllm.architecture_support import SUPPORT, describe_support, is_supported

#: whether a release supports an architecture; None if unknown
EXPECTED_SUPPORT: dict[str, dict[str, bool | None]] = {
    "Qwen3_5MoeForConditionalGeneration": {"0.16.0": False, "0.17.0": True, "0.17.0rc1": None, "0.33.0+cu130": True, "0.40.0": None},
    "KimiLinearForCausalLM": {"0.11.0": False, "0.13.0": True, "0.17.1": True},
    "ExaoneMoEForCausalLM": {"0.28.0": None, "0.33.0": True},
    "Glm5NextForCausalLM": {"0.29.0": False, "0.29.1": None, "0.30.0": True},
    "Phi3SmallForCausalLM": {"0.11.0": False},
    "BambaForCausalLM": {"0.23.0.post1": True, "0.26.0": False},
    "Plamo2ForCausalLM": {"0.26.0": True, "0.27.0": False},
    "QWenLMHeadModel": {"0.20.0": True, "0.32.0": False},
    "RecurrentGemmaForCausalLM": {"0.32.0": False},
    "LlamaForCausalLM": {"0.9.0": None, "0.32.0": True},
    "UnknownModel": {"0.32.0": None},
    "Qwen3NextForCausalLM": {"nightly": None},
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "version", "supported"),
    [(name, *answer) for name, answers in EXPECTED_SUPPORT.items() for answer in answers.items()],
)
def test_a_release_supports_the_architectures_of_its_registry(name: str, version: str, supported: bool | None) -> None:
    assert is_supported(name, version) is supported


def test_every_recurrent_architecture_has_its_releases() -> None:
    assert set(tables.RECURRENT_ARCHITECTURES) - set(SUPPORT) == set()


def test_releases_are_in_order() -> None:
    for support in SUPPORT.values():
        bounds = [Version(text) for text in (support.newest_without, support.since, support.until) if text]
        assert bounds == sorted(bounds)


def test_no_architecture_is_both_dense_and_recurrent() -> None:
    dense = {*tables.GENERATING_ARCHITECTURES, *tables.POOLING_ARCHITECTURES}
    assert set(tables.RECURRENT_ARCHITECTURES) & {*dense, *tables.DROPPED_ARCHITECTURES} == set()
    assert [name for name in dense if tables.DRAFT_NAME_PATTERN.search(name)] == []


@pytest.mark.parametrize(
    ("name", "description"),
    [
        ("Qwen3_5ForConditionalGeneration", "0.17.0 and newer; none up to 0.16.0"),
        ("BambaForCausalLM", "0.10.2 to 0.23.0, not since"),
        ("ZambaForCausalLM", "none up to 0.33.0"),
        ("UnknownModel", ""),
    ],
)
def test_supported_releases_are_described(name: str, description: str) -> None:
    assert describe_support(name) == description
