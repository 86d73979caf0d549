"""An option of `docker run`: its flag, its key in Docker's API, its values in a recipe, and how they are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from sparkwright.trust.shapes import Shape, optional

#: pairs of an option and its value on the command line; a switch has an empty value
OptionArguments = Iterable[tuple[str, str]]


#: shapes of the values in Docker's API
TEXT, TEXTS, NUMBER, BOOLEAN, TEXT_MAP = map(optional, (str, [str], int, bool, {str: str}))


def value_arguments(flag: str, value: Any) -> OptionArguments:
    """Return the arguments for a string, a number, a list or a mapping; empty if the value is empty."""
    if isinstance(value, dict):
        value = tuple(f"{key}={text}" for key, text in sorted(value.items()))
    values = value if isinstance(value, tuple) else (value,)
    return [(flag, f"{item:g}" if isinstance(item, float) else str(item)) for item in values if item]


def switch_arguments(flag: str, value: bool) -> OptionArguments:
    """Return the arguments of a switch that is off by default."""
    return [(f"{flag}=true", "")] if value else []


def tristate_arguments(flag: str, value: bool | None) -> OptionArguments:
    """Return the arguments of a switch; None is Docker's default."""
    return [] if value is None else [(f"{flag}={str(value).lower()}", "")]


def gpu_arguments(flag: str, value: str) -> OptionArguments:
    """Return the arguments for GPUs, with a list of GPUs in quotes because Docker would split it at commas."""
    return value_arguments(flag, f'"{value}"' if "," in value else value)


def health_arguments(flag: str, value: dict[str, str]) -> OptionArguments:
    """Return the arguments of a health check, or the argument that disables the image's health check."""
    if value.get("test") == "NONE":
        return [("--no-healthcheck=true", "")]
    suffix_by_name = {"test": "cmd", "start_period": "start-period"}
    return [(f"{flag}-{suffix_by_name.get(part, part)}", text) for part, text in value.items()]


def no_arguments(flag: str, value: Any) -> OptionArguments:
    """Return no arguments, for an option that older versions of `docker run` do not support. The script sets it differently."""
    return ()


@dataclass(frozen=True, slots=True)
class DockerOption:
    """An option of `docker run`, with its spelling in a recipe and in Docker's API."""

    #: flag of `docker run`
    flag: str
    #: key in `section` of the API; empty if the option is not a single value there
    key: str = ""
    #: description in the recipe's schema; empty if recipe/models.py describes the option
    description: str = ""
    section: Literal["HostConfig", "Config"] = "HostConfig"
    #: shape of the value in the API
    shape: Shape = TEXT
    #: returns the reason why a value (in a list, each item) is invalid, as a sentence; empty if it is valid
    check: Callable[[Any], str] = lambda text: ""
    #: converts the value to the API's format
    to_api: Callable[[Any], Any] = lambda value: list(value) if isinstance(value, tuple) else value
    #: normalizes the expected and the actual value (None if absent) for comparison
    normalize: Callable[[Any], Any] = lambda value: value
    #: True if an empty value is not compared; otherwise, it means Docker's default (in Config: the image's)
    ignored_if_empty: bool = False
    #: effect of the option, shown together with a difference
    effect: str = ""
    #: returns the arguments of `docker run`
    to_arguments: Callable[[str, Any], OptionArguments] = value_arguments


def option(flag: str, default: Any = "", **attributes: Any) -> Any:
    """Return a dataclass field for an option of `docker run`. default: a value, or `dict` for an empty mapping."""
    keyword = "default_factory" if default is dict else "default"
    return field(**{keyword: default}, metadata={"option": DockerOption(flag, **attributes)})
