"""Rules about tensor parallelism: the numbers that must be divisible."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.engines.findings import Finding
from sparkwright.engines.parallel import Split
from sparkwright.engines.vllm.parallel import split_limits
from sparkwright.engines.vllm.parallel.case import SOURCE, SplitCase, SplitExample, rule


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
    certain = split_limits.heads(case.architecture, hosts)
    why = certain or split_limits.other_heads(case.architecture, hosts)
    if not why:
        return
    is_error = bool(certain) or case.within("", split_limits.UNTIL) is True
    outcome = "cannot" if is_error else "may not"
    sentence = f"{case.model} {outcome} be split over {hosts} hosts by tensor parallelism: {why}."
    yield Finding("error" if is_error else "warning", sentence, case.ways(), SOURCE)
