"""A module's documentation, from its docstring and its arguments: `invoke docs.module NAME`, and docs/modules/*.md."""

from __future__ import annotations

import dataclasses
import inspect
import json
from typing import Any

from sparkwright.errors import Refused
from sparkwright.modules import registry
from sparkwright.project.documents.validation import nearest
from sparkwright.protocol import signature
from sparkwright.protocol.signature import Argument, Wanted


def index() -> str:
    """Return every module with its first sentence."""
    width = max(map(len, registry.NAMES))
    texts = {
        name: " ".join((inspect.getdoc(registry.load(name)) or "").split("\n\n")[0].split()) for name in registry.NAMES
    }
    return "\n".join(f"{name:<{width}}  {text.split('. ')[0].rstrip('.')}." for name, text in texts.items())


def module(name: str) -> str:
    """Return the documentation of a module as markdown. Raises Refused, with the nearest name, for an unknown one."""
    try:
        kind = registry.load(name)
    except KeyError:
        raise Refused(f"no module is called {name!r}.", fix=nearest(name, registry.NAMES)) from None
    named = zip(signature.of(kind.Args).items(), dataclasses.fields(kind.Args), strict=True)
    rows = [_row(argument, takes, field) for (argument, takes), field in named]
    head = ["| argument | type | default | meaning |", "|---|---|---|---|"] if rows else ["It takes no arguments."]
    return "\n".join([f"# {name}", "", inspect.getdoc(kind) or "", "", *head, *rows, ""])


def _row(name: str, takes: Argument, field: dataclasses.Field[Any]) -> str:
    default = "required" if takes.required else f"`{_default(field)}`"
    return f"| `{name}` | {_type(takes.wanted)} | {default} | {takes.doc} |"


def _default(field: dataclasses.Field[Any]) -> str:
    """Return a default value in YAML."""
    factory: Any = field.default_factory
    value = field.default if field.default is not dataclasses.MISSING else factory()
    return json.dumps(value) if value in (None, "") or isinstance(value, bool) else str(value)


def _type(wanted: Wanted) -> str:
    kind, *of = wanted
    if kind == "one of":
        return " or ".join(f"`{value}`" for value in of[0])
    if kind == "or":
        return " or ".join(_type(item) for item in of[0] if item != ["null"])
    return f"list of {_type(of[0])}" if kind == "list" else kind
