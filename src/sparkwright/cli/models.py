"""`invoke models.list`, `models.verify`, `models.copy --from HOST --to HOSTS`, `models.prune`."""

from __future__ import annotations

from invoke.collection import Collection
from invoke.tasks import task

from sparkwright.app.outcome import reporting

JSON = "one JSON array on stdout"
DEBUG = "show the traceback"
HOST = "which hosts: spark1, a group, all"


@task(name="list", help={"host": HOST, "json": JSON, "debug": DEBUG})
@reporting
def list_models(context: object, host: str = "all", json: bool = False, debug: bool = False) -> int:
    """The models that hosts hold: size, whether they are whole, and which containers use them."""
    from sparkwright.app.stores import models

    return models.list_models(host, as_json=json)


@task(help={"host": HOST, "deep": "read every byte again, not only what changed", "json": JSON, "debug": DEBUG})
@reporting
def verify(context: object, host: str = "", deep: bool = False, json: bool = False, debug: bool = False) -> int:
    """Whether a host's model is what spark.lock says; exit 2 when a file is missing or wrong."""
    from sparkwright.app.stores import models

    return models.verify(host, deep=deep, as_json=json)


@task(
    help={
        "from": "the host that has the model",
        "to": "the hosts that need it: spark2, a group, all",
        "check": "look only: say what would be copied",
        "json": "events as JSON lines on stdout",
        "debug": DEBUG,
    }
)
@reporting
def copy(
    context: object, from_: str = "", to: str = "", check: bool = False, json: bool = False, debug: bool = False
) -> int:
    """Bring a model from one host to others, host to host, proved by the lock's hashes; the hub is not asked."""
    from sparkwright.app.stores import models
    from sparkwright.errors import Refused

    if not from_ or not to:
        raise Refused("say from where and to whom: --from spark1 --to lab.")
    return models.copy(from_, to, check=check, as_json=json)


@task(help={"host": HOST, "yes": "do not ask", "json": JSON, "debug": DEBUG})
@reporting
def prune(context: object, host: str = "", yes: bool = False, json: bool = False, debug: bool = False) -> int:
    """Remove models that no container mounts and no recipe of the host names: shows them and asks first."""
    from sparkwright.app.stores import models

    return models.prune(host, yes=yes, as_json=json)


def models_collection() -> Collection:
    """`invoke models.list` and its siblings."""
    return Collection(list_models, verify, copy, prune)
