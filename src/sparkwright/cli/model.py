"""`invoke model.inspect PATH_OR_ID`: what kind of model it is, and how one can tell."""

from __future__ import annotations

from invoke.collection import Collection
from invoke.tasks import task

from sparkwright.app.outcome import reporting
from sparkwright.console.out import say, say_json


@task(
    positional=["source"],
    help={
        "source": "a folder with a config.json, such a file, or a hub id",
        "revision": "of a hub id: branch, tag or commit",
        "json": "one JSON object",
        "debug": "show the traceback",
    },
)
@reporting
def inspect(context: object, source: str, revision: str = "main", json: bool = False, debug: bool = False) -> int:
    """What a model is, from its config.json: recurrent or dense, with evidence, block sizes, releases of vLLM."""

    from sparkwright.app.stores import model_config, model_kind

    config = model_config.read(source, revision)
    if json:
        say_json(model_kind.facts(config))
    else:
        say("\n".join(model_kind.lines(source, config)))
    return 0


def model_collection() -> Collection:
    """`invoke model.inspect PATH_OR_ID`."""
    return Collection(inspect)
