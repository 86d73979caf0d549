"""The command line of an engine. A flag's canonical name is the engine's long option without the leading dashes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

#: role of a second model under the key `models` of a recipe
ModelRole = Literal["draft", "tokenizer"]


@dataclass(frozen=True, slots=True)
class ModelFlag:
    """The flag with the path of a second model in the container."""

    flag: str
    key: str = ""  #: key in the flag's JSON; "" if the flag takes the path itself
    required_flag: str = ""  #: flag without which this one has no effect; "" if it always has an effect


@dataclass(frozen=True, slots=True)
class AdapterFlags:
    """An engine's flags for LoRA adapters."""

    flag: str  #: takes NAME=PATH for each adapter, or only the path if the engine does not support names
    enabling_flag: str = ""  #: switch without which `flag` has no effect
    selected_by_name: bool = True  #: a request selects an adapter by name; else the adapter applies to every request
    prefixed_by_served_name: bool = False  #: the name in requests is SERVED_NAME:ADAPTER
    conflicting_flags: tuple[str, ...] = ()  #: further flags that a recipe must not set together with `adapters`
    max_rank_flag: str = ""  #: flag with the maximum rank
    default_max_rank: int = 0  #: default of `max_rank_flag`; 0 if the engine derives it from the adapters
    allowed_ranks: tuple[int, ...] = ()  #: values that `max_rank_flag` allows; empty if it allows any
    max_in_batch_flag: str = ""  #: flag with the maximum number of adapters in one batch
    default_max_in_batch: int = 0  #: default of `max_in_batch_flag`
    base_takes_slot: bool = False  #: requests without an adapter count as one more adapter in the batch
    unsupported_keys: tuple[str, ...] = ()  #: keys of adapter_config.json that the engine refuses if they are set
    source: str = ""  #: reference for these fields


