"""Rules about pipeline parallelism: enough layers, and models that can be split between them."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.engines.findings import Finding
from sparkwright.engines.parallel import Split
from sparkwright.engines.vllm.parallel import no_pipeline, split_limits
from sparkwright.engines.vllm.parallel.case import SOURCE, SplitCase, SplitExample, rule


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
    if why := split_limits.pipeline(case.architecture, case.split.pipeline):
        sentence = f"{case.model} cannot be split over {case.split.pipeline} hosts by pipeline parallelism: {why}."
        yield Finding("error", sentence, case.ways(), "vLLM's get_pp_indices")


@rule(
    "parallel-pipeline-model",
    sources=(
        f"{SOURCE} (0.32.0): Pipeline parallelism is not supported for this model",
        "asked of the installed 0.32.0, class by class (engines/vllm/parallel/no_pipeline.py)",
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
    if case.split.pipeline == 1 or case.architecture.name not in no_pipeline.MODELS:
        return
    certain = case.within("", no_pipeline.UNTIL) is True
    outcome = "refuses" if certain else "may refuse"
    sentence = f"{case.model} does not support pipeline parallelism: {case.engine} {outcome} to start."
    yield Finding("error" if certain else "warning", sentence, case.ways(), SOURCE)
