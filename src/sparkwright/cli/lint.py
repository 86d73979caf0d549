"""What is wrong with a recipe before any host is asked: lint, and why a rule is so: explain."""

from __future__ import annotations

from typing import Any

from invoke.tasks import task

from sparkwright.app.outcome import optional_word, reporting
from sparkwright.errors import Exit

HELP = {
    "recipe": "only this one",
    "engine_version": "as if the image held this vLLM (the lock says it otherwise)",
    "model": "as if the model were this: a folder, a config.json, or a name on the hub",
    "json": "one JSON object",
    "debug": "show the traceback of an error",
}


@task(help=HELP)
@reporting
def lint(
    context: object,
    recipe: str = "",
    engine_version: str = "",
    model: str = "",
    json: bool = False,
    debug: bool = False,
) -> int:
    """Check recipes against their model and engine: what would be refused, ignored or slow. Exit 1 when one has an error."""
    from sparkwright.app import findings

    looks = findings.look(recipe, engine_version, model)
    findings.print_json(looks) if json else findings.print_lines(looks)
    return int(Exit.FAILED) if any(one.served.errors for one in looks) else int(Exit.OK)


@task(
    positional=optional_word("explain", "rule"),
    help={"rule": "a rule's name; without one they are listed", "json": "one JSON object"},
)
@reporting
def explain(context: object, rule: str | None = None, json: bool = False) -> int:
    """A rule of lint: what it says, why it is so, where that was read, an example."""
    from sparkwright.app import findings

    findings.explain(rule, as_json=json)
    return 0


TASKS: list[Any] = [lint, explain]
