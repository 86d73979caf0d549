"""The flags of a recipe for SGLang: their own names, the validation of their values, and the resulting words of `sglang serve`."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from packaging.version import Version

from sparkwright.engines.flags import AdapterFlags, ModelFlag, Role
from sparkwright.engines.option_history import OptionHistory
from sparkwright.engines.sglang import option_history, options
from sparkwright.engines.sglang.http import PORT as DEFAULT_PORT
from sparkwright.visible import one_line

SHOWN_CHARS = 60
_INT = re.compile(r"[+-]?\d{1,12}")
_FLOAT = re.compile(r"[+-]?(\d{1,12}\.?\d{0,20}|\.\d{1,20})(e[+-]?\d{1,3})?", re.I)
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(k|M|G|T)|(\d{1,12})(Ki|Mi|Gi|Ti)")
_UNITS = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
#: kinds that need no word after them
SWITCHES = ("switch", "both")


@functools.lru_cache(maxsize=1)
def kinds() -> Mapping[str, str]:
    """Return the kind of each option, by its own name."""
    return {name: kind for kind, names in options.KINDS.items() for name in names.split()}


#: options by release
HISTORY = OptionHistory(option_history.RELEASES, option_history.ROWS, kinds, Version, options.SUCCESSOR_VALUES)


def kind_of(name: str) -> str:
    """Return the kind of an option of any release; "" for an unknown option."""
    span = HISTORY.spans.get(name)
    return kinds().get(name) or (span.kind if span else "")


def number(value: Any) -> int | None:
    """Return a whole number, given as a number, as digits or as SGLang's 128k; None for anything else."""
    text = "" if isinstance(value, bool) else str(value).strip()
    if _INT.fullmatch(text):
        return int(text)
    found = _SIZE.fullmatch(text)
    return int(Decimal(found[1] or found[3]) * _UNITS[found[2] or found[4]]) if found else None


def value_misfit(name: str, value: Any) -> str:
    """Return the problem with a value, as "must be a whole number, got '128q'"; "" if nothing is known against it."""
    kind = kind_of(name)
    if not kind or value is None:
        return ""
    if kind in SWITCHES:
        return "" if isinstance(value, bool) else f"is a switch and takes no value, got {_shown(value)}"
    if isinstance(value, bool):
        return f"needs a value, got {str(value).lower()}"
    if isinstance(value, list | tuple) and kind not in ("list", "json", "text"):
        return f"takes one value, got {_shown(value)}"
    return _of_word(name, kind, value)


def word_of(value: Any) -> str:
    """Return the word for a single value."""
    return json.dumps(value, separators=(",", ":")) if isinstance(value, Mapping | list | tuple) else str(value)


def _of_word(name: str, kind: str, value: Any) -> str:
    word, got = word_of(value), f"got {_shown(value)}"
    if kind in ("int", "size"):
        return _of_number(name, kind, word, got)
    if kind == "float":
        return _of_share(name, word, got)
    if kind == "json":
        return "" if _is_json(word) else f"must be a mapping, as YAML or as JSON, {got}"
    allowed = options.CHOICES.get(name, ())
    return f"must be one of {', '.join(allowed)}, {got}" if allowed and word not in allowed else ""


def _of_number(name: str, kind: str, word: str, got: str) -> str:
    found = number(word) if kind == "size" or _INT.fullmatch(word.strip()) else None
    if found is None:
        return f"must be a whole number{', as 131072 or 128Ki' if kind == 'size' else ''}, {got}"
    least, most = options.AT_LEAST.get(name), options.AT_MOST.get(name)
    if least is not None and found < least:
        return f"must be at least {least}, {got}"
    return f"must be at most {most}, {got}" if most is not None and found > most else ""


def _of_share(name: str, word: str, got: str) -> str:
    if not _FLOAT.fullmatch(word.strip()):
        return f"must be a number, {got}"
    return f"must be above 0 and below 1, {got}" if name in options.SHARES and not 0 < float(word) < 1 else ""


def _is_json(word: str) -> bool:
    try:
        json.loads(word)
    except (ValueError, RecursionError):
        return False
    return True


def _shown(value: Any) -> str:
    return one_line(repr(value), at_most=SHOWN_CHARS)


# The flags of a recipe for SGLang: their own names, their values, and the resulting words of `sglang serve`.
#
# Read in the source of 0.5.23: argparse, so it accepts `--x=y` and prefixes of names, but not `_` for `-`; names have
# dashes here. Of a repeated flag the last one counts.

MODEL = "model-path"
SERVED_NAME = "served-model-name"
CONTEXT = "context-length"
SLOTS = "max-running-requests"
CHUNK = "chunked-prefill-size"
PREFILL = "max-prefill-tokens"
RADIX_OFF = "disable-radix-cache"
KEYS = ("api-key", "admin-api-key")
PORT = "port"
HOST = "host"
METRICS = "enable-metrics"
IDLE = "sleep-on-idle"
MEMORY = "mem-fraction-static"
BUDGET = CHUNK

