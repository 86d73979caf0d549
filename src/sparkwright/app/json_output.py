"""The data that each command prints with --json, and the JSON Schemas for it and for each kind of file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from sparkwright.app.json_schema import Schema, shape_schema
from sparkwright.app.questions import host_requests
from sparkwright.bench.results_file import Results
from sparkwright.console.rows import Diagnosis, HostInfo, Row
from sparkwright.engines.budget import JSON_SHAPE
from sparkwright.errors import Refused
from sparkwright.project.documents.validation import nearest
from sparkwright.project.inventory.models import GroupFile, HostFile
from sparkwright.project.lockfile import LockFile
from sparkwright.project.playbook.playbook import BlockFile, IncludeFile, PlayFile, TaskFile
from sparkwright.project.recipe.models import RecipeFile
from sparkwright.project.registries import RegistryFile
from sparkwright.protocol.event_reader import COUNT, exit_code
from sparkwright.protocol.event_reader import KINDS as HOST_EVENTS
from sparkwright.protocol.events import RARE, SCHEMA
from sparkwright.trust.shapes import Shape, Usual, line, moment, number

TEXTS = [line]
FIGURE = (None, number)
#: fields of a recap, and of a host that has ended
ENDED = {name: value for name, value in HOST_EVENTS["recap"].items() if name not in RARE}

#: the laptop's own events about the whole fleet
FLEET: dict[str, dict[str, Shape]] = {
    "play_started": {"play": line, "hosts": TEXTS},
    "batch_started": {"n": COUNT, "hosts": TEXTS, "left": COUNT, "canary": bool},
    "looking": {"hosts": TEXTS},
    "waiting": {},
    "host_finished": ENDED,
    "rolled": {
        "playbook": line,
        **dict.fromkeys(("done", "earlier", "failed", "unreachable", "not_begun"), TEXTS),
        "why": line,
        "resume": line,
    },
}
#: events of a host that --json prints; other events answer requests, and become a command's own output
OF_HOSTS = ("raw", "note", "run_started", "task_started", "progress", "task_finished", "recap", "run")
#: recap of a host; for a host that sent none the laptop makes one without the rare counts
RECAP = {**ENDED, **dict.fromkeys(RARE, Usual(COUNT))}
EVENT_SHAPES: dict[str, dict[str, Shape]] = {**{kind: HOST_EVENTS[kind] for kind in OF_HOSTS}, **FLEET, "recap": RECAP}


@dataclass(frozen=True, slots=True)
class Printed:
    """The JSON output of a command."""

    #: `lines` (one object per line) or `document` (one for everything)
    form: str
    #: description of a line or of the document
    about: str
    shape: Shape
    #: True if, with another option, the command prints the events of a run instead
    events: bool = False
    #: a row may have further fields, which the shape does not name
    more: bool = False


def _lines(about: str, **fields: Shape) -> Printed:
    return Printed("lines", about, {"host": line, **fields})


#: commands that print the events of a run
RUNS = (
    *("deploy", "plan", "restart", "switch", "rollback", "provision", "verify", "play", "gateway.deploy"),
    *("attach", "stop", "runs", "health.check", "health.install", "health.uninstall", "ollama.ps", "ollama.unload"),
    *("gateway.rollback", "images.copy", "models.copy"),
)
#: commands that print events too, except with --url, where no host runs the experiment and they print results
#: (bench/results_file.py)
MEASURES = tuple(f"bench.{name}" for name in ("smoke", "serve", "ab", "sweep", "hol", "itl", "mixed", "context"))
LINK = {**host_requests.LINK, "rate_gbps": number}
CACHE = {**host_requests.CACHE, "name": line}
PRUNED = {"freed_bytes": (None, number)}
STATE = host_requests.STATE
#: a recipe of the catalogue
CATALOGUED: dict[str, Shape] = {
    **dict.fromkeys(("recipe", "model", "engine", "evidence", "source"), line),
    "uses": TEXTS,
    "proved_on": TEXTS,
    "simulated_on": TEXTS,
    "hosts": COUNT,
    **dict.fromkeys(("weights_gb", "memory_share", "memory_bytes", "context", "tok_per_s"), FIGURE),
    "date": (None, line),
    "old": bool,
}

#: a playbook, part or template of a project
OWN_FILE: dict[str, Shape] = {"file": line, "state": line, "version": line, "moved": bool}

ANSWERS: dict[str, Printed] = {
    "client": _lines(
        "a server",
        adapters=[line],
        **dict.fromkeys(("base_url", "model", "api_key_variable", "reach", "image", "task"), line),
        **dict.fromkeys(("context_length", "max_tokens"), (None, COUNT)),
        pictures=bool,
        thinking={"default": (None, line), "switch": line, "sentence": line},
    ),
    "history": _lines("something that was done to a server, newest first", **HOST_EVENTS["history"]),
    "doctor": _lines(
        "a host",
        findings=[{**host_requests.FINDING, "repair": bool}],
        fixed=TEXTS,
        not_fixed=TEXTS,
        bad=bool,
        budget=Usual((None, JSON_SHAPE), None),
        exit=exit_code,
    ),
    "cluster.check": Printed(
        "lines",
        "what was found; host is empty for all of them",
        {"findings": [{**host_requests.FINDING, "host": line}], "bad": bool},
    ),
    "cluster.inspect": _lines("a host", links=[LINK], fabric=(None, {str: object})),
    "models.list": Printed(
        "document", "an array with a row per model on a host", [{"host": line, **host_requests.MODEL}]
    ),
    "models.verify": Printed(
        "document",
        "an array with a row per model on a host",
        [{"host": line, "id": line, "dir": line, "wrong": TEXTS, "files": COUNT, "size_bytes": COUNT}],
    ),
    "models.prune": Printed(
        "document", "an array with a row per model that was, or would be, removed", [{"host": line}]
    ),
    "incident": _lines("a host", incident=line, folder=line, files=TEXTS),
    "logs": Printed(
        "lines",
        "a host; with --file the field `file` instead. Without --state only `text` in addition; some engines log more fields",
        {
            **dict.fromkeys(("host", "file", "text"), Usual(line)),
            **{name: Usual(shape) for name, shape in STATE.items()},
            "stage": Usual((None, line)),
            "kernels": Usual({str: TEXTS}),
        },
        more=True,
    ),
    "report": _lines(
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
                **dict.fromkeys(("tok_per_s", "memory_gib", "temperature_c"), FIGURE),
            }
        ],
    ),
    "lock": Printed(
        "lines",
        "an image or a model; gone: the pinned digest, where its registry no longer has it",
        {"kind": line, "name": line, "state": line, "rows": [object], "gone": (None, line)},
    ),
    "images.prune": _lines("a host", images=[host_requests.IMAGE], **PRUNED),
    "caches.list": _lines("a host", caches=[CACHE]),
    "caches.prune": _lines("a host", caches=[CACHE], **PRUNED),
    "host.clean": _lines("a host", items=[host_requests.ITEM], **PRUNED),
    "render": _lines("a host", script=line),
    "hosts.check": _lines(
        "a host", missing=[dict.fromkeys(("check", "evidence", "fix"), line)], **host_requests.ANSWERS["survey"]
    ),
    "hosts.add": _lines(
        "the host that was added; survey as hosts.check has it, null where nobody logged in",
        address=line,
        recipe=(None, line),
        groups=TEXTS,
        files=TEXTS,
        survey=(None, {str: object}),
        budget=(None, JSON_SHAPE),
    ),
    "gateway.status": _lines(
        "a gateway",
        gateway=line,
        running=bool,
        verified=bool,
        restarted_s=(None, number),
        models=[host_requests.ROUTED],
        clients=[host_requests.CLIENT],
    ),
    "monitoring.install": Printed(
        "lines",
        "the files that were written; with --check that would be",
        {"folder": line, "files": {str: bool}, "check": bool},
        events=True,
    ),
    "recipe.import": Printed(
        "lines",
        "a recipe; with open questions its file is null, and an error follows",
        {
            "recipe": line,
            "file": (None, line),
            "text": Usual(str),
            "rows": [dict.fromkeys(("sort", "what", "why"), line)],
            "questions": [{"key": line, "question": line, "choices": TEXTS}],
            "exit": Usual(exit_code),
        },
    ),
    "recipe.search": Printed(
        "document",
        "recipes of registries",
        {"recipes": [dict.fromkeys(("name", "model", "path", "commit", "url"), line)]},
    ),
    "recipe.list": Printed("document", "every recipe", {"recipes": [CATALOGUED]}),
    "recipe.export": Printed(
        "document", "a recipe as another tool has it", {"recipe": line, "format": line, "text": str, "notes": TEXTS}
    ),
    "recommend": Printed(
        "document",
        "recipes for a use, the best evidence first",
        {
            "host": line,
            "for": line,
            "recipes": [{**CATALOGUED, "fits": (None, bool), "why": line, "budget": (None, JSON_SHAPE)}],
        },
    ),
    "schema": Printed("document", "a JSON Schema", {str: object}),
    **{f"playbook.{name}": Printed("lines", "a playbook, part or template", OWN_FILE) for name in ("eject", "update")},
    "playbook.clean": Printed("lines", "an unchanged copy", {"file": line, "kept": line, "removed": bool}),
    "lint": Printed(
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
                    **OWN_FILE,
                    "shipped_changes": [str],
                    "own_changes": [str],
                    "conflicts": [{"start": COUNT, "end": COUNT}],
                }
            ],
        },
    ),
    "explain": Printed("document", "without a rule their titles by name; with one the rule", {str: object}),
    "docs.module": Printed("document", "a page; name is null of the index", {"name": (None, line), "text": line}),
    "model.inspect": Printed(
        "document",
        "what a model is",
        {
            **dict.fromkeys(("kind", "name", "mechanism", "model_type", "substring_rule"), line),
            **dict.fromkeys(("recurrent_layers", "layers", "max_position_embeddings", "trained_length"), (None, COUNT)),
            "prediction_layers": COUNT,
            "evidence": [{str: object}],
            "block_tokens": {str: (None, COUNT)},
            "vllm": (None, {str: (None, line)}),
            "chat": {str: (None, {str: object})},
        },
    ),
    "bench.list": Printed(
        "lines",
        "results of an experiment",
        {"name": line, "experiment": line, "host": line, "cells": COUNT, "created_at": line},
    ),
    "bench.compare": Printed(
        "document",
        "an array with a row per figure of a load",
        [
            {
                "load": line,
                "figure": line,
                "first": FIGURE,
                "second": FIGURE,
                "more_is_better": bool,
                "ratio": FIGURE,
                "verdict": line,
                "digits": COUNT,
                "sure": (None, bool),
                "blind": bool,
            }
        ],
    ),
    "sandbox.fault": Printed("document", "what each fault does, by name", {str: line}),
    "sandbox.status": Printed(
        "document",
        "the simulated Spark; only `sandbox` while it is down",
        {"sandbox": line, **dict.fromkeys(("containers", "memory", "fault"), Usual(line))},
    ),
}
#: an error instead of an answer
ERROR: dict[str, Any] = {"error": line, "exit": exit_code, "host": Usual(line)}
#: it may stand in a row beside other fields: of an answer, or of a recap
ERROR_SCHEMA = {**shape_schema(ERROR), "additionalProperties": True}


DIALECT = "https://json-schema.org/draft/2020-12/schema"
#: version of the commands' output, increased when a field is removed or changes its meaning; for events see
#: `protocol.events.SCHEMA`
VERSION = 1
#: output that is defined by a type
TYPED: dict[str, tuple[str, Any]] = {
    "status": ("lines", Row),
    "diagnose": ("lines", Diagnosis),
    "hosts.list": ("lines", HostInfo),
    **dict.fromkeys(("bench.report", "bench.import"), ("document", Results)),
    **dict.fromkeys(MEASURES, ("lines", Results)),
}
COMMANDS = tuple(sorted({*RUNS, *ANSWERS, *TYPED}))
#: reference from a command's schema to the schema of events
AN_EVENT = {"$ref": "../events.json"}


def events_schema() -> Schema:
    """Return the JSON Schema of an event of any kind. Every kind may have further fields."""
    kinds = {kind: _event(kind) for kind in sorted(EVENT_SHAPES)}
    return {
        "$schema": DIALECT,
        "title": "sparkwright event",
        "description": f"One line of a command that runs something. Schema {SCHEMA}, as `run_started` says.",
        "version": SCHEMA,
        "anyOf": [{"$ref": f"#/$defs/{kind}"} for kind in kinds],
        "$defs": kinds,
    }


def schema_of(command: str) -> Schema:
    """Return the JSON Schema of a command's --json output, for one line or for the document, depending on `form`.

    Raises KeyError for an unknown command.
    """
    head = {"$schema": DIALECT, "title": f"sparkwright {command} --json", "version": VERSION}
    if command in RUNS:
        return {**head, "form": "lines", "description": "One event per line.", **AN_EVENT}
    if command in TYPED:
        form, kind = TYPED[command]
        found = TypeAdapter(kind).json_schema(mode="serialization", ref_template="#/$defs/{model}")
        parts = found.pop("$defs", {})
        if kind is not Diagnosis:
            found.get("properties", {}).pop("error", None)  # a row with an error is an ERROR
        if kind is not Results:
            found["required"] = list(found["properties"])
        either = [found, ERROR_SCHEMA, *([AN_EVENT] if command in MEASURES else [])]
        return {**head, "form": form, "anyOf": either, **({"$defs": parts} if parts else {})}
    printed: Printed = ANSWERS[command]
    found = {**shape_schema(printed.shape), **({"additionalProperties": True} if printed.more else {})}
    either = [{**found, "items": {"anyOf": [found["items"], ERROR_SCHEMA]}}] if "items" in found else [found]
    events = [AN_EVENT] if printed.events else []
    return {**head, "form": printed.form, "description": f"{printed.about}.", "anyOf": [*either, ERROR_SCHEMA, *events]}


def _event(kind: str) -> Schema:
    found = shape_schema({"event": frozenset((kind,)), "time": float, "host": str, **EVENT_SHAPES[kind]})
    if kind == "recap":
        found["properties"]["error"] = {"type": "string", "description": "of a host that did not end well"}
    return found


EVENTS = "events"
PRINTED = {f"json/{command}": command for command in COMMANDS}
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
        return events_schema()
    if kind in PRINTED:
        return schema_of(PRINTED[kind])
    if kind not in KINDS:
        raise Refused(f"no kind of file is called {kind!r}.", fix=nearest(kind, [*KINDS, EVENTS, *PRINTED]))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"sparkwright {kind}",
        **TypeAdapter(KINDS[kind]).json_schema(),
    }
