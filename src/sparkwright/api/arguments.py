"""Checks of the arguments that a program passes to the API, by the type hints of its methods."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

_TYPE_NAMES: Mapping[type, str] = {
    str: "a string",
    Path: "a Path",
    bool: "True or False",
    int: "an integer",
    float: "a number",
}


def check_arguments(method: Callable[..., Any], arguments: tuple[Any, ...], options: Mapping[str, Any]) -> None:
    """Raise TypeError if an argument does not have the type of its hint, or an option of a run is unknown.

    Args:
        method: a method with hints that are types of `_TYPE_NAMES`, or `**options: Unpack[...]` of a TypedDict with such.
        arguments: its positional arguments, with `self`.
        options: its keyword arguments.
    """
    hints = get_type_hints(method)
    passed = inspect.signature(method).bind(*arguments, **options).arguments
    for options_type in get_args(hints.get("options")):
        hints.update(get_type_hints(options_type))
        passed.update(passed.pop("options", {}))
    if unknown := passed.keys() - hints.keys() - {"self"}:
        raise TypeError(f"no such option: {', '.join(sorted(unknown))}")
    for name, value in passed.items():
        if name != "self":
            check_type(name, value, *get_args(hints[name]) or (hints[name],))


def check_type(name: str, value: object, *types: type) -> None:
    """Raise TypeError unless an argument has one of the types. An int is a valid float; a bool is not a valid number."""
    accepted = (*types, int) if float in types else types
    if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in types):
        expected = " or ".join(_TYPE_NAMES[expected_type] for expected_type in types)
        raise TypeError(f"`{name}` must be {expected}, got {reprlib.repr(value)} ({type(value).__name__}).")
