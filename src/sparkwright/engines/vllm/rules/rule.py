"""The input of vLLM's rules, and their registry."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from packaging.version import Version

from sparkwright.engines.advice import EXPECTED_PREFILL_RULE, EffectiveSettings
from sparkwright.engines.findings import Rules, Severity
from sparkwright.engines.model.architecture import Architecture, classify
from sparkwright.engines.vllm import versions
from sparkwright.engines.vllm.prediction import VllmRequest, predict_effective_settings


@dataclass(frozen=True)
class Case:
    """The input of the rules."""

    request: VllmRequest
    architecture: Architecture
    #: the engine's version; None if unknown
    version: Version | None
    #: options in the engine's own help, with their shapes if known (see option_values); if empty, only the tables apply
    listed_options: Collection[str] = ()

    @property
    def effective_settings(self) -> EffectiveSettings:
        return predict_effective_settings(self.request, self.architecture, self.version)

    @property
    def release(self) -> Version | None:
        """The engine's version, else the version in the tag of an official image. Used only to decide whether options exist."""
        return self.version or versions.parse_image_tag(self.request.image)

    @property
    def is_hybrid(self) -> bool:
        """True if the model has both recurrent and attention layers."""
        return self.architecture.kind == "recurrent"

    def flag(self, name: str) -> Any:
        """See `VllmRequest.flag`."""
        return self.request.flag(name)

    def within(self, since: str = "", until: str = "") -> bool | None:
        """See `versions.within`."""
        return versions.within(self.version, since, until)

    @property
    def engine(self) -> str:
        return f"vLLM {self.version}" if self.version else "this engine"


@dataclass(frozen=True)
class Example(VllmRequest):
    """A request for which the rule reports a finding; a test checks this."""

    #: relevant keys of the model's config.json
    model: Mapping[str, Any] = field(default_factory=dict)
    version: str | None = "0.32.0"

    def case(self) -> Case:
        return Case(self, classify(self.model), versions.parse(self.version))


def _describe_example(example: Example) -> dict[str, Any]:
    return {
        "engine": "vllm",
        "flags": example.flags,
        "image": example.image,
        "version": example.version,
        "container": example.container,
    }


#: for an expectation of chunked prefill that cannot be met, `explain` shows the most frequent cause
RULES: Rules[Case, Example] = Rules(
    Example.case, _describe_example, {EXPECTED_PREFILL_RULE: "prefix-caching-needs-chunked-prefill"}
)
rule = RULES.rule


def severity_of(certain: bool | None) -> Severity | None:
    """Return the severity of a refusal: error if it is certain, warning if it is possible (None), None if it is excluded."""
    return "error" if certain else "warning" if certain is None else None


def conjunction(*facts: bool | None) -> bool | None:
    """Return True if all facts are True, False if one is False, else None."""
    return False if False in facts else None if None in facts else True


#: models for the examples, with only the keys that decide their kind
HYBRID_MODEL: dict[str, Any] = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "text_config": {
        "model_type": "qwen3_5_moe_text",
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 10,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "mamba_ssm_dtype": "float32",
        "num_hidden_layers": 40,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "dtype": "bfloat16",
        "max_position_embeddings": 262144,
    },
}
DENSE_MODEL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 32,
    "max_position_embeddings": 131072,
}
