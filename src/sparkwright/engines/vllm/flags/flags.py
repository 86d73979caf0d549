"""The flags of a recipe: their own names, their values, and the resulting words of `vllm serve`.

`named` makes the names canonical, once, where flags come from outside (a recipe, a task's arguments); from there on `value` reads
a flag. Source: vLLM 0.32.0 `vllm serve --help=all`: a switch pairs `--x` with `--no-x`, a list takes several words, a mapping is
one JSON word. The pairing is the same in every release since 0.8.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sparkwright.engines.flags import AdapterFlags, ModelFlag, Role
from sparkwright.engines.vllm.flags import flag_types, flag_values

MODEL = "model"
SERVED_NAME = "served-model-name"
MEMORY_UTILIZATION = "gpu-memory-utilization"
KV_BYTES = "kv-cache-memory-bytes"
EAGER = "enforce-eager"
MAX_MODEL_LEN = "max-model-len"
CHUNKED_PREFILL = "enable-chunked-prefill"
PREFIX_CACHING = "enable-prefix-caching"
BATCHED_TOKENS = "max-num-batched-tokens"
PORT = "port"

#: vLLM's own defaults: 0.9 until 0.19, 0.92 from 0.20.0 (pull request 38284).
#: The larger one must fit.
DEFAULT_MEMORY_UTILIZATION = 0.92
DEFAULT_PORT = 8000
#: of engines.flags.Flags: the image's own program is `vllm serve`
ENTRYPOINT: tuple[str, ...] | None = None
MEMORY = MEMORY_UTILIZATION
BUDGET = BATCHED_TOKENS
SET_BY: Mapping[str, str] = {MODEL: "model.mount"}
MODEL_FLAGS: Mapping[Role, ModelFlag] = {
    "draft": ModelFlag("speculative-config", key="model"),
    "tokenizer": ModelFlag("tokenizer"),
}
#: lora/peft_helper.py and config/lora.py of 0.32.0; the defaults are the same in 0.11.2
ADAPTERS: AdapterFlags | None = AdapterFlags(
    "lora-modules",
    enable="enable-lora",
    max_rank="max-lora-rank",
    usual_rank=16,
    ranks=(1, 8, 16, 32, 64, 128, 256, 320, 512),
    at_once="max-loras",
    usual_at_once=1,
    refused=(
        *("use_dora", "bias", "lora_bias", "modules_to_save", "alora_invocation_tokens"),
        *("layer_replication", "use_bdlora", "use_qalora"),
    ),
    source="vLLM 0.32.0, lora/peft_helper.py and config/lora.py",
)


def named(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags under their own names, in their order; of two spellings of a flag the last wins (see `twice`).

    Names have dashes, none in front; an alias, a short form (`tp`) or an unambiguous prefix becomes the full name, and `no-x:
    true` becomes `x: false`. An unknown name stays, with dashes; anything after a dot stays as it is.
    """
    return dict(_named(name, message) for name, message in written.items())


def canonical(written: str) -> str:
    """Return a flag's own name; for the off side of a switch, the name of the switch."""
    return _named(written, True)[0]


def value(flags: Mapping[str, Any], name: str) -> Any:
    """Return the value of a flag; None if it is not set. For `enable-x` also read `disable-x`, which exists from 0.33 on."""
    other = flags.get(name.replace("enable-", "disable-", 1)) if name.startswith("enable-") else None
    answer = flags.get(name)
    return not other if answer is None and isinstance(other, bool) else answer


def misfit(flags: Mapping[str, Any], name: str) -> str:
    """Return why `vllm serve` refuses a flag's value; "" if nothing is known against it."""
    wrong = flag_values.misfit(name, value(flags, name))
    return wrong.why if wrong else ""


