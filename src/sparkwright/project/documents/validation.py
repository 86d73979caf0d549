"""Check a document against a model: a wrong key, type or value is refused with file, line and the nearest right name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from sparkwright.errors import Refused
from sparkwright.project.documents.document import Document, Place
from sparkwright.trust.secret_names import names_a_secret
from sparkwright.visible import one_line

SHOWN_CHARS, SENTENCE_CHARS = 120, 700

M = TypeVar("M", bound=BaseModel)

#: keys that hold secrets; their values are not repeated in a message
HIDDEN = frozenset({"secrets", "server_key", "env", "vars"})


class Strict(BaseModel):
    """A part of a user's file: unknown keys are mistakes. Built when it is first used: no command needs all of them."""

    #: hints for keys that people confuse with another one of a different name, a sentence each
    MEANT: ClassVar[Mapping[str, str]] = {}

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, defer_build=True)


def about(description: str, default: Any = ..., **limits: Any) -> Any:
    """Return a key of a file: what it is, for its schema, its page and a message about it, and its default if it has one."""
    return Field(default, description=description, **limits)


def check(model: type[M], document: Document, data: Any = None, at: Place = ()) -> M:
    """Validate the document's data, or a part of it at a place, against a model. An empty file is an empty mapping.

    Raises Refused for the first mistake.
    """
    value = data if at else {} if document.data is None else document.data
    if not isinstance(value, dict):
        raise Refused(f"must be a mapping, got {kind_of(value)}.", where=document.where(*at))
    try:
        return model.model_validate(value)
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
        # a misspelt key is also missing
        first = next((mistake for mistake in mistakes if mistake["type"] == "extra_forbidden"), mistakes[0])
        place = at + _place(value, first)
        typed = [mistake for mistake in mistakes if mistake["type"].endswith(("_type", "_parsing", "literal_error"))]
        kinds = [item for item in typed if at + _place(value, item) == place]
        # one line of it, cut after its escapes were written out
        sentence = one_line(one_line(_sentence(model, first, place, kinds)), at_most=SENTENCE_CHARS)
        raise Refused(sentence, where=document.where(*place)) from None


def _place(value: Any, error: Any) -> Place:
    """Return the place of a mistake in the user's data, without the type names that pydantic puts into its own."""
    found: list[str | int] = []
    for part in error["loc"]:
        if (isinstance(value, dict) and part in value) or (isinstance(value, list) and part in range(len(value))):
            value = value[part]
            found.append(part)
    return (*found, *(error["loc"][-1:] if error["type"] == "missing" else ()))


def rule(why_not: Callable[[str], str]) -> AfterValidator:
    """Return a validator for a field from a function of `trust`, which returns why a text is refused, or ""."""

    def valid(text: str) -> str:
        if reason := why_not(text):
            raise ValueError(f"'{one_line(text, at_most=80)}' {reason}.")
        return text

    return AfterValidator(valid)


#: letters from which a word inside a name is no coincidence
A_PART = 3


def nearest(word: str, known: Iterable[str], *, many: str = "Available") -> str:
    """Return a hint for an unknown name: the nearest known name, or all of them."""
    names = sorted(known)
    parts = sorted((name for name in names if len(word) >= A_PART and word in name), key=len)
    close = [*parts, *difflib.get_close_matches(word, names, n=1, cutoff=0.5)]
    if close:
        return f"Did you mean `{close[0]}`?"
    return f"{many}: {', '.join(names)}." if names else ""


def _sentence(model: type[BaseModel], error: Any, place: Place, kinds: list[Any]) -> str:
    """Return the message for a mistake.

    kinds: the mistakes at the same place, one for each type that its value may have.
    """
    key = place[-1] if place else ""
    if error["type"] == "extra_forbidden" and _is_source(model, error["loc"][:-1]):
        return _no_source(place[:-1])
    if error["type"] == "extra_forbidden" and str(key) in getattr(_kind_at(model, error["loc"][:-1]), "MEANT", {}):
        return f"unknown key `{key}`. {_kind_at(model, error['loc'][:-1]).MEANT[str(key)]}"
    if error["type"] == "extra_forbidden":
        near = nearest(str(key), _keys_at(model, error["loc"][:-1]), many="Known keys")
        return f"unknown key `{key}`. {near}".strip()
    if error["type"] == "missing":
        about = _about(model, error["loc"])
        return f"`{key}` is missing: {about}." if about else f"`{key}` is missing."
    dotted = one_line(".".join(map(str, place)), at_most=200)
    if error["type"] == "value_error":
        return f"`{dotted}`: {_message(error)}"
    if _is_source(model, error["loc"]):
        return _no_source(place)
    hidden = any(part in HIDDEN or names_a_secret(part) for part in map(str, place))
    shown = kind_of(error["input"]) if hidden else _named(error["input"])
    rules = list(dict.fromkeys(filter(None, (_rule(kind) for kind in (kinds if error in kinds else [error])))))
    must = f"` must be {' or '.join(rules)}" if rules else f"`: {_message(error)}"
    return f"`{dotted}{must}, got {shown}{_in_quotes(error)}."


