"""Classify a model by its config.json, with evidence. Recurrent layers need different engine settings from attention.

docs/architectures.md explains the rules to users. At run time, the engine's log takes precedence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple

from sparkwright.engines.model import architecture_tables as tables
from sparkwright.engines.model import config_parts
from sparkwright.engines.model.config_parts import ConfigPart, architecture_name, text_part
from sparkwright.visible import one_line

Kind = Literal["recurrent", "attention_free", "dense", "unknown"]
#: words that has_recurrent_substring() looks for
RECURRENT_SUBSTRINGS = ("mamba", "ssm", "deltanet", "state_space", "recurrent")
#: release of vLLM whose registry the tables contain
REGISTRY_VERSION = "0.32.0"
#: vLLM treats a model of a hybrid class as dense if all of its layers have these types (granite-4.0-micro)
ATTENTION_ONLY_TYPES = frozenset({"attention", "full_attention"})
KIND_TITLES: dict[Kind, str] = {
    "recurrent": "a hybrid",
    "attention_free": "without attention",
    "dense": "only attention",
}
#: keys that classify() and vllm.prediction.block_size() read; the others are dropped
RELEVANT_KEYS = (
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
#: keys that are kept without their value
PRESENCE_KEYS = ("auto_map", "speculators_config", "dflash_config")
#: subkeys to keep, by key
RELEVANT_SUBKEYS: dict[str, tuple[str, ...]] = {
    tables.LINEAR_CONFIG_KEY: ("kda_layers", "num_heads", "short_conv_kernel_size"),
    "attn": ("layers",),
    **dict.fromkeys(config_parts.SCALING_KEYS, (config_parts.TRAINED_LENGTH_KEY,)),
    config_parts.QUANTISATION_KEY: ("quant_method", "quantization", "kv_cache_scheme", "kv_cache_quant_algo"),
    "quantization": ("kv_cache_scheme", "kv_cache_quant_algo"),
}

MAX_DETAIL_CHARS = 1000
#: maximum number of modules to keep of a list of exceptions, which may have hundreds
MAX_EXCEPTIONS = 8


class Evidence(NamedTuple):
    """Evidence in config.json for the kind of a model."""

    #: path of the key, such as "text_config.layer_types"
    path: str
    #: the key's value, or an explanation of it
    detail: str


@dataclass(frozen=True, slots=True)
class Architecture:
    """The architecture of a model according to its config.json."""

    #: recurrent: a hybrid of recurrent layers and attention. dense: only attention, including embedding models and
    #: encoder-decoders. unknown: a model with its own code or a new name, or a draft model
    kind: Kind
    #: architectures[0]; "" if missing
    name: str = ""
    #: model_type of the whole config
    model_type: str = ""
    #: type of the recurrent layers; "" if there are none
    mechanism: str = ""
    #: number of recurrent layers; None if unknown
    recurrent_layers: int | None = None
    #: total number of layers; None if unknown
    layers: int | None = None
    #: the decisive evidence first
    evidence: tuple[Evidence, ...] = ()
    #: context length in tokens, without position scaling; None if the config does not contain it
    max_position_embeddings: int | None = None
    #: the language model's config
    text_config: Mapping[str, Any] = field(default_factory=dict, hash=False)
    #: the whole config
    config: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def description(self) -> str:
        """The architecture as a clause."""
        if self.kind == "unknown":
            return "architecture unknown"
        if self.kind == "dense":
            return f"{self.name or self.model_type} (dense)"
        count = (
            f"{self.recurrent_layers} of {self.layers} layers" if self.recurrent_layers and self.layers else "layers"
        )
        return f"{self.name or self.model_type} ({count} recurrent, {self.mechanism or 'mechanism unknown'})"


@dataclass(frozen=True, slots=True)
class Classification:
    """The result of one rule."""

    kind: Kind
    #: path of the decisive key in config.json
    path: str
    #: the key's value, or an explanation of it
    detail: str
    #: type of the recurrent layers; "" if unknown
    mechanism: str = ""
    #: number of recurrent layers; None if unknown
    recurrent_layer_count: int | None = None
    layer_count: int | None = None


def detect_draft(config: Mapping[str, Any], parts: tuple[ConfigPart, ...]) -> Classification | None:
    """Classify a draft model as unknown, because its config repeats keys of its target model."""
    name = architecture_name(config)
    explanation = "a draft model, which is served together with its target model: inspect the target"
    if tables.DRAFT_NAME_PATTERN.search(name):
        return Classification("unknown", "architectures", f"{name}: {explanation}")
    key = next((key for key in tables.DRAFT_KEYS if config.get(key) is not None), None)
    return Classification("unknown", key, explanation) if key else None


def detect_layer_list(config: Mapping[str, Any], parts: tuple[ConfigPart, ...]) -> Classification | None:
    """Classify by a list of layer types. `hybrid` needs further evidence, since Inkling uses it for layers with only attention."""
    is_recurrent = detect_recurrent_keys(config, parts) or detect_known_name(config, parts)
    ambiguous_types = () if is_recurrent else tables.HYBRID_LAYER_TYPES
    classifications = (
        _classify_list(part, key)
        for part in parts
        for key in tables.LAYER_LIST_KEYS
        if not any(layer_type in (part.get_list(key) or ()) for layer_type in ambiguous_types)
    )
    return next(filter(None, classifications), None)


def detect_layer_letters(config: Mapping[str, Any], parts: tuple[ConfigPart, ...]) -> Classification | None:
    """Classify by Nemotron-H's format: a letter per layer, M for Mamba2."""
    for part in parts:
        letters, path = part.get_text(tables.LAYER_LETTERS_KEY), part.key_path(tables.LAYER_LETTERS_KEY)
        count, layers = letters.count("M"), part.layer_count or len(letters)
        if count:
            return Classification("recurrent", path, f"M in {count} of {layers}", tables.MAMBA2, count, layers)
    return None


