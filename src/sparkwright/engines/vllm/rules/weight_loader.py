"""Rules about loading weights from the disk into memory that CPU and GPU share."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.engines.findings import Finding, Severity, Way
from sparkwright.engines.vllm.rules.rule import Case, Example, rule

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
