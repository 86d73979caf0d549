"""The model and the engine: whether it can be loaded, and how long it may get."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.engines.vllm.architecture.architecture_support import SUPPORT, in_words, loads
from sparkwright.engines.vllm.rules.rule import DENSE, HYBRID, Case, Example, Finding, Way, rule
from sparkwright.engines.vllm.versions import at_least

#: lets a length above the model's own through, at the user's risk. source: the engine's own refusal names it.
LONGER_ANYWAY = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"


@rule(
    "architecture-support",
    sources=(
        "vLLM's model registries of 0.11.0, 0.17.1 and 0.33.0",
        "#34110: Qwen3.5 is in 0.17.0 and later, 0.16.0 lacks it",
    ),
    example=Example({}, HYBRID, version="0.16.0"),
)
def architecture_support(case: Case) -> Iterator[Finding]:
    """An engine loads the architectures of its time.
    A model younger than the engine is refused ("Model architectures [...] are not supported"), and so are a few that later
    releases dropped.
    """
    name = case.architecture.name
    if case.version is None or loads(name, str(case.version)) is not False:
        return
    known = SUPPORT[name]
    dropped = known.until is not None and at_least(case.version, known.until)
    release = known.until if dropped else known.since
    said = f"vLLM {case.version} {'no longer loads' if dropped else 'cannot load'} {name} ({in_words(name)})."
    ways = (Way(f"take an image with vLLM {release}{'' if dropped else ' or newer'}"),) if release else ()
    yield Finding("error", "architecture-support", said, ways, "vLLM's model registries")


@rule(
    "model-length",
    sources=("vLLM's ModelConfig: derived max_model_len", "0.32.0, a real start: exit 1"),
    example=Example({"max-model-len": 200000}, DENSE),
)
def model_length(case: Case) -> Iterator[Finding]:
    """max-model-len may not exceed what the model was made for.
    The engine derives the longest context from the model's config and refuses more, unless the environment variable
    VLLM_ALLOW_LONG_MAX_MODEL_LEN is set or rope scaling is overridden; positions beyond it give nonsense.
    """
    now, most = case.effective, case.architecture.max_position_embeddings
    if most is None or now.max_model_len is None or now.max_model_len <= most or case.flag("hf-overrides") is not None:
        return
    allowed = LONGER_ANYWAY in case.asked.env
    outcome = "positions beyond it give nonsense" if allowed else f"{case.engine} refuses to start"
    yield Finding(
        "warning" if allowed else "error",
        "model-length",
        f"max-model-len {now.max_model_len} is more than the model's {most}: {outcome}.",
        (Way(f"lower max-model-len to {most}", {"max-model-len": most}),),
        "vLLM's ModelConfig; a real start of 0.32.0",
        "max-model-len",
    )