def detect_layer_numbers(config: Mapping[str, Any], parts: tuple[ConfigPart, ...]) -> Classification | None:
    """Classify by MiniMax's format: a number per layer, 0 for lightning attention."""
    for part in parts:
        numbers, path = part.get_list(tables.LAYER_NUMBERS_KEY) or [], part.key_path(tables.LAYER_NUMBERS_KEY)
        if count := numbers.count(0):
            detail = f"0 (linear) in {count} of {len(numbers)}"
            return Classification("recurrent", path, detail, tables.LIGHTNING, count, len(numbers))
    return None


def detect_linear_attention(config: Mapping[str, Any], parts: tuple[ConfigPart, ...]) -> Classification | None:
    """Classify by Kimi's format: the numbers of the KDA layers, or at least their sizes."""
    for part in parts:
        linear_config = ConfigPart(
            part.key_path(tables.LINEAR_CONFIG_KEY), part.get_mapping(tables.LINEAR_CONFIG_KEY) or {}
        )
        kda_layers = linear_config.get_list("kda_layers")
        if kda_layers:
            path, count = linear_config.key_path("kda_layers"), len(kda_layers)
            return Classification("recurrent", path, f"{count} layers", tables.KDA, count, part.layer_count)
        for key in ("num_heads", "short_conv_kernel_size"):
            if linear_config.get_number(key):
                return Classification(
                    "recurrent",
                    linear_config.key_path(key),
                    str(linear_config.get_number(key)),
                    layer_count=part.layer_count,
                )
    return None


def detect_recurrent_keys(config: Mapping[str, Any], parts: tuple[ConfigPart, ...]) -> Classification | None:
    """Classify by keys that only recurrent layers use."""
    for part in parts:
        for names, mechanism in tables.RECURRENT_KEYS.items():
            if all(part.keys.get(name) is not None for name in names):
                path = ", ".join(part.key_path(name) for name in names)
                detail = ", ".join(str(part.keys[name]) for name in names)
                return _classify_recurrent(config, part, path, detail, mechanism)
    return None


def detect_known_name(config: Mapping[str, Any], parts: tuple[ConfigPart, ...]) -> Classification | None:
    """Classify by a model_type or architecture that is known to be recurrent."""
    for part in parts:
        model_type = part.get_text("model_type")
        mechanism = _mechanism_by_type(model_type, tables.HYBRID_MODEL_TYPES | tables.ATTENTION_FREE_MODEL_TYPES)
        if mechanism is not None:
            return _classify_recurrent(config, part, part.key_path("model_type"), model_type, mechanism)
    name = architecture_name(config)
    mechanism = tables.RECURRENT_ARCHITECTURES.get(name)
    if mechanism is None:
        return None
    return _classify_recurrent(config, text_part(config), "architectures", name, mechanism)


