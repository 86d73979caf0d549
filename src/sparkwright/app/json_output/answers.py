"""The data that each command prints with --json: its form, and the shape of a line or of the document (trust/shapes.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkwright.app.questions import answers
from sparkwright.engines.budget import JSON_SHAPE
from sparkwright.protocol.event_reader import CAUSE, COUNT, KINDS, exit_code
from sparkwright.protocol.recap import RARE
from sparkwright.trust.shapes import Shape, Usual, line, moment, number

TEXTS = [line]
FIGURE = (None, number)
#: of a recap, and of a host that has ended
ENDED = {name: value for name, value in KINDS["recap"].items() if name not in RARE}

#: events of the laptop about the whole fleet
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
#: recap of a host; the laptop makes one, without the rare counts, for a host that gave none
RECAP = {**ENDED, **dict.fromkeys(RARE, Usual(COUNT))}
EVENTS: dict[str, dict[str, Shape]] = {**{kind: KINDS[kind] for kind in OF_HOSTS}, **FLEET, "recap": RECAP}


@dataclass(frozen=True, slots=True)
class Printed:
    """The JSON output of a command."""

    #: `lines` (one object per line) or `document` (one for everything)
    form: str
    #: description of a line or of the document
    about: str
    shape: Shape
    #: with another option the command prints the events of a run instead
    events: bool = False


def _lines(about: str, **fields: Shape) -> Printed:
    return Printed("lines", about, {"host": line, **fields})


#: commands that print the events of a run
RUNS = (
    *("deploy", "plan", "restart", "switch", "rollback", "provision", "verify", "play", "gateway.deploy"),
    *("attach", "stop", "runs", "health.check", "health.install", "health.uninstall", "ollama.ps", "ollama.unload"),
    *("gateway.rollback", "images.copy", "models.copy"),
)
#: commands that print events too, but results with --url, where no host runs it (bench/results_file.py)
MEASURES = tuple(f"bench.{name}" for name in ("smoke", "serve", "ab", "sweep", "hol", "itl", "mixed", "context"))
LINK = {**answers.LINK, "rate_gbps": number}
CACHE = {**answers.CACHE, "name": line}
PRUNED = {"freed_bytes": (None, number)}
STATE = answers.STATE
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
    "diagnose": _lines("a host", **{**KINDS["diagnosis"], "error": line, "causes": [CAUSE]}),
    "client": _lines(
        "a server",
        **dict.fromkeys(("base_url", "model", "api_key_variable", "reach", "image", "task"), line),
        **dict.fromkeys(("context_length", "max_tokens"), (None, COUNT)),
        pictures=bool,
    ),
    "history": _lines("something that was done to a server, newest first", **KINDS["history"]),
    "doctor": _lines(
        "a host",
        findings=[{**answers.FINDING, "repair": bool}],
        fixed=TEXTS,
        not_fixed=TEXTS,
        bad=bool,
        budget=Usual((None, JSON_SHAPE), None),
        exit=exit_code,
    ),
    "cluster.check": Printed(
        "lines",
        "what was found; host is empty for all of them",
        {"findings": [{**answers.FINDING, "host": line}], "bad": bool},
    ),
    "cluster.inspect": _lines("a host", links=[LINK], fabric=(None, {str: object})),
    "models.list": Printed("document", "an array: a model on a host each", [{"host": line, **answers.MODEL}]),
    "models.verify": Printed(
        "document",
        "an array: a model on a host each",
        [{"host": line, "id": line, "dir": line, "wrong": TEXTS, "files": COUNT, "size_bytes": COUNT}],
    ),
    "models.prune": Printed("document", "an array: a model that was, or would be, removed each", [{"host": line}]),
    "incident": _lines("a host", incident=line, folder=line, files=TEXTS),
    "logs": _lines(
        "a host; with --file the field `file` instead. Without --state only `text` beside it",
        **{name: Usual(shape) for name, shape in STATE.items()},
        text=Usual(line),
    ),
    "report": _lines(
        "a host",
        span_s=number,
        checks=COUNT,
        spans=[{"start_s": moment, "checks": COUNT, "state": line, "why": line, "tok_per_s": FIGURE, "healed": line}],
    ),
    "lock": Printed("lines", "an image or a model", {"kind": line, "name": line, "state": line, "rows": [object]}),
    "images.prune": _lines("a host", images=[answers.IMAGE], **PRUNED),
    "caches.list": _lines("a host", caches=[CACHE]),
    "caches.prune": _lines("a host", caches=[CACHE], **PRUNED),
    "host.clean": _lines("a host", items=[answers.ITEM], **PRUNED),
    "render": _lines("a host", script=line),
    "hosts.list": _lines("a host", connection=line, address=line, groups=TEXTS, recipe=(None, line)),
    "hosts.check": _lines(
        "a host", missing=[dict.fromkeys(("check", "evidence", "fix"), line)], **answers.ANSWERS["survey"]
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
        stand_in=bool,
        models=[answers.ROUTED],
        clients=[answers.CLIENT],
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
    "schema": Printed("document", "a JSON Schema", {}),
    **{f"playbook.{name}": Printed("lines", "a playbook, part or template", OWN_FILE) for name in ("eject", "update")},
    "playbook.clean": Printed("lines", "an unchanged copy", {"file": line, "kept": line, "removed": bool}),
    "lint": Printed(
        "document",
        "every recipe",
        {
            "recipes": [
                {"recipe": line, "engine_version": (None, line), "simulated": bool, "findings": [{str: object}]}
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
        "document", "what a model is", {"kind": line, "name": line, "mechanism": line, "evidence": [{str: object}]}
    ),
    "bench.list": Printed(
        "lines",
        "results of an experiment",
        {"name": line, "experiment": line, "host": line, "cells": COUNT, "created_at": line},
    ),
    "bench.compare": Printed(
        "document",
        "an array: a figure of a load each",
        [
            {
                "load": line,
                "figure": line,
                "first": FIGURE,
                "second": FIGURE,
                "more_is_better": bool,
                "ratio": FIGURE,
                "verdict": line,
            }
        ],
    ),
    "sandbox.fault": Printed("document", "what each fault does, by name", {str: line}),
    "sandbox.status": Printed("document", "the simulated Spark", {"sandbox": line, "fault": line}),
}
#: an error instead of an answer
ERROR: dict[str, Any] = {"error": line, "exit": exit_code, "host": Usual(line)}
