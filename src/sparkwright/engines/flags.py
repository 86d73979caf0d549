"""An engine's command line: the flags of a recipe under their own names, and the resulting words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

#: role of a second model under the key `models` of a recipe
ModelRole = Literal["draft", "tokenizer"]


@dataclass(frozen=True, slots=True)
class ModelFlag:
    """The flag that names a second model by its path in the container."""

    flag: str
    key: str = ""  #: key in the flag's JSON; "" if the flag takes the path itself
    needs: str = ""  #: flag without which this one has no effect; "" for none


@dataclass(frozen=True, slots=True)
class AdapterFlags:
    """The flags by which an engine is given LoRA adapters, under their own names."""

    flag: str  #: takes them: NAME=PATH each, or, of an engine that knows no names of adapters, a path
    enable: str = ""  #: switch without which `flag` has no effect
    named: bool = True  #: requests name an adapter; else every request gets it
    prefixed: bool = False  #: requests name it SERVED NAME:ADAPTER
    instead: tuple[str, ...] = ()  #: further flags that a recipe must not set together with `adapters`
    max_rank: str = ""  #: flag with the largest rank
    usual_rank: int = 0  #: default of that flag; 0: the engine takes it from the adapters
    ranks: tuple[int, ...] = ()  #: values that the flag allows; empty for all
    at_once: str = ""  #: flag with the number of adapters in one batch
    usual_at_once: int = 0  #: default of that flag
    base_counts: bool = False  #: requests without an adapter take one of these places
    refused: tuple[str, ...] = ()  #: keys of adapter_config.json that the engine refuses if they are set
    source: str = ""  #: where this is documented


class Flags(Protocol):
    """The meaning of a recipe's section of flags to one engine.

    Methods take flags as `named` returns them, unless stated otherwise.
    """

    @property
    def ENTRYPOINT(self) -> tuple[str, ...] | None:
        """The program that the container runs; None for the image's own."""

    @property
    def PORT(self) -> str:
        """The flag with the port on which the server listens."""

    @property
    def MEMORY(self) -> str:
        """The flag with the share of memory that the server takes; "" if there is none."""

    @property
    def BUDGET(self) -> str:
        """The flag with the tokens per step; "" if there is none."""

    @property
    def SET_BY(self) -> Mapping[str, str]:
        """Flags that a recipe must not set, each with the recipe key that sets it."""

    @property
    def MODEL_FLAGS(self) -> Mapping[ModelRole, ModelFlag]:
        """The second models that the engine serves with."""

    @property
    def ADAPTERS(self) -> AdapterFlags | None:
        """The flags for LoRA adapters; None if the engine serves none."""

    @property
    def TEMPLATES(self) -> tuple[str, ...]:
        """The flags that set another chat template than the model's."""

    @property
    def SAMPLING(self) -> tuple[str, ...] | None:
        """The flags that set the sampling of requests without their own, the one that takes its values first; None if the engine
        reads them from the model's file, and warns of nothing."""

    def normalize(self, written: Mapping[str, Any]) -> dict[str, Any]:
        """Return the flags under their own names, in their order; of two spellings of a flag the last wins."""

    def canonical(self, written: str) -> str:
        """Return a flag's own name."""

    def value(self, flags: Mapping[str, Any], name: str) -> Any:
        """Return the value of a flag; None if it is not set."""

    def find_value_problem(self, flags: Mapping[str, Any], name: str) -> str:
        """Return why a flag's value is invalid, as "must be at least 1, got -3"; "" if nothing is known against it."""

    def argv(self, flags: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the words of these flags, in their order."""

    def command(self, model: str, flags: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the words after the image. model: its path in the container."""

    def served_name(self, flags: Mapping[str, Any], model: str) -> str:
        """Return the model name for requests. model: as for `command`."""

    def served_names(self, flags: Mapping[str, Any], model: str) -> tuple[str, ...]:
        """Return every name that requests may use, the served name first. model: as for `command`."""

    def port(self, flags: Mapping[str, Any]) -> int:
        """Return the port on which the server listens in its container."""

    def context(self, flags: Mapping[str, Any]) -> int | None:
        """Return the longest sequence that the flags set, in tokens; None if they set none."""

    def properties(self) -> dict[str, Any]:
        """Return the known flags as the properties of a JSON Schema."""


def pin_model_fix(role: ModelRole, model_id: str) -> str:
    """Return the fix for a second model that an engine would download: a sentence without its end."""
    name = model_id.rpartition("/")[2].lower()
    return (
        f"take it out and name it in the recipe, `models: {{{role}: {{id: {model_id}, dir: ~/models/{name}, "
        f"mount: /models/{name}}}}}`: pinned, downloaded and mounted as the model is"
    )


def pin_adapter_fix(name: str, model_id: str) -> str:
    """Return the fix for an adapter that an engine would download: a sentence without its end."""
    name = name or model_id.rpartition("/")[2].lower()
    return (
        f"take it out and name it in the recipe, `adapters: [{{id: {model_id}, name: {name}}}]`: pinned as the model is"
    )


def parse_adapters(flag_value: Any) -> Iterator[tuple[str, str]]:
    """Yield name and path of the adapters in a flag: NAME=PATH, a path, JSON with a path, or a mapping with one."""
    for entry in (
        flag_value
        if isinstance(flag_value, list | tuple)
        else [flag_value]
        if _parse_object(flag_value)
        else str(flag_value or "").split()
    ):
        fields = _parse_object(entry)
        if fields is None:
            name, equals, path = str(entry).partition("=")
            name, path = (name, path) if equals else ("", name)
        else:
            name, path = (str(fields.get(key) or fields.get(f"lora_{key}") or "") for key in ("name", "path"))
        if path:
            yield name, path


def has_model(flags: Mapping[str, Any], model_flag: ModelFlag) -> bool:
    """Return True if these flags, under their own names, already name a model at this place."""
    if not model_flag.key:
        return flags.get(model_flag.flag) is not None
    return (
        bool((_parse_object(flags.get(model_flag.flag)) or {}).get(model_flag.key))
        or f"{model_flag.flag}.{model_flag.key}" in flags
    )


def is_model_effective(flags: Mapping[str, Any], model_flag: ModelFlag) -> bool:
    """Return True if a model that is named at this place has an effect with these flags (under their own names)."""
    if not model_flag.key:
        return not model_flag.needs or flags.get(model_flag.needs) not in (None, False)
    return _parse_object(flags.get(model_flag.flag)) is not None or _is_dotted(flags, model_flag)


def with_model(flags: Mapping[str, Any], model_flag: ModelFlag, path: str) -> dict[str, Any]:
    """Return the flags (under their own names) with a second model; unchanged if it would have no effect."""
    if not is_model_effective(flags, model_flag):
        return dict(flags)
    if model_flag.key and _is_dotted(flags, model_flag):
        return {**flags, f"{model_flag.flag}.{model_flag.key}": path}
    return {
        **flags,
        model_flag.flag: {**(_parse_object(flags.get(model_flag.flag)) or {}), model_flag.key: path}
        if model_flag.key
        else path,
    }


def adapter_name(adapter_flags: AdapterFlags, served_name: str, name: str) -> str:
    """Return the name of an adapter in requests; the served name for an engine that applies it to all of them."""
    return f"{served_name}:{name}" if adapter_flags.prefixed else name if adapter_flags.named else served_name


def with_adapters(flags: Mapping[str, Any], adapter_flags: AdapterFlags, paths: Mapping[str, str]) -> dict[str, Any]:
    """Return the flags (under their own names) with adapters. paths: in the container, by adapter."""
    if not paths:
        return dict(flags)
    enable = {adapter_flags.enable: True} if adapter_flags.enable else {}
    adapters = [f"{name}={path}" if adapter_flags.named else path for name, path in paths.items()]
    return {**flags, **enable, adapter_flags.flag: adapters}


def _is_dotted(flags: Mapping[str, Any], model_flag: ModelFlag) -> bool:
    return model_flag.flag not in flags and any(name.startswith(f"{model_flag.flag}.") for name in flags)


def _parse_object(flag_value: Any) -> Mapping[str, Any] | None:
    """Return the value of a flag that takes JSON, written as a mapping or as text; None for any other value."""
    if isinstance(flag_value, str):
        try:
            flag_value = json.loads(flag_value)
        except (ValueError, RecursionError):
            return None
    return flag_value if isinstance(flag_value, Mapping) else None


def find_spelling(flags: Flags, written: Iterable[str], name: str) -> str:
    """Return the spelling of a flag's own name among these; "" if it is not there."""
    return next((item for item in reversed(list(written)) if flags.canonical(item) == name), "")


def find_duplicate(flags: Flags, written: Iterable[str]) -> tuple[str, str] | None:
    """Return two spellings of one flag; None if there are none."""
    spellings: dict[str, str] = {}
    for item in written:
        before = spellings.setdefault(flags.canonical(item), item)
        if before != item:
            return before, item
    return None


@dataclass(frozen=True)
class Command:
    """The model and the flags in a container's command."""

    #: as it stands in the command; empty if the command names none
    model: str = ""
    flags: dict[str, Any] = field(default_factory=dict)


def option_value(command: Sequence[str], option: str) -> str:
    """Return the first value of an option, given as `--option value` or `--option=value`; of a repeated option the last counts.
    Empty for none."""
    last_value = ""
    for word, next_word in zip(command, [*command, ""][1:], strict=True):
        name, equals, text = word.partition("=")
        if name.replace("_", "-") == option:
            last_value = text if equals else next_word
    return last_value


def group_words(words: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each option of a command with the words after it; words before the first option have an empty name."""
    name, values = "", list[str]()
    for word in words:
        if word.startswith("--"):
            yield name, values
            name, equals, text = word.partition("=")
            values = [text] if equals else []
        else:
            values.append(word)
    yield name, values


def parse_word(word: str) -> Any:
    """Return a word of a command as the number, the mapping or the list that it holds, else as text."""
    try:
        parsed = json.loads(word)
    except (ValueError, RecursionError):
        return word
    return parsed if isinstance(parsed, int | float | dict | list) and not isinstance(parsed, bool) else word


def keep_words(words: Sequence[str]) -> list[str]:
    """Return the words unchanged, for an engine without short options that its command reader would miss."""
    return list(words)


@dataclass(frozen=True)
class ImportTable:
    """Data to convert other people's command lines of one engine. Flags are under their own names, without dashes."""

    #: image of the release that the engine's tables describe
    image: str
    #: port on which the engine listens in that image
    port_inside: int
    #: names of its programs and images
    names: tuple[str, ...]
    #: words that start the engine where an image does not
    program: tuple[str, ...]
    #: the flag with the address
    host: str
    #: flags with an API key
    key: tuple[str, ...] = ()
    #: the flag for tensor parallelism over GPUs; "" for none
    tensor: str = ""
    #: the flag for pipeline parallelism over GPUs; "" for none
    pipeline: str = ""
    #: flags that only say how the hosts of a group find each other
    backends: tuple[str, ...] = ()
    #: flags that start more than one copy
    replicas: tuple[str, ...] = ()
    #: the flag that names a repository of the hub, as OWNER/NAME[:QUANTISATION]; "" if the model argument itself does
    repository: str = ""
    #: the flag that names a file in that repository
    repository_file: str = ""
    #: flags with the model's revision
    revisions: tuple[str, ...] = ()
    #: flags that name a file on the recipe author's machine
    files: tuple[str, ...] = ()
    #: flags that name another model, each with the key of its JSON that does; "" if the flag takes the name itself
    further_models: Mapping[str, str] = field(default_factory=dict)
    #: flags about downloading, each with its replacement in sparkwright
    downloads: tuple[str, ...] = ()
    #: flags that carry a token of the hub
    tokens: tuple[str, ...] = ()
    #: replaces the short options of a command with their long names
    spelled_out: Callable[[Sequence[str]], list[str]] = keep_words
    #: its parser accepts long options with one dash
    one_dash: bool = False
    #: the flag with the model names for clients; "" if the server answers to any name
    served_name: str = ""
