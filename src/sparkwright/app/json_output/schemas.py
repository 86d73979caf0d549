"""The published JSON Schemas of `--json`: docs/schemas/events.json and docs/schemas/json/COMMAND.json."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter

from sparkwright.app.json_output.answers import ANSWERS, ERROR, EVENTS, MEASURES, RUNS, Printed
from sparkwright.bench.results_file import Results
from sparkwright.console.status_row import Row
from sparkwright.protocol import event_reader
from sparkwright.protocol.events import SCHEMA
from sparkwright.trust import shapes
from sparkwright.trust.shapes import Shape, Usual

DIALECT = "https://json-schema.org/draft/2020-12/schema"
#: version of the commands' output, increased when a field is removed or changes its meaning; for events see
#: `protocol.events.SCHEMA`
VERSION = 1
#: output that is defined by a type
TYPED: dict[str, tuple[str, Any]] = {
    "status": ("lines", Row),
    **dict.fromkeys(("bench.report", "bench.import"), ("document", Results)),
    **dict.fromkeys(MEASURES, ("lines", Results)),
}
COMMANDS = tuple(sorted({*RUNS, *ANSWERS, *TYPED}))
#: reference from a command's schema to the schema of events
AN_EVENT = {"$ref": "../events.json"}


def events() -> Schema:
    """Return the JSON Schema of an event of any kind. Every kind may have further fields."""
    kinds = {kind: _event(kind) for kind in sorted(EVENTS)}
    return {
        "$schema": DIALECT,
        "title": "sparkwright event",
        "description": f"One line of a command that runs something. Schema {SCHEMA}, as `run_started` says.",
        "version": SCHEMA,
        "anyOf": [{"$ref": f"#/$defs/{kind}"} for kind in kinds],
        "$defs": kinds,
    }


def of(command: str) -> Schema:
    """Return the JSON Schema of a command's --json output: of one line or of the document, as `form` says.

    Raises KeyError for an unknown command.
    """
    head = {"$schema": DIALECT, "title": f"sparkwright {command} --json", "version": VERSION}
    if command in RUNS:
        return {**head, "form": "lines", "description": "An event a line.", **AN_EVENT}
    if command in TYPED:
        form, kind = TYPED[command]
        found = TypeAdapter(kind).json_schema(mode="serialization", ref_template="#/$defs/{model}")
        parts = found.pop("$defs", {})
        found.get("properties", {}).pop("error", None)  # a row with an error is an ERROR
        either = [found, schema(ERROR), *([AN_EVENT] if command in MEASURES else [])]
        return {**head, "form": form, "anyOf": either, **({"$defs": parts} if parts else {})}
    printed: Printed = ANSWERS[command]
    found = schema(printed.shape)
    error = schema(ERROR)
    either = [{**found, "items": {"anyOf": [found["items"], error]}}] if "items" in found else [found]
    events = [AN_EVENT] if printed.events else []
    return {**head, "form": printed.form, "description": f"{printed.about}.", "anyOf": [*either, error, *events]}


def _event(kind: str) -> Schema:
    found = schema({"event": frozenset((kind,)), "time": float, "host": str, **EVENTS[kind]})
    if kind == "recap":
        found["properties"]["error"] = {"type": "string", "description": "of a host that did not end well"}
    return found


Schema = dict[str, Any]

TYPES: Mapping[Any, str] = {
    None: "null",
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
}
#: functions that check integers, and names of functions that check numbers; all others check texts
COUNTS: tuple[Callable[..., Any], ...] = (event_reader.exit_code, shapes.integer)
NUMBERS = ("within",)


def schema(shape: Shape) -> Schema:
    """Return the JSON Schema of a shape whose defaults are filled in: a Usual field with a value is always present."""
    if isinstance(shape, dict):
        return _object(shape)
    if isinstance(shape, list):
        return {"type": "array", "items": schema(shape[0])}
    if isinstance(shape, tuple):
        return {"anyOf": [schema(item) for item in shape]}
    if isinstance(shape, frozenset):
        return {"enum": sorted(shape)}
    if isinstance(shape, re.Pattern):
        return {"type": "string"}
    if shape is object:
        return {}
    if shape in TYPES:
        return {"type": TYPES[shape]}
    return {"type": _of_function(shape)}


def _object(shape: Mapping[Any, Shape]) -> Schema:
    for names in (str, shapes.text):
        if names in shape:
            return {"type": "object", "additionalProperties": schema(shape[names])}
    fields = {name: value.shape if isinstance(value, Usual) else value for name, value in shape.items()}
    needed = [name for name, value in shape.items() if not isinstance(value, Usual) or value.value is not shapes.ABSENT]
    return {"type": "object", "properties": {name: schema(field) for name, field in fields.items()}, "required": needed}


def _of_function(check: Callable[..., Any]) -> str:
    if check in COUNTS:
        return "integer"
    return "number" if check.__qualname__.split(".")[0] in NUMBERS else "string"
