"""Validates documents against Pydantic models. Errors give the file, the line and the nearest valid name."""

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
T = TypeVar("T")

#: keys whose values may be secrets, so that messages do not repeat them
SECRET_KEYS = frozenset({"secrets", "server_key", "env", "vars"})
#: minimum length of a word that is also looked for inside longer names
MIN_PART_CHARS = 3
#: requirements by the type of pydantic's error; names in braces are keys of the error's context
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
#: requirements by the pattern that a string must match
PATTERN_DESCRIPTIONS = {
    r"^[a-zA-Z0-9][a-zA-Z0-9_.-]+$": "2 or more letters, digits, _ . - (no spaces)",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "the name of an environment variable",
    r"^[A-Za-z0-9.-]+(:[0-9]+)?(/[a-z0-9._/-]+)?$": "HOST[:PORT][/PATH]",
    r"^[0-9a-f]{40}$": "a commit, 40 hex digits",
    r"^[0-9a-f]{64}$": "a sha256, 64 hex digits",
    r"^sha256:[0-9a-f]{64}$": "a digest, sha256: and 64 hex digits",
}


class Strict(BaseModel):
    """A section of a user's file. Unknown keys are errors. Built on first use, because no command needs all models."""

    #: hints for keys that users may write by mistake, one sentence each
    KEY_HINTS: ClassVar[Mapping[str, str]] = {}

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, defer_build=True)


def schema_field(description: str, default: Any = ..., **limits: Any) -> Any:
    """Return a field. description: shown in the JSON schema, the documentation and messages about a missing key."""
    return Field(default, description=description, **limits)


def validate(model: type[M], document: Document, data: Any = None, section_place: Place = ()) -> M:
    """Validate a document, or the section `data` at `section_place`, against a model. Raises Refused for the first mistake.

    An empty file counts as an empty mapping.
    """
    value = data if section_place else {} if document.data is None else document.data
    if not isinstance(value, dict):
        raise Refused(f"must be a mapping, got {describe_type(value)}.", where=document.where(*section_place))
    try:
        return model.model_validate(value)
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
        # report an unknown key first: it may be the misspelling of one that is reported missing
        first_mistake = next((mistake for mistake in mistakes if mistake["type"] == "extra_forbidden"), mistakes[0])
        place = section_place + _error_place(value, first_mistake)
        type_errors = [
            mistake
            for mistake in mistakes
            if mistake["type"].endswith(("_type", "_parsing", "literal_error"))
            and section_place + _error_place(value, mistake) == place
        ]
        # escaped first, so that the limit applies to the escaped text
        message = one_line(
            one_line(_describe_error(model, first_mistake, place, type_errors)), max_chars=MAX_MESSAGE_CHARS
        )
        raise Refused(message, where=document.where(*place)) from None


def _error_place(value: Any, error: Any) -> Place:
    """Return the place of a mistake in the user's data: pydantic's `loc` without the names of types."""
    place: list[str | int] = []
    for part in error["loc"]:
        if (isinstance(value, dict) and part in value) or (isinstance(value, list) and part in range(len(value))):
            value = value[part]
            place.append(part)
    return (*place, *(error["loc"][-1:] if error["type"] == "missing" else ()))


def build_message_validator(check: Callable[[T], str]) -> AfterValidator:
    """Return a validator. check: returns the error message for a value, or "" if the value is valid."""

    def validate_value(value: T) -> T:
        if message := check(value):
            raise ValueError(message)
        return value

    return AfterValidator(validate_value)


def build_validator(check: Callable[[str], str]) -> AfterValidator:
    """Return a validator whose error messages quote the text.

    check: returns the reason why a string is invalid, e.g. "is not an IP address", or "" if it is valid.
    """

    def describe_problem(text: str) -> str:
        reason = check(text)
        return f"'{one_line(text, max_chars=80)}' {reason}." if reason else ""

    return build_message_validator(describe_problem)


def collect_refusals(actions: Iterable[Callable[[], object]]) -> list[Refused]:
    """Call each function, and return the errors of those that raise Refused."""
    refusals = []
    for action in actions:
        try:
            action()
        except Refused as error:
            refusals.append(error)
    return refusals


def suggest_name(word: str, valid_names: Iterable[str], *, label: str = "Available") -> str:
    """Return a hint for an unknown name: the nearest valid name, or a list of all of them."""
    names = sorted(valid_names)
    containing_names = sorted((name for name in names if len(word) >= MIN_PART_CHARS and word in name), key=len)
    close_names = [*containing_names, *difflib.get_close_matches(word, names, n=1, cutoff=0.6)]
    if close_names:
        return f"Did you mean `{close_names[0]}`?"
    return f"{label}: {', '.join(names)}." if names else ""