def detect_attention_only(config: Mapping[str, Any], parts: tuple[ConfigPart, ...]) -> Classification | None:
    """Classify by an architecture that is known to have only attention, or by an encoder with a decoder."""
    name = architecture_name(config)
    if config.get("is_encoder_decoder") is True:
        return Classification("dense", "is_encoder_decoder", "true: encoder and decoder have only attention", "", 0)
    if name in tables.GENERATING_ARCHITECTURES or name in tables.DROPPED_ARCHITECTURES:
        return Classification("dense", "architectures", f"{name}: only attention", "", 0)
    if name in tables.POOLING_ARCHITECTURES:
        return Classification("dense", "architectures", f"{name}: only attention, for embedding or ranking", "", 0)
    return None


def report_unknown(config: Mapping[str, Any], parts: tuple[ConfigPart, ...]) -> Classification:
    """Classify a model as unknown if no other rule classifies it."""
    name = architecture_name(config)
    code_path = next((part.key_path("auto_map") for part in parts if part.keys.get("auto_map") is not None), None)
    if code_path:
        return Classification("unknown", code_path, f"the model has its own code{f' for {name}' if name else ''}")
    reason = f"{name}: unknown architecture" if name else "no architecture"
    return Classification("unknown", "architectures", f"{reason}, and no key shows the type of the layers")


Rule = Callable[[Mapping[str, Any], tuple[ConfigPart, ...]], Classification | None]
RULES: tuple[Rule, ...] = (
    *(detect_draft, detect_layer_list, detect_layer_letters, detect_layer_numbers, detect_linear_attention),
    *(detect_recurrent_keys, detect_known_name, detect_attention_only, report_unknown),
)


def resolve_mechanism(config: Mapping[str, Any], parts: tuple[ConfigPart, ...], classification: Classification) -> str:
    """Return the type of the recurrent layers, by the best available evidence; "linear attention" if there is none."""
    types = tables.HYBRID_MODEL_TYPES | tables.ATTENTION_FREE_MODEL_TYPES
    key_classification = detect_recurrent_keys(config, parts)
    candidates = (
        tables.RECURRENT_ARCHITECTURES.get(architecture_name(config)),
        *(_mechanism_by_type(part.get_text("model_type"), types) for part in parts),
        *((part.get_mapping("ssm_cfg") or {}).get("layer") for part in parts),  # the format of the mamba_ssm package
        classification.mechanism,
        key_classification.mechanism if key_classification else "",
        tables.LINEAR,
    )
    return next(mechanism for mechanism in candidates if mechanism and isinstance(mechanism, str))


