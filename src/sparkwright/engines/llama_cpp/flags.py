"""llama.cpp's implementation of engines.flags.Flags, and the import of command lines of `llama-server`.

Observed on b10434 and b11549: the parser accepts `_` in place of `-`, but neither abbreviated names nor `--x=y`. If a flag is
repeated, the last one counts. YAML reads `on` and `off` as booleans, so booleans are accepted here as well.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkwright.engines import option_table
from sparkwright.engines.flags import AdapterFlags, Command, ImportTable, ModelFlag, ModelRole, parse_word
from sparkwright.engines.llama_cpp import http
from sparkwright.engines.llama_cpp.http import PORT as DEFAULT_PORT
from sparkwright.engines.option_table import Option, OptionTable
from sparkwright.engines.probes.probe import ProbeFlags
from sparkwright.engines.tasks import TaskFlags

OLDEST_BUILD, NEWEST_BUILD = 10434, 11549
MAX_INTEGER = 2**31 - 1
_INT_PATTERN, _FLOAT_PATTERN = re.compile(r"[+-]?\d{1,10}"), re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.I)
#: synonyms, the canonical word first
ON_WORDS, OFF_WORDS, AUTO_WORDS = ("on", "enabled", "true", "1"), ("off", "disabled", "false", "0"), ("auto", "-1")

#: Kinds: switch (on and off), bare (only on), on (one of its choices or a synonym), int, float, layers (a number, auto or all),
#: json, two (words), text. The canonical name is the last of an option's long names.
#: Sources: `llama-server --help` of the two builds (tests/data/llama.cpp), and the newer build, started with values of every kind
#: (tests/real_llama/test_flags.py). It parses numbers by C's rules: 128k is 128, and 1.5 is 1.
TABLE = OptionTable(Path(__file__).parent, lambda build: int(build.lstrip("b")), negatable_kind="switch")
HISTORY = TABLE.history
normalize, canonical = TABLE.normalize, TABLE.canonical


def exists(name: str, build: int | None) -> bool | None:
    """Return True if a build has this option; None if unknown."""
    return HISTORY.existence(name, f"b{build}" if build else None).exists


def format_word(option: Option, value: Any) -> str:
    """Return the word for a single value; for kind "on", a boolean becomes `on` or `off`, since YAML reads these as booleans."""
    if option.kind == "on" and isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple) and option.kind != "json":
        return str(value)
    return option_table.format_word(value)


def value_problem(name: str, value: Any) -> str:
    """Return what is wrong with a value, such as "must be a whole number, got '128k'"; "" if it is valid or the option is unknown."""
    option = TABLE.all_options.get(name)
    if option is None:
        return ""
    problem = option_table.find_value_problem(
        option, value, VALUE_PARSERS, functools.partial(format_word, option), show_word=True
    )
    if not problem and name == SLOTS and parse_integer(value) == 0:
        return f"must be at least 1, or -1 for the server's choice, {option_table.format_value(format_word(option, value))}"
    return problem


def parse_integer(value: Any) -> int | None:
    """Return an integer from a number or its digits; None for anything else."""
    if isinstance(value, bool) or not _INT_PATTERN.fullmatch(str(value).strip()):
        return None
    return int(str(value))


def is_on(value: Any) -> bool | None:
    """Return True for a word that means on, False for off, None for any other value."""
    word = str(value).lower()
    return True if word in ON_WORDS else False if word in OFF_WORDS else None


def _to_integer(word: str) -> int:
    if not _INT_PATTERN.fullmatch(word.strip()) or abs(int(word)) > MAX_INTEGER:
        raise ValueError(word)
    return int(word)


def _to_float(word: str) -> float:
    if not _FLOAT_PATTERN.fullmatch(word.strip()):
        raise ValueError(word)
    return float(word)


def _normalize_switch(word: str) -> str:
    return next((words[0] for words in (ON_WORDS, OFF_WORDS, AUTO_WORDS) if word.lower() in words), word)


VALUE_PARSERS: option_table.ValueParsers = {
    "int": (_to_integer, "a whole number"),
    "two": (_to_integer, "a whole number"),
    "layers": (lambda word: word if word in ("auto", "all") else _to_integer(word), "a whole number, auto or all"),
    "float": (_to_float, "a number"),
    "json": (json.loads, "a mapping, as YAML or as JSON"),
    "on": (_normalize_switch, "a word"),
}

MODEL = "model"
SERVED_NAME = "alias"
CONTEXT = "ctx-size"
SLOTS = "parallel"
LAYERS = "n-gpu-layers"
PROMPT_CACHE = "cache-ram"
FIT = "fit"
KEY = http.KEY_FLAG
PORT = "port"
HOST = "host"
METRICS = "metrics"
VERBOSITY = "log-verbosity"

ENTRYPOINT: tuple[str, ...] | None = None
MEMORY = ""
BUDGET_FLAG = "batch-size"
MODEL_FLAGS: Mapping[ModelRole, ModelFlag] = {"draft": ModelFlag("model-draft")}
#: b11549, tools/server: a request selects adapters by ids and scales under `lora`, not by a model name; without `lora`, all adapters
#: apply at full scale
ADAPTER_FLAGS: AdapterFlags | None = AdapterFlags(
    "lora",
    selected_by_name=False,
    conflicting_flags=("lora-scaled", "lora-init-without-apply"),
    source="llama.cpp b11549, tools/server/README.md",
)
RESERVED_FLAGS: Mapping[str, str] = {MODEL: "model.file", "mmproj": "model.mmproj", "model-draft": "model.draft"}
TEMPLATE_FLAGS: tuple[str, ...] = ("chat-template", "chat-template-file")
SAMPLING_FLAGS: tuple[str, ...] | None = None
#: flags whose files are below the model's mount point
FILE_FLAGS = (MODEL, "mmproj", "model-draft")

#: flags added to every command unless the recipe sets them
DEFAULT_FLAGS: Mapping[str, Any] = {
    HOST: "0.0.0.0",  # a published port forwards to the container's own address
    PORT: DEFAULT_PORT,  # the engine's default will change in a later release
    METRICS: True,  # health checks read /metrics
    VERBOSITY: 4,  # from this level on, the log contains the sizes and types of buffers
    "offline": True,  # a start must not download anything
}
#: number of slots if the flag is not set; they share one context
DEFAULT_SLOTS = 4
#: a slot's context is a multiple of this
CONTEXT_STEP_TOKENS = 256


def value(flags: Mapping[str, Any], name: str) -> Any:
    """Return the value of a flag; None if it is not set."""
    return flags.get(name)


def find_value_problem(flags: Mapping[str, Any], name: str) -> str:
    """See `value_problem`."""
    return value_problem(name, value(flags, name))


def argv(flags: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the command-line words for the flags, in order. Flags that are None, and bare switches that are off, are left out."""
    return tuple(word for name, setting in normalize(flags).items() for word in _flag_words(name, setting))


