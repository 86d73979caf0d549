"""How settings become words of `vllm serve`.

Source: vLLM 0.32.0 `vllm serve --help=all`: a switch pairs `--x` with `--no-x`, a list takes several words, a mapping is
one JSON word. The pairing is the same in every release since 0.8.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from packaging.version import Version

from sparkwright.engine.versions import at_least

MODEL = "model"
SERVED_NAME = "served-model-name"
MEMORY_UTILIZATION = "gpu-memory-utilization"
MAX_MODEL_LEN = "max-model-len"
CHUNKED_PREFILL = "enable-chunked-prefill"
PREFIX_CACHING = "enable-prefix-caching"
BATCHED_TOKENS = "max-num-batched-tokens"
PORT = "port"

#: vLLM's own defaults where a recipe says nothing: 0.9 until 0.19, 0.92 from 0.20.0 (pull request 38284).
#: The larger one is what must fit.
DEFAULT_MEMORY_UTILIZATION = 0.92
DEFAULT_PORT = 8000
MODEL_FIRST_SINCE = "0.33.0"

#: other names of a flag. source: 0.32.0's help.
ALIASES = {"device-memory-utilization": MEMORY_UTILIZATION}
UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def argv(flags: Mapping[str, Any]) -> tuple[str, ...]:
    """The words of these flags, in their order. true: `--x`; false: `--no-x`; None: left out."""
    words: list[str] = []
    for name, value in flags.items():
        words += _words(name.replace("_", "-").removeprefix("--"), value)
    return tuple(words)


def value(flags: Mapping[str, Any], name: str) -> Any:
    """What a flag is set to, under any spelling the engine takes: underscores, `no-x`, `disable-x` for `enable-x`, aliases.

    The last one wins, as on a command line. None when it is not given.
    """
    found = None
    for written, said in flags.items():
        plain = canonical(written)
        if plain == name:
            found = said
        elif plain in (f"no-{name}", name.replace("enable-", "disable-", 1)) and plain != name and said is not None:
            found = not said
    return found


def canonical(written: str) -> str:
    """A flag's own name: dashes, none in front, an alias as what it stands for."""
    name = written.replace("_", "-").lstrip("-")
    return ALIASES.get(name, name)


def whole_number(said: Any) -> int | None:
    """A number as vLLM reads it: 131072, "128k" (thousands), "128K" (times 1024); None for "auto" and what is no number.

    Source: `human_readable_int` of vLLM's parser, 0.11 to 0.33.
    """
    text = str(said).strip()
    unit = UNITS.get(text[-1:], 1)
    try:
        number = int(float(text[:-1]) * unit) if unit != 1 else int(text)
    except ValueError:
        return None
    return number if number > 0 else None


def command(model: str, flags: Mapping[str, Any], *, model_by_flag: bool) -> tuple[str, ...]:
    """The words after the image: the model, then the flags. model_by_flag: see `takes_model_by_flag`."""
    return (*(("--model",) if model_by_flag else ()), model, *argv(flags))


def takes_model_by_flag(version: Version | None) -> bool:
    """Whether `--model PATH` may stand beside --served-model-name; from 0.33 on the model must be the first word.

    True for an unknown version: every release until 0.32 takes it. Source: the refusal of 0.33.0.
    """
    return at_least(version, MODEL_FIRST_SINCE) is not True


def served_name(flags: Mapping[str, Any], model: str) -> str:
    """The name requests use: the first served name, else the model as it was given to the engine."""
    names = flags.get(SERVED_NAME)
    if isinstance(names, list | tuple):
        names = names[0] if names else None
    return str(names) if names else model


def memory_utilization(flags: Mapping[str, Any]) -> float:
    """The share of memory the engine will want, 0 to 1."""
    return float(flags.get(MEMORY_UTILIZATION, DEFAULT_MEMORY_UTILIZATION))


def port(flags: Mapping[str, Any]) -> int:
    """The port the server listens on inside its container."""
    return int(flags.get(PORT, DEFAULT_PORT))


def _words(name: str, value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, Mapping):
        return [f"--{name}", json.dumps(value, separators=(",", ":"))]
    if isinstance(value, list | tuple):
        return [f"--{name}", *(str(item) for item in value)] if value else []
    return [f"--{name}", str(value)]
