"""One option of `docker run`: its word there, its name in the engine, what a recipe may write, how both are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

#: options and their values as `docker run` takes them; a switch has its value in its own word
Words = Iterable[tuple[str, str]]


def plain(flag: str, value: Any) -> Words:
    """A text, a number, a list or a mapping; the empty value says nothing."""
    if isinstance(value, dict):
        value = tuple(f"{key}={text}" for key, text in sorted(value.items()))
    values = value if isinstance(value, tuple) else (value,)
    return [(flag, f"{item:g}" if isinstance(item, float) else str(item)) for item in values if item]


def switch(flag: str, value: bool) -> Words:
    """On, or not said."""
    return [(f"{flag}=true", "")] if value else []


def either(flag: str, value: bool | None) -> Words:
    """On, off, or left to the engine (None)."""
    return [] if value is None else [(f"{flag}={str(value).lower()}", "")]


def gpu_words(flag: str, value: str) -> Words:
    """Docker splits a list of GPUs that is not in quotes."""
    return plain(flag, f'"{value}"' if "," in value else value)


def health_words(flag: str, value: dict[str, str]) -> Words:
    """A health check has an option for each of its parts, and one that turns off the image's."""
    if value.get("test") == "NONE":
        return [("--no-healthcheck=true", "")]
    names = {"test": "cmd", "start_period": "start-period"}
    return [(f"{flag}-{names.get(part, part)}", text) for part, text in value.items()]


def no_words(flag: str, value: Any) -> Words:
    """Not an option of `docker run` on every engine; the script says it otherwise."""
    return ()


@dataclass(frozen=True, slots=True)
class DockerOption:
    """flag: its word for `docker run`. key: its name in the engine's HostConfig or Config, see section; empty for one with rules
    of its own, in host/containers/option_table.py. about: for the recipe's schema; empty for one that recipe/models.py has.

    why_not: why a value is refused (of a list: each), in a sentence; empty when it is not. kept: as the engine is told it. alike:
    brings what is asked for and what is found (None: nothing is) into one spelling. open: empty, it is not compared; else the
    engine's own value is wanted then (of Config: the image's). why: what a difference means. words: as `docker run` takes it.
    """

    flag: str
    key: str = ""
    about: str = ""
    section: Literal["HostConfig", "Config"] = "HostConfig"
    why_not: Callable[[Any], str] = lambda text: ""
    kept: Callable[[Any], Any] = lambda value: list(value) if isinstance(value, tuple) else value
    alike: Callable[[Any], Any] = lambda value: value
    open: bool = False
    why: str = ""
    words: Callable[[str, Any], Words] = plain


def option(flag: str, default: Any = "", **more: Any) -> Any:
    """A field that is an option of `docker run`; the empty value asks for nothing. default: a value, or `dict`."""
    way = "default_factory" if default is dict else "default"
    return field(**{way: default}, metadata={"option": DockerOption(flag, **more)})
