"""The `recipe.*` commands, which list, import and export recipes, and `recommend`."""

from __future__ import annotations

from sparkwright.cli.framework.command import command
from sparkwright.errors import Exit, Refused


@command(
    name="import",
    word="source",
    iterable=["answer"],
    help={
        "source": "a file, a docker run line in quotes, or @REGISTRY/NAME",
        "from-host": "in place of a source: the host of a running container, which goes on serving",
        "container": "the container on that host",
        "host": "pin it at once: this host asks registry and hub (default: --from-host)",
        "name": "the recipe's name (default: its own)",
        "answer": "KEY=VALUE, what it would ask; may be given several times",
        "yes": "take the recipe of a registry without being asked; it is shown all the same",
        "check": "write nothing: print the recipe",
        "json": "one JSON object: recipe, file, text, rows, questions",
    },
)
def import_recipe(
    source: str | None = None,
    from_host: str = "",
    container: str = "",
    host: str = "",
    name: str = "",
    answer: list[str] | None = None,
    yes: bool = False,
    check: bool = False,
    json: bool = False,
) -> Exit:
    """Take in a recipe that was written for another tool.

    From vllm-project/recipes, sparkrun, eugr, a compose file, a docker run line or a running container. Says what was kept,
    translated and dropped; asks what only you know, or lists it (exit code 5) without a terminal. Nothing of the source is run.
    """
    from sparkwright.app import recipe_exchange, registries

    answers = recipe_exchange.parse_answers(answer or ())
    if bool(source) == bool(from_host):
        raise Refused("give a source, or --from-host and --container: one of them.")
    if from_host:
        imported = recipe_exchange.convert_container(from_host, container, name, answers)
    elif source and source.startswith("@"):
        imported = registries.import_recipe(source, name, answers, yes=yes, as_json=json)
    else:
        imported = recipe_exchange.convert_source(recipe_exchange.parse_source(source or ""), name, answers)
    return recipe_exchange.write_recipe(imported, host=host or from_host, check=check, as_json=json)


@command(
    name="export",
    positional=["recipe"],
    help={
        "recipe": "the recipe, by its file's name",
        "format": "sparkrun, compose or docker-run",
        "unpinned": "also where spark.lock has no digest or commit",
        "json": "one JSON object: recipe, format, text, notes",
    },
)
def export_recipe(recipe: str, format: str = "sparkrun", unpinned: bool = False, json: bool = False) -> None:
    """Print a recipe in the form of another tool.

    With the image's digest and the model's commit of spark.lock. What the form cannot say is noted on standard error; keys are
    never written.
    """
    from sparkwright.app import recipe_exchange

    recipe_exchange.export_recipe(recipe, format, unpinned=unpinned, as_json=json)


@command(
    positional=["word"],
    help={
        "word": "what the path or the text of a recipe contains",
        "update": "follow each registry's branch first, and pin its new commit",
        "json": "one JSON object: recipes",
    },
)
def search(word: str, update: bool = False, json: bool = False) -> Exit:
    """Search the registries of registries.yml for recipes.

    Each is fetched once, and read at the commit that registries.lock holds until --update moves it.
    """
    from sparkwright.app import registries

    return registries.search(word, update=update, as_json=json)


@command(
    name="list",
    help={"host": "also ask these hosts what they have proved", "json": "one JSON object: recipes"},
)
def list_recipes(host: str = "", json: bool = False) -> list[int]:
    """List the recipes: model, size, memory, context, speed.

    A speed is one that your hosts measured (with --host), else a report with its source and date, else the physical ceiling;
    where there is none of them it says so. A recipe whose settings and figures are older than six months is called old.
    """
    from sparkwright.app import catalogue

    return catalogue.print_list(host, as_json=json)


@command(
    help={
        "host": "the host that is to serve",
        "for": "chat, coding, agents, long-context, search or vision",
        "json": "one JSON object: host, for, recipes",
    }
)
def recommend(host: str = "", for_: str = "chat", json: bool = False) -> list[int]:
    """Rank the shipped recipes for a host and a use.

    By what fits its memory, then by evidence: what it measured itself, what others reported of a DGX Spark (with source and
    date), what its makers serve on one without a figure, the physical ceiling. Nothing is guessed.
    """
    from sparkwright.app import catalogue

    if not host:
        raise Refused("no host was named: pass --host NAME.")
    return catalogue.recommend(host, for_, as_json=json)


TASKS = {"": [recommend], "recipe": [list_recipes, import_recipe, export_recipe, search]}
