"""The flags of a recipe for SGLang: their own names, their values, and the resulting words of `sglang serve`.

Read in the source of 0.5.23: argparse, so it accepts `--x=y` and prefixes of names, but not `_` for `-`; names have dashes here.
Of a repeated flag the last one counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkwright.engines.flags import AdapterFlags, ModelFlag, Role
from sparkwright.engines.sglang import flag_values, options
from sparkwright.engines.sglang.http import PORT as DEFAULT_PORT

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
    return flag_values.misfit(name, value(flags, name))


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
    given = None if misfit(flags, PORT) else flag_values.number(value(flags, PORT))
    return DEFAULT_PORT if given is None else given


def context(flags: Mapping[str, Any]) -> int | None:
    """Return the longest sequence that the flags set, in tokens; None if they set none."""
    return flag_values.number(value(flags, CONTEXT))


def share(flags: Mapping[str, Any]) -> float:
    """Return the share of memory for weights and KV cache, 0 to 1; 0 if the flags don't set it."""
    given = value(flags, MEMORY)
    return 0.0 if given is None or misfit(flags, MEMORY) else float(given)


def chunk(flags: Mapping[str, Any]) -> int | None:
    """Return the tokens of a prefill chunk, 0 if prompts are not chunked; None if SGLang chooses."""
    given = flag_values.number(value(flags, CHUNK))
    return None if given is None else max(given, 0)


def properties() -> dict[str, Any]:
    """Return the flags of 0.5.23 as the properties of a JSON Schema."""
    return {name: _schema(name, kind) for name, kind in sorted(flag_values.kinds().items()) if name not in SET_BY}


def _schema(name: str, kind: str) -> dict[str, Any]:
    if kind in flag_values.SWITCHES:
        return {"type": "boolean"}
    return {"enum": [*options.CHOICES[name], None]} if name in options.CHOICES else {}


def _named(written: str, given: Any) -> tuple[str, Any]:
    plain = written.lstrip("-").replace("_", "-")
    own = options.ALIASES.get(plain, plain)
    on = own.removeprefix("no-")
    if not flag_values.kind_of(own) and flag_values.kind_of(on) == "both":
        return on, (not given if isinstance(given, bool) else given)
    return own, given


def _words(name: str, given: Any) -> list[str]:
    kind = flag_values.kind_of(name)
    if given is None:
        return []
    if isinstance(given, bool):
        return [f"--{name}"] if given else [f"--no-{name}"] if kind == "both" else []
    if kind != "json" and isinstance(given, list | tuple):
        return [f"--{name}", *map(flag_values.word_of, given)]
    return [f"--{name}", flag_values.word_of(given)]
