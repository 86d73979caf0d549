"""Rules about the split of a model, to find errors before vLLM reports them on every host. Importing this registers the rules."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.engines.findings import Finding, Way
from sparkwright.engines.parallel import Split
from sparkwright.engines.vllm.flags import flags as own
from sparkwright.engines.vllm.parallel import member_flags, split
from sparkwright.engines.vllm.parallel.split import SOURCE, SPLITS, SplitCase, SplitExample, rule

__all__ = ["SPLITS"]


EXPERTS = "enable-expert-parallel"
#: flags that need more ranks than tensor x pipeline, with their meaning
MULTIPLIERS = {
    "data-parallel-size": "data parallelism",
    "prefill-context-parallel-size": "prefill context parallelism",
}
RAY = "ray"
OFFERED = "mp"
#: reason why Ray isn't offered
NO_RAY = "vLLM's images have no Ray since 0.18.0, and vLLM's own backend needs none"


@rule(
    "parallel-experts",
    sources=(
        "vLLM's FusedMoEParallelConfig (0.32.0): experts are spread only where tensor or data parallel size is above 1",
    ),
    example=SplitExample(Split(pipeline=2), flags={EXPERTS: True}),
)
def experts_without_tensor(case: SplitCase) -> Iterator[Finding]:
    """Expert parallelism spreads experts over the hosts of tensor parallelism.
    With `parallel: {pipeline: 2}` each host holds its own layers with all their experts, and the switch does nothing.
    """
    if case.flag(EXPERTS) is True and case.split.tensor == 1:
        sentence = f"{EXPERTS} has no effect with `tensor: 1`: each host holds all experts of its layers."
        ways = (Way("remove it", {EXPERTS: None}), Way(f"write `parallel: {{tensor: {case.split.hosts}}}`"))
        yield Finding("warning", sentence, ways, "vLLM's FusedMoEParallelConfig", EXPERTS)


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
    for name, title in MULTIPLIERS.items():
        size = own.integer(case.flag(name) or "")
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
    example=SplitExample(Split(tensor=2), flags={member_flags.BACKEND: RAY}),
)
def other_backend(case: SplitCase) -> Iterator[Finding]:
    """Members are started by vLLM's own backend; Ray is not offered.
    Official images have no Ray since 0.18.0. Installed by hand it needs a second cluster of its own with ports, a dashboard and a memory monitor
    that kills workers on unified memory, waits up to half an hour for a member, and copies the head's interface names to hosts that may have
    others. What carries the model, the message queue and NCCL, is the same with both. Of the other backends, `uni` and
    `external_launcher` leave the start of the members to somebody else.
    """
    backend = case.flag(member_flags.BACKEND)
    if backend in (None, OFFERED):
        return
    why = NO_RAY if backend == RAY else "members are started by vLLM's own backend, mp"
    sentence = f"{member_flags.BACKEND}: {backend} is not offered in a cluster: {why}."
    yield Finding(
        "error", sentence, (Way("remove it", {member_flags.BACKEND: None}),), "vLLM #36170", member_flags.BACKEND
    )


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
    certain = split.heads(case.architecture, hosts)
    why = certain or split.other_heads(case.architecture, hosts)
    if not why:
        return
    is_error = bool(certain) or case.within("", split.UNTIL) is True
    outcome = "cannot" if is_error else "may not"
    sentence = f"{case.model} {outcome} be split over {hosts} hosts by tensor parallelism: {why}."
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
    if why := split.pipeline(case.architecture, case.split.pipeline):
        sentence = f"{case.model} cannot be split over {case.split.pipeline} hosts by pipeline parallelism: {why}."
        yield Finding("error", sentence, case.ways(), "vLLM's get_pp_indices")


@rule(
    "parallel-pipeline-model",
    sources=(
        f"{SOURCE} (0.32.0): Pipeline parallelism is not supported for this model",
        "asked of the installed 0.32.0, class by class (engines/vllm/parallel/split.py)",
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
    if case.split.pipeline == 1 or case.architecture.name not in split.MODELS:
        return
    certain = case.within("", split.UNTIL) is True
    outcome = "refuses" if certain else "may refuse"
    sentence = f"{case.model} does not support pipeline parallelism: {case.engine} {outcome} to start."
    yield Finding("error" if certain else "warning", sentence, case.ways(), SOURCE)


#: the first release whose lines and flags were read
SINCE = "0.17.1"


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
    if case.within(SINCE) is False:
        sentence = f"{case.engine} cannot be proved to serve from several hosts: a cluster needs vLLM {SINCE} or newer."
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
    if case.split.pipeline > 1 and split.old_pipeline(case.version):
        sentence = f"{case.engine} fails with pipeline parallelism over hosts (repaired in {split.PIPELINE_SINCE})."
        ways = (Way(f"use an image with vLLM {split.PIPELINE_SINCE} or newer"), *case.ways())
        yield Finding("error", sentence, ways, "vLLM #40150")
