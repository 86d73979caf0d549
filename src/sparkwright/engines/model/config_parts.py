"""Typed access to a model's config.json, and to its parts that describe a language model.

The file is untrusted, so a value of the wrong type or out of bounds counts as missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

#: keys of multimodal wrappers for the config of their language model
NESTED_KEYS = ("text_config", "llm_config", "language_config", "language_model", "thinker_config")
MAX_DEPTH = 4

#: keys for the number of layers, most usual first (n_layer: GPT-2 and the original Mamba; num_layers: ChatGLM)
LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
SIZE_KEYS = (*LAYER_KEYS, "hidden_size", "n_embd", "d_model")

#: keys that count the layers of multi-token prediction (DeepSeek, GLM; Qwen3-Next; MiMo, Ernie)
PREDICTION_LAYER_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "mtp_num_layers")
QUANTISATION_KEY = "quantization_config"
#: lists of modules that are not quantised: compressed-tensors, ModelOpt, Quark, FP8 and bitsandbytes
EXCEPTION_KEYS = ("ignore", "exclude_modules", "exclude", "modules_to_not_convert")
#: parts of the names of prediction layers
PREDICTION_NAMES = ("mtp", "nextn")
#: keys for the scaling of positions (transformers 5 writes the second)
SCALING_KEYS = ("rope_scaling", "rope_parameters")
TRAINED_LENGTH_KEY = "original_max_position_embeddings"

#: the largest models have 200 layers, and lists with an entry for each; no size or length reaches 2**40
MAX_LAYERS = 10_000
MAX_NUMBER = 2**40
MAX_CHARS = 1000


@dataclass(frozen=True, slots=True)
class ConfigPart:
    """A mapping in a config."""

    #: "" for the whole config, else as "text_config" or "thinker_config.text_config"
    path: str
    keys: Mapping[str, Any]

    def key_path(self, key: str) -> str:
        """Return the path of one of its keys."""
        return f"{self.path}.{key}" if self.path else key

    def number(self, *names: str) -> int | None:
        """Return the first of these keys with a positive whole number within the limit of its kind."""
        candidates = ((self.keys.get(name), MAX_LAYERS if name in LAYER_KEYS else MAX_NUMBER) for name in names)
        return next((value for value, most in candidates if type(value) is int and 0 < value <= most), None)

    def items(self, name: str) -> list[Any] | None:
        """Return a key's list, None if it holds none, or one longer than a model can have layers."""
        value = self.keys.get(name)
        return value if isinstance(value, list) and len(value) <= MAX_LAYERS else None

    def mapping(self, name: str) -> Mapping[str, Any] | None:
        """Return a key's mapping, None if it holds none."""
        value = self.keys.get(name)
        return value if isinstance(value, Mapping) else None

    def word(self, name: str) -> str:
        """Return a key's text, "" if it holds none, or one longer than a string of layer letters can be."""
        value = self.keys.get(name)
        return value if isinstance(value, str) and len(value) <= MAX_CHARS else ""

    @property
    def layers(self) -> int | None:
        return self.number(*LAYER_KEYS)


def list_parts(config: Mapping[str, Any]) -> tuple[ConfigPart, ...]:
    """Return the config and the language models nested in it, the innermost first."""
    return tuple(reversed(list(_walk(ConfigPart("", config), MAX_DEPTH))))


def text_part(config: Mapping[str, Any]) -> ConfigPart:
    """Return the part that describes the language model: the innermost one with sizes, else the whole config."""
    return next((part for part in list_parts(config) if part.number(*SIZE_KEYS)), ConfigPart("", config))


def count_prediction_layers(config: Mapping[str, Any]) -> int:
    """Return the number of a model's multi-token prediction layers; 0 if its config names none."""
    return next((found for part in list_parts(config) if (found := part.number(*PREDICTION_LAYER_KEYS))), 0)


def quantisation_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a model's own quantisation config; empty if it has none."""
    return next((held for part in list_parts(config) if (held := part.mapping(QUANTISATION_KEY))), {})


def has_prediction_exceptions(quantised: Mapping[str, Any]) -> bool | None:
    """Return True if a quantisation config excepts the layers of multi-token prediction; None if it lists no exceptions."""
    lists = [held for name in EXCEPTION_KEYS if isinstance(held := quantised.get(name), list)]
    return any(is_prediction_name(entry) for held in lists for entry in held) if lists else None


def is_prediction_name(entry: object) -> bool:
    """Return True if an entry of a list of modules names layers of multi-token prediction."""
    return isinstance(entry, str) and any(word in entry[:MAX_CHARS].lower() for word in PREDICTION_NAMES)


def trained_length(config: Mapping[str, Any]) -> int | None:
    """Return the longest sequence in training, in tokens, for a model with stretched positions; None if the config has none."""
    inner = text_part(config)
    for name in SCALING_KEYS:
        scaling = ConfigPart("", inner.mapping(name) or {})
        trained = scaling.number(TRAINED_LENGTH_KEY)
        if trained is not None:
            return trained
    return None


def architecture_name(config: Mapping[str, Any]) -> str:
    """Return the name that the engine looks up: the first of `architectures`, "" if the config names none."""
    names = ConfigPart("", config).items("architectures") or [""]
    return names[0] if names and isinstance(names[0], str) and len(names[0]) <= MAX_CHARS else ""


def _walk(part: ConfigPart, levels: int) -> Iterator[ConfigPart]:
    yield part
    for name in NESTED_KEYS if levels else ():
        nested = part.mapping(name)
        if nested is not None:
            yield from _walk(ConfigPart(part.key_path(name), nested), levels - 1)
