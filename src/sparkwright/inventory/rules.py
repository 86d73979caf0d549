"""What no host and no group may say: a secret as a plain value, or the server's key as one secret among others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sparkwright.errors import Refused
from sparkwright.inventory.models import Shared
from sparkwright.trust.secret_names import is_secret
from sparkwright.userfiles.document import Document, Place

#: what the engine reads its key from; as a secret it would reach no container, and switch the server's authentication off
ENGINE_KEY = "VLLM_API_KEY"


def refuse(file: Shared, source: Document, at: Place = ()) -> None:
    """Raises Refused with file and line for the first thing that can't stand."""
    if ENGINE_KEY in file.secrets:
        fix = "Name its source in the recipe: `server_key: {env: SPARK_KEY}`. Its checks then know it by themselves."
        said = f"`secrets.{ENGINE_KEY}`: the key of a server is the recipe's."
        raise Refused(said, where=source.where(*at, "secrets", ENGINE_KEY), fix=fix)
    for place in (*_plain(file.env, ("env",)), *_plain(file.vars, ("vars",))):
        dotted, name = ".".join(map(str, place)), place[-1]
        fix = f"Name its source under `secrets:`, as {name}: {{env: {name}}}; it then reaches the host over standard input only."
        said = f"`{dotted}` looks like a secret, and stands here for everybody to read."
        raise Refused(said, where=source.where(*at, *place), fix=fix)


def _plain(values: Mapping[str, Any], at: Place) -> Iterator[Place]:
    """Where a secret stands, in mappings of mappings too."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _plain(value, (*at, name))
        elif is_secret(name, value):
            yield (*at, name)
