"""Typed access to a model's config.json and to the nested configs of its language models.

The file is untrusted, so a value of the wrong type or out of bounds counts as missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

#: keys that contain the language model's config in multimodal configs
NESTED_KEYS = ("text_config", "llm_config", "language_config", "language_model", "thinker_config")
MAX_DEPTH = 4

#: keys for the number of layers, the most common first (n_layer: GPT-2 and the original Mamba; num_layers: ChatGLM)
LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
SIZE_KEYS = (*LAYER_KEYS, "hidden_size", "n_embd", "d_model")

#: keys for the number of multi-token prediction layers (DeepSeek, GLM; Qwen3-Next; MiMo, Ernie)
PREDICTION_LAYER_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "mtp_num_layers")
QUANTISATION_KEY = "quantization_config"
#: keys for modules that are not quantised: compressed-tensors, ModelOpt, Quark, FP8 and bitsandbytes
EXCEPTION_KEYS = ("ignore", "exclude_modules", "exclude", "modules_to_not_convert")
#: substrings of the names of multi-token prediction modules
PREDICTION_NAME_SUBSTRINGS = ("mtp", "nextn")
#: keys for position scaling (transformers 5 uses the second)
SCALING_KEYS = ("rope_scaling", "rope_parameters")
TRAINED_LENGTH_KEY = "original_max_position_embeddings"

#: maximum number of layers, and of items in a list; the largest models have 200 layers
MAX_LAYERS = 10_000
#: maximum size or length
MAX_NUMBER = 2**40
MAX_CHARS = 1000


@dataclass(frozen=True, slots=True)
class ConfigPart:
    """A mapping in a config."""

    #: "" for the whole config, otherwise such as "text_config" or "thinker_config.text_config"
    path: str
    keys: Mapping[str, Any]

    def key_path(self, key: str) -> str:
        """Return the path of a key in the whole config."""
        return f"{self.path}.{key}" if self.path else key

    def get_number(self, *names: str) -> int | None:
        """Return the first valid value of these keys, a positive integer; None if there is none."""
        candidates = ((self.keys.get(name), MAX_LAYERS if name in LAYER_KEYS else MAX_NUMBER) for name in names)
        return next((value for value, limit in candidates if type(value) is int and 0 < value <= limit), None)

    def get_list(self, name: str) -> list[Any] | None:
        """Return a key's list; None if it is missing, invalid or too long."""
        value = self.keys.get(name)
        return value if isinstance(value, list) and len(value) <= MAX_LAYERS else None

    def get_mapping(self, name: str) -> Mapping[str, Any] | None:
        """Return a key's mapping; None if it is missing or invalid."""
        value = self.keys.get(name)
        return value if isinstance(value, Mapping) else None

    def get_text(self, name: str) -> str:
        """Return a key's text; "" if it is missing, invalid or too long."""
        value = self.keys.get(name)
        return value if isinstance(value, str) and len(value) <= MAX_CHARS else ""

    @property
    def layer_count(self) -> int | None:
        return self.get_number(*LAYER_KEYS)


def list_parts(config: Mapping[str, Any]) -> tuple[ConfigPart, ...]:
    """Return the whole config and the nested configs of language models, the innermost first."""
    return tuple(reversed(list(_walk(ConfigPart("", config), MAX_DEPTH))))


def text_part(config: Mapping[str, Any]) -> ConfigPart:
    """Return the language model's config: the innermost part with a size, otherwise the whole config."""
    return next((part for part in list_parts(config) if part.get_number(*SIZE_KEYS)), ConfigPart("", config))


def count_prediction_layers(config: Mapping[str, Any]) -> int:
    """Return the number of a model's multi-token prediction layers; 0 if unknown."""
    return next((count for part in list_parts(config) if (count := part.get_number(*PREDICTION_LAYER_KEYS))), 0)


def quantisation_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the innermost quantisation config; empty if there is none."""
    return next(
        (quantisation for part in list_parts(config) if (quantisation := part.get_mapping(QUANTISATION_KEY))), {}
    )


def has_prediction_exceptions(quantisation: Mapping[str, Any]) -> bool | None:
    """Return True if multi-token prediction modules are exempt from quantisation; None if the config has no exceptions."""
    lists = [modules for name in EXCEPTION_KEYS if isinstance(modules := quantisation.get(name), list)]
    return any(is_prediction_name(module) for modules in lists for module in modules) if lists else None


def is_prediction_name(module: object) -> bool:
    """Return True for the name of a multi-token prediction module."""
    return isinstance(module, str) and any(word in module[:MAX_CHARS].lower() for word in PREDICTION_NAME_SUBSTRINGS)


def trained_length(config: Mapping[str, Any]) -> int | None:
    """Return the trained context length in tokens of a model with scaled positions; None if the config does not contain it."""
    language_part = text_part(config)
    lengths = (
        ConfigPart("", language_part.get_mapping(name) or {}).get_number(TRAINED_LENGTH_KEY) for name in SCALING_KEYS
    )
    return next((length for length in lengths if length is not None), None)


def architecture_name(config: Mapping[str, Any]) -> str:
    """Return the first of `architectures`, which engines look up; "" if there is none."""
    names = ConfigPart("", config).get_list("architectures") or [""]
    return names[0] if isinstance(names[0], str) and len(names[0]) <= MAX_CHARS else ""


def _walk(part: ConfigPart, levels: int) -> Iterator[ConfigPart]:
    yield part
    for name in NESTED_KEYS if levels else ():
        nested = part.get_mapping(name)
        if nested is not None:
            yield from _walk(ConfigPart(part.key_path(name), nested), levels - 1)
