"""Check a document against a model: a wrong key, type or value is refused with file, line and the nearest right name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from sparkwright.errors import Refused
from sparkwright.project.documents.document import Document, Place
from sparkwright.trust.secret_names import is_secret_name
from sparkwright.visible import one_line

MAX_SHOWN_CHARS, MAX_MESSAGE_CHARS = 120, 700

M = TypeVar("M", bound=BaseModel)

#: keys that hold secrets; their values are not repeated in a message
SECRET_KEYS = frozenset({"secrets", "server_key", "env", "vars"})


class Strict(BaseModel):
    """A part of a user's file: unknown keys are mistakes. Built when it is first used: no command needs all of them."""

    #: hints for keys that people confuse with another one of a different name, a sentence each
    MEANT: ClassVar[Mapping[str, str]] = {}

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, defer_build=True)


def schema_field(description: str, default: Any = ..., **limits: Any) -> Any:
    """Return a key of a file: what it is, for its schema, its page and a message about it, and its default if it has one."""
    return Field(default, description=description, **limits)


def validate(model: type[M], document: Document, data: Any = None, at: Place = ()) -> M:
    """Validate the document's data, or a part of it at a place, against a model. An empty file is an empty mapping.

    Raises Refused for the first mistake.
    """
    value = data if at else {} if document.data is None else document.data
    if not isinstance(value, dict):
        raise Refused(f"must be a mapping, got {describe_type(value)}.", where=document.where(*at))
    try:
        return model.model_validate(value)
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
        # a misspelt key is also missing
        first = next((mistake for mistake in mistakes if mistake["type"] == "extra_forbidden"), mistakes[0])
        place = at + _error_place(value, first)
        type_errors = [
            mistake for mistake in mistakes if mistake["type"].endswith(("_type", "_parsing", "literal_error"))
        ]
        same_place = [item for item in type_errors if at + _error_place(value, item) == place]
        # one line of it, cut after its escapes were written out
        message = one_line(one_line(_describe_error(model, first, place, same_place)), max_chars=MAX_MESSAGE_CHARS)
        raise Refused(message, where=document.where(*place)) from None


def _error_place(value: Any, error: Any) -> Place:
    """Return the place of a mistake in the user's data, without the type names that pydantic puts into its own."""
    place: list[str | int] = []
    for part in error["loc"]:
        if (isinstance(value, dict) and part in value) or (isinstance(value, list) and part in range(len(value))):
            value = value[part]
            place.append(part)
    return (*place, *(error["loc"][-1:] if error["type"] == "missing" else ()))


def build_validator(reason_of: Callable[[str], str]) -> AfterValidator:
    """Return a validator for a field from a function of `trust`, which returns why a text is refused, or ""."""

    def validate_text(text: str) -> str:
        if reason := reason_of(text):
            raise ValueError(f"'{one_line(text, max_chars=80)}' {reason}.")
        return text

    return AfterValidator(validate_text)


#: letters from which a word inside a name is no coincidence
MIN_PART_CHARS = 3


def suggest_name(word: str, known: Iterable[str], *, label: str = "Available") -> str:
    """Return a hint for an unknown name: the nearest known name, or all of them."""
    names = sorted(known)
    containing = sorted((name for name in names if len(word) >= MIN_PART_CHARS and word in name), key=len)
    close = [*containing, *difflib.get_close_matches(word, names, n=1, cutoff=0.5)]
    if close:
        return f"Did you mean `{close[0]}`?"
    return f"{label}: {', '.join(names)}." if names else ""


def _describe_error(model: type[BaseModel], error: Any, place: Place, kinds: list[Any]) -> str:
    """Return the message for a mistake.

    kinds: the mistakes at the same place, one for each type that its value may have.
    """
    key = place[-1] if place else ""
    if error["type"] == "extra_forbidden" and _is_secret_source(model, error["loc"][:-1]):
        return _describe_secret_source(place[:-1])
    if error["type"] == "extra_forbidden" and str(key) in getattr(_type_at(model, error["loc"][:-1]), "MEANT", {}):
        return f"unknown key `{key}`. {_type_at(model, error['loc'][:-1]).MEANT[str(key)]}"
    if error["type"] == "extra_forbidden":
        suggestion = suggest_name(str(key), _known_keys(model, error["loc"][:-1]), label="Known keys")
        return f"unknown key `{key}`. {suggestion}".strip()
    if error["type"] == "missing":
        description = _key_description(model, error["loc"])
        return f"`{key}` is missing: {description}." if description else f"`{key}` is missing."
    dotted = one_line(".".join(map(str, place)), max_chars=200)
    if error["type"] == "value_error":
        return f"`{dotted}`: {_error_message(error)}"
    if _is_secret_source(model, error["loc"]):
        return _describe_secret_source(place)
    hidden = any(part in SECRET_KEYS or is_secret_name(part) for part in map(str, place))
    received = describe_type(error["input"]) if hidden else _format_value(error["input"])
    rules = list(
        dict.fromkeys(filter(None, (_describe_requirement(kind) for kind in (kinds if error in kinds else [error]))))
    )
    requirement = f"` must be {' or '.join(rules)}" if rules else f"`: {_error_message(error)}"
    return f"`{dotted}{requirement}, got {received}{_quote_hint(error)}."


