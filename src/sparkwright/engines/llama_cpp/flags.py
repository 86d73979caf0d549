"""The flags of a recipe for llama.cpp: their own names, their values, and the resulting words of `llama-server`.

Seen on b10434 and b11549: the parser accepts `_` for `-`, but no prefixes of names and no `--x=y`; of a repeated flag the last
one counts. YAML reads a bare `on` or `off` as a boolean, so those are the same here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkwright.engines.flags import AdapterFlags, ModelFlag, Role
from sparkwright.engines.llama_cpp import flag_values
from sparkwright.engines.llama_cpp.http import PORT as DEFAULT_PORT

MODEL = "model"
SERVED_NAME = "alias"
CONTEXT = "ctx-size"
SLOTS = "parallel"
LAYERS = "n-gpu-layers"
PROMPTS = "cache-ram"
FIT = "fit"
KEY = "api-key"
PORT = "port"
HOST = "host"
METRICS = "metrics"
VERBOSITY = "log-verbosity"

#: the image's own
ENTRYPOINT: tuple[str, ...] | None = None
#: no flag sets a share of memory
MEMORY = ""
BUDGET = "batch-size"
MODEL_FLAGS: Mapping[Role, ModelFlag] = {"draft": ModelFlag("model-draft")}
#: b11549, tools/server: `lora` of a request is a list of ids and scales, no model's name selects an adapter, and without it each
#: request gets all adapters at full scale
ADAPTERS: AdapterFlags | None = AdapterFlags(
    "lora",
    named=False,
    instead=("lora-scaled", "lora-init-without-apply"),
    source="llama.cpp b11549, tools/server/README.md",
)
SET_BY: Mapping[str, str] = {MODEL: "model.file", "mmproj": "model.mmproj", "model-draft": "model.draft"}
#: files below the model's mount point
FILES = (MODEL, "mmproj", "model-draft")

#: flags of every command unless the recipe sets them. The default port will change with a release; a published port needs the
#: container's address; nothing is downloaded at a start; /metrics has the heartbeat; and the log has the sizes and types of
#: buffers only at 4
ALWAYS: Mapping[str, Any] = {HOST: "0.0.0.0", PORT: DEFAULT_PORT, METRICS: True, VERBOSITY: 4, "offline": True}
#: default number of slots, which then share one context
AUTO_SLOTS = 4
#: a slot's context is rounded up to it
CONTEXT_STEP = 256


def named(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags under their own names, in their order; of two spellings of a flag the last wins (see `twice`).

    A flag's own name is the last of its long names, without dashes; `no-x: true` becomes `x: false`. An unknown name stays, with
    dashes.
    """
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
    """Return the words after the image: the flags, their files below the model, and the constant flags (ALWAYS).

    model: its folder in the container; the flag MODEL names a file there (the first of its shards).
    """
    given = named(flags)
    files = {name: _below(model, given[name]) for name in FILES if given.get(name) is not None}
    usual = {name: value for name, value in ALWAYS.items() if given.get(name) is None}
    return argv({MODEL: model, **given, **files, **usual})


def served_name(flags: Mapping[str, Any], model: str) -> str:
    """Return the name that the server reports: the alphabetically first alias, else the file's name. It answers to any other name
    too."""
    return served_names(flags, model)[0]


def served_names(flags: Mapping[str, Any], model: str) -> tuple[str, ...]:
    """Return the aliases in alphabetical order, else the file's name."""
    given = value(flags, SERVED_NAME)
    names = [str(name) for name in given] if isinstance(given, list | tuple) else str(given or "").split(",")
    own = str(value(flags, MODEL) or model).rpartition("/")[2]
    return tuple(sorted({name.strip() for name in names if name.strip()})) or (own,)


def port(flags: Mapping[str, Any]) -> int:
    """Return the port on which the server listens inside its container. An invalid value must be refused before."""
    given = None if misfit(flags, PORT) else flag_values.number(value(flags, PORT))
    return DEFAULT_PORT if given is None else given


def slots(flags: Mapping[str, Any]) -> int:
    """Return the number of requests that it serves at a time."""
    given = flag_values.number(value(flags, SLOTS))
    return AUTO_SLOTS if given is None or given < 1 else given


def unified(flags: Mapping[str, Any]) -> bool:
    """Return True if the slots share one context, instead of having a part of it each."""
    given = value(flags, "kv-unified")
    return given if isinstance(given, bool) else (flag_values.number(value(flags, SLOTS)) or -1) < 1


def context(flags: Mapping[str, Any]) -> int | None:
    """Return the context of a slot that the flags set, in tokens; None if they set none.

    A model's trained length may cap it.
    """
    total = integer(value(flags, CONTEXT))
    if total is None:
        return None
    return stepped(total if unified(flags) else stepped(total) // slots(flags))


def properties() -> dict[str, Any]:
    """Return the flags of both builds as the properties of a JSON Schema."""
    return {name: _schema(option) for name, option in sorted(flag_values.known().items()) if name not in SET_BY}


def integer(given: Any) -> int | None:
    """Return a whole number above 0; None for anything else."""
    found = flag_values.number(given)
    return found if found is not None and found > 0 else None


def stepped(tokens: int) -> int:
    """Return tokens rounded up to the step of a context."""
    return -(-tokens // CONTEXT_STEP) * CONTEXT_STEP


def _below(folder: str, file: Any) -> str:
    return str(file) if str(file).startswith("/") else f"{folder.rstrip('/')}/{file}"


def _schema(option: flag_values.Option) -> dict[str, Any]:
    if option.kind in ("switch", "bare"):
        return {"type": "boolean"}
    if option.kind == "on":
        return {"enum": [True, False, *(option.choices or ("on", "off", "auto")), None]}
    return {"enum": [*option.choices, None]} if option.choices else {}


def _named(written: str, given: Any) -> tuple[str, Any]:
    plain = written.lstrip("-").replace("_", "-")
    option, off = flag_values.by_word().get(plain, (None, False))
    if option is None:
        return plain, given
    return option.name, (not given if off and isinstance(given, bool) else given)


def _words(name: str, given: Any) -> list[str]:
    option = flag_values.known().get(name)
    if given is None or (isinstance(given, list | tuple) and not given):
        return []
    if isinstance(given, bool) and (option is None or option.kind in ("switch", "bare")):
        off = [] if option is not None and option.kind == "bare" else [_off(name, option)]
        return [f"--{name}"] if given else off
    if option is None or option.kind == "two":
        return [f"--{name}", *map(str, given if isinstance(given, list | tuple) else [given])]
    if isinstance(given, list | tuple) and option.kind == "text":
        return [f"--{name}", ",".join(map(str, given))]
    return [f"--{name}", flag_values.word_of(option, given)]


def _off(name: str, option: flag_values.Option | None) -> str:
    words = option.off if option is not None else ()
    return next((word for word in reversed(words) if word.startswith("--")), f"--no-{name}")
