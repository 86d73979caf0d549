"""The `vllm` command: its options by version, parsed from the command line and a `--config` file, with argparse's errors."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sparkwright.engines.vllm import option_values
from sparkwright.sandbox.serving.process import StartError

Release = tuple[int, int, int]

VLLM_USAGE = """usage: vllm [-h] [-v]
            {chat,complete,serve,launch,bench,collect-env,download-kernels,preload,run-batch,snapshot}
            ..."""
USAGE = "usage: vllm serve [model_tag] [options]"
DEFAULT_MODEL = "Qwen/Qwen3-0.6B"
INTEGER_OPTIONS = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "port")
FLOAT_OPTIONS = ("gpu_memory_utilization",)
CONFIG_OPTION = "--config"
API_SERVER_MODULE = "vllm.entrypoints.openai.api_server"
HELP_OPTIONS = ("-h", "--help")
OPTIONS_PATH = Path(__file__).parent / "options-0.32.0.txt"
SWITCH, VALUE, OPTIONAL, LIST, CHOICES, JSON = "switch", "value", "optional", "list", "choices", "json"

#: removed options: names, kind, first version without the option
REMOVED_OPTIONS: tuple[tuple[tuple[str, ...], str, Release], ...] = (
    (("--calculate-kv-scales", "--no-calculate-kv-scales"), SWITCH, (0, 28, 0)),
    (("--swap-space",), VALUE, (0, 18, 0)),
    (("--max-num-partial-prefills",), VALUE, (0, 27, 0)),
    (("--max-long-partial-prefills",), VALUE, (0, 27, 0)),
    (("--override-attention-dtype",), VALUE, (0, 32, 0)),
)
#: first version with each option
ADDED_OPTIONS: dict[str, Release] = {
    "--default-chat-template-kwargs": (0, 14, 0),
    "--mamba-cache-mode": (0, 15, 0),
    "--prefix-match-unit": (0, 26, 0),
}
#: from this version on, --disable-x negates --enable-x; --no-enable-x still works, but is not in the help
FIRST_RELEASE_WITH_DISABLE_OPTIONS: Release = (0, 33, 0)


@dataclass(frozen=True)
class Option:
    """A command-line option."""

    #: names in the help, a long one first
    names: tuple[str, ...]
    kind: str
    #: name of the value in the help, or {a,b} if only these values are accepted
    metavar: str = ""
    #: names that are not in the help
    hidden_names: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Key of the option in `Arguments.values`, such as max_num_seqs."""
        return next(name for name in self.names if name.startswith("--"))[2:].replace("-", "_")

    @property
    def choices(self) -> tuple[str, ...]:
        """Accepted values; empty if the option accepts any value."""
        is_list = self.metavar.startswith("{") and self.metavar.endswith("}")
        return tuple(self.metavar[1:-1].split(",")) if is_list else ()

    def header(self) -> str:
        """Return the option's names and value in the help."""
        values = {SWITCH: "", LIST: f" {self.metavar} [{self.metavar} ...]", OPTIONAL: f" [{self.metavar}]"}
        return ", ".join(name + values.get(self.kind, f" {self.metavar}") for name in self.names)


def parse_release(version: str) -> Release:
    """Return the numbers of a version: (0, 19, 2) for "0.19.2rc1.dev134+g0"."""
    numbers = [int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3]]
    major, minor, patch = (*numbers, 0, 0, 0)[:3]
    return major, minor, patch


@functools.lru_cache(maxsize=8)
def list_options(version: str) -> tuple[Option, ...]:
    """Return all options of a version, in the help's order."""
    current_release = parse_release(version)
    available_options = [
        option for option in _load_options() if current_release >= ADDED_OPTIONS.get(option.names[0], (0, 0, 0))
    ]
    for names, kind, removal_release in REMOVED_OPTIONS:
        if current_release < removal_release:
            available_options.append(
                Option(names, kind, "" if kind == SWITCH else names[0][2:].replace("-", "_").upper())
            )
    return tuple(_adapt_to_release(option, current_release) for option in available_options)


