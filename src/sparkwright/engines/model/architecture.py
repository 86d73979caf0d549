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
from sparkwright.engines.model.config_parts import Part, architecture_name, text
from sparkwright.visible import one_line

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
    says = "a draft, served together with its target: look at that one"
    if tables.DRAFT_NAMES.search(name):
        return Found("unknown", "architectures", f"{name}: {says}")
    key = next((key for key in tables.DRAFT_KEYS if config.get(key) is not None), None)
    return Found("unknown", key, says) if key else None


def layer_list(config: Mapping[str, Any], parts: tuple[Part, ...]) -> Found | None:
    """Read an explicit list of layer types. `hybrid` by itself is no evidence: Inkling uses it for layers with attention only."""
    proved = keys(config, parts) or layer_names(config, parts)
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


def layer_names(config: Mapping[str, Any], parts: tuple[Part, ...]) -> Found | None:
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
    if name in tables.GENERATE or name in tables.DROPPED:
        return Found("dense", "architectures", f"{name}: attention alone", "", 0)
    if name in tables.POOL:
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
    *(keys, layer_names, attention_only, nothing),
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


#: keys that classify() and block_size.block_size() read; the rest of a config is dropped
READ = (
    *"""
        architectures model_type is_encoder_decoder auto_map attn_layer_indices full_attn_idxs attn attn_layer_idx
        full_attention_interval layer_group_size attn_layer_period attn_layer_offset mamba_step mamba_head_dim
        mamba_d_head mamba_d_ssm mamba_n_groups n_groups linear_num_key_heads linear_key_head_dim
        linear_value_head_dim mamba_ssm_dtype mamba_ssm_cache_dtype num_attention_heads num_key_value_heads head_dim
        kv_lora_rank quantization_config
    """.split(),
    *(tables.LETTERS, tables.NUMBERS, tables.LINEAR_CONFIG, tables.LENGTH_THAT_WINS),
    *config_parts.SIZES,
    *config_parts.PREDICTION_LAYERS,
    *config_parts.SCALINGS,
    *tables.LAYER_LISTS,
    *tables.DRAFT_KEYS,
    *tables.LENGTHS,
    *(name for names in tables.RECURRENT_KEYS for name in names),
)
#: keys whose presence alone counts
PRESENCE = ("auto_map", "speculators_config", "dflash_config")
#: mappings of which only some keys count
WITHIN: dict[str, tuple[str, ...]] = {
    tables.LINEAR_CONFIG: ("kda_layers", "num_heads", "short_conv_kernel_size"),
    "attn": ("layers",),
    **dict.fromkeys(config_parts.SCALINGS, (config_parts.TRAINED_LENGTH,)),
    config_parts.QUANTISATION: ("quant_method", "quantization", "kv_cache_scheme", "kv_cache_quant_algo"),
    "quantization": ("kv_cache_scheme", "kv_cache_quant_algo"),
}

SEEN_CHARS = 1000
#: entries kept of a list of hundreds of modules
EXCEPTIONS_KEPT = 8


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
    parts = config_parts.parts(config)
    inner = config_parts.text(config)
    by_rule = next(found for rule in RULES if (found := rule(config, parts)))
    found = draft(config, parts) or outranking(config, by_rule)
    recurs = found.kind in ("recurrent", "attention_free")
    return Architecture(
        kind=found.kind,
        name=config_parts.architecture_name(config),
        model_type=Part("", config).word("model_type"),
        mechanism=mechanism(config, parts, found) if recurs else "",
        recurrent_layers=found.recurrent,
        layers=found.layers or inner.layers,
        evidence=(Evidence(found.path, one_line(found.seen, at_most=SEEN_CHARS)), *_hints(parts, recurs)),
        max_position_embeddings=_longest(inner),
        text=inner.keys,
        config=config,
    )


