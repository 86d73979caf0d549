"""vLLM's implementation of engines.advice.Advice: its rules, expectations and predictions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any

from packaging.version import Version

from sparkwright.engines import advice
from sparkwright.engines.advice import EXPECTED, Decision, Effective, Wanted, WhenImpossible
from sparkwright.engines.findings import Finding, Rules, Way
from sparkwright.engines.memory import HOST_SIDE_BYTES, Memory, Part, weights
from sparkwright.engines.model import architecture
from sparkwright.engines.model.architecture import Architecture
from sparkwright.engines.vllm import flags as own
from sparkwright.engines.vllm import prediction, rules, versions
from sparkwright.engines.vllm.prediction import CACHE_MODE_ALL, VllmRequest
from sparkwright.engines.vllm.splits import SPLITS
from sparkwright.engines.vllm.versions import at_least
from sparkwright.units import GIB

CHUNKED_PREFILL = own.CHUNKED_PREFILL
RULES: tuple[Rules[Any, Any], ...] = (rules.RULES, SPLITS)
#: with chunked prefill off a step takes a whole prompt: more than this makes a start take memory and minutes for nothing
UNCHUNKED_LENGTH = 32768
#: suffixes of weights; of several kinds vLLM loads the first
WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")
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
    wanted: Wanted,
    impossible: WhenImpossible,
) -> Decision:
    """See `expectation.decide`."""
    return expected_flags(_own(request), kind(model), version, wanted, impossible)


def check(
    request: advice.ServerRequest, model: Mapping[str, Any], version: Version | None, listed: Collection[str] = ()
) -> list[Finding]:
    """See `rules.check`."""
    return rules.check(_own(request), kind(model), version, listed)


def effective(request: advice.ServerRequest, model: Mapping[str, Any], version: Version | None) -> Effective:
    """See `predict.effective`."""
    return prediction.effective(_own(request), kind(model), version)


def memory(flags: Mapping[str, Any], locked: Mapping[str, Any]) -> Memory:
    """Return the share of memory, which vLLM fills whatever the model; with kv-cache-memory-bytes, weights and cache.

    Its check at the start needs the share to be available in both cases (source 0.32.0, v1/worker/utils.py `request_memory`).
    """
    flags = own.named(flags)
    share, held = own.memory_utilization(flags), weights(locked, WEIGHTS)
    compiles = own.value(flags, own.EAGER) is not True
    known = Memory(weights_bytes=held, host_bytes=HOST_SIDE_BYTES, compiles=compiles)
    kv = own.integer(own.value(flags, own.KV_BYTES) or "")
    if kv is None:
        return replace(known, share=share, flag=own.MEMORY_UTILIZATION, value=share)
    parts = (
        Part("weights", held, "spark.lock" if held else "not pinned yet", assumed=not held),
        Part("KV cache", kv, f"{own.KV_BYTES}"),
        Part("computation", COMPUTE_BYTES, "not measured: activations and CUDA graphs", assumed=True),
    )
    size = sum(part.size_bytes for part in parts)
    known = replace(known, bytes=size, value=kv, per_token_bytes=1)
    return replace(known, parts=parts, flag=own.KV_BYTES, start_share=share)


def chunked_prefill_arms(
    flags: Mapping[str, Any], model: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the flags for chunked prefill on and off, alike in everything else.

    A recurrent model's prefix caching needs chunked prefill, so prefix caching is off in both. Without chunked prefill a step
    takes a whole prompt, so the context is at most UNCHUNKED_LENGTH in both.
    """
    found = kind(model)
    both: dict[str, Any] = {}
    if found.kind != "dense":
        both[own.PREFIX_CACHING] = False
    length = own.context(flags) or found.max_position_embeddings
    if length is None or length > UNCHUNKED_LENGTH:
        length = UNCHUNKED_LENGTH
        both[own.MAX_MODEL_LEN] = length
    off: dict[str, Any] = {CHUNKED_PREFILL: False}
    budget = own.integer(own.value(flags, own.BUDGET) or "")
    if budget is not None and budget < length:
        off[own.BUDGET] = None
    return {**both, CHUNKED_PREFILL: None}, {**both, **off}


