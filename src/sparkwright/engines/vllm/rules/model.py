"""The model and the engine: whether it can be loaded, and its longest context."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.engines.finding import Finding, Way
from sparkwright.engines.vllm.architecture_support import SUPPORT, in_words, loads
from sparkwright.engines.vllm.rules.rule import DENSE, HYBRID, Case, Example, rule
from sparkwright.engines.vllm.versions import at_least

#: allows a length above the model's own, at the user's risk. source: the engine's own error message names it.
LONGER_ANYWAY = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"


@rule(
    "architecture-support",
    sources=(
        "vLLM's model registries of 0.11.0, 0.17.1 and 0.33.0",
        "#34110: Qwen3.5 is in 0.17.0 and later, 0.16.0 lacks it",
    ),
    example=Example({}, model=HYBRID, version="0.16.0"),
)
def architecture_support(case: Case) -> Iterator[Finding]:
    """The engine must support the model's architecture.
    A model newer than the engine is refused ("Model architectures [...] are not supported"), and so are a few that later
    releases dropped.
    """
    name = case.architecture.name
    if case.version is None or loads(name, str(case.version)) is not False:
        return
    known = SUPPORT[name]
    dropped = known.until is not None and at_least(case.version, known.until)
    release = known.until if dropped else known.since
    sentence = f"vLLM {case.version} {'no longer loads' if dropped else 'cannot load'} {name} ({in_words(name)})."
    ways = (Way(f"use an image with vLLM {release}{'' if dropped else ' or newer'}"),) if release else ()
    yield Finding("error", sentence, ways, "vLLM's model registries")


@rule(
    "model-length",
    sources=("vLLM's ModelConfig: derived max_model_len", "0.32.0, a real start: exit 1"),
    example=Example({"max-model-len": 200000}, model=DENSE),
)
def model_length(case: Case) -> Iterator[Finding]:
    """max-model-len may not exceed the model's longest context.
    The engine derives the longest context from the model's config and refuses more, unless the environment variable
    VLLM_ALLOW_LONG_MAX_MODEL_LEN is set or rope scaling is overridden; output beyond it is garbage.
    """
    now, most = case.effective, case.architecture.max_position_embeddings
    if most is None or now.max_model_len is None or now.max_model_len <= most or case.flag("hf-overrides") is not None:
        return
    allowed = LONGER_ANYWAY in case.asked.env
    outcome = "output beyond it is garbage" if allowed else f"{case.engine} refuses to start"
    way = Way(f"lower max-model-len to {most}", {"max-model-len": most})
    sentence = f"max-model-len {now.max_model_len} exceeds the model's {most}: {outcome}."
    source = "vLLM's ModelConfig; a real start of 0.32.0"
    yield Finding("warning" if allowed else "error", sentence, (way,), source, "max-model-len")