#: the requirement on a value, by the type of pydantic's error; in braces the values of its context
MUST_BE = {
    "string_type": "a string",
    "string_too_short": "at least {min_length} characters long",
    "string_too_long": "at most {max_length} characters long",
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "none_required": "null",
    "literal_error": "{expected}",
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
}
#: the same for a text that must match a pattern
PATTERNS = {
    r"^[a-zA-Z0-9][a-zA-Z0-9_.-]+$": "2 or more letters, digits, _ . - (no spaces)",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "the name of an environment variable",
    r"^[A-Za-z0-9.-]+(:[0-9]+)?(/[a-z0-9._/-]+)?$": "HOST[:PORT][/PATH]",
    r"^[0-9a-f]{40}$": "a commit, 40 hex digits",
    r"^[0-9a-f]{64}$": "a sha256, 64 hex digits",
    r"^sha256:[0-9a-f]{64}$": "a digest, sha256: and 64 hex digits",
}


def _rule(error: Any) -> str:
    """Return what a value must be; empty for a mistake that pydantic explains better."""
    given = error.get("ctx", {})
    if error["type"] == "string_pattern_mismatch":
        return PATTERNS.get(given["pattern"], f"text that matches {given['pattern']}")
    return MUST_BE.get(error["type"], "").format(**given)


def _message(error: Any) -> str:
    return str(error["msg"]).removeprefix("Value error, ")


def _in_quotes(error: Any) -> str:
    """Return the hint to quote a bare word that YAML reads as another type: `no` is false, 2 is a number."""
    text = error["type"] in ("string_type", "literal_error") and isinstance(error["input"], bool | int | float)
    return "; quote it" if text else ""


def _is_source(model: type[BaseModel], loc: Iterable[str | int]) -> bool:
    """Return True if a place holds the source of a secret, so that its value may be the secret itself."""
    return bool(getattr(_kind_at(model, loc), "NAMES_A_SECRET", False))


def _no_source(place: Place) -> str:
    """Return the message for a place that must name the source of a secret.

    The variable in its example has the secret's name, if that can be a variable's name.
    """
    names = (str(part) for part in reversed(place))
    variable = next((name for name in names if re.fullmatch(r"[A-Z][A-Z0-9_]*", name)), "SPARK_KEY")
    dotted = one_line(".".join(str(part) for part in place), at_most=200)
    return f"`{dotted}` must name a source, e.g. {{env: {variable}}}; never the secret itself."


def _keys_at(model: type[BaseModel], loc: Iterable[str | int]) -> list[str]:
    """Return the known keys at a place."""
    kind = _kind_at(model, loc)
    return [field.alias or name for name, field in kind.model_fields.items()] if _is_model(kind) else []


def _about(model: type[BaseModel], loc: tuple[str | int, ...]) -> str:
    """Return the description of a key; empty if it has none."""
    kind = _kind_at(model, loc[:-1])
    found = {field.alias or name: field for name, field in kind.model_fields.items()} if _is_model(kind) else {}
    return (found[loc[-1]].description or "") if loc[-1] in found else ""


def _kind_at(model: type[BaseModel], loc: Iterable[str | int]) -> Any:
    """Return the type at a place, walking down the models."""
    kind: Any = model
    for part in loc:
        field = kind.model_fields.get(part) if _is_model(kind) else None
        kind = _inner(field.annotation) if field is not None else kind
    return kind


def _inner(annotation: Any) -> Any:
    if _is_model(annotation):
        return annotation
    return next((part for part in map(_inner, getattr(annotation, "__args__", ())) if _is_model(part)), None)


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _named(value: Any) -> str:
    """Return a value as a message may repeat it; for a list, a mapping or an address with a password, only its type."""
    if isinstance(value, str) and re.search(r":[^/\s@:]{1,200}@", value[:SHOWN_CHARS]):
        return kind_of(value)
    return one_line(repr(value), at_most=SHOWN_CHARS) if isinstance(value, str | int | float) else kind_of(value)


def kind_of(value: Any) -> str:
    """Return a value's type in words, for a message that must not repeat the value."""
    kinds = {type(None): "nothing", dict: "a mapping", list: "a list", str: "text", bool: "true or false"}
    return kinds.get(type(value), "a number" if isinstance(value, int | float) else "another type")
