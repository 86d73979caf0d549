"""SGLang's implementation of engines.flags.Flags, and the import of command lines of `sglang serve`.

From the source of 0.5.23: its parser is argparse, which accepts `--x=y` and abbreviated names, but not `_` in place of `-`. If a
flag is repeated, the last one counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from packaging.version import Version

from sparkwright.engines import option_table
from sparkwright.engines.flags import AdapterFlags, Command, ImportTable, ModelFlag, ModelRole, group_words, parse_word
from sparkwright.engines.option_table import SWITCH_KINDS, Option, OptionTable, format_word
from sparkwright.engines.probes.probe import TEMPLATE_REFUSAL, ProbeFlags
from sparkwright.engines.sglang import http
from sparkwright.engines.sglang.http import PORT as DEFAULT_PORT
from sparkwright.engines.tasks import TaskFlags

#: values that were renamed together with their option: (old name, old value) to the new value. Source: the help of 0.5.19
SUCCESSOR_VALUES: Mapping[tuple[str, str], str] = {
    (name, old): new
    for name in ("prefill-cp-mode", "dsa-prefill-cp-mode", "nsa-prefill-cp-mode")
    for old, new in (("in-seq-split", "zigzag"), ("round-robin-split", "interleave"))
}
_INT_PATTERN = re.compile(r"[+-]?\d{1,12}")
_FLOAT_PATTERN = re.compile(r"[+-]?(\d{1,12}\.?\d{0,20}|\.\d{1,20})(e[+-]?\d{1,3})?", re.I)
_SIZE_PATTERN = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(k|M|G|T)|(\d{1,12})(Ki|Mi|Gi|Ti)")
_UNITS = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}

#: Kinds: switch (only on), both (`--x` and `--no-x`), int, size (a number, also as 128k or 1Mi), float, json, list (words), text.
#: Options for backends have no choices in the table, because each release adds some.
#: Source: the argument groups of the release, and its parser, run without a GPU (tests/engine_options).
TABLE = OptionTable(Path(__file__).parent, Version, "both", SUCCESSOR_VALUES)
HISTORY = TABLE.history
#: the release that the table describes
SOURCE_RELEASE = TABLE.release
normalize, canonical = TABLE.normalize, TABLE.canonical


def option_kind(name: str) -> str:
    """Return the kind of an option in any release; "" if it is unknown."""
    option = TABLE.all_options.get(name)
    return option.kind if option else ""


def parse_integer(value: Any) -> int | None:
    """Return an integer from a number, its digits, or a size such as 128k; None for anything else."""
    text = "" if isinstance(value, bool) else str(value).strip()
    if _INT_PATTERN.fullmatch(text):
        return int(text)
    match = _SIZE_PATTERN.fullmatch(text)
    return int(Decimal(match[1] or match[3]) * _UNITS[match[2] or match[4]]) if match else None


def _to_size(word: str) -> int:
    size = parse_integer(word)
    if size is None:
        raise ValueError(word)
    return size


def _to_integer(word: str) -> int:
    if not _INT_PATTERN.fullmatch(word.strip()):
        raise ValueError(word)
    return int(word)


def _to_float(word: str) -> float:
    if not _FLOAT_PATTERN.fullmatch(word.strip()):
        raise ValueError(word)
    return float(word)


VALUE_PARSERS: option_table.ValueParsers = {
    "int": (_to_integer, "a whole number"),
    "size": (_to_size, "a whole number, such as 131072 or 128Ki"),
    "float": (_to_float, "a number"),
    "json": (json.loads, "a mapping, as YAML or as JSON"),
}

MODEL = "model-path"
SERVED_NAME = "served-model-name"
CONTEXT = "context-length"
SLOTS = "max-running-requests"
CHUNK_SIZE = "chunked-prefill-size"
MAX_PREFILL_TOKENS = "max-prefill-tokens"
RADIX_OFF = "disable-radix-cache"
KEY_FLAGS = ("api-key", "admin-api-key")
PORT = "port"
HOST = "host"
METRICS = "enable-metrics"
SLEEP_ON_IDLE = "sleep-on-idle"
MEMORY = "mem-fraction-static"
BUDGET_FLAG = CHUNK_SIZE

ENTRYPOINT: tuple[str, ...] | None = ("sglang", "serve")
RESERVED_FLAGS: Mapping[str, str] = {MODEL: "model.mount"}
TEMPLATE_FLAGS: tuple[str, ...] = ("chat-template",)
SAMPLING_FLAGS: tuple[str, ...] | None = ()
MODEL_FLAGS: Mapping[ModelRole, ModelFlag] = {
    "draft": ModelFlag("speculative-draft-model-path", required_flag="speculative-algorithm"),
    "tokenizer": ModelFlag("tokenizer-path"),
}
#: Source: arg_groups/fields/lora.py, lora/lora_manager.py and entrypoints/openai/serving_base.py of 0.5.23. A request names an
#: adapter as SERVED NAME:ADAPTER; with the adapter's name alone it gets the base model
ADAPTER_FLAGS: AdapterFlags | None = AdapterFlags(
    "lora-paths",
    enabling_flag="enable-lora",
    prefixed_by_served_name=True,
    max_rank_flag="max-lora-rank",
    max_in_batch_flag="max-loras-per-batch",
    default_max_in_batch=8,
    base_takes_slot=True,
    unsupported_keys=("use_dora",),
    source="SGLang 0.5.23, lora/lora_manager.py and entrypoints/openai/serving_base.py",
)
#: flags added to every command unless the recipe sets them. SGLang itself listens on the container's loopback, without /metrics
DEFAULT_FLAGS: Mapping[str, Any] = {HOST: "0.0.0.0", PORT: DEFAULT_PORT, METRICS: True}
#: words before the model in a command; older guides run the Python module
PROGRAM_WORDS = frozenset(("sglang", "serve", "python", "python3", "-m", "sglang.launch_server"))


def value(flags: Mapping[str, Any], name: str) -> Any:
    """Return the value of a flag; None if it is not set."""
    return flags.get(name)


def find_value_problem(flags: Mapping[str, Any], name: str) -> str:
    """Return why a flag's value is invalid; "" if it is valid or the option is unknown."""
    option = TABLE.all_options.get(name)
    return option_table.find_value_problem(option, value(flags, name), VALUE_PARSERS, format_word) if option else ""


