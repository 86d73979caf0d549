"""The output of `model.inspect` about a config.json, for programs and for a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sparkwright.engines.model import chat_template, config_parts
from sparkwright.engines.model.architecture import Architecture, by_substrings, classify
from sparkwright.engines.vllm import architecture_support
from sparkwright.engines.vllm.prediction.block_size import block_size
from sparkwright.visible import count

KINDS = {
    "recurrent": "recurrent: {0} beside full attention",
    "attention_free": "recurrent without any attention: {0}",
    "dense": "dense: attention alone",
    "unknown": "unknown",
}


def facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts about a config as plain JSON, with null for unknown.

    `substring_rule` is the result of that rule alone.
    """
    found = classify(config)
    support = architecture_support.SUPPORT.get(found.name)
    return {
        "kind": found.kind,
        "mechanism": found.mechanism,
        "recurrent_layers": found.recurrent_layers,
        "layers": found.layers,
        "name": found.name,
        "model_type": found.model_type,
        "max_position_embeddings": found.max_position_embeddings,
        "trained_length": config_parts.trained_length(config),
        "prediction_layers": config_parts.prediction_layers(config),
        "evidence": [item._asdict() for item in found.evidence],
        "substring_rule": _substring_rule(config),
        "block_tokens": {dtype: block_size(config, dtype) for dtype in ("auto", "fp8")},
        "vllm": {name: getattr(support, name) for name in ("since", "until", "lacking")} if support else None,
    }


def lines(source: str, config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the facts about a config as lines for a person."""
    found = classify(config)
    yield f"{source}  {found.name or found.model_type or 'of no named architecture'}"
    yield _line("kind", KINDS[found.kind].format(found.mechanism))
    if found.layers:
        recurrent = "an unknown number" if found.recurrent_layers is None else found.recurrent_layers
        plain = found.kind in ("dense", "unknown")
        yield _line("layers", f"{found.layers}" if plain else f"{recurrent} of {found.layers} are recurrent")
    for label, value in zip(["because", *[""] * len(found.evidence)], found.evidence, strict=False):
        yield _line(label, f"{value.path}: {value.seen}")
    if found.max_position_embeddings:
        yield _line("length", f"{found.max_position_embeddings} tokens{_stretched(found, config)}")
    predicts = config_parts.prediction_layers(config)
    if predicts:
        yield _line(
            "predicts", f"{count(predicts, 'layer')} of multi-token prediction (speculation with the method mtp)"
        )
    own, fp8 = (block_size(config, dtype) for dtype in ("auto", "fp8"))
    if own:
        other = "its KV cache is fp8" if own == fp8 else f"{fp8} with an fp8 KV cache"
        yield _line("block", f"{own} tokens, {other} (predicted for one GPU; the engine's log is right)")
    answer = _substring_rule(config)
    if answer != ("dense" if found.kind == "dense" else "unknown" if found.kind == "unknown" else "recurrent"):
        yield _line("elsewhere", f"a search for 'mamba' and the like would have said {answer}")
    releases = architecture_support.in_words(found.name)
    if releases:
        yield _line("vLLM", releases)


def chat_lines(chat: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield lines about the model's chat template and sampling defaults; none if its files hold no template."""
    if chat and chat["template"]:
        yield from (_line(label, text) for label, text in chat_template.lines(chat))


def _stretched(found: Architecture, config: Mapping[str, Any]) -> str:
    trained, longest = config_parts.trained_length(config), found.max_position_embeddings or 0
    times = longest / trained if trained else 0
    return f" (trained on {trained}, stretched {times:g} times)" if times > 1 else ""


def _substring_rule(config: Mapping[str, Any]) -> str:
    return "recurrent" if by_substrings(config) else "dense"


def _line(label: str, message: str) -> str:
    return f"  {label:<10}{message}"