def command(model: str, flags: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the arguments that follow the image: the flags, with paths in the container, and DEFAULT_FLAGS.

    model: the model's folder in the container, which contains the file that the flag MODEL names (the first shard).
    """
    recipe_flags = normalize(flags)
    files = {name: _path_below(model, recipe_flags[name]) for name in FILE_FLAGS if recipe_flags.get(name) is not None}
    defaults = {name: value for name, value in DEFAULT_FLAGS.items() if recipe_flags.get(name) is None}
    return argv({MODEL: model, **recipe_flags, **files, **defaults})


def served_names(flags: Mapping[str, Any], model: str) -> tuple[str, ...]:
    """Return the aliases in alphabetical order, else the file's name. Requests may use any name."""
    aliases = value(flags, SERVED_NAME)
    names = [str(name) for name in aliases] if isinstance(aliases, list | tuple) else str(aliases or "").split(",")
    file_name = str(value(flags, MODEL) or model).rpartition("/")[2]
    return tuple(sorted({name.strip() for name in names if name.strip()})) or (file_name,)


def port(flags: Mapping[str, Any]) -> int:
    """Return the port on which the server listens in its container; the default for an invalid value, which rules report."""
    port_number = None if find_value_problem(flags, PORT) else parse_integer(value(flags, PORT))
    return DEFAULT_PORT if port_number is None else port_number


def slot_count(flags: Mapping[str, Any]) -> int:
    """Return the number of requests that the server processes at a time."""
    count = parse_integer(value(flags, SLOTS))
    return DEFAULT_SLOTS if count is None or count < 1 else count


def has_unified_cache(flags: Mapping[str, Any]) -> bool:
    """Return True if the slots share one context, False if it is divided among them."""
    setting = value(flags, "kv-unified")
    return setting if isinstance(setting, bool) else (parse_integer(value(flags, SLOTS)) or -1) < 1


def context(flags: Mapping[str, Any]) -> int | None:
    """Return the context of a slot in tokens; None if the flags set none. The model's trained length may be lower."""
    total = parse_positive_integer(value(flags, CONTEXT))
    if total is None:
        return None
    return round_up_context(total if has_unified_cache(flags) else round_up_context(total) // slot_count(flags))


def properties() -> dict[str, Any]:
    """Return the flags of both builds as the properties of a JSON Schema."""
    return {
        name: _option_schema(option) for name, option in sorted(TABLE.all_options.items()) if name not in RESERVED_FLAGS
    }


def parse_positive_integer(text: Any) -> int | None:
    """Return a positive integer from a number or its digits; None for anything else."""
    count = parse_integer(text)
    return count if count is not None and count > 0 else None


def round_up_context(tokens: int) -> int:
    """Return the context that the server allocates for a number of tokens, a multiple of CONTEXT_STEP_TOKENS."""
    return -(-tokens // CONTEXT_STEP_TOKENS) * CONTEXT_STEP_TOKENS


def _path_below(folder: str, file: Any) -> str:
    return str(file) if str(file).startswith("/") else f"{folder.rstrip('/')}/{file}"


def _option_schema(option: Option) -> dict[str, Any]:
    if option.kind in ("switch", "bare"):
        return {"type": "boolean"}
    if option.kind == "on":
        return {"enum": [True, False, *option.choices, None]}
    return {"enum": [*option.choices, None]} if option.choices else {}


def _flag_words(name: str, setting: Any) -> list[str]:
    option = TABLE.all_options.get(name)
    if setting is None or (isinstance(setting, list | tuple) and not setting):
        return []
    if isinstance(setting, bool) and (option is None or option.kind in ("switch", "bare")):
        off_words = [] if option is not None and option.kind == "bare" else [_off_word(name, option)]
        return [f"--{name}"] if setting else off_words
    if option is None or option.kind == "two":
        return [f"--{name}", *map(str, setting if isinstance(setting, list | tuple) else [setting])]
    if isinstance(setting, list | tuple) and option.kind == "text":
        return [f"--{name}", ",".join(map(str, setting))]
    return [f"--{name}", format_word(option, setting)]


def _off_word(name: str, option: Option | None) -> str:
    words = option.off if option is not None else ()
    return next((word for word in reversed(words) if word.startswith("--")), f"--no-{name}")


def parse_command(words: Sequence[str]) -> Command:
    """Return the model and the flags of a command, with values as booleans and numbers where possible. Other words are skipped."""
    flags: dict[str, Any] = {}
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        option, is_off = TABLE.options_by_spelling.get(word.lstrip("-").replace("_", "-"), (None, False))
        if not word.startswith("-"):
            continue
        if option is None:
            flags[canonical(word)] = (
                _parse_plain(remaining.pop(0)) if remaining and not remaining[0].startswith("-") else True
            )
        elif option.kind in ("switch", "bare"):
            flags[option.name] = not is_off
        else:
            count = 2 if option.kind == "two" else 1
            arguments, remaining = remaining[:count], remaining[count:]
            flags[option.name] = _parse_value(option, arguments)
    return Command(str(flags.pop(MODEL, "")), flags)


def _parse_value(option: Option, words: Sequence[str]) -> Any:
    if option.kind == "two":
        return [_parse_plain(word) for word in words]
    word = words[0] if words else ""
    return word if option.kind in ("text", "on") else _parse_plain(word)


def _parse_plain(word: str) -> Any:
    """Return the number or mapping that a word represents, or else the word."""
    parsed = parse_word(word)
    return word if isinstance(parsed, list) else parsed


# Commands from other projects. Sources: scitrera/oss-spark-run@3190eb7; tools/server/README.md of b11434.

IMPORTS = ImportTable(
    image="ghcr.io/ggml-org/llama.cpp:server-cuda13",
    container_port=http.PORT,
    program_names=("llama-server", "llama.cpp", "llama-cpp", "llama_cpp"),
    program=("llama-server",),
    host_flag=HOST,
    key_flags=("api-key", "api-key-file"),
    repository_flag="hf-repo",
    repository_file_flag="hf-file",
    file_flags=("chat-template-file", "grammar-file", "lora"),
    further_model_flags={"hf-repo-draft": "", "spec-draft-hf": ""},
    download_flags=("model-url", "docker-repo"),
    token_flags=("hf-token",),
    accepts_single_dash=True,
)


# Flags for embedding and reranking. Source: a real server of b11549, which answers 501, "Start it with `--embeddings`", without
# them, and 400, "not OAI compatible", with `pooling: none`.

TASK_FLAGS = TaskFlags(
    required_flags={"embed": {"embeddings": True}, "rerank": {"reranking": True}},
    excluded_values={"embed": {"pooling": ("none", "rank")}},
)


# Flags that cause the problems that probes find. Observed on b11549 (tests/real_llama/test_probes.py): any model returns JSON
# that fits a schema, tools are refused with --no-jinja, and pictures are refused without --mmproj. The other causes are from its help text.

TEMPLATE_CAUSE = "--no-jinja, or --chat-template is for another model"
REASONING_FORMAT_CAUSE = (
    "--reasoning-format none leaves the thinking in the content, or --chat-template is for another model"
)
#: pattern of llama-server's errors about a template that it can't render; its template engine is minja, not Jinja (b11549)
RENDER_ERROR_PATTERN = (
    r"not callable|at row \d+, column \d+|[Tt]emplate|roles must alternate|[Uu]nknown (?:filter|function|test|method)"
)
PROBE_FLAGS = ProbeFlags(
    default_flags=dict.fromkeys(("tool_call", "messages", "responses"), ("jinja",)),
    causes_by_message=(
        (r"tools? param requires --jinja", "--no-jinja turns tools off"),
        (
            r"instead of `message_start`",
            "the build: b11549 omits `message_start` in some streams, see docs/llama-cpp.md",
        ),
        (r"hint: .{0,80}mmproj", "--mmproj is missing (`model.mmproj`)"),
        (
            RENDER_ERROR_PATTERN,
            "llama.cpp cannot render the chat template: set --chat-template-file to a template made for llama.cpp",
        ),
    ),
    causes={
        "tools refused": "the model's own template does not support tools here: set --chat-template-file to a template made for llama.cpp",
        "tool call as text": f"{TEMPLATE_CAUSE}; --skip-chat-parsing leaves calls in the text",
        "tool call in the thinking": REASONING_FORMAT_CAUSE,
        "tool call with bad arguments": TEMPLATE_CAUSE,
        "no tool call": TEMPLATE_CAUSE,
        "tool choice ignored": "--chat-template writes the tools into the prompt and ignores `tool_choice`",
        "only without stream": "--chat-template is for another model, or streaming with this --reasoning-format is broken in this build",
        "content null": "all of the text counted as thinking: --reasoning-budget, or --chat-template is for another model",
        "thinking in content": REASONING_FORMAT_CAUSE,
        "no thinking apart": "--reasoning off, or --reasoning-format none",
        "not the schema": "--skip-chat-parsing, or a build without grammars",
        "picture refused": "--mmproj is missing (`model.mmproj`)",
        "picture not seen": "--mmproj is for another model (`model.mmproj`)",
        "another dimension": "another model, or --pooling none",
        "garbage": "a bad quantization, --cache-type-k and --cache-type-v that differ, or --chat-template is for another model",
        "another language": "--chat-template is for another model, or the weights are damaged",
    },
)
