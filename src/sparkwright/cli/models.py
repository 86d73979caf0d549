"""The commands about models: the architecture of a model (`model.inspect`), and the models on hosts (`models.*`)."""

from __future__ import annotations

from sparkwright.cli.framework.command import command
from sparkwright.console.out import say, say_json
from sparkwright.errors import Refused

JSON = "one JSON array"


@command(
    positional=["source"],
    help={
        "source": "a folder with a config.json, such a file, or a hub id",
        "revision": "of a hub id: branch, tag or commit (default main)",
        "json": "one JSON object",
    },
)
def inspect(source: str, revision: str = "main", json: bool = False) -> None:
    """Show a model's architecture, with evidence.

    From its config.json: recurrent or dense, block sizes, the releases of vLLM that can serve it. From its chat template and
    generation_config.json: the fields that requests may set, thinking, sampling.
    """
    from sparkwright.app.stores import model_config, model_kind

    config = model_config.read(source, revision)
    chat = model_config.read_chat(source, revision)
    if json:
        say_json({**model_kind.facts(config), "chat": chat})
    else:
        say("\n".join([*model_kind.lines(source, config), *model_kind.chat_lines(chat)]))


@command(name="list", help={"json": JSON})
def list_models(host: str = "all", json: bool = False) -> list[int]:
    """List the models on hosts: size, complete or not, users."""
    from sparkwright.app.stores import models

    return models.list_models(host, as_json=json)


@command(help={"deep": "read every byte again, not only files that changed", "json": JSON})
def verify(host: str = "", deep: bool = False, json: bool = False) -> list[int]:
    """Compare a host's model files with spark.lock.

    Exit code 2 when a file is missing or changed.
    """
    from sparkwright.app.stores import models

    return models.verify(host, deep=deep, as_json=json)


@command(
    help={
        "from": "the host that has the model",
        "to": "the hosts to copy it to: spark2, a group, all",
        "check": "dry run: show what would be copied",
        "json": "events as JSON lines",
    }
)
def copy(from_: str = "", to: str = "", check: bool = False, json: bool = False) -> list[int]:
    """Copy a model from one host to others.

    From host to host, verified by the hashes of spark.lock. The hub is not asked.
    """
    from sparkwright.app.stores import models

    if not from_ or not to:
        raise Refused("say from where and to whom: --from spark1 --to lab.")
    return models.copy(from_, to, check=check, as_json=json)


@command(help={"yes": "do not ask", "json": JSON})
def prune(host: str = "", yes: bool = False, json: bool = False) -> list[int]:
    """Remove a host's unused models, after asking.

    Those that no container mounts and no recipe of the host names.
    """
    from sparkwright.app.stores import models

    return models.prune(host, yes=yes, as_json=json)


TASKS = {"model": [inspect], "models": [list_models, verify, copy, prune]}
