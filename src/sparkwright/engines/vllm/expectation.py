"""Flags for the chunked prefill that a recipe expects with this model and engine, or a refusal.

`disabled` is not always possible: prefix caching on a recurrent hybrid needs chunked prefill, and releases until 0.11.0 ignore
the flag.
"""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from sparkwright.engines.advice import EXPECTED, Decision, Wanted, WhenImpossible
from sparkwright.engines.findings import Finding, Way
from sparkwright.engines.model.architecture import Architecture
from sparkwright.engines.vllm.prediction import defaults
from sparkwright.engines.vllm.prediction.predict import CACHE_MODE_ALL, VllmRequest
from sparkwright.engines.vllm.versions import at_least

SWITCH = "enable-chunked-prefill"
PREFIX = "enable-prefix-caching"
SOURCE = "vLLM's VllmConfig; real starts of 0.32.0"


def decide(
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
    if at_least(version, defaults.CHUNKED_PREFILL_OPTIONAL_SINCE) is False:
        sentence = f"chunked prefill can't be turned off in vLLM {version}: the flag is ignored."
        return sentence, (Way("take an image with vLLM 0.12 or newer"),), "on, as it always is there"
    wants_prefix = architecture.kind == "recurrent" and request.flag(PREFIX) is True
    by_blocks = architecture.name not in CACHE_MODE_ALL or at_least(version, defaults.ALIGN_ONLY_SINCE) is not False
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
