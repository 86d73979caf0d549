"""A split of a model over several hosts: the limits of vLLM's splits, and the input of the rules about one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from packaging.version import Version

from sparkwright.engines.findings import Rules, Way
from sparkwright.engines.model import architecture_tables as tables
from sparkwright.engines.model.architecture import Architecture, classify
from sparkwright.engines.model.config_parts import Part
from sparkwright.engines.parallel import Split
from sparkwright.engines.vllm import versions
from sparkwright.engines.vllm.flags import flags as own
from sparkwright.engines.vllm.versions import at_least

#: pipeline parallelism over hosts: broken in 0.18.0 (issue 37933), fixed by pull request 40150
PIPELINE_SINCE = "0.20.0"
#: the first release whose layers were not read
UNTIL = "0.33.0"
#: heads that are divided among the hosts and never copied: of Mamba-2 and of linear attention
DIVIDED = {
    "mamba_num_heads": "Mamba heads",
    "mamba_n_heads": "Mamba heads",
    "linear_num_value_heads": "linear attention value heads",
    "linear_num_key_heads": "linear attention key heads",
}
GROUPS = ("n_groups", "mamba_n_groups")
KV_HEADS = "num_key_value_heads"
#: multi-head latent attention has one KV head, which each host holds
LATENT = "kv_lora_rank"


def tensor(model: Architecture, hosts: int) -> str:
    """Return why the layers can't be divided among these hosts, as "its 9 attention heads do not divide by 2"."""
    return heads(model, hosts) or other_heads(model, hosts)


def heads(model: Architecture, hosts: int) -> str:
    """Return why the attention heads can't be divided among these hosts; every release checks them first."""
    count = Part("", model.text).number("num_attention_heads")
    return f"its {count} attention heads do not divide by {hosts}" if count and count % hosts else ""


def other_heads(model: Architecture, hosts: int) -> str:
    """Return why the other heads of the model's layers can't be divided; a custom build may have layers without this limit."""
    return next(_undivided(Part("", model.text), hosts), "") if hosts > 1 else ""


def pipeline(model: Architecture, hosts: int) -> str:
    """Return why the model has too few layers for these hosts."""
    if hosts > 1 and model.layers and model.layers < hosts:
        return f"its {model.layers} layers are fewer than the {hosts} hosts"
    return ""


def old_pipeline(version: Version | None) -> bool:
    """Return True if this release is known to fail with pipeline parallelism over hosts."""
    return at_least(version, PIPELINE_SINCE) is False


def _undivided(text: Part, hosts: int) -> Iterator[str]:
    kv_heads = text.number(KV_HEADS)
    if kv_heads and not text.number(LATENT) and kv_heads % hosts and hosts % kv_heads:
        yield f"its {kv_heads} KV heads can neither be divided by {hosts} nor copied evenly"
    for name, title in DIVIDED.items():
        if (count := text.number(name)) and count % hosts:
            yield f"its {count} {title} do not divide by {hosts}"
    if (groups := text.number(*GROUPS)) and groups > 1 and groups % hosts and _is_mamba2(text):
        yield f"its {groups} Mamba groups do not divide by {hosts}"
    nested = Part("", text.mapping(tables.LINEAR_CONFIG) or {})
    if (count := nested.number("num_heads")) and count % hosts:
        yield f"its {count} linear attention heads do not divide by {hosts}"


def _is_mamba2(text: Part) -> bool:
    return bool(text.number("mamba_num_heads", "mamba_n_heads"))


# Models that vLLM 0.32.0 can't split between layers: all generating models for which its own `supports_pp` is false.
#
# Real: read from the installed engine, class by class, on a CPU. Not read, for a package was missing:
# CohereAsrForConditionalGeneration, Dots3NoteForCausalLM, FunASRForConditionalGeneration, KananaVForConditionalGeneration;
# DeepseekV4ForConditionalGeneration is a stub there.

MODELS = frozenset(
    """
        AriaForConditionalGeneration DiffusionGemmaForBlockDiffusion
        FireRedASR2ForConditionalGeneration Gemma3nForCausalLM Gemma3nForConditionalGeneration HrmTextForCausalLM
        IQuestLoopCoderForCausalLM Idefics3ForConditionalGeneration Mamba2ForCausalLM NemotronH_Nano_Omni_Reasoning_V3
        NemotronH_Nano_VL_V2 NemotronH_Omni_Reasoning_V3 NemotronH_Super_Omni_Reasoning_V3 NemotronParseForConditionalGeneration
        PaddleOCRVLForConditionalGeneration Phi4MMForCausalLM SmolVLMForConditionalGeneration WhisperForConditionalGeneration
        Zamba2ForCausalLM
    """.split()
)


SOURCE = "vLLM's ModelConfig.verify_with_parallel_config"


@dataclass(frozen=True)
class SplitCase:
    """A split of a model, with its recipe and engine."""

    split: Split
    #: of the recipe, under their own names
    flags: Mapping[str, Any]
    architecture: Architecture
    #: of the engine; None if not known
    version: Version | None

    def flag(self, name: str) -> Any:
        """Return the value of a flag; None if it is not set."""
        return own.value(self.flags, name)

    def within(self, since: str = "", until: str = "") -> bool | None:
        """See `versions.within`."""
        return versions.within(self.version, since, until)

    @property
    def model(self) -> str:
        return self.architecture.name or "the model"

    @property
    def engine(self) -> str:
        return f"vLLM {self.version}" if self.version else "this engine"

    def ways(self) -> tuple[Way, ...]:
        """Return the valid splits over as many hosts, else the advice to use fewer or more hosts."""
        hosts = self.split.hosts
        fitting = [split for split in _splits(hosts) if split != self.split and self._fits(split)]
        if fitting:
            return tuple(Way(f"write `parallel: {written(split)}`") for split in fitting[:2])
        return (Way("serve it from another number of hosts, or from each host alone"),)

    def _fits(self, split: Split) -> bool:
        refused = tensor(self.architecture, split.tensor)
        refused = refused or pipeline(self.architecture, split.pipeline)
        return not refused and not (split.pipeline > 1 and old_pipeline(self.version))


@dataclass(frozen=True)
class SplitExample:
    """A split for which the rule has a finding; a test checks that."""

    split: Split
    flags: Mapping[str, Any] = field(default_factory=dict)
    #: the keys of a config.json that matter
    model: Mapping[str, Any] = field(default_factory=dict)
    version: str | None = "0.32.0"

    def case(self) -> SplitCase:
        """Return the example as a SplitCase."""
        return SplitCase(self.split, own.named(self.flags), classify(self.model), versions.parse(self.version))


SPLITS: Rules[SplitCase, SplitExample] = Rules()
rule = SPLITS.rule


def as_keys(split: Split) -> dict[str, int]:
    """Return a split as a recipe writes it, without sizes of 1."""
    sizes = {"tensor": split.tensor, "pipeline": split.pipeline}
    return {name: size for name, size in sizes.items() if size > 1}


def written(split: Split) -> str:
    """Return a split as a recipe's text: `{tensor: 2}`."""
    return "{" + ", ".join(f"{name}: {size}" for name, size in as_keys(split).items()) + "}"


def _splits(hosts: int) -> list[Split]:
    """Return all splits over these hosts, the most tensor parallel first, since it speeds up one stream."""
    return [Split(hosts // index, index) for index in range(1, hosts + 1) if hosts % index == 0]
