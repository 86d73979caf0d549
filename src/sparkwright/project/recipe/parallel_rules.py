"""Rules for a recipe that is served from several hosts, and the container settings that follow from that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sparkwright.engines import engine
from sparkwright.engines.parallel import Parallel
from sparkwright.errors import Refused
from sparkwright.project.documents.document import Document
from sparkwright.project.recipe.container_rules import Mistake, flag_place
from sparkwright.project.recipe.models import RecipeFile
from sparkwright.trust import network_words


def applied(file: RecipeFile, source: Document) -> RecipeFile:
    """Return the recipe on the host's network: its members use the hosts' own addresses.

    Raises Refused with file and line for the first setting that conflicts with `parallel`.
    """
    for message, place, fix in _mistakes(file, source):
        raise Refused(message, where=source.where(*place), fix=fix)
    return file.model_copy(
        update={"container": file.container.model_copy(update={"network": network_words.HOST, "networks": ()})}
    )


def _mistakes(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    split, own = file.parallel, engine.of(file.engine)
    if split is None:
        return
    if split.tensor * split.pipeline == 1:
        yield "`parallel` splits the model over one host.", ("parallel",), "Remove it, or write `tensor: 2`."
    if not own.served:
        return  # reported for every recipe of such an engine
    if own.parallel is None:
        message = f"`parallel` cannot be used with {own.title}: it serves from one host only."
        yield message, ("parallel",), "Remove it, or choose another engine."
        return
    yield from _network(file)
    yield from _set_elsewhere(file, source, own.parallel)


def _network(file: RecipeFile) -> Iterator[Mistake]:
    box: Any = file.container
    if box.network and network_words.parts(box.network)[0] != network_words.HOST:
        message = "`container.network` must be `host` with `parallel`: the ranks reach each other over the host's own interfaces."
        yield message, ("container", "network"), "Remove it."


def _set_elsewhere(file: RecipeFile, source: Document, parallel: Parallel) -> Iterator[Mistake]:
    """Yield the recipe's flags and variables that a cluster sets for each of its members."""
    for name, why in parallel.SET_BY.items():
        if name in file.flags:
            place = flag_place(source, name)
            yield f"`{'.'.join(place)}` cannot be set with `parallel`: {why} sets it.", place, "Remove it."
    for name in parallel.VARIABLES:
        if name in file.container.env:
            message = f"`container.env.{name}` cannot be set with `parallel`: the cluster sets it for each member."
            yield message, ("container", "env", name), "Remove it; hosts/*.yml give it by `fabric`."
