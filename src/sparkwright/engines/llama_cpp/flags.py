"""The command line of `llama-server`: the flags of a recipe under their own names, and the parser of command lines written elsewhere.

Seen on b10434 and b11549: the parser accepts `_` for `-`, but no prefixes of names and no `--x=y`; of a repeated flag the last
one counts. YAML reads a bare `on` or `off` as a boolean, so those are the same here.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkwright.engines import option_table
from sparkwright.engines.flags import AdapterFlags, Command, Imports, ModelFlag, Role, plain_value
from sparkwright.engines.llama_cpp import http
from sparkwright.engines.llama_cpp.http import PORT as DEFAULT_PORT
from sparkwright.engines.option_table import Option, OptionTable
from sparkwright.engines.probes.probe import ProbeFlags
from sparkwright.engines.tasks import TaskFlags

OLDER, NEWER = 10434, 11549
LARGEST = 2**31 - 1
_INT, _FLOAT = re.compile(r"[+-]?\d{1,10}"), re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.I)
#: other words for on, off and auto
ON, OFF, AUTO = ("on", "enabled", "true", "1"), ("off", "disabled", "false", "0"), ("auto", "-1")

#: Kinds: switch (on and off), bare (on alone), on (one of its choices, or another word for it), int, float, layers (a number, auto or
#: all), json, two (words), text. An option's own name is the last of its long names.
#: Sources: `llama-server --help` of the two builds (tests/data/llama.cpp), and the parser of the newer one, asked with values of every
#: kind (tests/real_llama/test_flags.py). It reads numbers by C's rules: 128k is 128, and 1.5 is 1.
TABLE = OptionTable(Path(__file__).parent, lambda build: int(build.lstrip("b")), negatable="switch")
#: options by build
HISTORY = TABLE.history
named, canonical = TABLE.named, TABLE.canonical


def exists(name: str, build: int | None) -> bool | None:
    """Return True if a build has this option; None if not known."""
    return HISTORY.existence(name, f"b{build}" if build else None).exists


def word_of(option: Option, value: Any) -> str:
    """Return the word for a single value. A YAML `on` or `off` arrives here as a boolean."""
    if option.kind == "on" and isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple) and option.kind != "json":
        return str(value)
    return option_table.word_of(value)


def value_misfit(name: str, value: Any) -> str:
    """Return the problem with a value, as "must be a whole number, got '128k'"; "" if nothing is known against it."""
    option = TABLE.known.get(name)
    if option is None:
        return ""
    why = option_table.misfit(option, value, READERS, functools.partial(word_of, option), as_word=True)
    if not why and name == SLOTS and number(value) == 0:
        return f"must be at least 1, or -1 for as many as it chooses, {option_table.shown(word_of(option, value))}"
    return why


def number(value: Any) -> int | None:
    """Return a whole number, given as a number or as digits; None for anything else."""
    if isinstance(value, bool) or not _INT.fullmatch(str(value).strip()):
        return None
    return int(str(value))


def is_on(value: Any) -> bool | None:
    """Return True for a value that means on, False for off; None for auto, for none and for any other word."""
    word = str(value).lower()
    return True if word in ON else False if word in OFF else None


def _integer(word: str) -> int:
    if not _INT.fullmatch(word.strip()) or abs(int(word)) > LARGEST:
        raise ValueError(word)
    return int(word)


def _float(word: str) -> float:
    if not _FLOAT.fullmatch(word.strip()):
        raise ValueError(word)
    return float(word)


def _switched(word: str) -> str:
    return next((words[0] for words in (ON, OFF, AUTO) if word.lower() in words), word)


READERS: option_table.Readers = {
    "int": (_integer, "a whole number"),
    "two": (_integer, "a whole number"),
    "layers": (lambda word: word if word in ("auto", "all") else _integer(word), "a whole number, auto or all"),
    "float": (_float, "a number"),
    "json": (json.loads, "a mapping, as YAML or as JSON"),
    "on": (_switched, "a word"),
}

MODEL = "model"
SERVED_NAME = "alias"
CONTEXT = "ctx-size"
SLOTS = "parallel"
LAYERS = "n-gpu-layers"
PROMPTS = "cache-ram"
FIT = "fit"
KEY = http.KEY
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
TEMPLATES: tuple[str, ...] = ("chat-template", "chat-template-file")
#: it reads the sampling from the model's file
SAMPLING: tuple[str, ...] | None = None
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
    given = None if misfit(flags, PORT) else number(value(flags, PORT))
    return DEFAULT_PORT if given is None else given


def slots(flags: Mapping[str, Any]) -> int:
    """Return the number of requests that it serves at a time."""
    given = number(value(flags, SLOTS))
    return AUTO_SLOTS if given is None or given < 1 else given


def unified(flags: Mapping[str, Any]) -> bool:
    """Return True if the slots share one context, instead of having a part of it each."""
    given = value(flags, "kv-unified")
    return given if isinstance(given, bool) else (number(value(flags, SLOTS)) or -1) < 1


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
    return {name: _schema(option) for name, option in sorted(TABLE.known.items()) if name not in SET_BY}


def integer(given: Any) -> int | None:
    """Return a whole number above 0; None for anything else."""
    found = number(given)
    return found if found is not None and found > 0 else None


def stepped(tokens: int) -> int:
    """Return tokens rounded up to the step of a context."""
    return -(-tokens // CONTEXT_STEP) * CONTEXT_STEP


def _below(folder: str, file: Any) -> str:
    return str(file) if str(file).startswith("/") else f"{folder.rstrip('/')}/{file}"


def _schema(option: Option) -> dict[str, Any]:
    if option.kind in ("switch", "bare"):
        return {"type": "boolean"}
    if option.kind == "on":
        return {"enum": [True, False, *option.choices, None]}
    return {"enum": [*option.choices, None]} if option.choices else {}


def _words(name: str, given: Any) -> list[str]:
    option = TABLE.known.get(name)
    if given is None or (isinstance(given, list | tuple) and not given):
        return []
    if isinstance(given, bool) and (option is None or option.kind in ("switch", "bare")):
        off = [] if option is not None and option.kind == "bare" else [_off(name, option)]
        return [f"--{name}"] if given else off
    if option is None or option.kind == "two":
        return [f"--{name}", *map(str, given if isinstance(given, list | tuple) else [given])]
    if isinstance(given, list | tuple) and option.kind == "text":
        return [f"--{name}", ",".join(map(str, given))]
    return [f"--{name}", word_of(option, given)]


def _off(name: str, option: Option | None) -> str:
    words = option.off if option is not None else ()
    return next((word for word in reversed(words) if word.startswith("--")), f"--no-{name}")


def parsed(words: Sequence[str]) -> Command:
    """Return the model and the flags of a command: a switch as true or false, a number as a number. Other words are skipped."""
    found: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        option, off = TABLE.by_word.get(word.lstrip("-").replace("_", "-"), (None, False))
        if not word.startswith("-"):
            continue
        if option is None:
            found[canonical(word)] = _plain(rest.pop(0)) if rest and not rest[0].startswith("-") else True
        elif option.kind in ("switch", "bare"):
            found[option.name] = not off
        else:
            count = 2 if option.kind == "two" else 1
            given, rest = rest[:count], rest[count:]
            found[option.name] = _given(option, given)
    return Command(str(found.pop(MODEL, "")), found)


def _given(option: Option, words: Sequence[str]) -> Any:
    if option.kind == "two":
        return [_plain(word) for word in words]
    word = words[0] if words else ""
    return word if option.kind in ("text", "on") else _plain(word)


def _plain(word: str) -> Any:
    """Return a word as the number or the mapping that it holds, else as text."""
    found = plain_value(word)
    return word if isinstance(found, list) else found


# Other people's ways to start llama-server. Sources: scitrera/oss-spark-run@3190eb7; tools/server/README.md of b11434.

IMPORTS = Imports(
    image="ghcr.io/ggml-org/llama.cpp:server-cuda13",
    port_inside=http.PORT,
    names=("llama-server", "llama.cpp", "llama-cpp", "llama_cpp"),
    program=("llama-server",),
    host=HOST,
    key=("api-key", "api-key-file"),
    repository="hf-repo",
    repository_file="hf-file",
    files=("chat-template-file", "grammar-file", "lora"),
    further_models={"hf-repo-draft": "", "spec-draft-hf": ""},
    downloads=("model-url", "docker-repo"),
    tokens=("hf-token",),
    one_dash=True,
)


# Flags with which llama-server embeds and reranks. Sources: b11549, real: without them 501, "Start it with `--embeddings`";
# with a pooling of none 400, "not OAI compatible".

TASK_FLAGS = TaskFlags(
    needs={"embed": {"embeddings": True}, "rerank": {"reranking": True}},
    excludes={"embed": {"pooling": ("none", "rank")}},
)


# Flags of llama-server that cause what a probe finds. Seen on b11549 (tests/real_llama/test_probes.py): any model returns JSON
# of a schema, tools are refused with --no-jinja, pictures without --mmproj. The rest is from its help text.

TEMPLATE = "--no-jinja, or --chat-template is not that of this model"
FORMAT = "--reasoning-format none leaves the thinking in the content, or --chat-template is not that of this model"
#: llama-server's error for a template that it can't render; its template engine is not Python's (b11549, minja)
UNRENDERED = (
    r"not callable|at row \d+, column \d+|[Tt]emplate|roles must alternate|[Uu]nknown (?:filter|function|test|method)"
)
PROBE_FLAGS = ProbeFlags(
    by_message=(
        (r"tools? param requires --jinja", "--no-jinja turns tools off"),
        (
            r"instead of `message_start`",
            "the build: b11549 leaves `message_start` out of some streams, see docs/llama-cpp.md",
        ),
        (r"hint: .{0,80}mmproj", "--mmproj is missing (`model.mmproj`)"),
        (
            UNRENDERED,
            "the chat template is not one that llama.cpp can render: --chat-template-file with a template made for it",
        ),
    ),
    causes={
        "tools refused": "--chat-template-file with a template made for llama.cpp: the model's own does not take tools here",
        "tool call as text": f"{TEMPLATE}; --skip-chat-parsing leaves calls in the text",
        "tool call in the thinking": FORMAT,
        "tool call with bad arguments": TEMPLATE,
        "no tool call": TEMPLATE,
        "tool choice ignored": "--chat-template writes the tools into the prompt whatever `tool_choice` says",
        "only without stream": "--chat-template is not that of this model, or --reasoning-format; its streaming is broken in this build",
        "content null": "--reasoning-budget or --chat-template is not that of this model: all of the text counted as thinking",
        "thinking in content": FORMAT,
        "no thinking apart": "--reasoning off, or --reasoning-format none",
        "not the schema": "--skip-chat-parsing, or a build without grammars",
        "picture refused": "--mmproj is missing (`model.mmproj`)",
        "picture not seen": "--mmproj is another model's (`model.mmproj`)",
        "another dimension": "another model, or --pooling none",
        "garbage": "another quantization than this file's, an uneven --cache-type-k and --cache-type-v, or --chat-template of another model",
        "another language": "--chat-template is another model's, or the weights are damaged",
    },
)
