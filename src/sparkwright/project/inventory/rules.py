"""Checks of hosts and groups: no secret as a plain value, and no server's key among the other secrets."""

from __future__ import annotations

from functools import reduce
from operator import getitem
from typing import Any

from sparkwright.engines import engine
from sparkwright.errors import Refused
from sparkwright.project.documents.document import Document, Place
from sparkwright.project.inventory.models import Shared
from sparkwright.trust.secret_names import PROXIES, password_of, plain_secrets

OUT_OF_URL = "Remove user and password from the URL."


def refuse(file: Shared, source: Document, at: Place = ()) -> None:
    """Raise Refused with file and line for the first mistake."""
    own = next((name for name in _key_variables() if name in file.secrets), "") if file.secrets else ""
    if own:
        fix = "Name its source in the recipe: `server_key: {env: SPARK_KEY}`. The checks then use it."
        message = f"`secrets.{own}`: a server key belongs in the recipe."
        raise Refused(message, where=source.where(*at, "secrets", own), fix=fix)
    found = {"env": file.env, "vars": file.vars}
    for place in plain_secrets(found):
        raise refusal(place, source, at, fix=OUT_OF_URL if place[-1] not in PROXIES and _is_url(found, place) else "")


def refusal(place: Place, source: Document, at: Place = (), *, fix: str = "") -> Refused:
    """Return the error for a secret as a plain value.

    Args:
        place: its place below `at`.
        fix: by default, a host's `secrets:`.
    """
    name = next(item for item in reversed(place) if isinstance(item, str))
    fix = fix or (
        f"Name its source under `secrets:` of the host, as {name}: {{env: {name}}}; "
        "it is then sent to the host over standard input only."
    )
    message = f"`{'.'.join(map(str, place))}` looks like a secret, readable by everyone."
    return Refused(message, where=source.where(*at, *place), fix=fix)


def _key_variables() -> list[str]:
    return [engine.key.variable for engine in map(engine.of, engine.TITLES) if engine.key]


def _is_url(file: Any, place: Place) -> bool:
    value = reduce(getitem, place, file)
    return isinstance(value, str) and bool(password_of(value))