def _own(request: advice.ServerRequest) -> VllmRequest:
    if isinstance(request, VllmRequest):
        return request
    given = {field.name: getattr(request, field.name) for field in fields(advice.ServerRequest)}
    if request.ascend is not None:
        settings = {"enabled": request.ascend["scheduler"], "chunked": request.ascend["chunked_prefill"]}
        given["flags"] = prediction.with_scheduler(own.named(request.flags), **settings)
    return VllmRequest(**given)


# Flags for the chunked prefill that a recipe expects with this model and engine, or a refusal.
#
# `disabled` is not always possible: prefix caching on a recurrent hybrid needs chunked prefill, and releases until 0.11.0
# ignore the flag.

SWITCH = "enable-chunked-prefill"
PREFIX = "enable-prefix-caching"
SOURCE = "vLLM's VllmConfig; real starts of 0.32.0"


def expected_flags(
    request: VllmRequest,
    architecture: Architecture,
    version: Version | None,
    wanted: Wanted,
    when_impossible: WhenImpossible,
) -> Decision:
    """Return the flags that give the wanted chunked prefill, or the reason why that is impossible."""
    if wanted == "any" or request.platform == "ascend":
        return Decision(request.flags, wanted)
    if wanted == "enabled":
        return _enabled(request)
    if architecture.kind == "unknown" and request.flag(PREFIX) is True and when_impossible == "report":
        return Decision(request.flags, "any", "not decided: what kind of model this is is known once it is pinned")
    why = _impossible(request, architecture, version)
    if why is None:
        return Decision(_without(request, architecture), "disabled")
    sentence, ways, note = why
    if when_impossible == "refuse":
        return Decision(request.flags, "disabled", "", Finding("error", sentence, ways, SOURCE, SWITCH, rule=EXPECTED))
    kept = {name: message for name, message in request.flags.items() if name != SWITCH}
    finding = Finding("info", f"{sentence} It goes on: {note}.", ways, SOURCE, SWITCH, rule=EXPECTED)
    return Decision(kept, "any", note, finding)


def _enabled(request: VllmRequest) -> Decision:
    if request.flag(SWITCH) is not False:
        return Decision(request.flags, "enabled")
    message = "the recipe expects chunked prefill on, and its flags turn it off."
    way = Way("leave it on", {SWITCH: None})
    return Decision(
        request.flags, "enabled", "", Finding("error", message, (way,), "the recipe", SWITCH, rule=EXPECTED)
    )


def _impossible(
    request: VllmRequest, architecture: Architecture, version: Version | None
) -> tuple[str, tuple[Way, ...], str] | None:
    if at_least(version, prediction.CHUNKED_PREFILL_OPTIONAL_SINCE) is False:
        sentence = f"chunked prefill can't be turned off in vLLM {version}: the flag is ignored."
        return sentence, (Way("take an image with vLLM 0.12 or newer"),), "on, as it always is there"
    wants_prefix = architecture.kind == "recurrent" and request.flag(PREFIX) is True
    by_blocks = architecture.name not in CACHE_MODE_ALL or at_least(version, prediction.ALIGN_ONLY_SINCE) is not False
    if not wants_prefix or not by_blocks:
        return None
    ways = (
        Way("give up prefix caching", {PREFIX: False}),
        Way("leave chunked prefill on: `expect.chunked_prefill: any`, with the throughput gate as the judge"),
    )
    sentence = "chunked prefill can't be off here: prefix caching on a recurrent model needs it, and the recipe wants prefix caching."
    return sentence, ways, "on, required by prefix caching"


def _without(request: VllmRequest, architecture: Architecture) -> dict[str, Any]:
    """Return the flags with `--no-enable-chunked-prefill`, which every release takes; from 0.28 on a hybrid's prefix caching must
    be off too."""
    flags = {**request.flags, SWITCH: False}
    if architecture.kind == "recurrent" and request.flag(PREFIX) is None:
        flags[PREFIX] = False
    return flags