def help_text(version: str) -> str:
    """Return the output of `vllm serve --help=all` without the descriptions."""
    lines = [USAGE, "", "positional arguments:", "  model_tag", "", "options:"]
    return "\n".join([*lines, *(f"  {option.header()}" for option in list_options(version))])


def _adapt_to_release(option: Option, current_release: Release) -> Option:
    if option.names[0] == "--mamba-cache-mode" and current_release < (0, 32, 0):
        return replace(option, metavar="{align,all,none}")
    if (
        current_release >= FIRST_RELEASE_WITH_DISABLE_OPTIONS
        and option.names[0].startswith("--enable-")
        and len(option.names) > 1
    ):
        enable_name, negation_name, *other_names = option.names
        return replace(
            option,
            names=(enable_name, enable_name.replace("--enable-", "--disable-", 1), *other_names),
            hidden_names=(negation_name,),
        )
    return option


@functools.lru_cache(maxsize=1)
def _load_options() -> tuple[Option, ...]:
    rows = (line.split("\t") for line in OPTIONS_PATH.read_text().splitlines() if line and not line.startswith("#"))
    return tuple(Option(tuple(names.split()), kind, "".join(rest)) for names, kind, *rest in rows)


def crash_error(message: str) -> StartError:
    """Return the error of an uncaught exception: its last traceback lines, and exit code 1."""
    return StartError("Traceback (most recent call last):", message)


@dataclass
class Arguments:
    """The parsed arguments of `vllm serve`."""

    model: str = DEFAULT_MODEL
    #: the model is the positional argument
    has_model_tag: bool = False
    #: option values by name, such as max_num_seqs
    values: dict[str, Any] = field(default_factory=dict)

    def text(self, key: str, default: str = "") -> str:
        """Return the value of an option, or its first value if it is a list."""
        value = self.values.get(key, default)
        return str(value[0] if isinstance(value, list) else value)

    def number(self, key: str, default: int) -> int:
        return int(self.values.get(key, default))

    def switch(self, key: str, default: bool) -> bool:
        return bool(self.values.get(key, default))

    def non_default(self, version: str) -> dict[str, Any]:
        """Return the arguments that the start-up log lists as non-default args."""
        values = dict(self.values)
        if "api_key" in values and parse_release(version) >= (0, 32, 0):
            values["api_key"] = "***"
        model = {"model_tag": self.model} if self.has_model_tag else {}
        return {**model, "model": self.model, **values}


def parse_arguments(argv: Sequence[str], version: str) -> Arguments:
    """Parse the arguments of `vllm serve`. Raises StartError with argparse's message."""
    arguments, words, unknown_words = Arguments(), [_normalize_word(word) for word in argv], list[str]()
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            _set_model(arguments, unknown_words, word)
            continue
        name, equals, value = word.partition("=")
        accepts_keys = name.startswith(("--", "-cc", "-ac", "-sc", "-dc"))
        name, dot, key_path = name.partition(".") if accepts_keys else (name, "", "")
        name = _expand_abbreviation(name, version)
        option = _options_by_name(version).get(name)
        if option is None or (dot and option.kind != JSON):
            unknown_words += [word, *_take_values(words)]
        elif option.kind == SWITCH:
            _set_switch(arguments, option, name, value if equals else None)
        else:
            values = [value] if equals else _option_values(option, words)
            _set_values(arguments, option, values, key_path.split(".") if dot else [])
    if unknown_words:
        raise StartError(f"{VLLM_USAGE}\nvllm: error: unrecognized arguments: {' '.join(unknown_words)}", code=2)
    if arguments.switch("enable_auto_tool_choice", False) and "tool_call_parser" not in arguments.values:
        raise StartError("TypeError: Error: --enable-auto-tool-choice requires --tool-call-parser")
    arguments.model = str(arguments.values.pop("model", arguments.model))
    return arguments


def _normalize_word(word: str) -> str:
    """Replace -O3 with its long form, and underscores in an option's name with hyphens, as vLLM's parser does."""
    if re.fullmatch(r"-O=?\d", word):
        return f"--optimization-level={word[-1]}"
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if name.startswith("--") else word


