"""Rules about other ways to split or multiply a model: experts, data, context, and the backend that starts the members."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.engines.findings import Finding, Way
from sparkwright.engines.parallel import Split
from sparkwright.engines.vllm.flags import flags as own
from sparkwright.engines.vllm.parallel import flags
from sparkwright.engines.vllm.parallel.case import SplitCase, SplitExample, rule

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
    example=SplitExample(Split(tensor=2), flags={flags.BACKEND: RAY}),
)
def other_backend(case: SplitCase) -> Iterator[Finding]:
    """Members are started by vLLM's own backend; Ray is not offered.
    Official images have no Ray since 0.18.0. Installed by hand it needs a second cluster of its own with ports, a dashboard and a memory monitor
    that kills workers on unified memory, waits up to half an hour for a member, and copies the head's interface names to hosts that may have
    others. What carries the model, the message queue and NCCL, is the same with both. Of the other backends, `uni` and
    `external_launcher` leave the start of the members to somebody else.
    """
    backend = case.flag(flags.BACKEND)
    if backend in (None, OFFERED):
        return
    why = NO_RAY if backend == RAY else "members are started by vLLM's own backend, mp"
    sentence = f"{flags.BACKEND}: {backend} is not offered in a cluster: {why}."
    yield Finding("error", sentence, (Way("remove it", {flags.BACKEND: None}),), "vLLM #36170", flags.BACKEND)
