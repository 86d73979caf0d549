"""The kind of model that a config.json describes, with the evidence: recurrent layers decide how an engine must be set.

docs/architectures.md explains the rules to users. The authority at run time is the engine's own log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple

from sparkwright.engines.model import architecture_tables as tables
from sparkwright.engines.model import config_parts
from sparkwright.engines.model.config_parts import ConfigPart, architecture_name, text_part
from sparkwright.visible import one_line

Kind = Literal["recurrent", "attention_free", "dense", "unknown"]


@dataclass(frozen=True, slots=True)
class Classification:
    """The result of one rule."""

    kind: Kind
    path: str
    seen: str
    #: "" if the rule does not tell
    mechanism: str = ""
    #: number of recurrent layers; None if not known
    recurrent: int | None = None
    layers: int | None = None


def detect_draft(config: Mapping[str, Any], parts: tuple[ConfigPart, ...]) -> Classification | None:
    """Return unknown for a draft: it repeats keys of the model it guesses for, and is never served alone."""
    name = architecture_name(config)
    explanation = "a draft, served together with its target: look at that one"
    if tables.DRAFT_NAMES.search(name):
        return Classification("unknown", "architectures", f"{name}: {explanation}")
    key = next((key for key in tables.DRAFT_KEYS if config.get(key) is not None), None)
    return Classification("unknown", key, explanation) if key else None


def detect_layer_list(config: Mapping[str, Any], parts: tuple[ConfigPart, ...]) -> Classification | None:
    """Read an explicit list of layer types. `hybrid` by itself is no evidence: Inkling uses it for layers with attention only."""
    is_recurrent = detect_recurrent_keys(config, parts) or detect_known_name(config, parts)
    ambiguous = () if is_recurrent else tables.HYBRID_LAYERS
    matches = (
        _classify_list(part, key)
        for part in parts
        for key in tables.LAYER_LIST_KEYS
        if not _list_has(part, key, ambiguous)
    )
    return next((result for result in matches if result), None)


def detect_layer_letters(config: Mapping[str, Any], parts: tuple[ConfigPart, ...]) -> Classification | None:
    """Read Nemotron-H's format: a letter per layer, M for Mamba2."""
    for part in parts:
        letters, path = part.word(tables.LAYER_LETTERS_KEY), part.key_path(tables.LAYER_LETTERS_KEY)
        count, layers = letters.count("M"), part.layers or len(letters)
        if count:
            return Classification("recurrent", path, f"M in {count} of {layers}", tables.MAMBA2, count, layers)
    return None


def detect_layer_numbers(config: Mapping[str, Any], parts: tuple[ConfigPart, ...]) -> Classification | None:
    """Read MiniMax's format: a number per layer, 0 for lightning attention."""
    for part in parts:
        numbers = part.items(tables.LAYER_NUMBERS_KEY) or []
        if count := numbers.count(0):
            seen = f"0 (linear) in {count} of {len(numbers)}"
            return Classification(
                "recurrent", part.key_path(tables.LAYER_NUMBERS_KEY), seen, tables.LIGHTNING, count, len(numbers)
            )
    return None


def detect_linear_attention(config: Mapping[str, Any], parts: tuple[ConfigPart, ...]) -> Classification | None:
    """Read Kimi's format: the numbers of the KDA layers, or at least their sizes."""
    for part in parts:
        linear = ConfigPart(part.key_path(tables.LINEAR_CONFIG_KEY), part.mapping(tables.LINEAR_CONFIG_KEY) or {})
        kda = linear.items("kda_layers")
        if kda:
            return Classification(
                "recurrent", linear.key_path("kda_layers"), f"{len(kda)} layers", tables.KDA, len(kda), part.layers
            )
        for key in ("num_heads", "short_conv_kernel_size"):
            if linear.number(key):
                return Classification("recurrent", linear.key_path(key), str(linear.number(key)), layers=part.layers)
    return None


