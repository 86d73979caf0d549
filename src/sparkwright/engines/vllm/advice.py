"""vLLM's implementation of engines.advice.Advice."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any

from packaging.version import Version

from sparkwright.engines import advice
from sparkwright.engines.advice import (
    EXPECTED_PREFILL_RULE,
    Decision,
    EffectiveSettings,
    OnImpossible,
    PrefillExpectation,
    decide_enabled,
)
from sparkwright.engines.findings import Finding, Fix, Rules
from sparkwright.engines.memory import (
    ASSUMED_HOST_BYTES,
    PYTORCH_WEIGHT_SUFFIXES,
    Memory,
    MemoryPart,
    read_cpu_part,
    sum_weights,
)
from sparkwright.engines.model import architecture
from sparkwright.engines.model.architecture import Architecture
from sparkwright.engines.vllm import flags as vllm_flags
from sparkwright.engines.vllm import prediction, rules, versions
from sparkwright.engines.vllm.prediction import CACHE_MODE_ALL_ARCHITECTURES, VllmRequest
from sparkwright.engines.vllm.splits import SPLIT_RULES
from sparkwright.engines.vllm.versions import at_least
from sparkwright.units import GIB

CHUNKED_PREFILL_FLAG = vllm_flags.CHUNKED_PREFILL
RULES: tuple[Rules[Any, Any], ...] = (rules.RULES, SPLIT_RULES)
#: maximum context without chunked prefill: a step then contains a whole prompt, and with a longer context the start takes minutes and
#: needs more memory
MAX_UNCHUNKED_TOKENS = 32768
#: assumed memory in addition to weights and a KV cache of fixed size, until a start is measured
COMPUTE_BYTES = 4 * GIB
SOURCE = "vLLM's VllmConfig; real starts of 0.32.0"

#: see engines.advice.Advice
version, kind, relevant_config = versions.parse, architecture.classify, architecture.relevant_config


def decide_chunked_prefill(
    request: advice.ServerRequest,
    model: Mapping[str, Any],
    version: Version | None,
    expected: PrefillExpectation,
    on_impossible: OnImpossible,
) -> Decision:
    """Return the flags for the expected chunked prefill setting, or the reason why it is impossible.

    `disabled` is impossible up to 0.11.0, which ignores the flag, and for prefix caching on a recurrent hybrid, which needs
    chunked prefill.
    """
    vllm_request, model_kind = _to_vllm_request(request), kind(model)
    flags = vllm_request.flags
    if expected == "any" or request.platform == "ascend":
        return Decision(flags, expected)
    if expected == "enabled":
        return decide_enabled(
            vllm_request, CHUNKED_PREFILL_FLAG, is_off=vllm_request.flag(CHUNKED_PREFILL_FLAG) is False
        )
    wants_prefix_caching = vllm_request.flag(vllm_flags.PREFIX_CACHING) is True
    if model_kind.kind == "unknown" and wants_prefix_caching and on_impossible == "report":
        return Decision(flags, "any", "not decided: the kind of model is unknown until it is pinned")
    obstacle = _find_obstacle(vllm_request, model_kind, version)
    if obstacle is None:
        return Decision(_turn_chunked_prefill_off(vllm_request, model_kind), "disabled")
    message, fixes, note = obstacle
    finding = Finding("error", message, fixes, SOURCE, CHUNKED_PREFILL_FLAG, rule=EXPECTED_PREFILL_RULE)
    if on_impossible == "refuse":
        return Decision(flags, "disabled", "", finding)
    finding = replace(finding, severity="info", sentence=f"{message} The server starts with it {note}.")
    return Decision({name: flags[name] for name in flags if name != CHUNKED_PREFILL_FLAG}, "any", note, finding)


def check(
    request: advice.ServerRequest,
    model: Mapping[str, Any],
    version: Version | None,
    listed_options: Collection[str] = (),
) -> list[Finding]:
    """See `rules.check`."""
    return rules.check(_to_vllm_request(request), kind(model), version, listed_options)


def effective_settings(
    request: advice.ServerRequest, model: Mapping[str, Any], version: Version | None
) -> EffectiveSettings:
    """See `prediction.predict_effective_settings`."""
    return prediction.predict_effective_settings(_to_vllm_request(request), kind(model), version)


def memory(flags: Mapping[str, Any], lock_entry: Mapping[str, Any]) -> Memory:
    """Return the share of memory, which vLLM fills for any model, or, with kv-cache-memory-bytes, the sum of weights, cache and computation.

    In both cases vLLM checks at startup that the share is available (source of 0.32.0, v1/worker/utils.py `request_memory`). Weights
    and KV cache that it keeps on the CPU are in the same memory on a GB10: they are added, except weights that are counted anyway.

    On a cluster, each host is counted with all of kv-offloading-size, although the help calls it the sum of all ranks: in 0.32.0, the
    first worker on each host creates a region of that size in /dev/shm, and pins all of it (v1/kv_offload/cpu/shared_offload_region.py,
    `pin_mmap_region` in gpu_worker.py). Only with VLLM_USE_SIMPLE_KV_OFFLOAD does a rank allocate just its part.
    """
    flags = vllm_flags.normalize(flags)
    share, weight_bytes = vllm_flags.memory_utilization(flags), sum_weights(lock_entry, PYTORCH_WEIGHT_SUFFIXES)
    compiles = vllm_flags.value(flags, vllm_flags.EAGER) is not True
    base_memory = Memory(weights_bytes=weight_bytes, host_bytes=ASSUMED_HOST_BYTES, compiles=compiles)
    kv_bytes = vllm_flags.parse_positive_integer(vllm_flags.value(flags, vllm_flags.KV_BYTES) or "")
    cache_parts = read_cpu_part("KV cache", flags, "kv-offloading-size")
    offloaded_cache = tuple(replace(part, in_shm=True) for part in cache_parts)
    if kv_bytes is None:
        offloaded = (*read_cpu_part("weights", flags, "cpu-offload-gb"), *offloaded_cache)
        size = sum(part.size_bytes for part in offloaded)
        base_memory = replace(base_memory, bytes=size, parts=offloaded)
        return replace(base_memory, share=share, flag=vllm_flags.MEMORY_UTILIZATION, value=share)
    parts = (
        MemoryPart(
            "weights", weight_bytes, "spark.lock" if weight_bytes else "not pinned yet", assumed=not weight_bytes
        ),
        MemoryPart("KV cache", kv_bytes, vllm_flags.KV_BYTES),
        MemoryPart("computation", COMPUTE_BYTES, "not measured: activations and CUDA graphs", assumed=True),
        *offloaded_cache,
    )
    size = sum(part.size_bytes for part in parts)
    base_memory = replace(base_memory, bytes=size, value=kv_bytes, per_token_bytes=1)
    return replace(base_memory, parts=parts, flag=vllm_flags.KV_BYTES, start_share=share)


def chunked_prefill_variants(
    flags: Mapping[str, Any], model: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the changes to the flags that turn chunked prefill on, and those that turn it off. None removes a flag.

    A recurrent model's prefix caching needs chunked prefill, so both turn prefix caching off, except for dense models. Without chunked
    prefill a step contains a whole prompt, so both limit the context to MAX_UNCHUNKED_TOKENS.
    """
    model_kind = kind(model)
    common_changes: dict[str, Any] = {}
    if model_kind.kind != "dense":
        common_changes[vllm_flags.PREFIX_CACHING] = False
    length = vllm_flags.context(flags) or model_kind.max_position_embeddings
    if length is None or length > MAX_UNCHUNKED_TOKENS:
        length = MAX_UNCHUNKED_TOKENS
        common_changes[vllm_flags.MAX_MODEL_LEN] = length
    off_changes: dict[str, Any] = {CHUNKED_PREFILL_FLAG: False}
    budget = vllm_flags.parse_positive_integer(vllm_flags.value(flags, vllm_flags.BUDGET_FLAG) or "")
    if budget is not None and budget < length:
        off_changes[vllm_flags.BUDGET_FLAG] = None
    return {**common_changes, CHUNKED_PREFILL_FLAG: None}, {**common_changes, **off_changes}


