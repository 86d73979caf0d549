"""The command line of `vllm serve`: normalized flags of a recipe, and parsing of command lines from other sources."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sparkwright.engines.flags import AdapterFlags, Command, ImportTable, ModelFlag, ModelRole, group_words, parse_word
from sparkwright.engines.option_table import Option
from sparkwright.engines.probes.probe import TEMPLATE_REFUSAL, ProbeFlags
from sparkwright.engines.tasks import TaskFlags
from sparkwright.engines.vllm import option_values, options

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
#: flags for the members of a cluster
TENSOR = "tensor-parallel-size"
PIPELINE = "pipeline-parallel-size"
MEMBERS = "nnodes"
RANK = "node-rank"
HEAD_ADDRESS = "master-addr"
MASTER_PORT = "master-port"
HEADLESS = "headless"
API_SERVERS = "api-server-count"
BACKEND = "distributed-executor-backend"

#: words before the model in a command
PROGRAM_WORDS = frozenset(("vllm", "serve"))
#: the larger of vLLM's defaults: 0.9 until 0.19, 0.92 from 0.20.0 (pull request 38284)
DEFAULT_MEMORY_UTILIZATION = 0.92
DEFAULT_PORT = 8000
#: see engines.flags.Flags; None because the image's entrypoint is `vllm serve`
ENTRYPOINT: tuple[str, ...] | None = None
MEMORY = MEMORY_UTILIZATION
BUDGET_FLAG = BATCHED_TOKENS
RESERVED_FLAGS: Mapping[str, str] = {MODEL: "model.mount"}
TEMPLATE_FLAGS: tuple[str, ...] = ("chat-template",)
SAMPLING_FLAGS: tuple[str, ...] | None = ("override-generation-config", "generation-config")
MODEL_FLAGS: Mapping[ModelRole, ModelFlag] = {
    "draft": ModelFlag("speculative-config", key="model"),
    "tokenizer": ModelFlag("tokenizer"),
}
#: lora/peft_helper.py and config/lora.py of 0.32.0; the defaults are the same in 0.11.2
ADAPTER_FLAGS: AdapterFlags | None = AdapterFlags(
    "lora-modules",
    enabling_flag="enable-lora",
    max_rank_flag="max-lora-rank",
    default_max_rank=16,
    allowed_ranks=(1, 8, 16, 32, 64, 128, 256, 320, 512),
    max_in_batch_flag="max-loras",
    default_max_in_batch=1,
    unsupported_keys=(
        *("use_dora", "bias", "lora_bias", "modules_to_save", "alora_invocation_tokens"),
        *("layer_replication", "use_bdlora", "use_qalora"),
    ),
    source="vLLM 0.32.0, lora/peft_helper.py and config/lora.py",
)


def normalize(written_flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags under their full names, in order. If a flag has two spellings, the last one wins.

    Full names have dashes, but no leading ones. An alias, a short form (`tp`) or an unambiguous prefix becomes the full name, and
    `no-x: true` becomes `x: false`. In an unknown name, only underscores become dashes; anything after a dot is kept. A list of one
    value becomes that value if the option takes only one, and an empty list becomes None: vLLM reads the same command line.
    """
    names_and_values = (_normalize_flag(name, setting) for name, setting in written_flags.items())
    return {name: _unpack_single(name, setting) for name, setting in names_and_values}


def canonical(spelling: str) -> str:
    """Return a flag's full name; `no-x` becomes `x` if x is a switch."""
    return _normalize_flag(spelling, True)[0]


def value(flags: Mapping[str, Any], name: str) -> Any:
    """Return the value of a flag; None if it is not set. For `enable-x`, this is the opposite of `disable-x` (from 0.33 on) if only the latter is set."""
    opposite = flags.get(name.replace("enable-", "disable-", 1)) if name.startswith("enable-") else None
    setting = flags.get(name)
    return not opposite if setting is None and isinstance(opposite, bool) else setting


def find_value_problem(flags: Mapping[str, Any], name: str) -> str:
    """Return why `vllm serve` refuses a flag's value; "" if the value seems valid."""
    invalid_value = option_values.find_invalid_value(name, value(flags, name))
    return invalid_value.reason if invalid_value else ""