class Flags(Protocol):
    """One engine's interpretation of a recipe's flags.

    Methods take flags as `normalize` returns them, unless stated otherwise.
    """

    @property
    def ENTRYPOINT(self) -> tuple[str, ...] | None:
        """The program that the container runs; None for the image's default."""

    @property
    def PORT(self) -> str:
        """The flag with the port on which the server listens."""

    @property
    def MEMORY(self) -> str:
        """The flag with the fraction of memory that the server reserves; "" if there is none."""

    @property
    def BUDGET_FLAG(self) -> str:
        """The flag with the maximum tokens per step; "" if there is none."""

    @property
    def RESERVED_FLAGS(self) -> Mapping[str, str]:
        """Flags that a recipe must not set, each with the recipe key that sets it."""

    @property
    def MODEL_FLAGS(self) -> Mapping[ModelRole, ModelFlag]:
        """The flags for second models, by role."""

    @property
    def ADAPTER_FLAGS(self) -> AdapterFlags | None:
        """The flags for LoRA adapters; None if the engine does not support them."""

    @property
    def TEMPLATE_FLAGS(self) -> tuple[str, ...]:
        """The flags that replace the model's chat template."""

    @property
    def SAMPLING_FLAGS(self) -> tuple[str, ...] | None:
        """The flags that set default sampling parameters, the one that takes the values first.

        None if the engine reads the parameters from the model's file, so that no warning is needed.
        """

    def normalize(self, written_flags: Mapping[str, Any]) -> dict[str, Any]:
        """Return the flags by canonical name, in their order; if a flag has two spellings, the last one wins."""

    def canonical(self, spelling: str) -> str:
        """Return a flag's canonical name."""

    def value(self, flags: Mapping[str, Any], name: str) -> Any:
        """Return the value of a flag; None if it is not set."""

    def find_value_problem(self, flags: Mapping[str, Any], name: str) -> str:
        """Return why a flag's value is invalid, such as "must be at least 1, got -3"; "" if it is valid or not checked."""

    def argv(self, flags: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the flags as command-line words, in their order."""

    def command(self, model: str, flags: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the words after the image in the container's command. model: path in the container."""

    def served_names(self, flags: Mapping[str, Any], model: str) -> tuple[str, ...]:
        """Return all model names that requests may use; the server reports the first. model: as for `command`."""

    def port(self, flags: Mapping[str, Any]) -> int:
        """Return the port on which the server listens in its container."""

    def context(self, flags: Mapping[str, Any]) -> int | None:
        """Return the context length in tokens; None if no flag sets it."""

    def properties(self) -> dict[str, Any]:
        """Return the known flags as the properties of a JSON Schema."""


def pin_model_fix(role: ModelRole, model_id: str) -> str:
    """Return the fix for a second model that an engine would download, as a sentence without its period."""
    name = model_id.rpartition("/")[2].lower()
    return (
        f"remove it and add it to the recipe, `models: {{{role}: {{id: {model_id}, dir: ~/models/{name}, "
        f"mount: /models/{name}}}}}`: sparkwright then pins, downloads and mounts it like the model"
    )


def pin_adapter_fix(name: str, model_id: str) -> str:
    """Return the fix for an adapter that an engine would download, as a sentence without its period."""
    name = name or model_id.rpartition("/")[2].lower()
    return (
        f"remove it and add it to the recipe, `adapters: [{{id: {model_id}, name: {name}}}]`: "
        "sparkwright then pins it like the model"
    )


def parse_adapters(flag_value: Any) -> Iterator[tuple[str, str]]:
    """Yield the name ("" if not set) and the path of each adapter: NAME=PATH, a path, or a mapping, possibly as JSON."""
    if isinstance(flag_value, list | tuple):
        entries: Iterable[Any] = flag_value
    else:
        entries = [flag_value] if _parse_object(flag_value) else str(flag_value or "").split()
    for entry in entries:
        fields = _parse_object(entry)
        if fields is None:
            name, equals, path = str(entry).partition("=")
            name, path = (name, path) if equals else ("", name)
        else:
            name, path = (str(fields.get(key) or fields.get(f"lora_{key}") or "") for key in ("name", "path"))
        if path:
            yield name, path


def has_model(flags: Mapping[str, Any], model_flag: ModelFlag) -> bool:
    """Return True if the flags already set this second model."""
    if not model_flag.key:
        return flags.get(model_flag.flag) is not None
    return (
        bool((_parse_object(flags.get(model_flag.flag)) or {}).get(model_flag.key))
        or f"{model_flag.flag}.{model_flag.key}" in flags
    )


def is_model_effective(flags: Mapping[str, Any], model_flag: ModelFlag) -> bool:
    """Return True if a second model would have an effect with these flags."""
    if not model_flag.key:
        return not model_flag.required_flag or flags.get(model_flag.required_flag) not in (None, False)
    return _parse_object(flags.get(model_flag.flag)) is not None or _is_dotted(flags, model_flag)


def with_model(flags: Mapping[str, Any], model_flag: ModelFlag, path: str) -> dict[str, Any]:
    """Return the flags with a second model; unchanged if it would have no effect."""
    if not is_model_effective(flags, model_flag):
        return dict(flags)
    if not model_flag.key:
        return {**flags, model_flag.flag: path}
    if _is_dotted(flags, model_flag):
        return {**flags, f"{model_flag.flag}.{model_flag.key}": path}
    return {**flags, model_flag.flag: {**(_parse_object(flags.get(model_flag.flag)) or {}), model_flag.key: path}}


def adapter_name(adapter_flags: AdapterFlags, served_name: str, name: str) -> str:
    """Return the model name for requests to an adapter; the served name if the adapter applies to every request."""
    return (
        f"{served_name}:{name}"
        if adapter_flags.prefixed_by_served_name
        else name
        if adapter_flags.selected_by_name
        else served_name
    )


def with_adapters(flags: Mapping[str, Any], adapter_flags: AdapterFlags, paths: Mapping[str, str]) -> dict[str, Any]:
    """Return the flags with adapters. paths: paths in the container, by adapter name."""
    if not paths:
        return dict(flags)
    enable = {adapter_flags.enabling_flag: True} if adapter_flags.enabling_flag else {}
    adapters = [f"{name}={path}" if adapter_flags.selected_by_name else path for name, path in paths.items()]
    return {**flags, **enable, adapter_flags.flag: adapters}


def _is_dotted(flags: Mapping[str, Any], model_flag: ModelFlag) -> bool:
    return model_flag.flag not in flags and any(name.startswith(f"{model_flag.flag}.") for name in flags)


def _parse_object(flag_value: Any) -> Mapping[str, Any] | None:
    """Return a flag's JSON object, which a recipe may write as a mapping or as text; None for any other value."""
    if isinstance(flag_value, str):
        try:
            flag_value = json.loads(flag_value)
        except (ValueError, RecursionError):
            return None
    return flag_value if isinstance(flag_value, Mapping) else None


def find_spelling(flags: Flags, spellings: Iterable[str], name: str) -> str:
    """Return the last spelling with this canonical name; "" if there is none."""
    return next((spelling for spelling in reversed(list(spellings)) if flags.canonical(spelling) == name), "")


def find_duplicate(flags: Flags, flag_names: Iterable[str]) -> tuple[str, str] | None:
    """Return two different spellings of the same flag; None if every flag has one spelling."""
    spellings: dict[str, str] = {}
    for spelling in flag_names:
        earlier_spelling = spellings.setdefault(flags.canonical(spelling), spelling)
        if earlier_spelling != spelling:
            return earlier_spelling, spelling
    return None


@dataclass(frozen=True)
class Command:
    """The model and the flags in a container's command."""

    #: as written in the command; empty if the command names no model
    model: str = ""
    flags: dict[str, Any] = field(default_factory=dict)


def option_value(command: Sequence[str], option: str) -> str:
    """Return the word after `--option` or `--option=`; the last one if the option is repeated, empty if it is missing."""
    last_value = ""
    for word, next_word in zip(command, [*command, ""][1:], strict=True):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == option:
            last_value = value if equals else next_word
    return last_value


def group_words(words: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each option of a command with its values; words before the first option have an empty name."""
    name, values = "", list[str]()
    for word in words:
        if word.startswith("--"):
            yield name, values
            name, equals, value = word.partition("=")
            values = [value] if equals else []
        else:
            values.append(word)
    yield name, values


def parse_word(word: str) -> Any:
    """Return the number, mapping or list that a word of a command contains as JSON, or the word itself."""
    try:
        parsed = json.loads(word)
    except (ValueError, RecursionError):
        return word
    return parsed if isinstance(parsed, int | float | dict | list) and not isinstance(parsed, bool) else word


def keep_words(words: Sequence[str]) -> list[str]:
    """Return the words unchanged: the default of `ImportTable.expand_short_options`."""
    return list(words)


@dataclass(frozen=True)
class ImportTable:
    """Data for importing command lines of one engine."""

    #: image of the release that the engine's tables describe
    image: str
    #: port on which the engine listens in that image
    container_port: int
    #: names of the engine's programs and images
    program_names: tuple[str, ...]
    #: command that starts the engine in an image without an entrypoint for it
    program: tuple[str, ...]
    #: the flag with the listen address
    host_flag: str
    #: flags with an API key
    key_flags: tuple[str, ...] = ()
    #: the flag for tensor parallelism over GPUs; "" if there is none
    tensor_flag: str = ""
    #: the flag for pipeline parallelism over GPUs; "" if there is none
    pipeline_flag: str = ""
    #: flags that configure how the hosts of a cluster find each other
    cluster_flags: tuple[str, ...] = ()
    #: flags that start more than one replica
    replica_flags: tuple[str, ...] = ()
    #: the flag with a hub repository, OWNER/NAME[:QUANTISATION]; "" if the model argument names the repository
    repository_flag: str = ""
    #: the flag with a file's name in that repository
    repository_file_flag: str = ""
    #: flags with the model's revision
    revision_flags: tuple[str, ...] = ()
    #: flags with the path of a file on the recipe author's machine
    file_flags: tuple[str, ...] = ()
    #: flags that name another model, each with the key of the name in the flag's JSON; "" if the flag takes the name itself
    further_model_flags: Mapping[str, str] = field(default_factory=dict)
    #: flags that control downloads
    download_flags: tuple[str, ...] = ()
    #: flags with a hub token
    token_flags: tuple[str, ...] = ()
    #: replaces the short options of a command with their long names
    expand_short_options: Callable[[Sequence[str]], list[str]] = keep_words
    #: the engine's parser accepts long options with a single dash
    accepts_single_dash: bool = False
    #: the flag with the model names for clients; "" if the server accepts any name
    served_name_flag: str = ""
