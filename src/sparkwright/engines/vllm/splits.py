"""Splits of a model over several hosts: the limits of vLLM's splits, and the rules that find errors before vLLM reports them on every host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from packaging.version import Version

from sparkwright.engines.findings import Finding, Rules, Way
from sparkwright.engines.model import architecture_tables as tables
from sparkwright.engines.model.architecture import Architecture, classify
from sparkwright.engines.model.config_parts import ConfigPart
from sparkwright.engines.parallel import Split
from sparkwright.engines.vllm import flags as vllm_flags
from sparkwright.engines.vllm import versions
from sparkwright.engines.vllm.versions import at_least

#: pipeline parallelism over hosts: broken in 0.18.0 (issue 37933), fixed by pull request 40150
PIPELINE_SINCE = "0.20.0"
#: the first release whose layers were not read
FIRST_UNREAD_RELEASE = "0.33.0"
#: heads that are divided among the hosts and never copied: of Mamba-2 and of linear attention
DIVIDED_HEADS = {
    "mamba_num_heads": "Mamba heads",
    "mamba_n_heads": "Mamba heads",
    "linear_num_value_heads": "linear attention value heads",
    "linear_num_key_heads": "linear attention key heads",
}
GROUP_KEYS = ("n_groups", "mamba_n_groups")
KV_HEADS_KEY = "num_key_value_heads"
#: multi-head latent attention has one KV head, which each host holds
LATENT_RANK_KEY = "kv_lora_rank"


def check_tensor(model: Architecture, hosts: int) -> str:
    """Return why the layers can't be divided among these hosts, as "its 9 attention heads do not divide by 2"."""
    return check_heads(model, hosts) or check_other_heads(model, hosts)


def check_heads(model: Architecture, hosts: int) -> str:
    """Return why the attention heads can't be divided among these hosts; every release checks them first."""
    count = ConfigPart("", model.text).number("num_attention_heads")
    return f"its {count} attention heads do not divide by {hosts}" if count and count % hosts else ""


def check_other_heads(model: Architecture, hosts: int) -> str:
    """Return why the other heads of the model's layers can't be divided; a custom build may have layers without this limit."""
    return next(_find_undivided(ConfigPart("", model.text), hosts), "") if hosts > 1 else ""


def check_pipeline(model: Architecture, hosts: int) -> str:
    """Return why the model has too few layers for these hosts."""
    if hosts > 1 and model.layers and model.layers < hosts:
        return f"its {model.layers} layers are fewer than the {hosts} hosts"
    return ""


def is_pipeline_broken(version: Version | None) -> bool:
    """Return True if this release is known to fail with pipeline parallelism over hosts."""
    return at_least(version, PIPELINE_SINCE) is False


def _find_undivided(text: ConfigPart, hosts: int) -> Iterator[str]:
    kv_heads = text.number(KV_HEADS_KEY)
    if kv_heads and not text.number(LATENT_RANK_KEY) and kv_heads % hosts and hosts % kv_heads:
        yield f"its {kv_heads} KV heads can neither be divided by {hosts} nor copied evenly"
    for name, title in DIVIDED_HEADS.items():
        if (count := text.number(name)) and count % hosts:
            yield f"its {count} {title} do not divide by {hosts}"
    if (groups := text.number(*GROUP_KEYS)) and groups > 1 and groups % hosts and _is_mamba2(text):
        yield f"its {groups} Mamba groups do not divide by {hosts}"
    nested = ConfigPart("", text.mapping(tables.LINEAR_CONFIG_KEY) or {})
    if (count := nested.number("num_heads")) and count % hosts:
        yield f"its {count} linear attention heads do not divide by {hosts}"


def _is_mamba2(text: ConfigPart) -> bool:
    return bool(text.number("mamba_num_heads", "mamba_n_heads"))


