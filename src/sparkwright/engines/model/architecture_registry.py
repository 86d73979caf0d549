"""vLLM's own registry of architectures, which decides how vLLM runs a model, whatever its config.json lists.

Source: `ModelRegistry` of 0.32.0, with is_hybrid and is_attention_free of each class (tests/data/vllm-0.32.0/registry.json); the
classes of 0.11.0, 0.17.1 and 0.33.0 that differ were read. `ModelConfig.is_hybrid` of 0.17.1 to 0.33.0: one exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sparkwright.engines.model import architecture_dense as dense
from sparkwright.engines.model import architecture_tables as tables
from sparkwright.engines.model.architecture_rules import Found, Kind
from sparkwright.engines.model.config_parts import Part, architecture_name

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
