"""JSON Schemas of each kind of file, for editors, and of the output of --json; tables of keys for the documentation."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, TypeAdapter

from sparkwright.app import json_output
from sparkwright.bench.results_file import Results
from sparkwright.errors import Refused
from sparkwright.project.documents.validation import nearest
from sparkwright.project.inventory.models import GroupFile, HostFile
from sparkwright.project.lockfile import LockFile
from sparkwright.project.playbook.playbook import BlockFile, IncludeFile, PlayFile, TaskFile
from sparkwright.project.recipe.models import RecipeFile
from sparkwright.project.registries import RegistryFile

EVENTS = "events"
PRINTED = {f"json/{command}": command for command in json_output.COMMANDS}
KINDS: dict[str, Any] = {
    "groups": dict[str, GroupFile | None],
    "host": HostFile,
    "lock": LockFile,
    "playbook": list[PlayFile],
    "recipe": RecipeFile,
    "registries": dict[str, RegistryFile],
    "results": Results,
    "tasks": list[BlockFile | IncludeFile | TaskFile],
}


def schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of a kind of file, of an event (`events`), or of a command's --json output (`json/COMMAND`).

    Raises Refused for an unknown kind.
    """
    if kind == EVENTS:
        return json_output.events_schema()
    if kind in PRINTED:
        return json_output.schema_of(PRINTED[kind])
    if kind not in KINDS:
        raise Refused(f"no kind of file is called {kind!r}.", fix=nearest(kind, [*KINDS, EVENTS, *PRINTED]))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"sparkwright {kind}",
        **TypeAdapter(KINDS[kind]).json_schema(),
    }


def table(model: type[BaseModel]) -> str:
    """Return a model's keys as a markdown table."""
    rows = ["| key | default | meaning |", "|---|---|---|"]
    for name, field in model.model_fields.items():
        default = "required" if field.is_required() else f"`{_shown(field.get_default(call_default_factory=True))}`"
        rows.append(f"| `{field.alias or name}` | {default} | {field.description or ''} |")
    return "\n".join(rows)


def _shown(value: Any) -> str:
    if value in (None, "") or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, tuple):
        value = list(value)
    return str(value.model_dump() if isinstance(value, BaseModel) else value)
