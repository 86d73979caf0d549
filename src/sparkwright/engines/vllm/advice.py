"""vLLM's implementation of engines.advice.Advice: its rules, expectations and predictions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any

from packaging.version import Version

from sparkwright.engines import advice
from sparkwright.engines.advice import EXPECTED_RULE, Decision, Effective, ImpossiblePolicy, PrefillExpectation
from sparkwright.engines.findings import Finding, Rules, Way
from sparkwright.engines.memory import HOST_SIDE_BYTES, Memory, MemoryPart, sum_weights
from sparkwright.engines.model import architecture
from sparkwright.engines.model.architecture import Architecture
from sparkwright.engines.vllm import flags as vllm_flags
from sparkwright.engines.vllm import prediction, rules, versions
from sparkwright.engines.vllm.prediction import CACHE_MODE_ALL, VllmRequest
from sparkwright.engines.vllm.splits import SPLITS
from sparkwright.engines.vllm.versions import at_least
from sparkwright.units import GIB

CHUNKED_PREFILL = vllm_flags.CHUNKED_PREFILL
RULES: tuple[Rules[Any, Any], ...] = (rules.RULES, SPLITS)
#: with chunked prefill off a step takes a whole prompt: more than this makes a start take memory and minutes for nothing
MAX_UNCHUNKED_TOKENS = 32768
#: suffixes of weights; of several kinds vLLM loads the first
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".gguf")
#: memory in addition to weights and a cache of a given size, until a start was measured
COMPUTE_BYTES = 4 * GIB


def version(text: str | None) -> Version | None:
    """Return the PEP 440 version in a text; None if it holds none."""
    return versions.parse(text)


def kind(model: Mapping[str, Any]) -> Architecture:
    """See `architecture.classify`."""
    return architecture.classify(model)


def essence(config: Mapping[str, Any]) -> dict[str, Any]:
    """See `architecture.essence`."""
    return architecture.essence(config)


def decide(
    request: advice.ServerRequest,
    model: Mapping[str, Any],
    version: Version | None,
    wanted: PrefillExpectation,
    impossible: ImpossiblePolicy,
) -> Decision:
    """See `decide_chunked_prefill`."""
    return decide_chunked_prefill(_to_vllm_request(request), kind(model), version, wanted, impossible)


def check(
    request: advice.ServerRequest, model: Mapping[str, Any], version: Version | None, listed: Collection[str] = ()
) -> list[Finding]:
    """See `rules.check`."""
    return rules.check(_to_vllm_request(request), kind(model), version, listed)


def effective(request: advice.ServerRequest, model: Mapping[str, Any], version: Version | None) -> Effective:
    """See `prediction.predict_effective`."""
    return prediction.predict_effective(_to_vllm_request(request), kind(model), version)


def memory(flags: Mapping[str, Any], locked: Mapping[str, Any]) -> Memory:
    """Return the share of memory, which vLLM fills whatever the model; with kv-cache-memory-bytes, weights and cache.

    Its check at the start needs the share to be available in both cases (source 0.32.0, v1/worker/utils.py `request_memory`).
    """
    flags = vllm_flags.normalize(flags)
    share, weight_bytes = vllm_flags.memory_utilization(flags), sum_weights(locked, WEIGHT_SUFFIXES)
    compiles = vllm_flags.value(flags, vllm_flags.EAGER) is not True
    base = Memory(weights_bytes=weight_bytes, host_bytes=HOST_SIDE_BYTES, compiles=compiles)
    kv = vllm_flags.parse_positive_integer(vllm_flags.value(flags, vllm_flags.KV_BYTES) or "")
    if kv is None:
        return replace(base, share=share, flag=vllm_flags.MEMORY_UTILIZATION, value=share)
    parts = (
        MemoryPart(
            "weights", weight_bytes, "spark.lock" if weight_bytes else "not pinned yet", assumed=not weight_bytes
        ),
        MemoryPart("KV cache", kv, f"{vllm_flags.KV_BYTES}"),
        MemoryPart("computation", COMPUTE_BYTES, "not measured: activations and CUDA graphs", assumed=True),
    )
    size = sum(part.size_bytes for part in parts)
    base = replace(base, bytes=size, value=kv, per_token_bytes=1)
    return replace(base, parts=parts, flag=vllm_flags.KV_BYTES, start_share=share)


def chunked_prefill_arms(
    flags: Mapping[str, Any], model: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the flags for chunked prefill on and off, alike in everything else.

    A recurrent model's prefix caching needs chunked prefill, so prefix caching is off in both. Without chunked prefill a step
    takes a whole prompt, so the context is at most MAX_UNCHUNKED_TOKENS in both.
    """
    model_kind = kind(model)
    common: dict[str, Any] = {}
    if model_kind.kind != "dense":
        common[vllm_flags.PREFIX_CACHING] = False
    length = vllm_flags.context(flags) or model_kind.max_position_embeddings
    if length is None or length > MAX_UNCHUNKED_TOKENS:
        length = MAX_UNCHUNKED_TOKENS
        common[vllm_flags.MAX_MODEL_LEN] = length
    off: dict[str, Any] = {CHUNKED_PREFILL: False}
    budget = vllm_flags.parse_positive_integer(vllm_flags.value(flags, vllm_flags.BUDGET) or "")
    if budget is not None and budget < length:
        off[vllm_flags.BUDGET] = None
    return {**common, CHUNKED_PREFILL: None}, {**common, **off}


