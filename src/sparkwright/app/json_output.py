"""The format of each command's --json output, and the JSON Schemas for it and for each kind of file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from sparkwright.app.json_schema import Schema, shape_schema
from sparkwright.app.queries import host_requests
from sparkwright.bench.results_file import Results
from sparkwright.console.rows import Diagnosis, HostInfo, HostStatus
from sparkwright.engines.budget import BUDGET_JSON_SHAPE
from sparkwright.errors import Refused
from sparkwright.project.documents.validation import suggest_name
from sparkwright.project.inventory.models import GroupFile, HostFile
from sparkwright.project.lockfile import LockFile
from sparkwright.project.playbook.playbook import BlockFile, IncludeFile, PlayFile, TaskFile
from sparkwright.project.recipe.models import RecipeFile
from sparkwright.project.registries import RegistryFile
from sparkwright.protocol.event_shapes import COUNT, exit_code
from sparkwright.protocol.event_shapes import EVENT_FIELDS as HOST_EVENTS
from sparkwright.protocol.events import RARE_COUNTS, SCHEMA
from sparkwright.trust.shapes import OptionalField, Shape, line, moment, number

JSON_SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"
#: version of the commands' output, increased when a field is removed or changes its meaning; for events see
#: `protocol.events.SCHEMA`
OUTPUT_VERSION = 1
TEXT_LIST = [line]
OPTIONAL_NUMBER = (None, number)
#: fields of `recap` and `host_finished`
RECAP_FIELDS = {name: value for name, value in HOST_EVENTS["recap"].items() if name not in RARE_COUNTS}

#: the laptop's own events about the whole fleet
FLEET_EVENTS: dict[str, dict[str, Shape]] = {
    "play_started": {"play": line, "hosts": TEXT_LIST},
    "batch_started": {"n": COUNT, "hosts": TEXT_LIST, "left": COUNT, "canary": bool},
    "looking": {"hosts": TEXT_LIST},
    "waiting": {},
    "host_finished": RECAP_FIELDS,
    "rolled": {
        "playbook": line,
        **dict.fromkeys(("done", "earlier", "failed", "inconclusive", "unreachable", "not_begun"), TEXT_LIST),
        "why": line,
        "resume": line,
    },
}
#: events of a host that --json prints; a command's own output is built from the other events, which answer requests
PRINTED_HOST_EVENTS = ("raw", "note", "run_started", "task_started", "progress", "task_finished", "recap", "run")
#: recap of a host; if the host sent none, the laptop builds one without the rare counts
RECAP_SHAPE = {**RECAP_FIELDS, **dict.fromkeys(RARE_COUNTS, OptionalField(COUNT))}
EVENT_SHAPES: dict[str, dict[str, Shape]] = {
    **{kind: HOST_EVENTS[kind] for kind in PRINTED_HOST_EVENTS},
    **FLEET_EVENTS,
    "recap": RECAP_SHAPE,
}


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """The JSON output of a command."""

    #: `lines` (one object per line) or `document` (one object or array)
    form: str
    #: description of a line or of the document
    description: str
    shape: Shape
    #: True if the command, with some options, prints the events of a run
    may_print_events: bool = False
    #: True if lines may have fields that the shape does not list
    has_further_fields: bool = False


def _lines_per_host(description: str, **fields: Shape) -> OutputFormat:
    return OutputFormat("lines", description, {"host": line, **fields})


#: commands that print the events of a run
RUN_COMMANDS = (
    *("deploy", "plan", "restart", "switch", "rollback", "provision", "verify", "play", "gateway.deploy"),
    *("attach", "stop", "runs", "health.check", "health.install", "health.uninstall", "ollama.ps", "ollama.unload"),
    *("gateway.rollback", "images.copy", "models.copy"),
)
#: commands that print events; with --url no host is involved, and they print results instead (bench/results_file.py)
BENCH_COMMANDS = tuple(f"bench.{name}" for name in ("smoke", "serve", "ab", "sweep", "hol", "itl", "mixed", "context"))
LINK_SHAPE = {**host_requests.LINK_SHAPE, "rate_gbps": number}
CACHE_SHAPE = {**host_requests.CACHE_SHAPE, "name": line}
PRUNE_FIELDS = {"freed_bytes": (None, number)}
ENGINE_STATE_SHAPE = host_requests.ENGINE_STATE_SHAPE
#: a recipe in `recipe.list` and `recommend`
CATALOGUE_SHAPE: dict[str, Shape] = {
    **dict.fromkeys(("recipe", "model", "engine", "evidence", "source"), line),
    "uses": TEXT_LIST,
    "proved_on": TEXT_LIST,
    "simulated_on": TEXT_LIST,
    "hosts": COUNT,
    **dict.fromkeys(("weights_gb", "memory_share", "memory_bytes", "context", "tok_per_s"), OPTIONAL_NUMBER),
    "date": (None, line),
    "old": bool,
}

#: a playbook, part or template of a project
PLAYBOOK_FILE_SHAPE: dict[str, Shape] = {"file": line, "state": line, "version": line, "moved": bool}

OUTPUT_FORMATS: dict[str, OutputFormat] = {
    "client": _lines_per_host(
        "a server",
        adapters=[line],
        **dict.fromkeys(("base_url", "model", "api_key_variable", "reach", "image", "task"), line),
        **dict.fromkeys(("context_length", "max_tokens"), (None, COUNT)),
        pictures=bool,
        thinking={"default": (None, line), "switch": line, "sentence": line},
        gateways=[dict.fromkeys(("name", "base_url", "model", "api_key_variable"), line)],
    ),
    "history": _lines_per_host("an event in a server's history, newest first", **HOST_EVENTS["history"]),
    "doctor": _lines_per_host(
        "a host",
        findings=[{**host_requests.FINDING_SHAPE, "repair": bool}],
        fixed=TEXT_LIST,
        not_fixed=TEXT_LIST,
        bad=bool,
        budget=OptionalField((None, BUDGET_JSON_SHAPE), None),
        exit=exit_code,
    ),
    "cluster.check": OutputFormat(
        "lines",
        "the findings of a check; `host` is empty for a finding about all hosts",
        {"findings": [{**host_requests.FINDING_SHAPE, "host": line}], "bad": bool},
    ),
    "cluster.inspect": _lines_per_host("a host", links=[LINK_SHAPE], fabric=(None, {str: object})),
    "models.list": OutputFormat(
        "document", "an array with a row per model on a host", [{"host": line, **host_requests.MODEL_SHAPE}]
    ),
    "models.verify": OutputFormat(
        "document",
        "an array with a row per model on a host",
        [{"host": line, "id": line, "dir": line, "wrong": TEXT_LIST, "files": COUNT, "size_bytes": COUNT}],
    ),
    "models.prune": OutputFormat(
        "document",
        "an array with a row per model: removed, with `freed_bytes` and `left` (the number of other files in its folder); or, "
        "without confirmation, removable, as in models.list",
        [
            {
                **{name: OptionalField(shape) for name, shape in host_requests.MODEL_SHAPE.items()},
                **dict.fromkeys(("host", "dir"), line),
                **dict.fromkeys(("freed_bytes", "left"), OptionalField(COUNT)),
            }
        ],
    ),
    "incident": _lines_per_host("a host", incident=line, folder=line, files=TEXT_LIST),
    "logs": OutputFormat(
        "lines",
        "a host; with --file, `file` replaces `host`. Without --state only `text` is added; some engines log further fields",
        {
            **dict.fromkeys(("host", "file", "text"), OptionalField(line)),
            **{name: OptionalField(shape) for name, shape in ENGINE_STATE_SHAPE.items()},
            "stage": OptionalField((None, line)),
            "kernels": OptionalField({str: TEXT_LIST}),
        },
        has_further_fields=True,
    ),
    "report": _lines_per_host(
        "a host",
        span_s=number,
        checks=COUNT,
        spans=[
            {
                "start_s": moment,
                "checks": COUNT,
                "state": line,
                "why": line,
                "healed": line,
                **dict.fromkeys(("tok_per_s", "memory_gib", "temperature_c"), OPTIONAL_NUMBER),
            }
        ],
    ),
    "lock": OutputFormat(
        "lines",
        "an image or a model; `gone` is the pinned digest if its registry no longer has it",
        {"kind": line, "name": line, "state": line, "rows": [object], "gone": (None, line)},
    ),
    "images.prune": _lines_per_host("a host", images=[host_requests.IMAGE_SHAPE], **PRUNE_FIELDS),
    "caches.list": _lines_per_host("a host", caches=[CACHE_SHAPE]),
    "caches.prune": _lines_per_host("a host", caches=[CACHE_SHAPE], **PRUNE_FIELDS),
    "host.clean": _lines_per_host("a host", items=[host_requests.CLEAN_ITEM_SHAPE], **PRUNE_FIELDS),
    "render": _lines_per_host("a host", script=line),
    "hosts.check": _lines_per_host(
        "a host", missing=[dict.fromkeys(("check", "evidence", "fix"), line)], **host_requests.ANSWER_SHAPES["survey"]
    ),
    "hosts.add": _lines_per_host(
        "the added host; `survey` is as in hosts.check, or null if the host was not surveyed",
        address=line,
        recipe=(None, line),
        groups=TEXT_LIST,
        files=TEXT_LIST,
        survey=(None, {str: object}),
        budget=(None, BUDGET_JSON_SHAPE),
    ),
    "gateway.status": _lines_per_host(
        "a gateway",
        gateway=line,
        running=bool,
        verified=bool,
        restarted_s=(None, number),
        certificate_error=line,
        models=[host_requests.ROUTED_MODEL_SHAPE],
        clients=[host_requests.CLIENT_SHAPE],
    ),
    "monitoring.install": OutputFormat(
        "lines",
        "the files that were written, or with --check would be written",
        {"folder": line, "files": {str: bool}, "check": bool},
        may_print_events=True,
    ),
    "recipe.import": OutputFormat(
        "lines",
        "a recipe; if there are open questions, `file` is null and an error follows",
        {
            "recipe": line,
            "file": (None, line),
            "text": OptionalField(str),
            "rows": [dict.fromkeys(("sort", "what", "why"), line)],
            "questions": [{"key": line, "question": line, "choices": TEXT_LIST}],
            "exit": OptionalField(exit_code),
        },
    ),
    "recipe.search": OutputFormat(
        "document",
        "recipes in registries",
        {"recipes": [dict.fromkeys(("name", "model", "path", "commit", "url"), line)]},
    ),
    "recipe.list": OutputFormat("document", "every recipe", {"recipes": [CATALOGUE_SHAPE]}),
    "recipe.export": OutputFormat(
        "document",
        "a recipe in another tool's format",
        {"recipe": line, "format": line, "text": str, "notes": TEXT_LIST},
    ),
    "recommend": OutputFormat(
        "document",
        "recipes for a use, best evidence first",
        {
            "host": line,
            "for": line,
            "recipes": [{**CATALOGUE_SHAPE, "fits": (None, bool), "why": line, "budget": (None, BUDGET_JSON_SHAPE)}],
        },
    ),
    "schema": OutputFormat("document", "a JSON Schema", {str: object}),
    **{
        f"playbook.{name}": OutputFormat("lines", "a playbook, part or template", PLAYBOOK_FILE_SHAPE)
        for name in ("eject", "update")
    },
    "playbook.clean": OutputFormat("lines", "an unchanged copy", {"file": line, "kept": line, "removed": bool}),
    "lint": OutputFormat(
        "document",
        "every recipe",
        {
            "recipes": [
                {
                    "recipe": line,
                    "engine_version": (None, line),
                    "kind": line,
                    "simulated": bool,
                    "note": (None, line),
                    "findings": [{str: object}],
                }
            ],
            "playbooks": [
                {
                    **PLAYBOOK_FILE_SHAPE,
                    "shipped_changes": [str],
                    "own_changes": [str],
                    "conflicts": [{"start": COUNT, "end": COUNT}],
                }
            ],
        },
    ),
    "explain": OutputFormat("document", "the named rule, or the titles of all rules by name", {str: object}),
    "docs.module": OutputFormat(
        "document", "a page; `name` is null for the index", {"name": (None, line), "text": line}
    ),
    "model.inspect": OutputFormat(
        "document",
        "properties of a model",
        {
            **dict.fromkeys(("kind", "name", "mechanism", "model_type", "substring_rule"), line),
            **dict.fromkeys(("recurrent_layers", "layers", "max_position_embeddings", "trained_length"), (None, COUNT)),
            "prediction_layers": COUNT,
            "evidence": [{str: object}],
            "block_tokens": {str: (None, COUNT)},
            "vllm": (None, {str: (None, line)}),
            "chat": (None, {str: (None, {str: object})}),
        },
    ),
    "bench.list": OutputFormat(
        "lines",
        "results of an experiment",
        {"name": line, "experiment": line, "host": line, "cells": COUNT, "created_at": line},
    ),
    "bench.compare": OutputFormat(
        "document",
        "an array with a row per figure of a load",
        [
            {
                "load": line,
                "figure": line,
                "first": OPTIONAL_NUMBER,
                "second": OPTIONAL_NUMBER,
                "more_is_better": bool,
                "ratio": OPTIONAL_NUMBER,
                "verdict": line,
                "digits": COUNT,
                "sure": (None, bool),
                "blind": bool,
            }
        ],
    ),
    "sandbox.fault": OutputFormat(
        "document",
        "the effect of each fault, by name; with a name, `fault`, which is null if it was cleared",
        {str: (None, line)},
    ),
    "sandbox.status": OutputFormat(
        "document",
        "the simulated Spark; `containers`, `memory` and `fault` only while it is up, `hosts` only if other simulated hosts are",
        {"sandbox": line, **dict.fromkeys(("containers", "memory", "fault", "hosts"), OptionalField(line))},
    ),
}
#: an error in place of a command's output
ERROR_SHAPE: dict[str, Any] = {"error": line, "exit": exit_code, "host": OptionalField(line)}
#: an error may also have the fields of a command's output or of a recap
ERROR_SCHEMA = {**shape_schema(ERROR_SHAPE), "additionalProperties": True}


#: form and type of each output that is defined by a type instead of a shape, by command
TYPED_OUTPUTS: dict[str, tuple[str, Any]] = {
    "status": ("lines", HostStatus),
    "diagnose": ("lines", Diagnosis),
    "hosts.list": ("lines", HostInfo),
    **dict.fromkeys(("bench.report", "bench.import"), ("document", Results)),
    **dict.fromkeys(BENCH_COMMANDS, ("lines", Results)),
}
COMMANDS = tuple(sorted({*RUN_COMMANDS, *OUTPUT_FORMATS, *TYPED_OUTPUTS}))
EVENTS_KIND = "events"
COMMAND_KINDS = {f"json/{command}": command for command in COMMANDS}
FILE_KINDS: dict[str, Any] = {
    "groups": dict[str, GroupFile | None],
    "host": HostFile,
    "lock": LockFile,
    "playbook": list[PlayFile],
    "recipe": RecipeFile,
    "registries": dict[str, RegistryFile],
    "results": Results,
    "tasks": list[BlockFile | IncludeFile | TaskFile],
}
#: reference from a command's schema to the schema of events
EVENT_REFERENCE = {"$ref": "../events.json"}


def events_schema() -> Schema:
    """Return the JSON Schema of an event of any kind. Every kind may have further fields."""
    kinds = {kind: _event_schema(kind) for kind in sorted(EVENT_SHAPES)}
    return {
        "$schema": JSON_SCHEMA_DIALECT,
        "title": "sparkwright event",
        "description": f"One line of a command that runs something. Schema {SCHEMA}, as in `run_started`.",
        "version": SCHEMA,
        "anyOf": [{"$ref": f"#/$defs/{kind}"} for kind in kinds],
        "$defs": kinds,
    }


def command_schema(command: str) -> Schema:
    """Return the JSON Schema of a command's --json output, for one line or for the document, depending on `form`.

    Raises KeyError for an unknown command.
    """
    common_fields = {
        "$schema": JSON_SCHEMA_DIALECT,
        "title": f"sparkwright {command} --json",
        "version": OUTPUT_VERSION,
    }
    if command in RUN_COMMANDS:
        return {**common_fields, "form": "lines", "description": "One event per line.", **EVENT_REFERENCE}
    if command in TYPED_OUTPUTS:
        form, output_type = TYPED_OUTPUTS[command]
        line_schema = TypeAdapter(output_type).json_schema(mode="serialization", ref_template="#/$defs/{model}")
        definitions = line_schema.pop("$defs", {})
        if output_type is not Diagnosis:
            line_schema.get("properties", {}).pop("error", None)  # a row with an error is an ERROR_SCHEMA
        if output_type is not Results:
            line_schema["required"] = list(line_schema["properties"])
        alternatives = [line_schema, ERROR_SCHEMA, *([EVENT_REFERENCE] if command in BENCH_COMMANDS else [])]
        return {**common_fields, "form": form, "anyOf": alternatives, **({"$defs": definitions} if definitions else {})}
    output_format = OUTPUT_FORMATS[command]
    line_schema = {
        **shape_schema(output_format.shape),
        **({"additionalProperties": True} if output_format.has_further_fields else {}),
    }
    alternatives = (
        [{**line_schema, "items": {"anyOf": [line_schema["items"], ERROR_SCHEMA]}}]
        if "items" in line_schema
        else [line_schema]
    )
    events = [EVENT_REFERENCE] if output_format.may_print_events else []
    return {
        **common_fields,
        "form": output_format.form,
        "description": f"{output_format.description}.",
        "anyOf": [*alternatives, ERROR_SCHEMA, *events],
    }


def _event_schema(kind: str) -> Schema:
    event_schema = shape_schema({"event": frozenset((kind,)), "time": float, "host": str, **EVENT_SHAPES[kind]})
    if kind == "recap":
        event_schema["properties"]["error"] = {
            "type": "string",
            "description": "only for a host that failed or could not be reached",
        }
    return event_schema


def schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of a kind of file, of an event (`events`), or of a command's --json output (`json/COMMAND`).

    Raises Refused for an unknown kind.
    """
    if kind == EVENTS_KIND:
        return events_schema()
    if kind in COMMAND_KINDS:
        return command_schema(COMMAND_KINDS[kind])
    if kind not in FILE_KINDS:
        raise Refused(
            f"unknown kind of file {kind!r}.", fix=suggest_name(kind, [*FILE_KINDS, EVENTS_KIND, *COMMAND_KINDS])
        )
    return {
        "$schema": JSON_SCHEMA_DIALECT,
        "title": f"sparkwright {kind}",
        **TypeAdapter(FILE_KINDS[kind]).json_schema(),
    }
