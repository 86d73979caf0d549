"""Output of commands with --json, checked against the schemas of docs/schemas."""

import json
from typing import Any

import jsonschema
from referencing import Registry, Resource

from sparkwright.app import json_output

#: base URL of all schemas, whose references are relative
BASE = "https://example.org/schemas"


def parse_output(out: str) -> list[Any]:
    """Parse one JSON document, or one per line."""
    try:
        return [json.loads(out)]
    except ValueError:
        return [json.loads(line) for line in out.splitlines()]


def forbid_unknown_fields(schema: Any) -> Any:
    """Return the schema with additional fields forbidden, except where it allows them explicitly."""
    if isinstance(schema, list):
        return [forbid_unknown_fields(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {name: forbid_unknown_fields(part) for name, part in schema.items()}
    return {"additionalProperties": False, **strict} if isinstance(schema.get("properties"), dict) else strict


def check_output(command: str, out: str) -> list[str]:
    """Return the violations of the command's schema. Empty output and undocumented fields are violations, too."""
    schema = {**forbid_unknown_fields(json_output.command_schema(command)), "$id": f"{BASE}/json/{command}.json"}
    jsonschema.Draft202012Validator.check_schema(schema)
    registry = Registry().with_resource(f"{BASE}/events.json", Resource.from_contents(json_output.events_schema()))
    validator = jsonschema.Draft202012Validator(schema, registry=registry)
    rows = parse_output(out)
    return [f"{error.json_path}: {error.message:.300}" for row in rows for error in validator.iter_errors(row)] or (
        [] if rows else ["nothing was printed"]
    )