def essence(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a config that matters: classify() (but for `text`) and block_size() give the same result for it. Nesting
    is kept."""
    return _kept(config, (*READ, *config_parts.NESTED))


def _kept(keys: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, held in keys.items():
        if name not in names or held is None:
            continue
        if name in PRESENCE:
            kept[name] = {}
        elif name in config_parts.SCALINGS and not (isinstance(held, Mapping) and config_parts.TRAINED_LENGTH in held):
            continue
        elif not isinstance(held, Mapping):
            kept[name] = held
        elif name in config_parts.NESTED:
            kept[name] = essence(held)
        else:
            kept[name] = _kept(held, WITHIN[name]) if name in WITHIN else dict(held)
            kept[name] |= _exceptions(held) if name == config_parts.QUANTISATION else {}
    return kept


def _exceptions(quantised: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the lists of modules that are not quantised, shortened to the entries about prediction layers."""
    lists = ((name, held) for name in config_parts.EXCEPTIONS if isinstance(held := quantised.get(name), list))
    named = config_parts.named_prediction
    return {name: [entry for entry in held if named(entry)][:EXCEPTIONS_KEPT] for name, held in lists}


def _hints(parts: tuple[Part, ...], recurs: bool) -> list[Evidence]:
    hints = ("mamba_ssm_dtype", "mamba_ssm_cache_dtype")
    return [Evidence(part.at(key), part.word(key)) for part in parts for key in hints if recurs and part.word(key)]


def _longest(inner: Part) -> int | None:
    held = [length for name in tables.LENGTHS if (length := inner.number(name))]
    return inner.number(tables.LENGTH_THAT_WINS) or min(held, default=None)


# vLLM's own registry of architectures, which decides how vLLM runs a model, whatever its config.json lists.
#
# Source: `ModelRegistry` of 0.32.0, with is_hybrid and is_attention_free of each class (tests/data/vllm-0.32.0/registry.json);
# the classes of 0.11.0, 0.17.1 and 0.33.0 that differ were read. `ModelConfig.is_hybrid` of 0.17.1 to 0.33.0: one exception.

VERSION = "0.32.0"
#: a model of a hybrid's class whose layers all have one of these types is not a hybrid (granite-4.0-micro)
ATTENTION_ONLY = frozenset({"attention", "full_attention"})
CALLED: dict[Kind, str] = {"recurrent": "a hybrid", "attention_free": "free of attention", "dense": "attention alone"}


def kind_of(config: Mapping[str, Any]) -> Kind | None:
    """Return the kind of this model in vLLM; None for a draft, or an architecture in none of the registries that were read."""
    name = architecture_name(config)
    if name in tables.HYBRID_ARCHITECTURES:
        return "dense" if _attends_in_every_layer(config) else "recurrent"
    if name in tables.ATTENTION_FREE_ARCHITECTURES:
        return "attention_free"
    return "dense" if name in tables.GENERATE or name in tables.POOL or name in tables.DROPPED else None


def outranking(config: Mapping[str, Any], found: Found) -> Found:
    """Return what was found in config.json, unless the registry says otherwise: then the registry's answer, with both as
    evidence."""
    answer = kind_of(config)
    if answer is None or answer == found.kind:
        return found
    name = architecture_name(config)
    seen = f"{name}: {CALLED[answer]} in vLLM's registry ({VERSION}), which decides; {found.path} says {found.seen}"
    if answer == "dense":
        return Found(answer, "architectures", seen, "", 0, found.layers)
    return replace(found, kind=answer, path="architectures", seen=seen)


def _attends_in_every_layer(config: Mapping[str, Any]) -> bool:
    """Return True if a layer list of the config itself, not of a nested one, has attention in every layer."""
    lists = (Part("", config).items(key) for key in tables.LAYER_LISTS)
    return any(words and all(word in ATTENTION_ONLY for word in words) for words in lists)


SUBSTRINGS = ("mamba", "ssm", "deltanet", "state_space", "recurrent")


def by_substrings(config: Mapping[str, Any]) -> bool:
    """Return True if any of the words occurs anywhere in config.json, in a key or a value, nested parts included, in any case.

    This is its most generous variant. Another common one looks at the top-level keys alone; it misses Qwen3.5 as well, whose one
    hit (mamba_ssm_dtype) is in text_config.
    """
    written = json.dumps(config, default=str).lower()
    return any(word in written for word in SUBSTRINGS)