def argv(flags: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the words of these flags, in their order. true: `--x`; false: `--no-x`; None: left out."""
    return tuple(word for name, message in named(flags).items() for word in _words(name, message))


def integer(given: Any) -> int | None:
    """Return a number above 0 as vLLM reads it: 131072, "128k" (thousands), "128K" (times 1024); None for "auto" and invalid
    numbers."""
    try:
        number = flag_values.size(str(given))
    except ValueError:
        return None
    return number if number > 0 else None


def command(model: str, flags: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the words after the image: the model, then the flags.

    Every release takes `--model PATH`: 0.32.0 and 0.33.0 move it to the front before they check that the model comes first.
    """
    return ("--model", model, *argv(flags))


def served_name(flags: Mapping[str, Any], model: str) -> str:
    """Return the model name for requests: the first served name, else the model as the engine got it."""
    return served_names(flags, model)[0]


def served_names(flags: Mapping[str, Any], model: str) -> tuple[str, ...]:
    """Return every name that requests may use; vLLM answers to each, and reports the first."""
    names = value(flags, SERVED_NAME)
    names = names if isinstance(names, list | tuple) else [names]
    return tuple(dict.fromkeys(str(name) for name in names if name)) or (model,)


def share(flags: Mapping[str, Any]) -> float | None:
    """Return the share of memory that the flags set, 0 to 1; None if they set none, or an invalid one."""
    answer = value(flags, MEMORY_UTILIZATION)
    return None if answer is None or flag_values.misfit(MEMORY_UTILIZATION, answer) else float(answer)


def memory_utilization(flags: Mapping[str, Any]) -> float:
    """Return the share of memory that the engine will request, 0 to 1. An invalid value must be refused before."""
    answer = share(flags)
    return DEFAULT_MEMORY_UTILIZATION if answer is None else answer


def port(flags: Mapping[str, Any]) -> int:
    """Return the port on which the server listens inside its container. An invalid value must be refused before."""
    answer = value(flags, PORT)
    words = [] if answer is None or flag_values.misfit(PORT, answer) else flag_values.words(answer, None)
    return int(words[0]) if words else DEFAULT_PORT


def context(flags: Mapping[str, Any]) -> int | None:
    """Return the longest sequence that the flags set, in tokens; None if they set none."""
    return integer(value(flags, MAX_MODEL_LEN))


def properties() -> dict[str, Any]:
    """Return the flags of flag_types.VERSION as the properties of a JSON Schema."""
    return {name: _schema(option) for name, option in sorted(flag_values.known().items()) if name not in SET_BY}


def _schema(option: flag_values.Option) -> dict[str, Any]:
    if "switch" in option.kind:
        return {"type": "boolean"}
    return {"enum": [*option.choices, None]} if option.choices and not option.many else {}


def _named(written: str, given: Any) -> tuple[str, Any]:
    head, dot, rest = written.lstrip("-").partition(".")
    head = head.replace("_", "-")
    switch = _complete(head.removeprefix("no-"))
    if head.startswith("no-") and isinstance(given, bool) and head not in flag_values.known() and _is_switch(switch):
        return switch, not given
    return _complete(head) + dot + rest, given


def _is_switch(name: str) -> bool:
    option = flag_values.known().get(name)
    return option is not None and option.kind == "switch"


def _complete(name: str) -> str:
    """Return the full name for a short form, an alias or a prefix; the name itself if that is not unambiguous."""
    name = flag_types.ALIASES.get(name) or flag_types.SHORT.get(name) or name
    meant = flag_types.completed(name, flag_types.ALL) if name else []
    meant = [*dict.fromkeys(flag_types.ALIASES.get(item, item) for item in meant)]
    return meant[0] if len(meant) == 1 else name


def _words(name: str, given: Any) -> list[str]:
    option = flag_values.known().get(name)
    if given is None or (isinstance(given, list | tuple) and not given):
        return []
    if "." in name:  # a part of a mapping: its value is read as JSON
        return [f"--{name}", given if isinstance(given, str) else json.dumps(given, separators=(",", ":"))]
    if isinstance(given, bool):
        off = [] if option is not None and option.kind == "bare switch" else [f"--no-{name}"]
        return [f"--{name}"] if given else off
    words = flag_values.words(given, option)
    if flag_values.repeats(name):
        return [part for word in words for part in (f"--{name}", word)]
    return [f"--{name}", *words]