def detect_recurrent_keys(config: Mapping[str, Any], parts: tuple[ConfigPart, ...]) -> Classification | None:
    """Find keys that only recurrent layers use."""
    for part in parts:
        for names, mechanism in tables.RECURRENT_KEYS.items():
            if all(part.keys.get(name) is not None for name in names):
                path = ", ".join(part.key_path(name) for name in names)
                seen = ", ".join(str(part.keys[name]) for name in names)
                return _classify_recurrent(config, part, path, seen, mechanism)
    return None


def detect_known_name(config: Mapping[str, Any], parts: tuple[ConfigPart, ...]) -> Classification | None:
    """Find a model_type or an architecture that is known to be recurrent."""
    for part in parts:
        answer = part.word("model_type")
        mechanism = _mechanism_by_type(answer, tables.HYBRID_TYPES | tables.ATTENTION_FREE_TYPES)
        if mechanism is not None:
            return _classify_recurrent(config, part, part.key_path("model_type"), answer, mechanism)
    name = architecture_name(config)
    known = tables.RECURRENT_ARCHITECTURES
    return _classify_recurrent(config, text_part(config), "architectures", name, known[name]) if name in known else None


def detect_attention_only(config: Mapping[str, Any], parts: tuple[ConfigPart, ...]) -> Classification | None:
    """Find an architecture known to have attention alone, or an encoder with a decoder."""
    name = architecture_name(config)
    if config.get("is_encoder_decoder") is True:
        return Classification("dense", "is_encoder_decoder", "true: an encoder and a decoder, both of attention", "", 0)
    if name in tables.GENERATING_ARCHITECTURES or name in tables.DROPPED_ARCHITECTURES:
        return Classification("dense", "architectures", f"{name}: attention alone", "", 0)
    if name in tables.POOLING_ARCHITECTURES:
        return Classification("dense", "architectures", f"{name}: attention alone, for embedding or ranking", "", 0)
    return None


def report_unknown(config: Mapping[str, Any], parts: tuple[ConfigPart, ...]) -> Classification:
    """Return unknown, for a model that no rule knows; own code (auto_map) can be anything."""
    name = architecture_name(config)
    code_path = next((part.key_path("auto_map") for part in parts if part.keys.get("auto_map") is not None), None)
    if code_path:
        return Classification("unknown", code_path, f"the model brings its own code{f' for {name}' if name else ''}")
    return Classification(
        "unknown", "architectures", f"{name or 'none named'}: not known, and no key says what its layers are"
    )


Rule = Callable[[Mapping[str, Any], tuple[ConfigPart, ...]], Classification | None]
RULES: tuple[Rule, ...] = (
    *(detect_draft, detect_layer_list, detect_layer_letters, detect_layer_numbers, detect_linear_attention),
    *(detect_recurrent_keys, detect_known_name, detect_attention_only, report_unknown),
)


def resolve_mechanism(config: Mapping[str, Any], parts: tuple[ConfigPart, ...], classification: Classification) -> str:
    """Return the type of the recurrent layers: by the architecture's name, else the model_type, else the rule, else the keys."""
    name = architecture_name(config)
    by_name = tables.RECURRENT_ARCHITECTURES.get(name)
    types = tables.HYBRID_TYPES | tables.ATTENTION_FREE_TYPES
    by_type = (_mechanism_by_type(part.word("model_type"), types) for part in parts)
    by_key = detect_recurrent_keys(config, parts)
    original = ((part.mapping("ssm_cfg") or {}).get("layer") for part in parts)  # the format of the mamba_ssm package
    candidates = (
        by_name,
        *by_type,
        *original,
        classification.mechanism,
        by_key.mechanism if by_key else "",
        tables.LINEAR,
    )
    return next(item for item in candidates if item and isinstance(item, str))


