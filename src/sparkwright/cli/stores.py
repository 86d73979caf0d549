"""The commands for items that hosts store: models, images and compile caches."""

from __future__ import annotations

from sparkwright.cli.framework.command import command
from sparkwright.console.command_output import print_json_line, print_prose
from sparkwright.errors import Exit, Refused

JSON_HELP = "one JSON array"


@command(
    positional=["source"],
    help={
        "source": "a folder with a config.json, the file itself, or a hub id",
        "revision": "for a hub id: branch, tag or commit (default main)",
        "json": "one JSON object",
    },
)
def inspect(source: str, revision: str = "main", json: bool = False) -> None:
    """Show a model's architecture, with evidence.

    From its config.json: recurrent or dense, block sizes, and the vLLM releases that support it. From its chat template and
    generation_config.json: the fields that requests may set, thinking, and sampling.
    """
    from sparkwright.app.stores import model_config

    config = model_config.load_config(source, revision)
    chat = model_config.load_chat(source, revision)
    if json:
        print_json_line({**model_config.config_facts(config), "chat": chat})
    else:
        print_prose("\n".join([*model_config.format_facts(source, config), *model_config.format_chat(chat)]))


@command(name="list", help={"host": "a host, a group, several (spark1,spark2), or all (default)", "json": JSON_HELP})
def list_models(host: str = "all", json: bool = False) -> list[int]:
    """List the models on hosts: size, complete or not, users."""
    from sparkwright.app.stores import models

    return models.list_models(host, as_json=json)


@command(help={"deep": "read all files again, not only changed ones", "json": JSON_HELP})
def verify(host: str = "", deep: bool = False, json: bool = False) -> list[int]:
    """Compare a host's model files with spark.lock.

    Checks the models of the host's recipe. Exit code 2 if a file is missing or changed.
    """
    from sparkwright.app.stores import models

    return models.verify(host, deep=deep, as_json=json)


@command(
    name="copy",
    help={
        "from": "the host that has the model",
        "to": "the hosts to copy it to: spark2, a group, all",
        "check": "dry run: show what would be copied; exit code 2 if anything would",
        "json": "events as JSON lines",
    },
)
def copy_models(from_: str = "", to: str = "", check: bool = False, json: bool = False) -> list[int]:
    """Copy a model from one host to others.

    Copies the model of each receiving host's recipe directly between the hosts, without the hub, and verifies the hashes in
    spark.lock.
    """
    from sparkwright.app.stores import models

    if not from_ or not to:
        raise Refused("no hosts were named: pass --from HOST and --to HOSTS.")
    return models.copy(from_, to, check=check, as_json=json)


@command(name="prune", help={"yes": "do not ask for confirmation", "json": JSON_HELP})
def prune_models(host: str = "", yes: bool = False, json: bool = False) -> list[int]:
    """Remove a host's unused models, after asking.

    A model is unused if no container mounts it and no recipe of the host names it. Exit code 2 if you decline.
    """
    from sparkwright.app.stores import models

    return models.prune(host, yes=yes, as_json=json)


@command(
    name="prune",
    help={
        "all": "include images of all repositories, not only of those in the recipes",
        "check": "only show; exit code 2 if something would be removed",
        "yes": "do not ask for confirmation",
        "json": "one JSON object per host: its images, and the bytes freed (null if nothing was removed)",
    },
)
def prune_images(
    host: str = "", all: bool = False, check: bool = False, yes: bool = False, json: bool = False
) -> list[Exit]:
    """Remove a host's unused images, after asking.

    Shows each image, why it is kept, and the space that removing the unused ones frees. Images that spark.lock pins for any
    host are kept. Compile caches made with a removed image are removed too.
    """
    from sparkwright.app.connect import connect_hosts, select_machines

    selection = select_machines(connect_hosts(host))
    from sparkwright.app.stores import images

    return images.prune(selection, everything=all, check=check, yes=yes, json=json)


@command(
    name="copy",
    help={
        "from": "the host that has the image",
        "to": "the hosts to copy it to: spark2, a group, all",
        "image": "repository:tag (default: the image of the receiving host's recipe)",
        "json": "events as JSON lines",
    },
)
def copy_images(from_: str = "", to: str = "", image: str = "", json: bool = False) -> list[Exit]:
    """Copy an image from one host to others.

    Sends one compressed stream over ssh, without a registry, and compares the copy at the end.
    """
    from sparkwright.app.stores import images

    if not from_ or not to:
        raise Refused("no hosts were named: pass --from HOST and --to HOSTS.")
    return images.copy(from_, to, image, json=json)


@command(
    name="list",
    help={"json": "one JSON object per host: its compile caches, and why each is kept (empty if it can be removed)"},
)
def list_caches(host: str = "", json: bool = False) -> list[Exit]:
    """List a host's compile caches, and why each is kept.

    A cache contains what an engine compiled, for the next start with the same image, model and arguments.
    """
    from sparkwright.app.connect import connect_hosts, select_machines

    selection = select_machines(connect_hosts(host))
    from sparkwright.app import clean_host

    return clean_host.list_caches(selection, json=json)


@command(
    name="prune",
    help={
        "check": "only show; exit code 2 if something would be removed",
        "yes": "do not ask for confirmation",
        "json": "one JSON object per host: its compile caches, and the bytes freed (null if nothing was removed)",
    },
)
def prune_caches(host: str = "", check: bool = False, yes: bool = False, json: bool = False) -> list[Exit]:
    """Remove a host's unused compile caches, after asking.

    Keeps the caches of its containers, of the last verified state, and of the state that a rollback returns to. Without its
    cache, a server compiles again at its next start.
    """
    from sparkwright.app.connect import connect_hosts, select_machines

    selection = select_machines(connect_hosts(host))
    from sparkwright.app import clean_host

    return clean_host.prune_caches(selection, check=check, yes=yes, json=json)


TASKS = {
    "model": [inspect],
    "models": [list_models, verify, copy_models, prune_models],
    "images": [prune_images, copy_images],
    "caches": [list_caches, prune_caches],
}
