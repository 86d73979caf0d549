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
        "from-host": "instead of a source: the host of a running container, which keeps serving",
        "container": "the container on that host",
        "host": "pin the recipe now: this host queries the registry and the hub (default: --from-host)",
        "name": "the new recipe's name (default: from the source)",
        "answer": "KEY=VALUE, the answer to a question; may be repeated",
        "yes": "import a registry's recipe without confirmation; it is still shown",
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
    """Import a recipe that was written for another tool.

    Sources: vllm-project/recipes, sparkrun, eugr, a compose file, a docker run line or a running container. Reports what was
    kept, translated and dropped, and asks the open questions; without a terminal it lists them (exit code 5). No code from the
    source is run.
    """
    from sparkwright.app import recipe_exchange, registries

    answers = recipe_exchange.parse_answers(answer or ())
    if bool(source) == bool(from_host):
        raise Refused("pass either a source, or --from-host and --container.")
    if container and not from_host:
        raise Refused("--container needs --from-host.")
    if from_host:
        imported_recipe = recipe_exchange.convert_container(from_host, container, name, answers)
    elif source and source.startswith("@"):
        imported_recipe = registries.import_recipe(source, name, answers, yes=yes, as_json=json)
    else:
        imported_recipe = recipe_exchange.convert_source(recipe_exchange.parse_source(source or ""), name, answers)
    return recipe_exchange.write_recipe(imported_recipe, host=host or from_host, check=check, as_json=json)


@command(
    name="export",
    positional=["recipe"],
    help={
        "recipe": "name of the recipe",
        "format": "sparkrun (default), compose or docker-run",
        "unpinned": "export even if spark.lock has no digest or commit",
        "json": "one JSON object: recipe, format, text, notes",
    },
)
def export_recipe(recipe: str, format: str = "sparkrun", unpinned: bool = False, json: bool = False) -> None:
    """Print a recipe in another tool's format.

    Contains the image digest and the model commit from spark.lock. Settings that the format does not support are listed on
    standard error; keys are never written.
    """
    from sparkwright.app import recipe_exchange

    recipe_exchange.export_recipe(recipe, format, unpinned=unpinned, as_json=json)


@command(
    positional=["word"],
    help={
        "word": "text in a recipe's path or content",
        "update": "follow each registry's branch first, and pin its new commit",
        "json": "one JSON object: recipes",
    },
)
def search(word: str, update: bool = False, json: bool = False) -> Exit:
    """Search the registries of registries.yml for recipes.

    Each registry is fetched once, and read at the commit in registries.lock, which --update changes.
    """
    from sparkwright.app import registries

    return registries.search(word, update=update, as_json=json)


@command(
    name="list",
    help={"host": "include the verifications and measurements of these hosts", "json": "one JSON object: recipes"},
)
def list_recipes(host: str = "", json: bool = False) -> list[int]:
    """List the recipes: model, size, memory, context, speed.

    The speed is a measurement by your hosts (with --host), a figure reported by others (with source and date), the makers' report
    that it runs on a DGX Spark, or the physical ceiling, in this order. Recipes whose settings and figures are older than six
    months are marked as old.
    """
    from sparkwright.app import catalogue

    return catalogue.print_list(host, as_json=json)


@command(
    help={
        "host": "the host to serve on",
        "for": "the use: chat (default), coding, agents, long-context, search or vision",
        "json": "one JSON object: host, for, recipes",
    }
)
def recommend(host: str = "", for_: str = "chat", json: bool = False) -> list[int]:
    """Rank the shipped recipes for a host and a use.

    Ranks them by whether they fit in memory, then by evidence: the host's own measurements, figures reported for a DGX Spark
    (with source and date), a report by the makers of the model or engine that it runs on one, the physical ceiling.
    """
    from sparkwright.app import catalogue

    if not host:
        raise Refused("no host was named: pass --host NAME.")
    return catalogue.recommend(host, for_, as_json=json)


TASKS = {"": [recommend], "recipe": [list_recipes, import_recipe, export_recipe, search]}