def _to_vllm_request(request: advice.ServerRequest) -> VllmRequest:
    if isinstance(request, VllmRequest):
        return request
    values = {field.name: getattr(request, field.name) for field in fields(advice.ServerRequest)}
    if request.ascend is not None:
        settings = {"enabled": request.ascend["scheduler"], "chunked": request.ascend["chunked_prefill"]}
        values["flags"] = prediction.set_ascend_scheduler(vllm_flags.normalize(request.flags), **settings)
    return VllmRequest(**values)


# Flags for the chunked prefill that a recipe expects with this model and engine, or a refusal.
#
# `disabled` is not always possible: prefix caching on a recurrent hybrid needs chunked prefill, and releases until 0.11.0
# ignore the flag.

CHUNKED_PREFILL_FLAG = "enable-chunked-prefill"
PREFIX_CACHING_FLAG = "enable-prefix-caching"
SOURCE = "vLLM's VllmConfig; real starts of 0.32.0"


def decide_chunked_prefill(
    request: VllmRequest,
    architecture: Architecture,
    version: Version | None,
    wanted: PrefillExpectation,
    when_impossible: ImpossiblePolicy,
) -> Decision:
    """Return the flags that give the wanted chunked prefill, or the reason why that is impossible."""
    if wanted == "any" or request.platform == "ascend":
        return Decision(request.flags, wanted)
    if wanted == "enabled":
        return _decide_enabled(request)
    if architecture.kind == "unknown" and request.flag(PREFIX_CACHING_FLAG) is True and when_impossible == "report":
        return Decision(request.flags, "any", "not decided: what kind of model this is is known once it is pinned")
    obstacle = _find_obstacle(request, architecture, version)
    if obstacle is None:
        return Decision(_turn_chunked_prefill_off(request, architecture), "disabled")
    sentence, ways, note = obstacle
    if when_impossible == "refuse":
        return Decision(
            request.flags,
            "disabled",
            "",
            Finding("error", sentence, ways, SOURCE, CHUNKED_PREFILL_FLAG, rule=EXPECTED_RULE),
        )
    remaining_flags = {name: message for name, message in request.flags.items() if name != CHUNKED_PREFILL_FLAG}
    finding = Finding("info", f"{sentence} It goes on: {note}.", ways, SOURCE, CHUNKED_PREFILL_FLAG, rule=EXPECTED_RULE)
    return Decision(remaining_flags, "any", note, finding)


def _decide_enabled(request: VllmRequest) -> Decision:
    if request.flag(CHUNKED_PREFILL_FLAG) is not False:
        return Decision(request.flags, "enabled")
    sentence = "the recipe expects chunked prefill on, and its flags turn it off."
    way = Way("leave it on", {CHUNKED_PREFILL_FLAG: None})
    return Decision(
        request.flags,
        "enabled",
        "",
        Finding("error", sentence, (way,), "the recipe", CHUNKED_PREFILL_FLAG, rule=EXPECTED_RULE),
    )


def _find_obstacle(
    request: VllmRequest, architecture: Architecture, version: Version | None
) -> tuple[str, tuple[Way, ...], str] | None:
    if at_least(version, prediction.CHUNKED_PREFILL_OPTIONAL_SINCE) is False:
        sentence = f"chunked prefill can't be turned off in vLLM {version}: the flag is ignored."
        return sentence, (Way("take an image with vLLM 0.12 or newer"),), "on, as it always is there"
    wants_prefix = architecture.kind == "recurrent" and request.flag(PREFIX_CACHING_FLAG) is True
    caches_by_block = (
        architecture.name not in CACHE_MODE_ALL or at_least(version, prediction.ALIGN_ONLY_SINCE) is not False
    )
    if not wants_prefix or not caches_by_block:
        return None
    ways = (
        Way("give up prefix caching", {PREFIX_CACHING_FLAG: False}),
        Way("leave chunked prefill on: `expect.chunked_prefill: any`, with the throughput gate as the judge"),
    )
    sentence = "chunked prefill can't be off here: prefix caching on a recurrent model needs it, and the recipe wants prefix caching."
    return sentence, ways, "on, required by prefix caching"


def _turn_chunked_prefill_off(request: VllmRequest, architecture: Architecture) -> dict[str, Any]:
    """Return the flags with `--no-enable-chunked-prefill`, which every release takes; from 0.28 on a hybrid's prefix caching must
    be off too."""
    flags = {**request.flags, CHUNKED_PREFILL_FLAG: False}
    if architecture.kind == "recurrent" and request.flag(PREFIX_CACHING_FLAG) is None:
        flags[PREFIX_CACHING_FLAG] = False
    return flags