#: the requirement on a value, by the type of pydantic's error; in braces the values of its context
REQUIREMENTS = {
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
PATTERN_DESCRIPTIONS = {
    r"^[a-zA-Z0-9][a-zA-Z0-9_.-]+$": "2 or more letters, digits, _ . - (no spaces)",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "the name of an environment variable",
    r"^[A-Za-z0-9.-]+(:[0-9]+)?(/[a-z0-9._/-]+)?$": "HOST[:PORT][/PATH]",
    r"^[0-9a-f]{40}$": "a commit, 40 hex digits",
    r"^[0-9a-f]{64}$": "a sha256, 64 hex digits",
    r"^sha256:[0-9a-f]{64}$": "a digest, sha256: and 64 hex digits",
}


def _describe_requirement(error: Any) -> str:
    """Return what a value must be; empty for a mistake that pydantic explains better."""
    context = error.get("ctx", {})
    if error["type"] == "string_pattern_mismatch":
        return PATTERN_DESCRIPTIONS.get(context["pattern"], f"text that matches {context['pattern']}")
    return REQUIREMENTS.get(error["type"], "").format(**context)


def _error_message(error: Any) -> str:
    return str(error["msg"]).removeprefix("Value error, ")


def _quote_hint(error: Any) -> str:
    """Return the hint to quote a bare word that YAML reads as another type: `no` is false, 2 is a number."""
    text = error["type"] in ("string_type", "literal_error") and isinstance(error["input"], bool | int | float)
    return "; quote it" if text else ""


def _is_secret_source(model: type[BaseModel], loc: Iterable[str | int]) -> bool:
    """Return True if a place holds the source of a secret, so that its value may be the secret itself."""
    return bool(getattr(_type_at(model, loc), "NAMES_A_SECRET", False))


def _describe_secret_source(place: Place) -> str:
    """Return the message for a place that must name the source of a secret.

    The variable in its example has the secret's name, if that can be a variable's name.
    """
    names = (str(part) for part in reversed(place))
    variable = next((name for name in names if re.fullmatch(r"[A-Z][A-Z0-9_]*", name)), "SPARK_KEY")
    dotted = one_line(".".join(str(part) for part in place), max_chars=200)
    return f"`{dotted}` must name a source, e.g. {{env: {variable}}}; never the secret itself."


def _known_keys(model: type[BaseModel], loc: Iterable[str | int]) -> list[str]:
    """Return the known keys at a place."""
    kind = _type_at(model, loc)
    return [field.alias or name for name, field in kind.model_fields.items()] if _is_model(kind) else []


def _key_description(model: type[BaseModel], loc: tuple[str | int, ...]) -> str:
    """Return the description of a key; empty if it has none."""
    kind = _type_at(model, loc[:-1])
    fields = {field.alias or name: field for name, field in kind.model_fields.items()} if _is_model(kind) else {}
    return (fields[loc[-1]].description or "") if loc[-1] in fields else ""


def _type_at(model: type[BaseModel], loc: Iterable[str | int]) -> Any:
    """Return the type at a place, walking down the models."""
    kind: Any = model
    for part in loc:
        field = kind.model_fields.get(part) if _is_model(kind) else None
        kind = _inner_model(field.annotation) if field is not None else kind
    return kind


def _inner_model(annotation: Any) -> Any:
    if _is_model(annotation):
        return annotation
    return next((part for part in map(_inner_model, getattr(annotation, "__args__", ())) if _is_model(part)), None)


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _format_value(value: Any) -> str:
    """Return a value as a message may repeat it; for a list, a mapping or an address with a password, only its type."""
    if isinstance(value, str) and re.search(r":[^/\s@:]{1,200}@", value[:MAX_SHOWN_CHARS]):
        return describe_type(value)
    return (
        one_line(repr(value), max_chars=MAX_SHOWN_CHARS)
        if isinstance(value, str | int | float)
        else describe_type(value)
    )


def describe_type(value: Any) -> str:
    """Return a value's type in words, for a message that must not repeat the value."""
    kinds = {type(None): "nothing", dict: "a mapping", list: "a list", str: "text", bool: "true or false"}
    return kinds.get(type(value), "a number" if isinstance(value, int | float) else "another type")
