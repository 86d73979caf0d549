"""One option of `docker run`: its flag, its name in the engine, its values in a recipe, and how they are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from sparkwright.trust.shapes import Shape, optional

#: options and their values as `docker run` takes them; a switch includes its value in the option
OptionArguments = Iterable[tuple[str, str]]


#: shapes of the engine's values
TEXT, TEXTS, NUMBER, BOOLEAN, TEXT_MAP = map(optional, (str, [str], int, bool, {str: str}))


def value_arguments(flag: str, value: Any) -> OptionArguments:
    """Return the arguments for a text, a number, a list or a mapping; none for the empty value."""
    if isinstance(value, dict):
        value = tuple(f"{key}={text}" for key, text in sorted(value.items()))
    values = value if isinstance(value, tuple) else (value,)
    return [(flag, f"{item:g}" if isinstance(item, float) else str(item)) for item in values if item]


def switch_arguments(flag: str, value: bool) -> OptionArguments:
    """Return the arguments of a switch: on, or none."""
    return [(f"{flag}=true", "")] if value else []


def tristate_arguments(flag: str, value: bool | None) -> OptionArguments:
    """Return the arguments of a switch: on, off, or none for the engine's default (None)."""
    return [] if value is None else [(f"{flag}={str(value).lower()}", "")]


def gpu_arguments(flag: str, value: str) -> OptionArguments:
    """Return the arguments for GPUs: Docker splits a list of GPUs that is not in quotes."""
    return value_arguments(flag, f'"{value}"' if "," in value else value)


def health_arguments(flag: str, value: dict[str, str]) -> OptionArguments:
    """Return the arguments of a health check: one for each of its parts, and one to disable the image's."""
    if value.get("test") == "NONE":
        return [("--no-healthcheck=true", "")]
    names = {"test": "cmd", "start_period": "start-period"}
    return [(f"{flag}-{names.get(part, part)}", text) for part, text in value.items()]


def no_arguments(flag: str, value: Any) -> OptionArguments:
    """Return nothing: not every engine's `docker run` has the option, so the script sets it otherwise."""
    return ()


@dataclass(frozen=True, slots=True)
class DockerOption:
    """An option of `docker run`, with its spelling in a recipe and in the engine."""

    #: its flag for `docker run`
    flag: str
    #: its name in the engine's HostConfig or Config, see section; empty if no single value there is this option's
    key: str = ""
    #: its description in the recipe's schema; empty for one that recipe/models.py describes
    about: str = ""
    section: Literal["HostConfig", "Config"] = "HostConfig"
    #: the shape of the engine's value
    shape: Shape = TEXT
    #: why a value is refused (of a list: each item), in a sentence; empty if it is valid
    why_not: Callable[[Any], str] = lambda text: ""
    #: converts the value for the engine
    to_engine: Callable[[Any], Any] = lambda value: list(value) if isinstance(value, tuple) else value
    #: normalizes a wanted and a found value (None: none) so that they can be compared
    normalize: Callable[[Any], Any] = lambda value: value
    #: an empty value is not compared; otherwise it means the engine's own value (of Config: the image's)
    open: bool = False
    #: what a difference means
    why: str = ""
    #: the arguments of `docker run`
    to_arguments: Callable[[str, Any], OptionArguments] = value_arguments


def option(flag: str, default: Any = "", **attributes: Any) -> Any:
    """Return a field that is an option of `docker run`, unset by the empty value. default: a value, or `dict`."""
    keyword = "default_factory" if default is dict else "default"
    return field(**{keyword: default}, metadata={"option": DockerOption(flag, **attributes)})
