"""A module's documentation, from its docstring and its arguments: `invoke docs.module NAME`, and docs/modules/*.md."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from typing import Any

from sparkwright.errors import Refused
from sparkwright.modules import registry
from sparkwright.project.documents.checked import nearest
from sparkwright.protocol.signature import spelled


def index() -> str:
    """Every module with its first sentence."""
    width = max(map(len, registry.NAMES))
    return "\n".join(f"{name:<{width}}  {_first_sentence(registry.load(name))}" for name in registry.NAMES)


def module(name: str) -> str:
    """One module as markdown. Raises Refused for an unknown name, with the nearest."""
    try:
        kind = registry.load(name)
    except KeyError:
        raise Refused(f"no module is called {name!r}.", fix=nearest(name, registry.NAMES)) from None
    rows = [_row(field, typing.get_type_hints(kind.Args)[field.name]) for field in dataclasses.fields(kind.Args)]
    table = (
        ["| argument | type | default | meaning |", "|---|---|---|---|", *rows] if rows else ["It takes no arguments."]
    )
    return "\n".join([f"# {name}", "", inspect.getdoc(kind) or "", "", *table, ""])


def _first_sentence(kind: type[Any]) -> str:
    return " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split()).split(". ")[0].rstrip(".") + "."


def _row(field: dataclasses.Field[Any], hint: Any) -> str:
    required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    default = "required" if required else f"`{_default(field)}`"
    return f"| `{spelled(field.name)}` | {_type(hint)} | {default} | {field.metadata.get('doc', '')} |"


def _default(field: dataclasses.Field[Any]) -> str:
    factory: Any = field.default_factory
    value = field.default if field.default is not dataclasses.MISSING else factory()
    return (
        {None: "null", True: "true", False: "false", "": '""'}.get(value, str(value)) if _simple(value) else str(value)
    )


def _simple(value: Any) -> bool:
    return value is None or isinstance(value, bool | str)


def _type(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(f"`{value}`" for value in typing.get_args(hint))
    names = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    parts = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin is list:
        return f"list of {_type(parts[0])}"
    if origin is dict:
        return "mapping"
    if parts:
        return " or ".join(_type(part) for part in parts if part is not type(None))
    return names.get(hint, str(hint))
