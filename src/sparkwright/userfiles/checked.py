"""From a document to a model: a wrong key, type or value is refused with file, line and the nearest right name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from sparkwright.errors import Refused
from sparkwright.trust.visible import one_line
from sparkwright.userfiles.document import Document, Place

SHOWN_CHARS, SENTENCE_CHARS = 120, 700

M = TypeVar("M", bound=BaseModel)


class Strict(BaseModel):
    """A part of a user's file: unknown keys are mistakes. Built when it is first used: no command needs all of them."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, defer_build=True)


def check(model: type[M], document: Document, data: Any = None, at: Place = ()) -> M:
    """The document's data (or a part of it, at a place) as a model. Raises Refused for the first mistake."""
    value = document.data if data is None and not at else data
    if not isinstance(value, dict):
        raise Refused(f"a mapping is expected here, not {_named(value)}.", where=document.where(*at))
    try:
        return model.model_validate(value)
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
        first = next(
            (one for one in mistakes if one["type"] == "extra_forbidden"), mistakes[0]
        )  # a misspelt key is also missing
        place = at + tuple(first["loc"])
        raise Refused(_short(_sentence(model, first, place)), where=document.where(*place)) from None


def _short(sentence: str) -> str:
    """One line of it, cut after its escapes were written out."""
    return one_line(one_line(sentence), at_most=SENTENCE_CHARS)


def nearest(word: str, known: Iterable[str], *, many: str = "There are") -> str:
    """The end of a sentence about an unknown name: the nearest right one, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if close:
        return f"Did you mean `{close[0]}`?"
    return f"{many}: {', '.join(names)}." if names else ""


def _sentence(model: type[BaseModel], error: Any, place: Place) -> str:
    key = place[-1] if place else ""
    if error["type"] == "extra_forbidden":
        return (
            f"unknown key `{key}`. {nearest(str(key), _keys_at(model, error['loc'][:-1]), many='Known here')}".strip()
        )
    if error["type"] == "missing":
        return f"`{key}` is missing."
    said = str(error["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
    dotted = ".".join(str(part) for part in place)
    return (
        f"`{dotted}`: {said}, not {_named(error['input'])}."
        if error["type"] != "value_error"
        else f"`{dotted}`: {said}"
    )


def _keys_at(model: type[BaseModel], loc: Iterable[str | int]) -> list[str]:
    """The keys that are known at a place, walking the models down."""
    kind: Any = model
    for part in loc:
        field = kind.model_fields.get(part) if _is_model(kind) else None
        kind = _inner(field.annotation) if field is not None else kind
    if not _is_model(kind):
        return []
    return [field.alias or name for name, field in kind.model_fields.items()]


def _inner(annotation: Any) -> Any:
    if _is_model(annotation):
        return annotation
    return next((part for part in map(_inner, getattr(annotation, "__args__", ())) if _is_model(part)), None)


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _named(value: Any) -> str:
    return (
        "nothing"
        if value is None
        else "a mapping"
        if isinstance(value, dict)
        else "a list"
        if isinstance(value, list)
        else one_line(repr(value), at_most=SHOWN_CHARS)
    )
