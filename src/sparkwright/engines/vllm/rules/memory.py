"""Rules about the memory that CPU and GPU share: the engine's share, and loading weights into it."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.engines.findings import Finding, Severity, Way
from sparkwright.engines.vllm.flags import flags
from sparkwright.engines.vllm.rules.rule import Case, Example, rule

SAFE = 0.85


@rule(
    "memory-utilization",
    sources=(
        "#38284: the default went from 0.9 to 0.92 in 0.20",
        "DGX Spark forums and playbooks: 0.80 to 0.85; 'Free memory ... is less than desired GPU memory utilization'",
    ),
    example=Example({"max-num-seqs": 8}),
)
def memory_utilization(case: Case) -> Iterator[Finding]:
    """gpu-memory-utilization is a share of the memory that the host needs too.
    On a GB10 CPU and GPU share 119.7 GiB, with the system, the page cache and every other process. The default was 0.9 and is 0.92,
    which a Spark can rarely provide, and memory that the engine takes is missing on the host, up to the loss of sshd. 0.80 to 0.85
    works; `memory-budget` tells of a share that does not.
    """
    if case.asked.platform != "gb10" or case.flag(flags.KV_BYTES) is not None:
        return
    if case.flag(flags.MEMORY_UTILIZATION) is None:
        usual = case.effective.memory_utilization
        known = usual if usual is not None else "0.9, 0.92 from 0.20 on"
        default = f"the engine's default ({known})"
        sentence = f"gpu-memory-utilization is not set, and {default} is too high for shared memory."
        way = Way(f"set it to {SAFE}", {flags.MEMORY_UTILIZATION: SAFE})
        yield Finding("warning", sentence, (way,), "vLLM #38284; DGX Spark reports", flags.MEMORY_UTILIZATION)


FORMAT, STRATEGY = "load-format", "safetensors-load-strategy"
#: load formats, each with the package that it needs
PACKAGES = {
    "fastsafetensors": "fastsafetensors",
    "instanttensor": "instanttensor",
    "runai_streamer": "runai-model-streamer",
    "runai_streamer_sharded": "runai-model-streamer",
}
#: effect of a strategy on memory that the GPU also needs
TWICE = {
    "eager": "reads each file into memory whole before its weights are made, so it is there twice for a while",
    "prefetch": "fills the page cache with all files while they load, and CUDA counts the page cache as taken",
}


@rule(
    "weights-loading",
    sources=(
        "vLLM 0.32.0, config/load.py: unset, files are mapped, and prefetched on NFS where they fit into 90 % of the memory",
        "vLLM 0.32.0, model_loader/weight_utils.py: three loaders are packages of their own",
        "NVIDIA's playbooks for DGX Spark: the page cache counts against CUDA's free memory",
    ),
    example=Example({STRATEGY: "prefetch"}),
)
def weights_loading(case: Case) -> Iterator[Finding]:
    """On a disk of the host leave load-format and safetensors-load-strategy out: the files are mapped, and nothing is held twice.
    On a network file system (NFS) that is slow; there the engine prefetches by itself where the model fits into 90 % of the memory.
    Other loaders are faster in some reports, need a package in the image, and fail at the load without it.
    """
    strategy, loader = case.flag(STRATEGY), case.flag(FORMAT)
    if case.asked.platform == "gb10" and strategy in TWICE:
        sentence = f"{STRATEGY} {strategy} {TWICE[strategy]}."
        yield _finding("warning", sentence, STRATEGY)
    if loader in PACKAGES:
        sentence = f"{FORMAT} {loader} needs {PACKAGES[loader]} in the image; without it the load fails."
        yield _finding("info", sentence, FORMAT)
    if loader == "dummy":
        yield _finding("warning", f"{FORMAT} dummy serves random weights; it is for profiling.", FORMAT)


def _finding(severity: Severity, sentence: str, flag: str) -> Finding:
    return Finding(severity, sentence, (Way("leave it out", {flag: None}),), "vLLM 0.32.0", flag)
