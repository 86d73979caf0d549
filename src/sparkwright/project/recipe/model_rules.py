"""Rules for the further models of a recipe: second models and adapters, whatever the engine."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from sparkwright import visible
from sparkwright.engines import engine
from sparkwright.engines.engine import Engine
from sparkwright.engines.flags import AdapterFlags, names_model, takes_model
from sparkwright.project.documents.document import Document
from sparkwright.project.recipe.container_rules import Mistake
from sparkwright.project.recipe.models import Adapter, RecipeFile
from sparkwright.trust.container_words import lies_in


def _models(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield second models that the engine cannot use, or that a flag names too."""
    own = engine.of(file.engine)
    for role in file.models:
        place, given = own.flags.MODEL_FLAGS.get(role), own.flags.named(file.flags)
        if place is None:
            able = ", ".join(own.flags.MODEL_FLAGS) or "none"
            yield f"`models.{role}` cannot be used with {own.title}.", ("models", role), f"It takes: {able}."
            continue
        flag = f"{place.flag}.{place.key}" if place.key else place.flag
        if names_model(given, place) or (role == "draft" and file.model.draft):
            twice = "`model.draft`" if role == "draft" and file.model.draft else f"`{file.engine}.{flag}`"
            yield f"{twice} and `models.{role}` both name a model.", ("models", role), f"Remove {twice}."
        elif not takes_model(given, place):
            message = f"`models.{role}` has no effect without `{file.engine}.{place.needs or place.flag}`."
            yield message, ("models", role), "Add it, or remove the model: `invoke explain speculation`."


def _adapters(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield adapters that the engine cannot serve by their names, and flags that say the same or the opposite."""
    if not file.adapters:
        return
    own = engine.of(file.engine)
    place = own.flags.ADAPTERS
    if place is None:
        message = f"`adapters` cannot be used with {own.title}: its command is not known."
        yield message, ("adapters",), "Mount them with `container.volumes` and name them in its command."
        return
    given = own.flags.named(file.flags)
    for flag in (place.flag, *place.instead):
        if flag in given:
            message = f"`{file.engine}.{flag}` and `adapters` both name adapters."
            yield message, (file.engine, flag), f"Remove `{flag}`."
    if place.enable and given.get(place.enable, True) is not True:
        message = f"`adapters` has no effect with `{place.enable}: {visible.one_line(str(given[place.enable]))}`."
        yield message, (file.engine, place.enable), "Remove one of them."
    yield from _names(file, own, place)


def _names(file: RecipeFile, own: Engine, place: AdapterFlags) -> Iterator[Mistake]:
    """Yield names of adapters that two things have, or that requests cannot use."""
    served = own.flags.served_names(own.flags.named(file.flags), file.model.file or file.model.mount)
    taken: dict[str, str] = {}
    for n, adapter in enumerate(file.adapters):
        at = ("adapters", n, "name")
        if adapter.name in taken:
            yield f"two `adapters` are called `{adapter.name}`.", at, "Give one another name."
        taken[adapter.name] = adapter.id
        if place.named and adapter.name in served:
            yield f"`adapters`: `{adapter.name}` is a served name of the model.", at, "Choose another name."
        elif not place.named and adapter.name != served[0]:
            message = (
                f"{own.title} serves no adapter by a name: every request gets it, so `{adapter.name}` must be the server's "
                f"own name, and that is `{visible.name(served[0])}`."
            )
            yield message, at, f"Set the flag for the served name to {adapter.name}, or serve it with vLLM."
    if place.prefixed and ":" in served[0]:
        message = f"{own.title} reads a colon in a request's model as the beginning of an adapter's name."
        yield message, (file.engine,), "Serve the model under a name without a colon."


def _files(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield further models whose `file` is missing or has no meaning."""
    own, chooses = engine.of(file.engine), engine.of(file.engine).files
    for role, model in file.further.items():
        if bool(chooses) is not bool(model.file):
            message = f"`{_key(file, role)}.file` {'is missing' if chooses else 'cannot be used'} with {own.title}."
            yield message, file.place_of(role), f"Name {chooses.NEEDED}." if chooses else "Remove it."


def _shared_places(file: RecipeFile, source: Document) -> Iterator[Mistake]:
    """Yield further models' folders, on the host or in the container, that overlap another model's."""
    for role, model in file.further.items():
        others = {
            "model": file.model,
            **{_key(file, name): other for name, other in file.further.items() if name != role},
        }
        for option in ("dir", "mount"):
            own = posixpath.normpath(getattr(model, option))
            for name, other in others.items():
                theirs = posixpath.normpath(getattr(other, option))
                if own == theirs or lies_in(own, theirs) or lies_in(theirs, own):
                    message = (
                        f"`{_key(file, role)}.{option}` and `{name}.{option}` are one folder, or one lies in the other."
                    )
                    yield message, (*file.place_of(role), option), "Give each model a folder of its own."


def _key(file: RecipeFile, role: str) -> str:
    """Return a further model's key in the recipe, for messages."""
    model = file.further[role]
    return f"adapters.{model.name}" if isinstance(model, Adapter) else f"models.{role}"


RULES = (_models, _adapters, _files, _shared_places)
