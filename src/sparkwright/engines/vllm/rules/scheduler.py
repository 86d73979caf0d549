"""Rules about memory, chunked prefill, blocks, the token budget and the number of sequences."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.engines.findings import Finding, Fix, Severity
from sparkwright.engines.vllm import flags, prediction
from sparkwright.engines.vllm.prediction import FIRST_RELEASE_WITH_OPTIONAL_CHUNKING
from sparkwright.engines.vllm.rules.rule import DENSE_MODEL, HYBRID_MODEL, Case, Example, conjunction, rule, severity_of

SAFE_MEMORY_SHARE = 0.85
LOAD_FORMAT_FLAG, LOAD_STRATEGY_FLAG = "load-format", "safetensors-load-strategy"
#: the package that each of these load formats needs
LOADER_PACKAGES = {
    "fastsafetensors": "fastsafetensors",
    "instanttensor": "instanttensor",
    "runai_streamer": "runai-model-streamer",
    "runai_streamer_sharded": "runai-model-streamer",
}
#: effects of load strategies on the memory that CPU and GPU share
MEMORY_EFFECTS = {
    "eager": "reads each file completely before creating its weights, which temporarily takes twice the file's size",
    "prefetch": "fills the page cache with all files while they load, and CUDA counts the page cache as used memory",
}
#: vLLM's default; no GB10 is known to have memory for the states of more sequences
DEFAULT_MAX_SEQS = int(prediction.DEFAULTS[prediction.MAX_NUM_SEQS][0].value)
#: consequence of a block larger than the budget, by severity
OVER_BUDGET_OUTCOMES = {
    "error": "refuses to start",
    "warning": "refuses to start before 0.27",
    "info": "is slow on long prompts",
}
CHUNKED_PREFILL_ON_FIX = Fix("leave chunked prefill on", {"enable-chunked-prefill": None})
PREFIX_CACHING_OFF_FIX = Fix("turn prefix caching off", {"enable-prefix-caching": False})


@rule(
    "memory-utilization",
    sources=(
        "#38284: the default changed from 0.9 to 0.92 in 0.20",
        "DGX Spark forums and playbooks: 0.80 to 0.85; 'Free memory ... is less than desired GPU memory utilization'",
    ),
    example=Example({"max-num-seqs": 8}),
)
def memory_utilization(case: Case) -> Iterator[Finding]:
    """The default of gpu-memory-utilization is too high for memory that CPU and GPU share.
    On a GB10 the engine, the system, the page cache and all other processes share 119.7 GiB. The default is 0.92 (0.9 before 0.20),
    which a Spark can rarely provide. The host may run out of memory, and even sshd may be killed. 0.80 to 0.85 works; the rule
    `memory-budget` reports a share that is too high.
    """
    if case.request.platform != "gb10" or case.flag(flags.KV_BYTES) is not None:
        return
    if case.flag(flags.MEMORY_UTILIZATION) is None:
        default_share = case.effective_settings.memory_utilization
        share_text = default_share if default_share is not None else "0.9, 0.92 from 0.20 on"
        default_text = f"the engine's default ({share_text})"
        message = f"gpu-memory-utilization is not set, and {default_text} is too high for shared memory."
        fix = Fix(f"set it to {SAFE_MEMORY_SHARE}", {flags.MEMORY_UTILIZATION: SAFE_MEMORY_SHARE})
        yield Finding("warning", message, (fix,), "vLLM #38284; DGX Spark reports", flags.MEMORY_UTILIZATION)


@rule(
    "weights-loading",
    sources=(
        "vLLM 0.32.0, config/load.py: if unset, files are mapped, and prefetched on NFS if they fit into 90 % of the memory",
        "vLLM 0.32.0, model_loader/weight_utils.py: three loaders are separate packages",
        "NVIDIA's playbooks for DGX Spark: the page cache counts against CUDA's free memory",
    ),
    example=Example({LOAD_STRATEGY_FLAG: "prefetch"}),
)
def weights_loading(case: Case) -> Iterator[Finding]:
    """For models on a local disk, leave load-format and safetensors-load-strategy unset.
    By default the engine maps the files, so that no weight is in memory twice. Mapping is slow on a network file system (NFS), where the
    engine prefetches the files if the model fits into 90 % of the memory. Other loaders are faster in some reports, but need a package
    in the image and fail without it.
    """
    strategy, loader = (str(case.flag(name)) for name in (LOAD_STRATEGY_FLAG, LOAD_FORMAT_FLAG))
    if case.request.platform == "gb10" and strategy in MEMORY_EFFECTS:
        message = f"{LOAD_STRATEGY_FLAG} {strategy} {MEMORY_EFFECTS[strategy]}."
        yield _remove_flag("warning", message, LOAD_STRATEGY_FLAG)
    if loader in LOADER_PACKAGES:
        message = (
            f"{LOAD_FORMAT_FLAG} {loader} needs {LOADER_PACKAGES[loader]} in the image; without it the load fails."
        )
        yield _remove_flag("info", message, LOAD_FORMAT_FLAG)
    if loader == "dummy":
        yield _remove_flag(
            "warning", f"{LOAD_FORMAT_FLAG} dummy serves random weights; it is for profiling.", LOAD_FORMAT_FLAG
        )


def _remove_flag(severity: Severity, message: str, flag: str) -> Finding:
    return Finding(severity, message, (Fix("remove it", {flag: None}),), "vLLM 0.32.0", flag)


@rule(
    "block-over-budget",
    sources=(
        "#34445, source of 0.17.1: `validate_block_size`; from 0.18 on in the EngineCore, after the weights (#35122)",
        "#50000: the check was removed in 0.27",
        "0.32.0, a real start with a block above the budget: it starts",
    ),
    example=Example({"enable-prefix-caching": True, "kv-cache-dtype": "fp8"}, model=HYBRID_MODEL, version="0.17.1"),
)
def block_over_budget(case: Case) -> Iterator[Finding]:
    """With prefix caching, the block of a hybrid model must not exceed max-num-batched-tokens.
    vLLM enlarges the attention blocks of a hybrid to the size of a recurrent layer's state: 2096 tokens for Qwen3.5-35B-A3B with an fp8
    KV cache, 1056 with bf16. In cache mode `align` the scheduler advances by whole blocks, and the default budget on a GB10 is 2048. If
    a block is larger, 0.15 and 0.16 hang on the first long request, 0.17 to 0.26 refuse to start, and later releases are slow.
    """
    settings = case.effective_settings
    if (
        not case.is_hybrid
        or settings.prefix_caching is False
        or settings.block_tokens is None
        or settings.budget is None
    ):
        return
    if settings.block_tokens <= settings.budget or settings.mamba_cache_mode in ("none", "all"):
        return
    severity = severity_of(conjunction(case.within("0.15.0", "0.27.0"), settings.prefix_caching)) or "info"
    outcome = OVER_BUDGET_OUTCOMES[severity]
    if case.within("", "0.17.0") and severity != "warning":
        outcome = "hangs on long requests"
    message = f"this model's block is {settings.block_tokens} tokens (predicted) and max-num-batched-tokens is {settings.budget}"
    # the smallest power of two that is large enough, but at least 4096
    budget = max(4096, 1 << (settings.block_tokens - 1).bit_length())
    change = {"max-num-batched-tokens": budget}
    fix = Fix(f"raise max-num-batched-tokens to {budget} (at least {settings.block_tokens})", change)
    source = "vLLM's validate_block_size; the formula of its hybrid block"
    yield Finding(severity, f"{message}: {case.engine} {outcome}.", (fix,), source, "max-num-batched-tokens")


@rule(
    "seqs-over-budget",
    sources=("vLLM 0.11.0 to 0.33.0: SchedulerConfig", "0.32.0, a real start: exit 1"),
    example=Example({"max-num-seqs": 512, "max-num-batched-tokens": 256}),
)
def seqs_over_budget(case: Case) -> Iterator[Finding]:
    """max-num-seqs must not exceed max-num-batched-tokens.
    Each running sequence needs at least one token per step, so the engine refuses to start with more sequences than tokens.
    """
    settings = case.effective_settings
    if settings.budget is None or settings.max_num_seqs <= settings.budget:
        return
    fixes = (
        Fix(f"lower max-num-seqs to {settings.budget}", {"max-num-seqs": settings.budget}),
        Fix(
            f"raise max-num-batched-tokens to {settings.max_num_seqs}",
            {"max-num-batched-tokens": settings.max_num_seqs},
        ),
    )
    comparison = f"max-num-seqs {settings.max_num_seqs} exceeds max-num-batched-tokens {settings.budget}"
    message = f"{comparison}: {case.engine} refuses to start."
    yield Finding("error", message, fixes, "vLLM's SchedulerConfig", "max-num-seqs")


@rule(
    "seqs-over-mamba-blocks",
    sources=("#49064: max_num_seqs (1024) exceeds available Mamba cache blocks (969)",),
    example=Example({"max-num-seqs": 1024, "max-num-batched-tokens": 8192}, model=HYBRID_MODEL, mamba_blocks=969),
)
def seqs_over_mamba_blocks(case: Case) -> Iterator[Finding]:
    """max-num-seqs must not exceed the number of Mamba cache blocks.
    Each running sequence of a recurrent model needs a block for its state, and the engine refuses to start with more sequences than
    blocks. The engine computes the number of blocks after it has loaded the weights; the rule uses the number in an earlier log of the
    host, if there is one.
    """
    if case.architecture.kind not in ("recurrent", "attention_free"):
        return
    seqs, blocks = case.effective_settings.max_num_seqs, case.request.mamba_blocks
    limit = DEFAULT_MAX_SEQS if blocks is None else blocks
    if seqs <= limit:
        return
    if blocks is None:
        reason = f"each needs a Mamba cache block: {case.engine} may refuse"
    else:
        reason = f"the last start had memory for {blocks} Mamba cache blocks: {case.engine} refuses"
    fix = Fix(f"lower max-num-seqs to {limit}", {"max-num-seqs": limit})
    message = f"max-num-seqs is {seqs}, and {reason} to start."
    yield Finding("warning" if blocks is None else "error", message, (fix,), "vLLM #49064", "max-num-seqs")


@rule(
    "mamba-cache-mode",
    sources=(
        "#55041: `all` deprecated; the help of 0.32.0: choices align and none",
        "source of 0.33.0: the option has no effect",
        "source of 0.17.1: `all` falls back to `align` if the model's class does not support `all`, as for all Gated DeltaNet models",
        "0.28.0, its parser: `all` still has an effect if set explicitly for a Mamba2 model",
    ),
    example=Example({"mamba-cache-mode": "all"}, model=HYBRID_MODEL),
)
def mamba_cache_mode(case: Case) -> Iterator[Finding]:
    """--mamba-cache-mode all never worked for Gated DeltaNet, and was removed in 0.32.
    The mode follows from prefix caching and the model. `all` was the default for the Mamba2 family until 0.27; other hybrids fell back to
    `align` with a warning. 0.28 uses it only if set explicitly, and 0.32 refuses to start with it.
    """
    if case.flag("mamba-cache-mode") != "all":
        return
    is_refused = case.within(prediction.FIRST_RELEASE_REFUSING_ALL)
    severity = severity_of(is_refused) or "warning"
    if is_refused is None:
        outcome = "may refuse it"
    elif is_refused:
        outcome = "refuses it (choices are align and none)"
    elif case.effective_settings.mamba_cache_mode == "all":
        outcome = "uses it, and 0.32 and later refuse it"
    else:
        outcome = "ignores it or falls back to align"
    message = f"mamba-cache-mode all: {case.engine} {outcome}."
    fix = Fix("remove it: the mode follows prefix caching", {"mamba-cache-mode": None})
    yield Finding(severity, message, (fix,), "the help of 0.32.0; source of 0.17.1 and 0.33.0", "mamba-cache-mode")


@rule(
    "prefix-caching-needs-chunked-prefill",
    sources=(
        "vLLM 0.17.1, 0.33.0: VllmConfig asserts it for mamba cache mode 'align'",
        "0.32.0, a real start: exit 1, \"Chunked prefill is required for mamba cache mode 'align'.\"",
        "#50991: prefix caching is on by default for recurrent hybrids from 0.28 on",
    ),
    example=Example({"enable-prefix-caching": True, "enable-chunked-prefill": False}, model=HYBRID_MODEL),
)
def needs_chunked_prefill(case: Case) -> Iterator[Finding]:
    """Prefix caching on a recurrent hybrid needs chunked prefill.
    The state of a recurrent layer can only be cached at the end of a block, so chunked prefill must split prompts at block boundaries.
    The engine refuses to start with prefix caching on and chunked prefill off. From 0.28 on, prefix caching is on by default for these
    models: to turn chunked prefill off, turn off both.
    """
    settings = case.effective_settings
    if not case.is_hybrid or settings.chunked_prefill is not False or settings.mamba_cache_mode in ("none", "all"):
        return
    severity = severity_of(conjunction(case.within("0.15.0"), settings.prefix_caching))
    if severity is None:
        return
    reason = "is set" if case.flag("enable-prefix-caching") else "is on by default from 0.28 on"
    message = f"chunked prefill is off, but prefix caching, which needs it on a recurrent model, {reason}"
    message = f"{message}: {case.engine} {'refuses' if severity == 'error' else 'may refuse'} to start."
    source = "vLLM's VllmConfig; a real start of 0.32.0"
    yield Finding(severity, message, (CHUNKED_PREFILL_ON_FIX, PREFIX_CACHING_OFF_FIX), source, "enable-chunked-prefill")


@rule(
    "unchunked-budget",
    sources=("vLLM 0.11.0, 0.17.1, 0.33.0: SchedulerConfig", "0.32.0, a real start: exit 1"),
    example=Example(
        {"enable-chunked-prefill": False, "max-model-len": 32768, "max-num-batched-tokens": 4096}, model=DENSE_MODEL
    ),
)
def unchunked_budget(case: Case) -> Iterator[Finding]:
    """With chunked prefill off, max-num-batched-tokens must be at least max-model-len.
    A whole prompt must then fit into one step, and the engine refuses a smaller budget. If max-num-batched-tokens is not set, the engine
    raises its default, and a step needs more memory.
    """
    settings, length = case.effective_settings, case.effective_settings.max_model_len
    if settings.chunked_prefill is not False or length is None or case.request.platform == "ascend":
        return
    severity = severity_of(case.within(FIRST_RELEASE_WITH_OPTIONAL_CHUNKING))
    if (
        case.flag("max-num-batched-tokens") is None
        or settings.budget is None
        or settings.budget >= length
        or severity is None
    ):
        return
    fixes = (
        Fix(f"raise max-num-batched-tokens to {length}", {"max-num-batched-tokens": length}),
        Fix(f"lower max-model-len to {settings.budget}", {"max-model-len": settings.budget}),
        CHUNKED_PREFILL_ON_FIX,
    )
    message = f"max-num-batched-tokens {settings.budget} is less than max-model-len {length}, with chunked prefill off"
    message = f"{message}: {case.engine} refuses to start."
    yield Finding(severity, message, fixes, "vLLM's SchedulerConfig; a real start of 0.32.0", "max-num-batched-tokens")


@rule(
    "explicit-chunked-prefill",
    sources=(
        "vLLM 0.11.0, 0.17.1, 0.33.0: None and True give the same SchedulerConfig",
        "a blog post of March 2026 claims that the flag slowed a server down from 47 to 5.7 tok/s; not reproduced",
    ),
    example=Example({"enable-chunked-prefill": True}, model=HYBRID_MODEL),
)
def explicit_chunked_prefill(case: Case) -> Iterator[Finding]:
    """--enable-chunked-prefill has no effect on a recurrent model.
    Chunked prefill is on by default for generative models in every release that can load a recurrent hybrid. The settings are the
    same with and without the flag, so it cannot make a server slow. To check this, start the server with and without it, and compare
    the config dumps and decode rates.
    """
    if not case.is_hybrid or case.flag("enable-chunked-prefill") is not True:
        return
    message = (
        "enable-chunked-prefill is redundant: chunked prefill is on by default in every release that loads this model."
        " Do not blame it for a slow server without a measurement."
    )
    fix = Fix("remove it", {"enable-chunked-prefill": None})
    yield Finding("info", message, (fix,), "vLLM's source; equal config dumps", "enable-chunked-prefill")