def argv(flags: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the command-line words for the flags, in order. true becomes `--x`, false `--no-x`; None is left out."""
    return tuple(word for name, setting in normalize(flags).items() for word in _flag_words(name, setting))


def parse_positive_integer(setting: Any) -> int | None:
    """Return a positive number in vLLM's notation: 131072, "128k" (thousands) or "128K" (times 1024); None for anything else."""
    try:
        number = option_values.parse_size(str(setting))
    except ValueError:
        return None
    return number if number > 0 else None


def command(model: str, flags: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the words after the image: the model, then the flags.

    Every release accepts `--model PATH`: 0.32.0 and 0.33.0 move it to the front before they check that the model comes first.
    """
    return ("--model", model, *argv(flags))


def served_names(flags: Mapping[str, Any], model: str) -> tuple[str, ...]:
    """Return the served names, or else the model argument. vLLM reports the first."""
    names = value(flags, SERVED_NAME)
    names = names if isinstance(names, list | tuple) else [names]
    return tuple(dict.fromkeys(str(name) for name in names if name)) or (model,)


def memory_share(flags: Mapping[str, Any]) -> float | None:
    """Return the memory share that the flags set, 0 to 1; None if it is not set or invalid."""
    setting = value(flags, MEMORY_UTILIZATION)
    return None if setting is None or option_values.find_invalid_value(MEMORY_UTILIZATION, setting) else float(setting)


def memory_utilization(flags: Mapping[str, Any]) -> float:
    """Return the memory share that the engine will request, 0 to 1. The flags must be valid."""
    requested_share = memory_share(flags)
    return DEFAULT_MEMORY_UTILIZATION if requested_share is None else requested_share


def port(flags: Mapping[str, Any]) -> int:
    """Return the port on which the server listens in its container. The flags must be valid."""
    setting = value(flags, PORT)
    words = (
        []
        if setting is None or option_values.find_invalid_value(PORT, setting)
        else option_values.value_words(setting, None)
    )
    return int(words[0]) if words else DEFAULT_PORT


def context(flags: Mapping[str, Any]) -> int | None:
    """Return the maximum sequence length that the flags set, in tokens, or None."""
    return parse_positive_integer(value(flags, MAX_MODEL_LEN))


def properties() -> dict[str, Any]:
    """Return the known flags as properties of a JSON Schema."""
    return {
        name: _option_schema(option)
        for name, option in sorted(option_values.known_options().items())
        if name not in RESERVED_FLAGS
    }


def _option_schema(option: Option) -> dict[str, Any]:
    if "switch" in option.kind:
        return {"type": "boolean"}
    return {"enum": [*option.choices, None]} if option.choices and not option.takes_many else {}


def _normalize_flag(spelling: str, setting: Any) -> tuple[str, Any]:
    head, dot, rest = spelling.lstrip("-").partition(".")
    head = head.replace("_", "-")
    switch = _complete_name(head.removeprefix("no-"))
    if (
        head.startswith("no-")
        and isinstance(setting, bool)
        and head not in option_values.known_options()
        and _is_switch(switch)
    ):
        return switch, not setting
    return _complete_name(head) + dot + rest, setting


def _unpack_single(name: str, setting: Any) -> Any:
    option = option_values.known_options().get(name)
    takes_list = option is None or option.takes_many or option.kind.rstrip("?") == "json"
    if takes_list or not isinstance(setting, list | tuple) or len(setting) > 1:
        return setting
    if not setting:
        return None
    is_value = isinstance(setting[0], str | int | float) and not isinstance(setting[0], bool)
    return setting[0] if is_value else setting


def _is_switch(name: str) -> bool:
    option = option_values.known_options().get(name)
    return option is not None and option.kind == "switch"


def _complete_name(name: str) -> str:
    """Return the full name for a short form, an alias or an unambiguous prefix, or else the name itself."""
    aliases = options.aliases()
    name = aliases.get(name, name)
    if name in option_values.known_options():  # the usual case, without loading the tables of all releases
        return name
    matches = options.complete_name(name, options.all_options()) if name else []
    matches = [*dict.fromkeys(aliases.get(match, match) for match in matches)]
    return matches[0] if len(matches) == 1 else name


def _flag_words(name: str, setting: Any) -> list[str]:
    option = option_values.known_options().get(name)
    if setting is None or (isinstance(setting, list | tuple) and not setting):
        return []
    if "." in name:  # a key of a mapping, whose value vLLM reads as JSON
        return [f"--{name}", setting if isinstance(setting, str) else json.dumps(setting, separators=(",", ":"))]
    if isinstance(setting, bool):
        off_words = [] if option is not None and option.kind == "bare switch" else [f"--no-{name}"]
        return [f"--{name}"] if setting else off_words
    words = option_values.value_words(setting, option)
    if option_values.is_repeated(name):
        return [part for word in words for part in (f"--{name}", word)]
    return [f"--{name}", *words]


def parse_command(words: Sequence[str]) -> Command:
    """Return the model and the flags of a command. Switches become booleans, several words a list, and JSON its value."""
    grouped = list(group_words(words))
    flags: dict[str, Any] = {}
    for flag, values in grouped:
        for name, setting in normalize({flag: _parse_value(values)}).items() if flag else ():
            previous = flags.get(name)
            is_repeated = previous is not None and option_values.is_repeated(name)
            flags[name] = (
                [*(previous if isinstance(previous, list) else [previous]), setting] if is_repeated else setting
            )
    leading_words = (word for name, values in grouped if not name for word in values)
    model = next((word for word in leading_words if word.rpartition("/")[2] not in PROGRAM_WORDS), "")
    return Command(str(flags.pop(MODEL, None) or model), flags)


def _parse_value(words: list[str]) -> Any:
    if len(words) > 1:
        return words
    return parse_word(words[0]) if words else True


# Commands from other projects. Sources: vllm-project/recipes@8959cf6, spark-arena/recipe-registry@3075780,
# spark-arena/eugr-recipes@0d81770.


def expand_abbreviations(words: Sequence[str]) -> list[str]:
    """Return the words with long names, e.g. `--tensor-parallel-size 2` for `-tp 2`; `-O3` becomes two words."""
    expanded, aliases = list[str](), options.aliases()
    for word in words:
        head = word.lstrip("-")
        name = head.partition(".")[0].partition("=")[0]
        if word.startswith("-O") and word[2:].isdigit():
            expanded += [f"--{aliases['O']}", word[2:]]
        elif word.startswith("-") and not word.startswith("--") and name in aliases:
            expanded.append(f"--{aliases[name]}{head.removeprefix(name)}")
        else:
            expanded.append(word)
    return expanded


IMPORTS = ImportTable(
    image=f"vllm/vllm-openai:v{options.TABLE_RELEASE}",
    container_port=DEFAULT_PORT,
    program_names=("vllm", "vllm.entrypoints.openai.api_server"),
    program=("vllm", "serve"),
    host_flag="host",
    key_flags=("api-key",),
    tensor_flag=TENSOR,
    pipeline_flag=PIPELINE,
    cluster_flags=(BACKEND, MEMBERS, RANK, HEAD_ADDRESS, MASTER_PORT, HEADLESS),
    replica_flags=("data-parallel-size",),
    revision_flags=("revision",),
    file_flags=("chat-template", "reasoning-parser-plugin", "tool-parser-plugin", "config"),
    further_model_flags={
        "speculative-config": "model",
        "speculative-config.model": "",
        "tokenizer": "",
        "hf-config-path": "",
        "spec-model": "",
    },
    download_flags=("download-dir",),
    token_flags=("hf-token",),
    expand_short_options=expand_abbreviations,
    served_name_flag=SERVED_NAME,
)


# Flags that set vLLM's task; without `runner`, the model determines it. Sources: 0.32.0 on a CPU, where a pooling server has
# no chat (404) and a generating server no embeddings.

TASK_FLAGS = TaskFlags(
    excluded_values={
        "generate": {"runner": ("pooling", "draft"), "convert": ("embed", "classify")},
        "embed": {"runner": ("generate", "draft"), "convert": ("classify",)},
        "rerank": {"runner": ("generate", "draft")},
    }
)


# Flags that cause the problems that probes find.
#
# Sources: 0.32.0 on a CPU with a model that recites a good model's output (tests/real_engine/test_probes.py: 400 without both
# flags, a call as text, a call in the thinking, thinking in the content, content null); `--enable-auto-tool-choice requires
# --tool-call-parser`, vllm/entrypoints/openai; vllm issues 41902 and 41477 (a wrong parser: content null). The thinking is in
# `reasoning`, before 0.16 or so in `reasoning_content`.

TOOL_PARSER_CAUSE = "--tool-call-parser is for another model"
REASONING_PARSER_CAUSE = "--reasoning-parser is missing or for another model"
PROBE_FLAGS = ProbeFlags(
    causes_by_message=(
        (
            r"requires --enable-auto-tool-choice|requires --tool-call-parser",
            "--enable-auto-tool-choice and --tool-call-parser are needed",
        ),
        TEMPLATE_REFUSAL,
    ),
    promises={"tool_call": "tool-call-parser", "reasoning": "reasoning-parser"},
    required_flags=dict.fromkeys(
        ("tool_call", "messages", "responses"), ("enable-auto-tool-choice", "tool-call-parser")
    ),
    causes={
        "tools refused": "--chat-template, or the model's own template, does not support tools; see the server's message",
        "tool call as text": TOOL_PARSER_CAUSE,
        "tool call in the thinking": f"{REASONING_PARSER_CAUSE}: the call counts as thinking",
        "tool call with bad arguments": TOOL_PARSER_CAUSE,
        "no tool call": "--chat-template, or the model's own template, omits the tools",
        "tool choice ignored": "--chat-template writes the tools into the prompt and ignores `tool_choice` (--exclude-tools-when-tool-choice-none)",
        "only without stream": "--tool-call-parser or --reasoning-parser is for another model, or its streaming is broken in this release",
        "content null": "--reasoning-parser or --tool-call-parser is for another model: all of the text counted as thinking or as a call",
        "thinking in content": REASONING_PARSER_CAUSE,
        "no thinking apart": f"{REASONING_PARSER_CAUSE}, or --default-chat-template-kwargs turns thinking off",
        "not the schema": "--structured-outputs-config selects a backend that does not enforce the schema, or --reasoning-parser is missing",
        "picture refused": "--language-model-only or --limit-mm-per-prompt turns pictures off, or the model supports none",
        "picture not seen": "--mm-processor-kwargs, --chat-template, or the weights of the vision part",
        "another dimension": "another model, or --hf-overrides and --pooler-config shorten its vectors",
        "garbage": "a kernel for FP4 weights or experts that fails on this GPU: try --moe-backend marlin and --linear-backend marlin, "
        "another quantization of the model, or see --chat-template",
        "another language": "--chat-template is for another model, or the weights are damaged",
    },
)
