"""An engine's command line: the flags of a recipe under their own names, and the resulting words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

#: role of a second model under the key `models` of a recipe
Role = Literal["draft", "tokenizer"]


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
    def MODEL_FLAGS(self) -> Mapping[Role, ModelFlag]:
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

    def named(self, written: Mapping[str, Any]) -> dict[str, Any]:
        """Return the flags under their own names, in their order; of two spellings of a flag the last wins."""

    def canonical(self, written: str) -> str:
        """Return a flag's own name."""

    def value(self, flags: Mapping[str, Any], name: str) -> Any:
        """Return the value of a flag; None if it is not set."""

    def misfit(self, flags: Mapping[str, Any], name: str) -> str:
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


def pin_it(role: Role, model_id: str) -> str:
    """Return the fix for a second model that an engine would download: a sentence without its end."""
    name = model_id.rpartition("/")[2].lower()
    return (
        f"take it out and name it in the recipe, `models: {{{role}: {{id: {model_id}, dir: ~/models/{name}, "
        f"mount: /models/{name}}}}}`: pinned, downloaded and mounted as the model is"
    )


def pin_adapter(name: str, model_id: str) -> str:
    """Return the fix for an adapter that an engine would download: a sentence without its end."""
    name = name or model_id.rpartition("/")[2].lower()
    return (
        f"take it out and name it in the recipe, `adapters: [{{id: {model_id}, name: {name}}}]`: pinned as the model is"
    )


def adapters_in(given: Any) -> Iterator[tuple[str, str]]:
    """Yield name and path of the adapters in a flag: NAME=PATH, a path, JSON with a path, or a mapping with one."""
    for entry in given if isinstance(given, list | tuple) else [given] if _object(given) else str(given or "").split():
        about = _object(entry)
        if about is None:
            name, mark, path = str(entry).partition("=")
            name, path = (name, path) if mark else ("", name)
        else:
            name, path = (str(about.get(key) or about.get(f"lora_{key}") or "") for key in ("name", "path"))
        if path:
            yield name, path


def names_model(flags: Mapping[str, Any], place: ModelFlag) -> bool:
    """Return True if these flags, under their own names, already name a model at this place."""
    if not place.key:
        return flags.get(place.flag) is not None
    return bool((_object(flags.get(place.flag)) or {}).get(place.key)) or f"{place.flag}.{place.key}" in flags


def takes_model(flags: Mapping[str, Any], place: ModelFlag) -> bool:
    """Return True if a model that is named at this place has an effect with these flags (under their own names)."""
    if not place.key:
        return not place.needs or flags.get(place.needs) not in (None, False)
    return _object(flags.get(place.flag)) is not None or _dotted(flags, place)


def with_model(flags: Mapping[str, Any], place: ModelFlag, path: str) -> dict[str, Any]:
    """Return the flags (under their own names) with a second model; unchanged if it would have no effect."""
    if not takes_model(flags, place):
        return dict(flags)
    if place.key and _dotted(flags, place):
        return {**flags, f"{place.flag}.{place.key}": path}
    return {**flags, place.flag: {**(_object(flags.get(place.flag)) or {}), place.key: path} if place.key else path}


def adapter_name(place: AdapterFlags, served_name: str, name: str) -> str:
    """Return the name of an adapter in requests; the served name for an engine that applies it to all of them."""
    return f"{served_name}:{name}" if place.prefixed else name if place.named else served_name


def with_adapters(flags: Mapping[str, Any], place: AdapterFlags, paths: Mapping[str, str]) -> dict[str, Any]:
    """Return the flags (under their own names) with adapters. paths: in the container, by adapter."""
    if not paths:
        return dict(flags)
    enable = {place.enable: True} if place.enable else {}
    given = [f"{name}={path}" if place.named else path for name, path in paths.items()]
    return {**flags, **enable, place.flag: given}


def _dotted(flags: Mapping[str, Any], place: ModelFlag) -> bool:
    return place.flag not in flags and any(name.startswith(f"{place.flag}.") for name in flags)


def _object(given: Any) -> Mapping[str, Any] | None:
    """Return the value of a flag that takes JSON, written as a mapping or as text; None for any other value."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            return None
    return given if isinstance(given, Mapping) else None


def spelling(flags: Flags, written: Iterable[str], name: str) -> str:
    """Return the spelling of a flag's own name among these; "" if it is not there."""
    return next((item for item in reversed(list(written)) if flags.canonical(item) == name), "")


def twice(flags: Flags, written: Iterable[str]) -> tuple[str, str] | None:
    """Return two spellings of one flag; None if there are none."""
    seen: dict[str, str] = {}
    for item in written:
        before = seen.setdefault(flags.canonical(item), item)
        if before != item:
            return before, item
    return None


@dataclass(frozen=True)
class Command:
    """The model and the flags in a container's command."""

    #: as it stands in the command; empty if the command names none
    model: str = ""
    flags: dict[str, Any] = field(default_factory=dict)


def value(command: Sequence[str], option: str) -> str:
    """Return the first value of an option, given as `--option value` or `--option=value`; of a repeated option the last counts.
    Empty for none."""
    found = ""
    for word, after in zip(command, [*command, ""][1:], strict=True):
        name, equals, text = word.partition("=")
        if name.replace("_", "-") == option:
            found = text if equals else after
    return found


def grouped_words(words: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
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


def plain_value(word: str) -> Any:
    """Return a word of a command as the number, the mapping or the list that it holds, else as text."""
    try:
        found = json.loads(word)
    except (ValueError, RecursionError):
        return word
    return found if isinstance(found, int | float | dict | list) and not isinstance(found, bool) else word


def as_they_are(words: Sequence[str]) -> list[str]:
    """Return the words unchanged, for an engine without short options that its command reader would miss."""
    return list(words)


@dataclass(frozen=True)
class Imports:
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
    spelled_out: Callable[[Sequence[str]], list[str]] = as_they_are
    #: its parser accepts long options with one dash
    one_dash: bool = False
    #: the flag with the model names for clients; "" if the server answers to any name
    served_name: str = ""
