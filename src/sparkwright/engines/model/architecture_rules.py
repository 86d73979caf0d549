"""Rules that tell a recurrent model from a dense one, strongest first: each reads one kind of evidence in config.json.

An explicit list of layers beats every key: a hybrid class with attention in every layer (granite-4.0-micro keeps the whole set of
mamba_* keys) is dense, as it is for vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from sparkwright.engines.model import architecture_tables as dense
from sparkwright.engines.model import architecture_tables as tables
from sparkwright.engines.model.config_parts import Part, architecture_name, text

Kind = Literal["recurrent", "attention_free", "dense", "unknown"]


@dataclass(frozen=True, slots=True)
class Found:
    """The result of one rule."""

    kind: Kind
    path: str
    seen: str
    #: "" if the rule does not tell
    mechanism: str = ""
    #: number of recurrent layers; None if not known
    recurrent: int | None = None
    layers: int | None = None


def draft(config: Mapping[str, Any], parts: tuple[Part, ...]) -> Found | None:
    """Return unknown for a draft: it repeats keys of the model it guesses for, and is never served alone."""
    name = architecture_name(config)
    says = "a draft, served beside its target: look at that one"
    if tables.DRAFT_NAMES.search(name):
        return Found("unknown", "architectures", f"{name}: {says}")
    key = next((key for key in tables.DRAFT_KEYS if config.get(key) is not None), None)
    return Found("unknown", key, says) if key else None


def layer_list(config: Mapping[str, Any], parts: tuple[Part, ...]) -> Found | None:
    """Read an explicit list of layer types. `hybrid` by itself is no evidence: Inkling uses it for layers with attention only."""
    proved = keys(config, parts) or names(config, parts)
    vague = () if proved else tables.BOTH_IN_ONE_LAYER
    found = (_of_list(part, key) for part in parts for key in tables.LAYER_LISTS if not _has(part, key, vague))
    return next((result for result in found if result), None)


def layer_letters(config: Mapping[str, Any], parts: tuple[Part, ...]) -> Found | None:
    """Read Nemotron-H's format: a letter per layer, M for Mamba2."""
    for part in parts:
        letters, path = part.word(tables.LETTERS), part.at(tables.LETTERS)
        count, layers = letters.count("M"), part.layers or len(letters)
        if count:
            return Found("recurrent", path, f"M in {count} of {layers}", tables.MAMBA2, count, layers)
    return None


def layer_numbers(config: Mapping[str, Any], parts: tuple[Part, ...]) -> Found | None:
    """Read MiniMax's format: a number per layer, 0 for lightning attention."""
    for part in parts:
        numbers = part.items(tables.NUMBERS) or []
        if count := numbers.count(0):
            seen = f"0 (linear) in {count} of {len(numbers)}"
            return Found("recurrent", part.at(tables.NUMBERS), seen, tables.LIGHTNING, count, len(numbers))
    return None


def linear_attention(config: Mapping[str, Any], parts: tuple[Part, ...]) -> Found | None:
    """Read Kimi's format: the numbers of the KDA layers, or at least their sizes."""
    for part in parts:
        linear = Part(part.at(tables.LINEAR_CONFIG), part.mapping(tables.LINEAR_CONFIG) or {})
        kda = linear.items("kda_layers")
        if kda:
            return Found("recurrent", linear.at("kda_layers"), f"{len(kda)} layers", tables.KDA, len(kda), part.layers)
        for key in ("num_heads", "short_conv_kernel_size"):
            if linear.number(key):
                return Found("recurrent", linear.at(key), str(linear.number(key)), layers=part.layers)
    return None


def keys(config: Mapping[str, Any], parts: tuple[Part, ...]) -> Found | None:
    """Find keys that only recurrent layers use."""
    for part in parts:
        for names, mechanism in tables.RECURRENT_KEYS.items():
            if all(part.keys.get(name) is not None for name in names):
                path = ", ".join(part.at(name) for name in names)
                seen = ", ".join(str(part.keys[name]) for name in names)
                return _counted(config, part, path, seen, mechanism)
    return None


def names(config: Mapping[str, Any], parts: tuple[Part, ...]) -> Found | None:
    """Find a model_type or an architecture that is known to be recurrent."""
    for part in parts:
        answer = part.word("model_type")
        mechanism = _by_type(answer, tables.HYBRID_TYPES | tables.ATTENTION_FREE_TYPES)
        if mechanism is not None:
            return _counted(config, part, part.at("model_type"), answer, mechanism)
    name = architecture_name(config)
    known = tables.RECURRENT_ARCHITECTURES
    return _counted(config, text(config), "architectures", name, known[name]) if name in known else None


def attention_only(config: Mapping[str, Any], parts: tuple[Part, ...]) -> Found | None:
    """Find an architecture known to have attention alone, or an encoder with a decoder."""
    name = architecture_name(config)
    if config.get("is_encoder_decoder") is True:
        return Found("dense", "is_encoder_decoder", "true: an encoder and a decoder, both of attention", "", 0)
    if name in dense.GENERATE or name in dense.DROPPED:
        return Found("dense", "architectures", f"{name}: attention alone", "", 0)
    if name in dense.POOL:
        return Found("dense", "architectures", f"{name}: attention alone, for embedding or ranking", "", 0)
    return None