def _set_model(arguments: Arguments, unknown_words: list[str], word: str) -> None:
    if arguments.has_model_tag or "model" in arguments.values:
        unknown_words.append(word)
    else:
        arguments.model, arguments.has_model_tag = word, True


def _expand_abbreviation(name: str, version: str) -> str:
    """Return the full name of an abbreviated option. Raises StartError if it is ambiguous."""
    options_by_name = _options_by_name(version)
    if name in options_by_name or not name.startswith("--"):
        return name
    matching_names = [option for option in options_by_name if option.startswith(name)]
    if len(matching_names) > 1:
        message = f"ambiguous option: {name} could match {', '.join(matching_names)}"
        raise StartError(f"{USAGE}\nvllm serve: error: {message}", code=2)
    return matching_names[0] if matching_names else name


def _take_values(words: list[str]) -> list[str]:
    """Remove the words up to the next option, and return them."""
    values = []
    while words and not _is_option(words[0]):
        values.append(words.pop(0))
    return values


def _is_option(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-\d+(\.\d*)?|-", word)


def _option_values(option: Option, words: list[str]) -> list[str]:
    if option.kind == LIST:
        values = _take_values(words)
        if not values:
            raise _option_error(option, "expected at least one argument")
        return values
    if words and not _is_option(words[0]):
        return [words.pop(0)]
    if option.kind == OPTIONAL:
        return []
    raise _option_error(option, "expected one argument")


def _set_switch(arguments: Arguments, option: Option, name: str, value: str | None) -> None:
    if value is not None:
        raise _option_error(option, f"ignored explicit argument {value!r}")
    is_negated = name in option.hidden_names or (
        len(option.names) > 1 and name == option.names[1] and name.startswith("--")
    )
    arguments.values[option.key] = not is_negated


def _set_values(arguments: Arguments, option: Option, words: list[str], key_path: list[str]) -> None:
    for word in words:
        if option.choices and word not in option.choices:
            raise _option_error(option, f"invalid choice: {word!r} (choose from {', '.join(option.choices)})")
    if option.kind == LIST:
        arguments.values[option.key] = words
    elif option.kind == JSON:
        _merge_json(arguments, option, words[0], key_path)
    else:
        arguments.values[option.key] = _convert_value(option, words[0]) if words else True


def _merge_json(arguments: Arguments, option: Option, word: str, key_path: list[str]) -> None:
    """Set a JSON option, or a key of it: --compilation-config.mode 3 means --compilation-config '{"mode": 3}'."""
    try:
        value = json.loads(word)
    except ValueError:
        if not key_path:
            raise _option_error(option, f"Value {word} cannot be converted to <function loads>.") from None
        value = word
    for key in reversed(key_path):
        value = {key.replace("-", "_"): value}
    previous_value = arguments.values.get(option.key)
    arguments.values[option.key] = (
        {**previous_value, **value} if isinstance(previous_value, dict) and key_path else value
    )


def _convert_value(option: Option, word: str) -> Any:
    value_option = option_values.known_options().get(option.key.replace("_", "-"))
    types: dict[str, type[Any]] = {**dict.fromkeys(INTEGER_OPTIONS, int), **dict.fromkeys(FLOAT_OPTIONS, float)}
    value_type = types.get(option.key) or {"int": int, "float": float}.get(value_option.kind if value_option else "")
    if value_type is None:
        return int(word) if re.fullmatch(r"-?\d+", word) else word
    scale = {"k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20}
    if value_type is int and re.fullmatch(r"\d+[kKmM]", word):
        return int(word[:-1]) * scale[word[-1]]
    try:
        return value_type(word)
    except ValueError:
        raise _option_error(option, f"invalid {value_type.__name__} value: {word!r}") from None


def _option_error(option: Option, message: str) -> StartError:
    return StartError(f"{USAGE}\nvllm serve: error: argument {'/'.join(option.names)}: {message}", code=2)


@functools.lru_cache(maxsize=8)
def _options_by_name(version: str) -> dict[str, Option]:
    available_options = list_options(version)
    return {name: option for option in available_options for name in (*option.names, *option.hidden_names)}


def expand_config_file(argv: Sequence[str], host_path: Callable[[str], Path]) -> list[str]:
    """Return the arguments with --config replaced by the file's options, as in 0.32.0. Raises StartError.

    The file's options come before the others, so that the command line takes precedence. Only lines of the form `KEY: VALUE`
    are supported, where VALUE is JSON or a plain word, because the image of the simulated engine has no YAML library.
    """
    words = _move_model_first(list(argv))
    if CONFIG_OPTION not in words:
        return words
    if words.count(CONFIG_OPTION) > 1:
        raise crash_error("AssertionError: More than one config file specified!")
    position = words.index(CONFIG_OPTION)
    if position == len(words) - 1:
        raise crash_error("ValueError: No config file specified! Please check your command-line arguments.")
    file_words = _read_config_words(words[position + 1], host_path)
    other_words = words[:position] + words[position + 2 :]
    if other_words and not other_words[0].startswith("-"):
        return [other_words[0], *file_words, *other_words[1:]]
    if "--model" in file_words:
        return [*file_words, *other_words]
    message = "No model specified! Please specify model either as a positional argument or in a config file."
    raise crash_error(f"ValueError: {message}")


def _move_model_first(words: list[str]) -> list[str]:
    """Return the arguments, with the value of --model moved to the beginning if they contain --config."""
    if "--model" not in words[:-1] or CONFIG_OPTION not in words:
        return words
    position = words.index("--model")
    return [words[position + 1], *words[:position], *words[position + 2 :]]


def _read_config_words(name: str, host_path: Callable[[str], Path]) -> list[str]:
    if name.rpartition(".")[2] not in ("yaml", "yml"):
        raise crash_error(f"ValueError: Config file must be of a yaml/yml type. {name.rpartition('.')[2]} supplied")
    try:
        lines = host_path(name).read_text().splitlines()
    except OSError as error:
        reason = f"[Errno {error.errno}] {error.strerror}: '{name}'"
        raise crash_error(f"{type(error).__name__}: {reason}") from None
    pairs = (line.partition(":")[::2] for line in lines if ":" in line and not line.startswith("#"))
    return [word for key, value in pairs for word in _format_flag(key.strip(), _parse_value(value.strip()))]


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _format_flag(key: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{key}" if value else f"--no-{key}"]
    if isinstance(value, list):
        return [f"--{key}", *map(str, value)] if value else []
    return [f"--{key}", json.dumps(value) if isinstance(value, dict) else str(value)]


@dataclass(frozen=True)
class PrintedOutput:
    """The output of a command that starts no server."""

    text: str
    code: int


@dataclass(frozen=True)
class ServeCommand:
    """A command that starts a server; `argv` are the words after `vllm serve`."""

    argv: tuple[str, ...]


def resolve_command(words: Sequence[str], version: str) -> PrintedOutput | ServeCommand:
    """Return the outcome of `vllm WORDS`."""
    match list(words):
        case [("-v" | "--version"), *_]:
            return PrintedOutput(version, 0)
        case [("-h" | "--help"), *_]:
            return PrintedOutput(VLLM_USAGE, 0)
        case ["serve", *rest]:
            wants_help = any(word in HELP_OPTIONS or word.startswith("--help=") for word in rest)
            return PrintedOutput(help_text(version), 0) if wants_help else ServeCommand(tuple(rest))
        case [unknown_command, *_]:
            message = f"argument {{chat,complete,serve,launch,bench,collect-env}}: invalid choice: {unknown_command!r}"
            return PrintedOutput(f"{VLLM_USAGE}\nvllm: error: {message}", 2)
        case _:
            return PrintedOutput(VLLM_USAGE, 0)


def resolve_program(argv: Sequence[str], version: str) -> PrintedOutput | ServeCommand | None:
    """Return the outcome of a container's command line, or None if the image does not contain the program."""
    match list(argv):
        case ["vllm", *words]:
            return resolve_command(words, version)
        case [("python" | "python3"), "-m", name, *words] if name == API_SERVER_MODULE:
            return resolve_command(["serve", *words], version)
        case [("python" | "python3"), "-c", code] if "vllm" in code and "__version__" in code:
            return PrintedOutput(version, 0)
        case _:
            return None