def _classify_list(part: ConfigPart, key: str) -> Classification | None:
    words = [str(word) for word in part.items(key) or []]
    count = part.layers or len(words)
    if key in tables.REPEATING_LIST_KEYS and words:
        words = (words * (count // len(words) + 1))[:count]
    recurrent = [word for word in words if word in tables.RECURRENT_LAYERS]
    if recurrent:
        seen = f"{', '.join(sorted(set(recurrent)))} in {len(recurrent)} of {len(words)}"
        has_attention = any(word in tables.ATTENTION_LAYERS or word in tables.HYBRID_LAYERS for word in words)
        kind: Kind = "recurrent" if has_attention else "attention_free"
        layer_mechanism = tables.RECURRENT_LAYERS[recurrent[0]]
        return Classification(kind, part.key_path(key), seen, layer_mechanism, len(recurrent), len(words))
    if words and all(word in tables.ATTENTION_LAYERS | tables.OTHER_LAYERS for word in words):
        seen = f"{', '.join(sorted(set(words)))} in all {len(words)}"
        return Classification("dense", part.key_path(key), seen, "", 0, len(words))
    return None


def _list_has(part: ConfigPart, key: str, words: Iterable[str]) -> bool:
    listed = part.items(key) or []
    return any(word in listed for word in words)


def _mechanism_by_type(model_type: str, table: Mapping[str, str]) -> str | None:
    return next((message for pattern, message in table.items() if fnmatchcase(model_type, pattern)), None)


def _classify_recurrent(
    config: Mapping[str, Any], part: ConfigPart, path: str, seen: str, mechanism: str
) -> Classification:
    layers = part.layers or text_part(config).layers
    name = architecture_name(config)
    is_attention_free = (
        name in tables.ATTENTION_FREE_ARCHITECTURES
        or name in tables.OTHER_ATTENTION_FREE_ARCHITECTURES
        or _mechanism_by_type(part.word("model_type"), tables.ATTENTION_FREE_TYPES) is not None
        or part.items("attn_layer_idx") == []
    ) and not part.mapping("attn")
    if is_attention_free:
        return Classification("attention_free", path, seen, mechanism, layers, layers)
    return Classification("recurrent", path, seen, mechanism, _recurrent_layers(part, layers), layers)


def _recurrent_layers(part: ConfigPart, layers: int | None) -> int | None:
    """Return the number of recurrent layers from the layout of the attention layers; None if the config does not tell."""
    if layers is None:
        return None
    if fnmatchcase(part.word("model_type"), "falcon_h1*"):
        return layers  # every layer has both
    attention = _attention_layers(part, layers)
    return None if attention is None or attention > layers else layers - attention


def _attention_layers(part: ConfigPart, layers: int) -> int | None:
    attention = ConfigPart(part.key_path("attn"), part.mapping("attn") or {})
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


#: keys that classify() and block_size.block_size() read; the rest of a config is dropped
KEPT_KEYS = (
    *"""
        architectures model_type is_encoder_decoder auto_map attn_layer_indices full_attn_idxs attn attn_layer_idx
        full_attention_interval layer_group_size attn_layer_period attn_layer_offset mamba_step mamba_head_dim
        mamba_d_head mamba_d_ssm mamba_n_groups n_groups linear_num_key_heads linear_key_head_dim
        linear_value_head_dim mamba_ssm_dtype mamba_ssm_cache_dtype num_attention_heads num_key_value_heads head_dim
        kv_lora_rank quantization_config
    """.split(),
    *(tables.LAYER_LETTERS_KEY, tables.LAYER_NUMBERS_KEY, tables.LINEAR_CONFIG_KEY, tables.OVERRIDING_LENGTH_KEY),
    *config_parts.SIZE_KEYS,
    *config_parts.PREDICTION_LAYER_KEYS,
    *config_parts.SCALING_KEYS,
    *tables.LAYER_LIST_KEYS,
    *tables.DRAFT_KEYS,
    *tables.LENGTH_KEYS,
    *(name for names in tables.RECURRENT_KEYS for name in names),
)
#: keys whose presence alone counts
PRESENCE_KEYS = ("auto_map", "speculators_config", "dflash_config")
#: mappings of which only some keys count
KEPT_SUBKEYS: dict[str, tuple[str, ...]] = {
    tables.LINEAR_CONFIG_KEY: ("kda_layers", "num_heads", "short_conv_kernel_size"),
    "attn": ("layers",),
    **dict.fromkeys(config_parts.SCALING_KEYS, (config_parts.TRAINED_LENGTH_KEY,)),
    config_parts.QUANTISATION_KEY: ("quant_method", "quantization", "kv_cache_scheme", "kv_cache_quant_algo"),
    "quantization": ("kv_cache_scheme", "kv_cache_quant_algo"),
}

MAX_SEEN_CHARS = 1000
#: entries kept of a list of hundreds of modules
MAX_EXCEPTIONS = 8


class Evidence(NamedTuple):
    """A statement in config.json that decides the kind of a model."""

    #: place in config.json, nested parts with dots
    path: str
    #: the value there
    seen: str


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model as its config.json describes it."""

    #: "recurrent" (a hybrid: recurrent layers beside attention), "attention_free", "dense" (attention alone; embedding models and
    #: encoder-decoders too) or "unknown" (own code, a new name, or a draft, which is served together with another model)
    kind: Kind
    #: architectures[0], "" for none
    name: str = ""
    #: of the whole config
    model_type: str = ""
    #: type of the recurrent layers, "" for none
    mechanism: str = ""
    #: number of recurrent layers; None if not known
    recurrent_layers: int | None = None
    #: number of all layers; None if not known
    layers: int | None = None
    #: the decisive one first
    evidence: tuple[Evidence, ...] = ()
    #: longest sequence in tokens, before any scaling of positions; None if the config leaves it to the model's class
    max_position_embeddings: int | None = None
    #: the part of the config that describes the language model
    text: Mapping[str, Any] = field(default_factory=dict, hash=False)
    #: the whole config
    config: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def sentence(self) -> str:
        """The kind of model in half a sentence."""
        if self.kind == "unknown":
            return "architecture unknown"
        if self.kind == "dense":
            return f"{self.name or self.model_type} (dense)"
        of = f"{self.recurrent_layers} of {self.layers} layers" if self.recurrent_layers and self.layers else "layers"
        return f"{self.name or self.model_type} ({of} recurrent, {self.mechanism or 'mechanism unknown'})"


def classify(config: Mapping[str, Any]) -> Architecture:
    """Return the architecture that a config.json describes. Never raises: a key of the wrong type counts as missing."""
    parts = config_parts.list_parts(config)
    inner = config_parts.text_part(config)
    by_rule = next(classification for rule in RULES if (classification := rule(config, parts)))
    classification = detect_draft(config, parts) or apply_registry(config, by_rule)
    is_recurrent = classification.kind in ("recurrent", "attention_free")
    return Architecture(
        kind=classification.kind,
        name=config_parts.architecture_name(config),
        model_type=ConfigPart("", config).word("model_type"),
        mechanism=resolve_mechanism(config, parts, classification) if is_recurrent else "",
        recurrent_layers=classification.recurrent,
        layers=classification.layers or inner.layers,
        evidence=(
            Evidence(classification.path, one_line(classification.seen, max_chars=MAX_SEEN_CHARS)),
            *_list_hints(parts, is_recurrent),
        ),
        max_position_embeddings=_max_length(inner),
        text=inner.keys,
        config=config,
    )


def essence(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a config that matters: classify() (but for `text`) and block_size() give the same result for it. Nesting
    is kept."""
    return _filter_keys(config, (*KEPT_KEYS, *config_parts.NESTED_KEYS))


def _filter_keys(keys: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in keys.items():
        if name not in names or value is None:
            continue
        if name in PRESENCE_KEYS:
            kept[name] = {}
        elif name in config_parts.SCALING_KEYS and not (
            isinstance(value, Mapping) and config_parts.TRAINED_LENGTH_KEY in value
        ):
            continue
        elif not isinstance(value, Mapping):
            kept[name] = value
        elif name in config_parts.NESTED_KEYS:
            kept[name] = essence(value)
        else:
            kept[name] = _filter_keys(value, KEPT_SUBKEYS[name]) if name in KEPT_SUBKEYS else dict(value)
            kept[name] |= _exceptions(value) if name == config_parts.QUANTISATION_KEY else {}
    return kept


def _exceptions(quantised: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the lists of modules that are not quantised, shortened to the entries about prediction layers."""
    lists = ((name, held) for name in config_parts.EXCEPTION_KEYS if isinstance(held := quantised.get(name), list))
    is_prediction = config_parts.is_prediction_name
    return {name: [entry for entry in held if is_prediction(entry)][:MAX_EXCEPTIONS] for name, held in lists}


def _list_hints(parts: tuple[ConfigPart, ...], is_recurrent: bool) -> list[Evidence]:
    hints = ("mamba_ssm_dtype", "mamba_ssm_cache_dtype")
    return [
        Evidence(part.key_path(key), part.word(key))
        for part in parts
        for key in hints
        if is_recurrent and part.word(key)
    ]


def _max_length(inner: ConfigPart) -> int | None:
    lengths = [length for name in tables.LENGTH_KEYS if (length := inner.number(name))]
    return inner.number(tables.OVERRIDING_LENGTH_KEY) or min(lengths, default=None)


# vLLM's own registry of architectures, which decides how vLLM runs a model, whatever its config.json lists.
#
# Source: `ModelRegistry` of 0.32.0, with is_hybrid and is_attention_free of each class (tests/data/vllm-0.32.0/registry.json);
# the classes of 0.11.0, 0.17.1 and 0.33.0 that differ were read. `ModelConfig.is_hybrid` of 0.17.1 to 0.33.0: one exception.

REGISTRY_VERSION = "0.32.0"
#: a model of a hybrid's class whose layers all have one of these types is not a hybrid (granite-4.0-micro)
ATTENTION_ONLY_TYPES = frozenset({"attention", "full_attention"})
KIND_TITLES: dict[Kind, str] = {
    "recurrent": "a hybrid",
    "attention_free": "free of attention",
    "dense": "attention alone",
}


def kind_in_vllm(config: Mapping[str, Any]) -> Kind | None:
    """Return the kind of this model in vLLM; None for a draft, or an architecture in none of the registries that were read."""
    name = architecture_name(config)
    if name in tables.HYBRID_ARCHITECTURES:
        return "dense" if _has_attention_everywhere(config) else "recurrent"
    if name in tables.ATTENTION_FREE_ARCHITECTURES:
        return "attention_free"
    return (
        "dense"
        if name in tables.GENERATING_ARCHITECTURES
        or name in tables.POOLING_ARCHITECTURES
        or name in tables.DROPPED_ARCHITECTURES
        else None
    )


def apply_registry(config: Mapping[str, Any], classification: Classification) -> Classification:
    """Return what was found in config.json, unless the registry says otherwise: then the registry's answer, with both as
    evidence."""
    registry_kind = kind_in_vllm(config)
    if registry_kind is None or registry_kind == classification.kind:
        return classification
    name = architecture_name(config)
    seen = f"{name}: {KIND_TITLES[registry_kind]} in vLLM's registry ({REGISTRY_VERSION}), which decides; {classification.path} says {classification.seen}"
    if registry_kind == "dense":
        return Classification(registry_kind, "architectures", seen, "", 0, classification.layers)
    return replace(classification, kind=registry_kind, path="architectures", seen=seen)


def _has_attention_everywhere(config: Mapping[str, Any]) -> bool:
    """Return True if a layer list of the config itself, not of a nested one, has attention in every layer."""
    lists = (ConfigPart("", config).items(key) for key in tables.LAYER_LIST_KEYS)
    return any(words and all(word in ATTENTION_ONLY_TYPES for word in words) for words in lists)


RECURRENT_SUBSTRINGS = ("mamba", "ssm", "deltanet", "state_space", "recurrent")


def has_recurrent_substring(config: Mapping[str, Any]) -> bool:
    """Return True if any of the words occurs anywhere in config.json, in a key or a value, nested parts included, in any case.

    This is its most generous variant. Another common one looks at the top-level keys alone; it misses Qwen3.5 as well, whose one
    hit (mamba_ssm_dtype) is in text_config.
    """
    config_text = json.dumps(config, default=str).lower()
    return any(word in config_text for word in RECURRENT_SUBSTRINGS)