def _describe_error(model: type[BaseModel], error: Any, place: Place, type_errors: list[Any]) -> str:
    """Return the message for a mistake. type_errors: type errors at the same place, one for each type that is allowed there."""
    key = place[-1] if place else ""
    if error["type"] == "extra_forbidden" and _is_secret_source(model, error["loc"][:-1]):
        return _describe_secret_source(place[:-1])
    if error["type"] == "extra_forbidden" and str(key) in getattr(_model_at(model, error["loc"][:-1]), "KEY_HINTS", {}):
        return f"unknown key `{key}`. {_model_at(model, error['loc'][:-1]).KEY_HINTS[str(key)]}"
    if error["type"] == "extra_forbidden":
        suggestion = suggest_name(str(key), _known_keys(model, error["loc"][:-1]), label="Known keys")
        return f"unknown key `{key}`. {suggestion}".strip()
    if error["type"] == "missing":
        description = _key_description(model, error["loc"])
        return f"`{key}` is missing: {description}." if description else f"`{key}` is missing."
    is_mapping_key = error["loc"][-1] == "[key]"
    shown_place = format_place((*place[:-1], str(key)) if is_mapping_key else place)
    if error["type"] == "value_error":
        return f"{shown_place}: {_error_message(error)}"
    if _is_secret_source(model, error["loc"]):
        return _describe_secret_source(place)
    may_be_secret = any(part in SECRET_KEYS or is_secret_name(part) for part in map(str, place))
    received = describe_type(error["input"]) if may_be_secret else _format_value(error["input"])
    errors = type_errors if error in type_errors else [error]
    requirements = dict.fromkeys(filter(None, map(_describe_requirement, errors)))
    problem = f" must be {' or '.join(requirements)}" if requirements else f": {_error_message(error)}"
    return f"{shown_place}{problem}, got {received}{_quote_hint(error)}."


def format_place(place: Place) -> str:
    """Return the keys of a place for a message; in a list they begin at its item: "`name` of item 2 of `tasks`"."""
    keys, item_text = list[str](), ""
    for part in place:
        if isinstance(part, int):
            # a list that is the whole file has no name
            item_text, keys = f"item {part + 1} of {_quote_keys(keys)}" if keys else "", []
        else:
            keys.append(part)
    return " of ".join(filter(None, [_quote_keys(keys) if keys or not item_text else "", item_text]))


def _quote_keys(keys: Iterable[str]) -> str:
    return f"`{one_line('.'.join(keys), max_chars=200)}`"


def _describe_requirement(error: Any) -> str:
    """Return the requirement on a value, to follow "must be"; empty if pydantic's own message is better."""
    context = error.get("ctx", {})
    if error["type"] == "string_pattern_mismatch":
        return PATTERN_DESCRIPTIONS.get(context["pattern"], f"text that matches {context['pattern']}")
    return REQUIREMENTS.get(error["type"], "").format(**context)


def _error_message(error: Any) -> str:
    return str(error["msg"]).removeprefix("Value error, ")


def _quote_hint(error: Any) -> str:
    """Return the hint to quote a bare word that YAML reads as another type: `no` is false, 2 is a number."""
    needs_quotes = error["type"] in ("string_type", "literal_error") and isinstance(error["input"], bool | int | float)
    return "; quote it" if needs_quotes else ""


def _is_secret_source(model: type[BaseModel], loc: Iterable[str | int]) -> bool:
    """Return True if the place is the source of a secret, where a user may have written the secret itself."""
    return bool(getattr(_model_at(model, loc), "IS_SECRET_SOURCE", False))


def _describe_secret_source(place: Place) -> str:
    """Return the message for a wrong source of a secret. Its example uses the secret's name if that is a variable name."""
    parts = [str(part) for part in place]
    variable = next((part for part in reversed(parts) if re.fullmatch(r"[A-Z][A-Z0-9_]*", part)), "SPARK_KEY")
    dotted_place = one_line(".".join(parts), max_chars=200)
    return f"`{dotted_place}` must name a source, e.g. {{env: {variable}}}; never the secret itself."


def _known_keys(model: type[BaseModel], loc: Iterable[str | int]) -> list[str]:
    kind = _model_at(model, loc)
    return [field.alias or name for name, field in kind.model_fields.items()] if _is_model(kind) else []


def _key_description(model: type[BaseModel], loc: tuple[str | int, ...]) -> str:
    """Return the description of a key; empty if it has none."""
    kind = _model_at(model, loc[:-1])
    fields = {field.alias or name: field for name, field in kind.model_fields.items()} if _is_model(kind) else {}
    return (fields[loc[-1]].description or "") if loc[-1] in fields else ""


def _model_at(model: type[BaseModel], loc: Iterable[str | int]) -> Any:
    """Return the innermost model that contains a place."""
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
    """Return a value for a message; for lists, mappings and URLs with a password, only its type."""
    if isinstance(value, str) and re.search(r":[^/\s@:]{1,200}@", value[:MAX_SHOWN_CHARS]):
        return describe_type(value)
    return (
        one_line(repr(value), max_chars=MAX_SHOWN_CHARS)
        if isinstance(value, str | int | float)
        else describe_type(value)
    )


def describe_type(value: Any) -> str:
    """Return a value's type in words, for messages."""
    kinds = {type(None): "nothing", dict: "a mapping", list: "a list", str: "text", bool: "true or false"}
    return kinds.get(type(value), "a number" if isinstance(value, int | float) else "another type")