def _to_vllm_request(request: advice.ServerRequest) -> VllmRequest:
    if isinstance(request, VllmRequest):
        return request
    values = {field.name: getattr(request, field.name) for field in fields(advice.ServerRequest)}
    if request.ascend is not None:
        enabled, chunked = request.ascend["scheduler"], request.ascend["chunked_prefill"]
        flags = vllm_flags.normalize(request.flags)
        values["flags"] = prediction.set_ascend_scheduler(flags, enabled=enabled, chunked=chunked)
    return VllmRequest(**values)


def _find_obstacle(
    request: VllmRequest, architecture: Architecture, version: Version | None
) -> tuple[str, tuple[Fix, ...], str] | None:
    if at_least(version, prediction.FIRST_RELEASE_WITH_OPTIONAL_CHUNKING) is False:
        message = f"chunked prefill cannot be turned off in vLLM {version}: the flag is ignored."
        return message, (Fix("use an image with vLLM 0.12 or newer"),), "on, as always in this release"
    wants_prefix_caching = architecture.kind == "recurrent" and request.flag(vllm_flags.PREFIX_CACHING) is True
    uses_align_mode = (
        architecture.name not in CACHE_MODE_ALL_ARCHITECTURES
        or at_least(version, prediction.FIRST_RELEASE_WITH_ONLY_ALIGN) is not False
    )
    if not wants_prefix_caching or not uses_align_mode:
        return None
    fixes = (
        Fix("turn prefix caching off", {vllm_flags.PREFIX_CACHING: False}),
        Fix("leave chunked prefill on: `expect.chunked_prefill: any`, and let the throughput gate decide"),
    )
    message = "chunked prefill cannot be off here: prefix caching on a recurrent model needs it, and the recipe turns prefix caching on."
    return message, fixes, "on, required by prefix caching"


def _turn_chunked_prefill_off(request: VllmRequest, architecture: Architecture) -> dict[str, Any]:
    """Return the flags with chunked prefill off, and for a recurrent model also prefix caching, which is on by default from 0.28 on."""
    flags = {**request.flags, CHUNKED_PREFILL_FLAG: False}
    if architecture.kind == "recurrent" and request.flag(vllm_flags.PREFIX_CACHING) is None:
        flags[vllm_flags.PREFIX_CACHING] = False
    return flags
