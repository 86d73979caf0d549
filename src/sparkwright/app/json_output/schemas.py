"""The published JSON Schemas of `--json`: docs/schemas/events.json and docs/schemas/json/COMMAND.json."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from sparkwright.app.json_output.answers import ANSWERS, ERROR, EVENTS, MEASURES, RUNS, Printed
from sparkwright.app.json_output.shape_schema import Schema, schema
from sparkwright.bench.results_models import Results
from sparkwright.console.status_row import Row
from sparkwright.protocol.events import SCHEMA

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
