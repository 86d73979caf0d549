"""The kind of model that a config.json describes, with the evidence: recurrent layers decide how an engine must be set up.

The rules and their order are in architecture_rules, exceptions that outrank them in architecture_registry; docs/architectures.md
explains both to users. The authority at run time is the engine's own log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from sparkwright.engines.model import architecture_tables as dense
from sparkwright.engines.model import architecture_tables as tables
from sparkwright.engines.model import config_parts
from sparkwright.engines.model.architecture_rules import RULES, Found, Kind, draft, mechanism
from sparkwright.engines.model.config_parts import Part, architecture_name
from sparkwright.visible import one_line

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
    #: encoder-decoders too) or "unknown" (own code, a new name, or a draft, which is served beside another model)
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
    return "dense" if name in dense.GENERATE or name in dense.POOL or name in dense.DROPPED else None


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