def argv(flags: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the command-line words for the flags, in order. Flags that are None, and most switches that are off, are left out."""
    return tuple(word for name, setting in normalize(flags).items() for word in _flag_words(name, setting))


def command(model: str, flags: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the arguments that follow the image: the model's folder, DEFAULT_FLAGS and the flags."""
    recipe_flags = normalize(flags)
    defaults = {name: value for name, value in DEFAULT_FLAGS.items() if recipe_flags.get(name) is None}
    return argv({MODEL: model, **defaults, **recipe_flags})


def served_names(flags: Mapping[str, Any], model: str) -> tuple[str, ...]:
    """Return the only model name for requests; the model's path if the flags set none."""
    return (str(value(flags, SERVED_NAME) or model),)


def port(flags: Mapping[str, Any]) -> int:
    """Return the port on which the server listens in its container; the default for an invalid value, which rules report."""
    port_number = None if find_value_problem(flags, PORT) else parse_integer(value(flags, PORT))
    return DEFAULT_PORT if port_number is None else port_number


def context(flags: Mapping[str, Any]) -> int | None:
    """Return the maximum sequence length that the flags set, in tokens; None if they set none."""
    return parse_integer(value(flags, CONTEXT))


def memory_share(flags: Mapping[str, Any]) -> float:
    """Return the share of memory for weights and KV cache, 0 to 1; 0 if it is not set or invalid."""
    setting = value(flags, MEMORY)
    return 0.0 if setting is None or find_value_problem(flags, MEMORY) else float(setting)


def chunk_size(flags: Mapping[str, Any]) -> int | None:
    """Return the tokens per prefill chunk; 0 if chunked prefill is off, None if the flags set no size."""
    tokens = parse_integer(value(flags, CHUNK_SIZE))
    return None if tokens is None else max(tokens, 0)


def properties() -> dict[str, Any]:
    """Return the flags of 0.5.23 as the properties of a JSON Schema."""
    return {
        name: _option_schema(option)
        for name, option in sorted(TABLE.newest_options.items())
        if name not in RESERVED_FLAGS
    }


def _option_schema(option: Option) -> dict[str, Any]:
    if option.kind in SWITCH_KINDS:
        return {"type": "boolean"}
    return {"enum": [*option.choices, None]} if option.choices else {}


def _flag_words(name: str, setting: Any) -> list[str]:
    kind = option_kind(name)
    if setting is None:
        return []
    if isinstance(setting, bool):
        return [f"--{name}"] if setting else [f"--no-{name}"] if kind == "both" else []
    if kind != "json" and isinstance(setting, list | tuple):
        return [f"--{name}", *map(format_word, setting)]
    return [f"--{name}", format_word(setting)]


def parse_command(words: Sequence[str]) -> Command:
    """Return the model and the flags of a command. Switches become booleans, digits become numbers, and several words become a list.

    The model may also be the first word, as 0.5.23 accepts it.
    """
    flags: dict[str, Any] = {}
    first_word = ""
    for flag, values in group_words(words):
        if flag:
            flags |= normalize({flag: _parse_value(canonical(flag), values)})
        else:
            first_word = next((word for word in values if word.rpartition("/")[2] not in PROGRAM_WORDS), "")
    return Command(str(flags.pop(MODEL, "") or first_word), flags)


def _parse_value(name: str, words: list[str]) -> Any:
    option = TABLE.newest_options.get(name)
    kind = option.kind if option else ""
    if kind in SWITCH_KINDS or not words:
        return True
    if kind == "list" or len(words) > 1:
        return [parse_word(word) for word in words]
    return words[0] if kind == "text" else parse_word(words[0])


# Commands from other projects. Sources: spark-arena/recipe-registry@3075780, scitrera/oss-spark-run@3190eb7; server_args.py of
# 0.5.23.

#: common abbreviations, which argparse completes
ABBREVIATIONS = {"--tp": "--tp-size", "--pp": "--pp-size", "--dp": "--dp-size"}


def expand_abbreviations(words: Sequence[str]) -> list[str]:
    """Return the words with full names: `--tp-size 2` for `--tp 2`."""
    return [ABBREVIATIONS.get(word, word) for word in words]


IMPORTS = ImportTable(
    image=f"lmsysorg/sglang:v{SOURCE_RELEASE}",
    container_port=http.PORT,
    program_names=("sglang", "sglang.launch_server"),
    program=("sglang", "serve"),
    host_flag=HOST,
    key_flags=KEY_FLAGS,
    tensor_flag="tp-size",
    pipeline_flag="pp-size",
    cluster_flags=("nnodes", "node-rank", "dist-init-addr"),
    replica_flags=("dp-size",),
    revision_flags=("revision",),
    file_flags=("chat-template", "config"),
    further_model_flags={"speculative-draft-model-path": "", "tokenizer-path": ""},
    download_flags=("download-dir",),
    expand_short_options=expand_abbreviations,
    served_name_flag=SERVED_NAME,
)


# The flag for embedding and reranking. Source: server_args.py of 0.5.23; not tested with a real server.

TASK_FLAGS = TaskFlags(
    required_flags={"embed": {"is-embedding": True}, "rerank": {"is-embedding": True}},
    excluded_values={"generate": {"is-embedding": (True,)}},
)


# Flags that cause the problems that probes find. Source: 0.5.23; not tested with a real server.

TOOL_PARSER_CAUSE = "--tool-call-parser is missing or for another model"
REASONING_PARSER_CAUSE = "--reasoning-parser is missing or for another model"
PROBE_FLAGS = ProbeFlags(
    causes_by_message=(TEMPLATE_REFUSAL,),
    promises={"tool_call": "tool-call-parser", "reasoning": "reasoning-parser"},
    required_flags={"tool_call": ("tool-call-parser",)},
    causes={
        "tools refused": TOOL_PARSER_CAUSE,
        "tool call as text": TOOL_PARSER_CAUSE,
        "tool call in the thinking": f"{REASONING_PARSER_CAUSE}: the call counts as thinking",
        "tool call with bad arguments": TOOL_PARSER_CAUSE,
        "no tool call": "--chat-template, or the model's own template, omits the tools",
        "tool choice ignored": "--chat-template writes the tools into the prompt and ignores `tool_choice`",
        "only without stream": "--tool-call-parser or --reasoning-parser is for another model, or its streaming is broken in this release",
        "content null": "--reasoning-parser is for another model: all of the text counted as thinking",
        "thinking in content": REASONING_PARSER_CAUSE,
        "no thinking apart": f"{REASONING_PARSER_CAUSE}, or --default-chat-template-kwargs turns thinking off",
        "not the schema": "--grammar-backend is none, or --reasoning-parser is missing",
        "picture refused": "--enable-multimodal is missing, or the model supports no pictures",
        "picture not seen": "--chat-template, or the weights of the vision part",
        "another dimension": "another model, or --json-model-override-args shortens its vectors",
        "garbage": "a kernel for FP4 weights or experts that fails on this GPU: try another --moe-runner-backend and --attention-backend, "
        "another quantization of the model, or see --chat-template",
        "another language": "--chat-template is for another model, or the weights are damaged",
    },
)
