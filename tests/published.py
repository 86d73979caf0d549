"""What a command printed with --json, checked against the schema that docs/schemas has of it."""

import json
from typing import Any

import jsonschema
from referencing import Registry, Resource

from sparkwright.app import json_output

#: where both would be on a web server: the reference from one to the other is relative
BASE = "https://example.org/schemas"


def parsed(out: str) -> list[Any]:
    """One document, or one a line."""
    try:
        return [json.loads(out)]
    except ValueError:
        return [json.loads(line) for line in out.splitlines()]


def closed(schema: Any) -> Any:
    """Return the schema without fields that it does not name, except where it says that there may be some."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(part) for name, part in schema.items()}
    return {"additionalProperties": False, **found} if isinstance(schema.get("properties"), dict) else found


def refused(command: str, out: str) -> list[str]:
    """What the schema has against it; nothing printed is refused, too, and so is a field that no page tells of."""
    found = {**closed(json_output.command_schema(command)), "$id": f"{BASE}/json/{command}.json"}
    jsonschema.Draft202012Validator.check_schema(found)
    known = Registry().with_resource(f"{BASE}/events.json", Resource.from_contents(json_output.events_schema()))
    judge = jsonschema.Draft202012Validator(found, registry=known)
    rows = parsed(out)
    return [f"{error.json_path}: {error.message:.300}" for row in rows for error in judge.iter_errors(row)] or (
        [] if rows else ["nothing was printed"]
    )