# Models that vLLM 0.32.0 can't split between layers: all generating models for which its own `supports_pp` is false.
#
# Real: read from the installed engine, class by class, on a CPU. Not read, for a package was missing:
# CohereAsrForConditionalGeneration, Dots3NoteForCausalLM, FunASRForConditionalGeneration, KananaVForConditionalGeneration;
# DeepseekV4ForConditionalGeneration is a stub there.

NO_PIPELINE_MODELS = frozenset(
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
        return vllm_flags.value(self.flags, name)

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
        fitting = [split for split in _list_splits(hosts) if split != self.split and self._is_valid(split)]
        if fitting:
            return tuple(Way(f"write `parallel: {format_split(split)}`") for split in fitting[:2])
        return (Way("serve it from another number of hosts, or from each host alone"),)

    def _is_valid(self, split: Split) -> bool:
        problem = check_tensor(self.architecture, split.tensor)
        problem = problem or check_pipeline(self.architecture, split.pipeline)
        return not problem and not (split.pipeline > 1 and is_pipeline_broken(self.version))


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
        return SplitCase(
            self.split, vllm_flags.normalize(self.flags), classify(self.model), versions.parse(self.version)
        )


def recipe_keys(split: Split) -> dict[str, int]:
    """Return a split as a recipe writes it, without sizes of 1."""
    sizes = {"tensor": split.tensor, "pipeline": split.pipeline}
    return {name: size for name, size in sizes.items() if size > 1}


def _describe_example(example: SplitExample) -> dict[str, Any]:
    return {
        "engine": "vllm",
        "flags": example.flags,
        "version": example.version,
        "parallel": recipe_keys(example.split),
    }


SPLITS: Rules[SplitCase, SplitExample] = Rules(SplitExample.case, _describe_example)
rule = SPLITS.rule


def format_split(split: Split) -> str:
    """Return a split as a recipe's text: `{tensor: 2}`."""
    return "{" + ", ".join(f"{name}: {size}" for name, size in recipe_keys(split).items()) + "}"


def _list_splits(hosts: int) -> list[Split]:
    """Return all splits over these hosts, the most tensor parallel first, since it speeds up one stream."""
    return [Split(hosts // index, index) for index in range(1, hosts + 1) if hosts % index == 0]


__all__ = ["SPLITS"]


EXPERT_PARALLEL = "enable-expert-parallel"
#: flags that need more ranks than tensor x pipeline, with their meaning
RANK_MULTIPLIERS = {
    "data-parallel-size": "data parallelism",
    "prefill-context-parallel-size": "prefill context parallelism",
}
RAY = "ray"
SUPPORTED_BACKEND = "mp"
#: reason why Ray isn't offered
NO_RAY_REASON = "vLLM's images have no Ray since 0.18.0, and vLLM's own backend needs none"


@rule(
    "parallel-experts",
    sources=(
        "vLLM's FusedMoEParallelConfig (0.32.0): experts are spread only where tensor or data parallel size is above 1",
    ),
    example=SplitExample(Split(pipeline=2), flags={EXPERT_PARALLEL: True}),
)
def experts_without_tensor(case: SplitCase) -> Iterator[Finding]:
    """Expert parallelism spreads experts over the hosts of tensor parallelism.
    With `parallel: {pipeline: 2}` each host holds its own layers with all their experts, and the switch does nothing.
    """
    if case.flag(EXPERT_PARALLEL) is True and case.split.tensor == 1:
        sentence = f"{EXPERT_PARALLEL} has no effect with `tensor: 1`: each host holds all experts of its layers."
        ways = (Way("remove it", {EXPERT_PARALLEL: None}), Way(f"write `parallel: {{tensor: {case.split.hosts}}}`"))
        yield Finding("warning", sentence, ways, "vLLM's FusedMoEParallelConfig", EXPERT_PARALLEL)


@rule(
    "parallel-multiplied",
    sources=(
        "vLLM's ParallelConfig (0.32.0): each of these multiplies the ranks, and nnodes divides them evenly",
        "vLLM's documentation of data parallel deployment: further ports, a coordinator, one configuration compared between engines",
    ),
    example=SplitExample(Split(tensor=2), flags={"data-parallel-size": 2}),
)
def multiplied(case: SplitCase) -> Iterator[Finding]:
    """A cluster has one rank a host: tensor times pipeline.
    Data parallelism and prefill context parallelism multiply the ranks, and a GB10 has one GPU for one of them. More requests than one cluster
    serves are for two servers behind a gateway: they start, fail and are replaced one at a time.
    """
    for name, title in RANK_MULTIPLIERS.items():
        size = vllm_flags.parse_positive_integer(case.flag(name) or "")
        if size and size > 1:
            sentence = f"{name}: {size} needs {size} times as many GPUs as the {case.split.hosts} of this cluster: {title} is not offered in one."
            ways = (Way("remove it", {name: None}), Way("serve the model twice, behind a gateway", {name: None}))
            yield Finding("error", sentence, ways, "vLLM's ParallelConfig", name)


@rule(
    "parallel-backend",
    sources=(
        "vLLM 0.17.1 to 0.33.0: nnodes above 1 works with mp, uni and external_launcher, and CUDA takes mp by itself",
        "vLLM pull request 36170, RFC 33445: Ray left requirements/cuda.txt in 0.18.0",
        "vLLM 0.33.0, ray/ray_env.py: variables are copied from the head to the other hosts, right for them or not",
    ),
    example=SplitExample(Split(tensor=2), flags={vllm_flags.BACKEND: RAY}),
)
def other_backend(case: SplitCase) -> Iterator[Finding]:
    """Members are started by vLLM's own backend; Ray is not offered.
    Official images have no Ray since 0.18.0. Installed by hand it needs a second cluster of its own with ports, a dashboard and a memory monitor
    that kills workers on unified memory, waits up to half an hour for a member, and copies the head's interface names to hosts that may have
    others. What carries the model, the message queue and NCCL, is the same with both. Of the other backends, `uni` and
    `external_launcher` leave the start of the members to somebody else.
    """
    backend = case.flag(vllm_flags.BACKEND)
    if backend in (None, SUPPORTED_BACKEND):
        return
    reason = NO_RAY_REASON if backend == RAY else "members are started by vLLM's own backend, mp"
    sentence = f"{vllm_flags.BACKEND}: {backend} is not offered in a cluster: {reason}."
    yield Finding("error", sentence, (Way("remove it", {vllm_flags.BACKEND: None}),), "vLLM #36170", vllm_flags.BACKEND)


@rule(
    "parallel-heads",
    sources=(
        f"{SOURCE} (0.32.0): attention heads must divide by the tensor parallel size",
        "the models' attention layers (0.32.0): KV heads divide by it, or it by them: then each is copied",
        "mamba_mixer2.py and gdn/*.py (0.32.0): heads and groups of recurrent layers divide by it",
    ),
    example=SplitExample(
        Split(tensor=3),
        model={
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
        },
    ),
)
def undivided_heads(case: SplitCase) -> Iterator[Finding]:
    """Tensor parallelism needs heads that divide by the number of hosts.
    Every host computes its share of each layer's heads. Where there are fewer KV heads than hosts, each is copied to as many hosts. Heads
    of recurrent layers are never copied. The engine refuses what does not divide, after it was started on every host. Pipeline parallelism
    splits between layers and has no such limit: three hosts mostly mean `parallel: {pipeline: 3}`.
    """
    hosts = case.split.tensor
    certain_problem = check_heads(case.architecture, hosts)
    problem = certain_problem or check_other_heads(case.architecture, hosts)
    if not problem:
        return
    is_error = bool(certain_problem) or case.within("", FIRST_UNREAD_RELEASE) is True
    outcome = "cannot" if is_error else "may not"
    sentence = f"{case.model} {outcome} be split over {hosts} hosts by tensor parallelism: {problem}."
    yield Finding("error" if is_error else "warning", sentence, case.ways(), SOURCE)


@rule(
    "parallel-layers",
    sources=("vLLM's get_pp_indices (0.32.0): layers are divided by the pipeline parallel size, rounded down",),
    example=SplitExample(
        Split(pipeline=4),
        model={"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2},
    ),
)
def few_layers(case: SplitCase) -> Iterator[Finding]:
    """Pipeline parallelism needs a layer for every host.
    Hosts without a layer would only pass on what the others compute.
    """
    if problem := check_pipeline(case.architecture, case.split.pipeline):
        sentence = f"{case.model} cannot be split over {case.split.pipeline} hosts by pipeline parallelism: {problem}."
        yield Finding("error", sentence, case.ways(), "vLLM's get_pp_indices")


@rule(
    "parallel-pipeline-model",
    sources=(
        f"{SOURCE} (0.32.0): Pipeline parallelism is not supported for this model",
        "asked of the installed 0.32.0, class by class (engines/vllm/splits.py)",
    ),
    example=SplitExample(
        Split(pipeline=2),
        model={
            "architectures": ["Zamba2ForCausalLM"],
            "model_type": "zamba2",
            "num_hidden_layers": 81,
            "num_attention_heads": 32,
        },
    ),
)
def no_pipeline_model(case: SplitCase) -> Iterator[Finding]:
    """Some models cannot be split between their layers.
    A model's class in vLLM has to support pipeline parallelism; the engine refuses those that do not with "Pipeline parallelism is not supported
    for this model". The list is that of 0.32.0: a later release may support more.
    """
    if case.split.pipeline == 1 or case.architecture.name not in NO_PIPELINE_MODELS:
        return
    certain = case.within("", FIRST_UNREAD_RELEASE) is True
    outcome = "refuses" if certain else "may refuse"
    sentence = f"{case.model} does not support pipeline parallelism: {case.engine} {outcome} to start."
    yield Finding("error" if certain else "warning", sentence, case.ways(), SOURCE)


#: the first release whose lines and flags were read
CLUSTER_SINCE = "0.17.1"


@rule(
    "parallel-release",
    sources=(
        "vLLM 0.11.1: the first with nnodes, node-rank, master-addr and master-port (engine/arg_utils.py)",
        "vLLM 0.17.1, 0.18.0, 0.19.0, 0.20.0, 0.28.0, 0.32.0 and 0.33.0: flags and log lines read in the source",
    ),
    example=SplitExample(Split(tensor=2), version="0.16.0"),
)
def old_release(case: SplitCase) -> Iterator[Finding]:
    """A cluster needs vLLM 0.17.1 or newer.
    Older releases have no flags for it, or log lines by which the head's place in the group cannot be told, so that a start could not be proved.
    """
    if case.within(CLUSTER_SINCE) is False:
        sentence = f"{case.engine} cannot be proved to serve from several hosts: a cluster needs vLLM {CLUSTER_SINCE} or newer."
        yield Finding("error", sentence, (Way("use a newer image, e.g. vllm/vllm-openai:v0.32.0"),), "vLLM 0.17.1")


@rule(
    "parallel-pipeline-release",
    sources=(
        "vLLM issue 37933: 0.18.0 fails to run pipeline parallelism across nodes",
        "vLLM #40150: the repair, in 0.20.0",
    ),
    example=SplitExample(Split(pipeline=2), version="0.19.1"),
)
def broken_pipeline(case: SplitCase) -> Iterator[Finding]:
    """Pipeline parallelism over hosts needs vLLM 0.20 or newer.
    It failed in 0.18 and was repaired in 0.20; tensor parallelism was not affected.
    """
    if case.split.pipeline > 1 and is_pipeline_broken(case.version):
        sentence = f"{case.engine} fails with pipeline parallelism over hosts (repaired in {PIPELINE_SINCE})."
        ways = (Way(f"use an image with vLLM {PIPELINE_SINCE} or newer"), *case.ways())
        yield Finding("error", sentence, ways, "vLLM #40150")
