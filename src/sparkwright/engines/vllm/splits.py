"""Splits of a model over several hosts: vLLM's limits, and rules that report an impossible split before the engines start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from packaging.version import Version

from sparkwright.engines.findings import Finding, Fix, Rules
from sparkwright.engines.model import architecture_tables as tables
from sparkwright.engines.model.architecture import Architecture, classify
from sparkwright.engines.model.config_parts import ConfigPart
from sparkwright.engines.parallel import Split
from sparkwright.engines.vllm import flags as vllm_flags
from sparkwright.engines.vllm import versions
from sparkwright.engines.vllm.versions import at_least

#: pipeline parallelism over hosts: broken in 0.18.0 (issue 37933), fixed by pull request 40150
FIRST_RELEASE_WITH_PIPELINES = "0.20.0"
#: first release whose layers have not been reviewed: limits of heads and pipeline support are certain only for older releases
FIRST_RELEASE_WITH_UNKNOWN_LAYERS = "0.33.0"
#: first release whose flags for clusters and log lines have been reviewed
FIRST_RELEASE_WITH_CLUSTERS = "0.17.1"
#: heads of Mamba-2 and linear attention: divided among the hosts, never copied
DIVIDED_HEADS = {
    "mamba_num_heads": "Mamba heads",
    "mamba_n_heads": "Mamba heads",
    "linear_num_value_heads": "linear attention value heads",
    "linear_num_key_heads": "linear attention key heads",
}
GROUP_KEYS = ("n_groups", "mamba_n_groups")
KV_HEADS_KEY = "num_key_value_heads"
#: set in models with multi-head latent attention: they have a single KV head, which is copied to each host
LATENT_RANK_KEY = "kv_lora_rank"


def attention_heads_error(model: Architecture, hosts: int) -> str:
    """Return the problem as a clause, such as "its 9 attention heads are not divisible by 2", else "". Every release refuses such a split."""
    count = ConfigPart("", model.text_config).get_number("num_attention_heads")
    return f"its {count} attention heads are not divisible by {hosts}" if count and count % hosts else ""


def other_heads_error(model: Architecture, hosts: int) -> str:
    """Return the problem with KV, recurrent or linear attention heads as a clause, else "". A custom build may have other limits."""
    return next(_find_undivided_heads(ConfigPart("", model.text_config), hosts), "") if hosts > 1 else ""


def pipeline_error(model: Architecture, hosts: int) -> str:
    """Return the problem as a clause, such as "its 2 layers are fewer than the 4 hosts", else ""."""
    if hosts > 1 and model.layers and model.layers < hosts:
        return f"its {model.layers} layers are fewer than the {hosts} hosts"
    return ""


def is_pipeline_broken(version: Version | None) -> bool:
    """Return True if pipeline parallelism over hosts is known to fail in this release."""
    return at_least(version, FIRST_RELEASE_WITH_PIPELINES) is False


def _find_undivided_heads(text_config: ConfigPart, hosts: int) -> Iterator[str]:
    kv_heads = text_config.get_number(KV_HEADS_KEY)
    if kv_heads and not text_config.get_number(LATENT_RANK_KEY) and kv_heads % hosts and hosts % kv_heads:
        yield f"its {kv_heads} KV heads can be neither divided by {hosts} nor copied evenly"
    for name, title in DIVIDED_HEADS.items():
        if (count := text_config.get_number(name)) and count % hosts:
            yield f"its {count} {title} are not divisible by {hosts}"
    is_mamba2 = text_config.get_number("mamba_num_heads", "mamba_n_heads")
    if is_mamba2 and (groups := text_config.get_number(*GROUP_KEYS)) and groups > 1 and groups % hosts:
        yield f"its {groups} Mamba groups are not divisible by {hosts}"
    linear_config = ConfigPart("", text_config.get_mapping(tables.LINEAR_CONFIG_KEY) or {})
    if (count := linear_config.get_number("num_heads")) and count % hosts:
        yield f"its {count} linear attention heads are not divisible by {hosts}"


#: generative models without pipeline parallelism in vLLM 0.32.0: `supports_pp` of the class is false.
#: Verified: read from each class of an installed engine, on a CPU. These could not be imported there (a package was missing):
#: CohereAsrForConditionalGeneration, Dots3NoteForCausalLM, FunASRForConditionalGeneration, KananaVForConditionalGeneration.
#: DeepseekV4ForConditionalGeneration is only a stub there
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
    """A split of a model, with the recipe's flags and the engine's version."""

    split: Split
    #: by canonical name
    flags: Mapping[str, Any]
    architecture: Architecture
    #: None if unknown
    version: Version | None

    def flag(self, name: str) -> Any:
        """Return the value of a flag; None if it is not set."""
        return vllm_flags.value(self.flags, name)

    @property
    def is_reviewed_release(self) -> bool:
        """True if the engine's release is known and its layers have been reviewed."""
        return at_least(self.version, FIRST_RELEASE_WITH_UNKNOWN_LAYERS) is False

    @property
    def model(self) -> str:
        return self.architecture.name or "the model"

    @property
    def engine(self) -> str:
        return f"vLLM {self.version}" if self.version else "this engine"

    def fixes(self) -> tuple[Fix, ...]:
        """Return up to two valid splits over the same number of hosts, else advice to change that number."""
        hosts = self.split.hosts
        # the splits with the highest tensor parallelism first: they are faster for a single stream
        splits = [Split(hosts // stages, stages) for stages in range(1, hosts + 1) if hosts % stages == 0]
        valid_splits = [split for split in splits if split != self.split and self._is_valid(split)]
        if valid_splits:
            return tuple(Fix(f"write `parallel: {format_split(split)}`") for split in valid_splits[:2])
        return (Fix("serve it on a different number of hosts, or on each host separately"),)

    def _is_valid(self, split: Split) -> bool:
        return not (
            attention_heads_error(self.architecture, split.tensor)
            or other_heads_error(self.architecture, split.tensor)
            or pipeline_error(self.architecture, split.pipeline)
            or (split.pipeline > 1 and is_pipeline_broken(self.version))
        )


@dataclass(frozen=True)
class SplitExample:
    """A split for which the rule reports a finding; a test checks this."""

    split: Split
    flags: Mapping[str, Any] = field(default_factory=dict)
    #: relevant keys of the model's config.json
    model: Mapping[str, Any] = field(default_factory=dict)
    version: str | None = "0.32.0"

    def case(self) -> SplitCase:
        return SplitCase(
            self.split, vllm_flags.normalize(self.flags), classify(self.model), versions.parse(self.version)
        )


def parallel_value(split: Split) -> dict[str, int]:
    """Return the value of a recipe's key `parallel`; sizes of 1 are omitted."""
    sizes = {"tensor": split.tensor, "pipeline": split.pipeline}
    return {name: size for name, size in sizes.items() if size > 1}


def _describe_example(example: SplitExample) -> dict[str, Any]:
    return {
        "engine": "vllm",
        "flags": example.flags,
        "version": example.version,
        "parallel": parallel_value(example.split),
    }


SPLIT_RULES: Rules[SplitCase, SplitExample] = Rules(SplitExample.case, _describe_example)
rule = SPLIT_RULES.rule


def format_split(split: Split) -> str:
    """Return a split as YAML for a recipe: `{tensor: 2}`."""
    return "{" + ", ".join(f"{name}: {size}" for name, size in parallel_value(split).items()) + "}"


EXPERT_PARALLEL_FLAG = "enable-expert-parallel"
#: flags that multiply the number of ranks, each with its title
RANK_MULTIPLIERS = {
    "data-parallel-size": "data parallelism",
    "prefill-context-parallel-size": "prefill context parallelism",
}
RAY_BACKEND = "ray"
SUPPORTED_BACKEND = "mp"
NO_RAY_REASON = "vLLM's images have not included Ray since 0.18.0, and vLLM's own backend does not need it"


@rule(
    "parallel-experts",
    sources=(
        "vLLM's FusedMoEParallelConfig (0.32.0): experts are spread only where tensor or data parallel size is above 1",
    ),
    example=SplitExample(Split(pipeline=2), flags={EXPERT_PARALLEL_FLAG: True}),
)
def experts_without_tensor(case: SplitCase) -> Iterator[Finding]:
    """Expert parallelism spreads experts over the hosts of tensor parallelism.
    With `parallel: {pipeline: 2}` each host has different layers with all their experts, and the flag has no effect.
    """
    if case.flag(EXPERT_PARALLEL_FLAG) is True and case.split.tensor == 1:
        message = f"{EXPERT_PARALLEL_FLAG} has no effect with `tensor: 1`: each host holds all experts of its layers."
        fixes = (
            Fix("remove it", {EXPERT_PARALLEL_FLAG: None}),
            Fix(f"write `parallel: {{tensor: {case.split.hosts}}}`"),
        )
        yield Finding("warning", message, fixes, "vLLM's FusedMoEParallelConfig", EXPERT_PARALLEL_FLAG)


@rule(
    "parallel-multiplied",
    sources=(
        "vLLM's ParallelConfig (0.32.0): each of these multiplies the ranks, and nnodes divides them evenly",
        "vLLM's documentation of data parallel deployment: more ports, a coordinator, and a comparison of the engines' configurations",
    ),
    example=SplitExample(Split(tensor=2), flags={"data-parallel-size": 2}),
)
def multiplied_ranks(case: SplitCase) -> Iterator[Finding]:
    """A cluster has one rank per host: tensor times pipeline.
    Data parallelism and prefill context parallelism multiply the number of ranks, and a GB10 has one GPU, for one rank. If one cluster cannot
    serve all requests, put two servers behind a gateway: they start, fail and are replaced independently.
    """
    for name, title in RANK_MULTIPLIERS.items():
        size = vllm_flags.parse_positive_integer(case.flag(name) or "")
        if size and size > 1:
            message = f"{name}: {size} needs {size} times the {case.split.hosts} GPUs of this cluster: {title} is not supported in a cluster."
            fixes = (Fix("remove it", {name: None}), Fix("serve the model twice, behind a gateway", {name: None}))
            yield Finding("error", message, fixes, "vLLM's ParallelConfig", name)


@rule(
    "parallel-backend",
    sources=(
        "vLLM 0.17.1 to 0.33.0: nnodes above 1 works with mp, uni and external_launcher; mp is the default on CUDA",
        "vLLM pull request 36170, RFC 33445: Ray left requirements/cuda.txt in 0.18.0",
        "vLLM 0.33.0, ray/ray_env.py: the head's variables are copied to all other hosts",
    ),
    example=SplitExample(Split(tensor=2), flags={vllm_flags.BACKEND: RAY_BACKEND}),
)
def other_backend(case: SplitCase) -> Iterator[Finding]:
    """Members are started by vLLM's own backend; Ray is not supported.
    Official images have not included Ray since 0.18.0. Installed manually, Ray adds a second cluster with ports, a dashboard and a memory monitor that
    kills workers on unified memory. It waits up to half an hour for a member, and copies the head's interface names to hosts whose interfaces
    may have other names. It is not faster: tensors travel through the same message queue and NCCL. The backends `uni` and
    `external_launcher` expect another program to start the members.
    """
    backend = case.flag(vllm_flags.BACKEND)
    if backend in (None, SUPPORTED_BACKEND):
        return
    reason = NO_RAY_REASON if backend == RAY_BACKEND else "members are started by vLLM's own backend, mp"
    message = f"{vllm_flags.BACKEND}: {backend} is not supported in a cluster: {reason}."
    yield Finding("error", message, (Fix("remove it", {vllm_flags.BACKEND: None}),), "vLLM #36170", vllm_flags.BACKEND)


@rule(
    "parallel-heads",
    sources=(
        f"{SOURCE} (0.32.0): the number of attention heads must be divisible by the tensor parallel size",
        "the models' attention layers (0.32.0): the number of KV heads must be divisible by that size, or that size by the number of KV heads, in which case each head is copied",
        "mamba_mixer2.py and gdn/*.py (0.32.0): the numbers of heads and groups of recurrent layers must be divisible by that size",
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
    """Tensor parallelism needs numbers of heads that are divisible by the number of hosts.
    Every host computes its share of each layer's heads. If there are fewer KV heads than hosts, each KV head is copied to several hosts. Heads
    of recurrent layers are never copied. The engine refuses other numbers only after it has been started on every host. Pipeline parallelism
    splits the model between layers and has no such limit: for three hosts, `parallel: {pipeline: 3}` is the usual split.
    """
    hosts = case.split.tensor
    certain_problem = attention_heads_error(case.architecture, hosts)
    problem = certain_problem or other_heads_error(case.architecture, hosts)
    if not problem:
        return
    is_error = bool(certain_problem) or case.is_reviewed_release
    outcome = "cannot" if is_error else "may not"
    message = f"{case.model} {outcome} be split over {hosts} hosts by tensor parallelism: {problem}."
    yield Finding("error" if is_error else "warning", message, case.fixes(), SOURCE)


@rule(
    "parallel-layers",
    sources=("vLLM's get_pp_indices (0.32.0): layers are divided by the pipeline parallel size, rounded down",),
    example=SplitExample(
        Split(pipeline=4),
        model={"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2},
    ),
)
def too_few_layers(case: SplitCase) -> Iterator[Finding]:
    """Pipeline parallelism needs at least one layer for every host.
    A host without a layer would only forward the other hosts' results.
    """
    if problem := pipeline_error(case.architecture, case.split.pipeline):
        message = f"{case.model} cannot be split over {case.split.pipeline} hosts by pipeline parallelism: {problem}."
        yield Finding("error", message, case.fixes(), "vLLM's get_pp_indices")


@rule(
    "parallel-pipeline-model",
    sources=(
        f"{SOURCE} (0.32.0): Pipeline parallelism is not supported for this model",
        "`supports_pp` of every class of the installed 0.32.0 (engines/vllm/splits.py)",
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
    """Some models do not support pipeline parallelism.
    The model's class in vLLM must implement it; otherwise the start fails with "Pipeline parallelism is not supported for this model". The
    list of these models is from 0.32.0: a later release may support more.
    """
    if case.split.pipeline == 1 or case.architecture.name not in NO_PIPELINE_MODELS:
        return
    outcome = "refuses" if case.is_reviewed_release else "may refuse"
    message = f"{case.model} does not support pipeline parallelism: {case.engine} {outcome} to start."
    yield Finding("error" if case.is_reviewed_release else "warning", message, case.fixes(), SOURCE)


@rule(
    "parallel-release",
    sources=(
        "vLLM 0.11.1: the first release with nnodes, node-rank, master-addr and master-port (engine/arg_utils.py)",
        "source of vLLM 0.17.1, 0.18.0, 0.19.0, 0.20.0, 0.28.0, 0.32.0 and 0.33.0: flags and log lines",
    ),
    example=SplitExample(Split(tensor=2), version="0.16.0"),
)
def old_release(case: SplitCase) -> Iterator[Finding]:
    """A cluster needs vLLM 0.17.1 or newer.
    Older releases lack the flags for a cluster, or do not log the head's rank in the group, so a complete group cannot be proved.
    """
    if at_least(case.version, FIRST_RELEASE_WITH_CLUSTERS) is False:
        message = f"{case.engine} is too old to serve from several hosts: a cluster needs vLLM {FIRST_RELEASE_WITH_CLUSTERS} or newer."
        yield Finding("error", message, (Fix("use a newer image, e.g. vllm/vllm-openai:v0.32.0"),), "vLLM 0.17.1")


@rule(
    "parallel-pipeline-release",
    sources=(
        "vLLM issue 37933: 0.18.0 fails to run pipeline parallelism across nodes",
        "vLLM #40150: the fix, in 0.20.0",
    ),
    example=SplitExample(Split(pipeline=2), version="0.19.1"),
)
def broken_pipeline(case: SplitCase) -> Iterator[Finding]:
    """Pipeline parallelism over hosts needs vLLM 0.20 or newer.
    It fails in 0.18 and was fixed in 0.20; tensor parallelism is not affected.
    """
    if case.split.pipeline > 1 and is_pipeline_broken(case.version):
        message = f"{case.engine} fails with pipeline parallelism over hosts (fixed in {FIRST_RELEASE_WITH_PIPELINES})."
        fixes = (Fix(f"use an image with vLLM {FIRST_RELEASE_WITH_PIPELINES} or newer"), *case.fixes())
        yield Finding("error", message, fixes, "vLLM #40150")