#: the images do not start a server themselves
ENTRYPOINT: tuple[str, ...] | None = ("sglang", "serve")
SET_BY: Mapping[str, str] = {MODEL: "model.mount"}
MODEL_FLAGS: Mapping[Role, ModelFlag] = {
    "draft": ModelFlag("speculative-draft-model-path", needs="speculative-algorithm"),
    "tokenizer": ModelFlag("tokenizer-path"),
}
#: arg_groups/fields/lora.py, lora/lora_manager.py and entrypoints/openai/serving_base.py of 0.5.23: a request's model is
#: split at a colon into the served name and the adapter's; under the adapter's name alone the base model answers
ADAPTERS: AdapterFlags | None = AdapterFlags(
    "lora-paths",
    enable="enable-lora",
    prefixed=True,
    max_rank="max-lora-rank",
    at_once="max-loras-per-batch",
    usual_at_once=8,
    base_counts=True,
    refused=("use_dora",),
    source="SGLang 0.5.23, lora/lora_manager.py and entrypoints/openai/serving_base.py",
)
#: flags of every command unless the recipe sets them. By default it listens on the container's loopback, and /metrics is off
ALWAYS: Mapping[str, Any] = {HOST: "0.0.0.0", PORT: DEFAULT_PORT, METRICS: True}


def named(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags under their own names, in their order; of two spellings of a flag the last wins (see `twice`)."""
    return dict(_named(name, given) for name, given in written.items())


def canonical(written: str) -> str:
    """Return a flag's own name; for the off side of a switch, the name of the switch."""
    return _named(written, True)[0]


def value(flags: Mapping[str, Any], name: str) -> Any:
    """Return the value of a flag; None if it is not set."""
    return flags.get(name)


def misfit(flags: Mapping[str, Any], name: str) -> str:
    """Return why a flag's value is invalid; "" if nothing is known against it."""
    return value_misfit(name, value(flags, name))


def argv(flags: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the words of these flags, in their order. None is left out, as is a switch that can only be on and is off."""
    return tuple(word for name, given in named(flags).items() for word in _words(name, given))


def command(model: str, flags: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the words after the image: the model's folder, the constant flags (ALWAYS), the flags."""
    given = named(flags)
    usual = {name: value for name, value in ALWAYS.items() if given.get(name) is None}
    return argv({MODEL: model, **usual, **given})


def served_name(flags: Mapping[str, Any], model: str) -> str:
    """Return the model name for requests; the model's path if the flags set none."""
    return str(value(flags, SERVED_NAME) or model)


def served_names(flags: Mapping[str, Any], model: str) -> tuple[str, ...]:
    """Return the single model name for requests."""
    return (served_name(flags, model),)


def port(flags: Mapping[str, Any]) -> int:
    """Return the port on which the server listens inside its container. An invalid value must be refused before."""
    given = None if misfit(flags, PORT) else number(value(flags, PORT))
    return DEFAULT_PORT if given is None else given


def context(flags: Mapping[str, Any]) -> int | None:
    """Return the longest sequence that the flags set, in tokens; None if they set none."""
    return number(value(flags, CONTEXT))


def share(flags: Mapping[str, Any]) -> float:
    """Return the share of memory for weights and KV cache, 0 to 1; 0 if the flags don't set it."""
    given = value(flags, MEMORY)
    return 0.0 if given is None or misfit(flags, MEMORY) else float(given)


def chunk(flags: Mapping[str, Any]) -> int | None:
    """Return the tokens of a prefill chunk, 0 if prompts are not chunked; None if SGLang chooses."""
    given = number(value(flags, CHUNK))
    return None if given is None else max(given, 0)


def properties() -> dict[str, Any]:
    """Return the flags of 0.5.23 as the properties of a JSON Schema."""
    return {name: _schema(name, kind) for name, kind in sorted(kinds().items()) if name not in SET_BY}


def _schema(name: str, kind: str) -> dict[str, Any]:
    if kind in SWITCHES:
        return {"type": "boolean"}
    return {"enum": [*options.CHOICES[name], None]} if name in options.CHOICES else {}


def _named(written: str, given: Any) -> tuple[str, Any]:
    plain = written.lstrip("-").replace("_", "-")
    own = options.ALIASES.get(plain, plain)
    on = own.removeprefix("no-")
    if not kind_of(own) and kind_of(on) == "both":
        return on, (not given if isinstance(given, bool) else given)
    return own, given


def _words(name: str, given: Any) -> list[str]:
    kind = kind_of(name)
    if given is None:
        return []
    if isinstance(given, bool):
        return [f"--{name}"] if given else [f"--no-{name}"] if kind == "both" else []
    if kind != "json" and isinstance(given, list | tuple):
        return [f"--{name}", *map(word_of, given)]
    return [f"--{name}", word_of(given)]