def _classify_list(part: ConfigPart, key: str) -> Classification | None:
    layer_types = [str(layer_type) for layer_type in part.get_list(key) or []]
    layers = part.layer_count or len(layer_types)
    if key in tables.REPEATING_LIST_KEYS and layer_types:
        layer_types = (layer_types * (layers // len(layer_types) + 1))[:layers]
    recurrent_types = [layer_type for layer_type in layer_types if layer_type in tables.RECURRENT_LAYER_TYPES]
    if recurrent_types:
        detail = f"{', '.join(sorted(set(recurrent_types)))} in {len(recurrent_types)} of {len(layer_types)}"
        has_attention = not tables.ATTENTION_LAYER_TYPES.union(tables.HYBRID_LAYER_TYPES).isdisjoint(layer_types)
        kind: Kind = "recurrent" if has_attention else "attention_free"
        mechanism = tables.RECURRENT_LAYER_TYPES[recurrent_types[0]]
        return Classification(kind, part.key_path(key), detail, mechanism, len(recurrent_types), len(layer_types))
    if layer_types and tables.ATTENTION_LAYER_TYPES.union(tables.OTHER_LAYER_TYPES).issuperset(layer_types):
        detail = f"{', '.join(sorted(set(layer_types)))} in all {len(layer_types)}"
        return Classification("dense", part.key_path(key), detail, "", 0, len(layer_types))
    return None


def _mechanism_by_type(model_type: str, table: Mapping[str, str]) -> str | None:
    return next((mechanism for pattern, mechanism in table.items() if fnmatchcase(model_type, pattern)), None)


def _classify_recurrent(
    config: Mapping[str, Any], part: ConfigPart, path: str, detail: str, mechanism: str
) -> Classification:
    layers = part.layer_count or text_part(config).layer_count
    name = architecture_name(config)
    is_attention_free = (
        name in tables.ATTENTION_FREE_ARCHITECTURES
        or name in tables.OTHER_ATTENTION_FREE_ARCHITECTURES
        or _mechanism_by_type(part.get_text("model_type"), tables.ATTENTION_FREE_MODEL_TYPES) is not None
        or part.get_list("attn_layer_idx") == []
    ) and not part.get_mapping("attn")
    if is_attention_free:
        return Classification("attention_free", path, detail, mechanism, layers, layers)
    return Classification("recurrent", path, detail, mechanism, _count_recurrent_layers(part, layers), layers)


def _count_recurrent_layers(part: ConfigPart, layers: int | None) -> int | None:
    """Return the number of recurrent layers, derived from the layout of the attention layers; None if unknown."""
    if layers is None:
        return None
    if fnmatchcase(part.get_text("model_type"), "falcon_h1*"):
        return layers  # every layer has both
    attention_layers = _count_attention_layers(part, layers)
    return None if attention_layers is None or attention_layers > layers else layers - attention_layers


def _count_attention_layers(part: ConfigPart, layers: int) -> int | None:
    attention_config = ConfigPart(part.key_path("attn"), part.get_mapping("attn") or {})
    lists = (part.get_list("attn_layer_indices"), part.get_list("full_attn_idxs"), attention_config.get_list("layers"))
    for layer_numbers in (*lists, part.get_list("attn_layer_idx")):
        if layer_numbers is not None:
            return len(layer_numbers)
    interval = part.get_number("full_attention_interval", "layer_group_size")
    if interval and layers % interval == 0:
        return layers // interval
    period, offset = part.get_number("attn_layer_period"), part.keys.get("attn_layer_offset")
    if period and isinstance(offset, int):
        return sum(layer % period == offset for layer in range(layers))
    step = part.get_number("mamba_step")  # PLaMo 2: attention in the middle of every `step` layers
    if step:
        return sum(layer % step == step // 2 for layer in range(layers))
    return None


def classify(config: Mapping[str, Any]) -> Architecture:
    """Return the architecture that a config.json describes; keys with invalid values count as missing."""
    parts, language_part = config_parts.list_parts(config), text_part(config)
    rule_classification = next(classification for rule in RULES if (classification := rule(config, parts)))
    classification = detect_draft(config, parts) or apply_registry(config, rule_classification)
    is_recurrent = classification.kind in ("recurrent", "attention_free")
    return Architecture(
        kind=classification.kind,
        name=architecture_name(config),
        model_type=ConfigPart("", config).get_text("model_type"),
        mechanism=resolve_mechanism(config, parts, classification) if is_recurrent else "",
        recurrent_layers=classification.recurrent_layer_count,
        layers=classification.layer_count or language_part.layer_count,
        evidence=(
            Evidence(classification.path, one_line(classification.detail, max_chars=MAX_DETAIL_CHARS)),
            *_list_hints(parts, is_recurrent),
        ),
        max_position_embeddings=_max_length(language_part),
        text_config=language_part.keys,
        config=config,
    )


def relevant_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a config that the lock stores. classify() and block_size() return the same for it as
    for the whole config, except for `text_config` and `config`."""
    return _filter_keys(config, (*RELEVANT_KEYS, *config_parts.NESTED_KEYS))


def _filter_keys(keys: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    relevant_keys: dict[str, Any] = {}
    for name, value in keys.items():
        if name not in names or value is None:
            continue
        if name in PRESENCE_KEYS:
            relevant_keys[name] = {}
        elif name in config_parts.SCALING_KEYS and not (
            isinstance(value, Mapping) and config_parts.TRAINED_LENGTH_KEY in value
        ):
            continue
        elif not isinstance(value, Mapping):
            relevant_keys[name] = value
        elif name in config_parts.NESTED_KEYS:
            relevant_keys[name] = relevant_config(value)
        else:
            relevant_keys[name] = (
                _filter_keys(value, RELEVANT_SUBKEYS[name]) if name in RELEVANT_SUBKEYS else dict(value)
            )
            relevant_keys[name] |= _list_exceptions(value) if name == config_parts.QUANTISATION_KEY else {}
    return relevant_keys


def _list_exceptions(quantisation: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the lists of modules that are not quantised, reduced to multi-token prediction modules."""
    lists = {name: quantisation.get(name) for name in config_parts.EXCEPTION_KEYS}
    return {
        name: [module for module in modules if config_parts.is_prediction_name(module)][:MAX_EXCEPTIONS]
        for name, modules in lists.items()
        if isinstance(modules, list)
    }


def _list_hints(parts: tuple[ConfigPart, ...], is_recurrent: bool) -> list[Evidence]:
    hint_keys = ("mamba_ssm_dtype", "mamba_ssm_cache_dtype")
    return [
        Evidence(part.key_path(key), part.get_text(key))
        for part in parts
        for key in hint_keys
        if is_recurrent and part.get_text(key)
    ]


def _max_length(language_part: ConfigPart) -> int | None:
    lengths = [length for name in tables.LENGTH_KEYS if (length := language_part.get_number(name))]
    return language_part.get_number(tables.OVERRIDING_LENGTH_KEY) or min(lengths, default=None)


# vLLM's registry of architectures, which determines how vLLM runs a model, regardless of the other keys in config.json.
#
# Source: `ModelRegistry` of 0.32.0, with is_hybrid and is_attention_free of each class (tests/data/vllm-0.32.0/registry.json),
# and the classes of 0.11.0, 0.17.1 and 0.33.0 that differ. An exception is `ModelConfig.is_hybrid` of 0.17.1 to 0.33.0.


def kind_in_vllm(config: Mapping[str, Any]) -> Kind | None:
    """Return the kind of a model in vLLM; None for an architecture in no known registry, such as a draft model's."""
    name = architecture_name(config)
    if name in tables.HYBRID_ARCHITECTURES:
        return "dense" if _has_attention_everywhere(config) else "recurrent"
    if name in tables.ATTENTION_FREE_ARCHITECTURES:
        return "attention_free"
    dense_tables = (tables.GENERATING_ARCHITECTURES, tables.POOLING_ARCHITECTURES, tables.DROPPED_ARCHITECTURES)
    return "dense" if any(name in names for names in dense_tables) else None


def apply_registry(config: Mapping[str, Any], classification: Classification) -> Classification:
    """Return the classification, or, if vLLM's registry differs, the registry's, with both as evidence."""
    registry_kind = kind_in_vllm(config)
    if registry_kind is None or registry_kind == classification.kind:
        return classification
    name = architecture_name(config)
    detail = (
        f"{name}: {KIND_TITLES[registry_kind]} in vLLM's registry ({REGISTRY_VERSION}), which takes precedence over "
        f"{classification.path}: {classification.detail}"
    )
    if registry_kind == "dense":
        return Classification(registry_kind, "architectures", detail, "", 0, classification.layer_count)
    return replace(classification, kind=registry_kind, path="architectures", detail=detail)


def _has_attention_everywhere(config: Mapping[str, Any]) -> bool:
    """Return True if a layer list at the top level has only attention."""
    lists = (ConfigPart("", config).get_list(key) for key in tables.LAYER_LIST_KEYS)
    return any(layer_types and ATTENTION_ONLY_TYPES.issuperset(map(str, layer_types)) for layer_types in lists)


def has_recurrent_substring(config: Mapping[str, Any]) -> bool:
    """Return the verdict of a common rule of thumb: True if config.json contains one of these words anywhere, in upper or lower case.

    A variant of the rule that considers only top-level keys also misclassifies Qwen3.5, whose only such key (mamba_ssm_dtype) is in
    text_config.
    """
    config_text = json.dumps(config, default=str).lower()
    return any(word in config_text for word in RECURRENT_SUBSTRINGS)