def nothing(config: Mapping[str, Any], parts: tuple[Part, ...]) -> Found:
    """Return unknown, for a model that no rule knows; own code (auto_map) can be anything."""
    name = architecture_name(config)
    own = next((part.at("auto_map") for part in parts if part.keys.get("auto_map") is not None), None)
    if own:
        return Found("unknown", own, f"the model brings its own code{f' for {name}' if name else ''}")
    return Found("unknown", "architectures", f"{name or 'none named'}: not known, and no key says what its layers are")


Rule = Callable[[Mapping[str, Any], tuple[Part, ...]], Found | None]
RULES: tuple[Rule, ...] = (
    *(draft, layer_list, layer_letters, layer_numbers, linear_attention),
    *(keys, names, attention_only, nothing),
)


def mechanism(config: Mapping[str, Any], parts: tuple[Part, ...], found: Found) -> str:
    """Return the type of the recurrent layers: by the architecture's name, else the model_type, else the rule, else the keys."""
    name = architecture_name(config)
    answer = tables.RECURRENT_ARCHITECTURES.get(name)
    types = tables.HYBRID_TYPES | tables.ATTENTION_FREE_TYPES
    by_type = (_by_type(part.word("model_type"), types) for part in parts)
    by_key = keys(config, parts)
    original = ((part.mapping("ssm_cfg") or {}).get("layer") for part in parts)  # the format of the mamba_ssm package
    held = (answer, *by_type, *original, found.mechanism, by_key.mechanism if by_key else "", tables.LINEAR)
    return next(item for item in held if item and isinstance(item, str))


def _of_list(part: Part, key: str) -> Found | None:
    words = [str(word) for word in part.items(key) or []]
    count = part.layers or len(words)
    if key in tables.REPEATING_LISTS and words:
        words = (words * (count // len(words) + 1))[:count]
    recurrent = [word for word in words if word in tables.RECURRENT_LAYERS]
    if recurrent:
        seen = f"{', '.join(sorted(set(recurrent)))} in {len(recurrent)} of {len(words)}"
        attends = any(word in tables.ATTENTION_LAYERS or word in tables.BOTH_IN_ONE_LAYER for word in words)
        kind: Kind = "recurrent" if attends else "attention_free"
        answer = tables.RECURRENT_LAYERS[recurrent[0]]
        return Found(kind, part.at(key), seen, answer, len(recurrent), len(words))
    if words and all(word in tables.ATTENTION_LAYERS | tables.OTHER_LAYERS for word in words):
        seen = f"{', '.join(sorted(set(words)))} in all {len(words)}"
        return Found("dense", part.at(key), seen, "", 0, len(words))
    return None


def _has(part: Part, key: str, words: Iterable[str]) -> bool:
    listed = part.items(key) or []
    return any(word in listed for word in words)


def _by_type(model_type: str, table: Mapping[str, str]) -> str | None:
    return next((message for pattern, message in table.items() if fnmatchcase(model_type, pattern)), None)


def _counted(config: Mapping[str, Any], part: Part, path: str, seen: str, mechanism: str) -> Found:
    layers = part.layers or text(config).layers
    name = architecture_name(config)
    free = (
        name in tables.ATTENTION_FREE_ARCHITECTURES
        or name in tables.OTHER_ATTENTION_FREE_ARCHITECTURES
        or _by_type(part.word("model_type"), tables.ATTENTION_FREE_TYPES) is not None
        or part.items("attn_layer_idx") == []
    ) and not part.mapping("attn")
    if free:
        return Found("attention_free", path, seen, mechanism, layers, layers)
    return Found("recurrent", path, seen, mechanism, _recurrent_layers(part, layers), layers)


def _recurrent_layers(part: Part, layers: int | None) -> int | None:
    """Return the number of recurrent layers from the layout of the attention layers; None if the config does not tell."""
    if layers is None:
        return None
    if fnmatchcase(part.word("model_type"), "falcon_h1*"):
        return layers  # every layer has both
    attention = _attention_layers(part, layers)
    return None if attention is None or attention > layers else layers - attention


def _attention_layers(part: Part, layers: int) -> int | None:
    attention = Part(part.at("attn"), part.mapping("attn") or {})
    lists = (part.items("attn_layer_indices"), part.items("full_attn_idxs"), attention.items("layers"))
    for listed in (*lists, part.items("attn_layer_idx")):
        if listed is not None:
            return len(listed)
    every = part.number("full_attention_interval", "layer_group_size")
    if every and layers % every == 0:
        return layers // every
    period, offset = part.number("attn_layer_period"), part.keys.get("attn_layer_offset")
    if period and isinstance(offset, int):
        return sum(layer % period == offset for layer in range(layers))
    step = part.number("mamba_step")  # PLaMo 2: attention in the middle of every `step` layers
    if step:
        return sum(layer % step == step // 2 for layer in range(layers))
    return None
