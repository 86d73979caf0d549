"""`ForeignRecipe`, the common form of recipes in other tools' formats, and the report of an import."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sparkwright.errors import Refused
from sparkwright.project.documents.document import Document
from sparkwright.project.documents.validation import describe_type, format_place, suggest_name
from sparkwright.trust import secret_patterns, shapes
from sparkwright.trust.shapes import OptionalField, Shape, ShapeError, optional
from sparkwright.visible import one_line

RowKind = Literal["kept", "translated", "dropped", "secret", "note", "warning"]
#: kinds of rows, in the order of the report
ROW_KINDS: tuple[RowKind, ...] = ("kept", "translated", "dropped", "secret", "note", "warning")
#: answer: leave the setting out
DROP_ANSWER = "drop"
#: answer: keep the setting unchanged
KEEP_ANSWER = "keep"
#: answer: add a second model to the recipe's `models`
PIN_ANSWER = "pin"
MAX_ROW_CHARS = 160
MAX_WORDS, MAX_CHARS, MAX_KEY_CHARS, MAX_VALUE_CHARS = 2_000, 64_000, 200, 200
#: YAML's merge key
MERGE_KEY = "<<"
#: replacements for the messages of `shapes`, which use JSON's terms
YAML_MESSAGES = {"is not an object": "must be a mapping", "is not a list": "must be a list"}
#: types of a `scalar`
SCALAR_TYPES = (str, int, float)


@dataclass(frozen=True, slots=True)
class ReportRow:
    """A row of the report."""

    kind: RowKind
    #: key, flag or option of the source
    subject: str
    #: replacement in the recipe, or reason for dropping it
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """A question to the user."""

    #: name for `--answer KEY=VALUE`
    key: str
    text: str
    #: valid answers; empty if any text is valid
    choices: tuple[str, ...] = ()


@dataclass
class ImportReport:
    """The report of an import, filled in while the source is read."""

    #: the user's answers, by the key of the question
    answers: Mapping[str, str] = field(default_factory=dict)
    #: without duplicates, in order
    rows: dict[ReportRow, None] = field(default_factory=dict)
    questions: list[Question] = field(default_factory=list)
    #: keys of the questions and answers that were used
    used_keys: set[str] = field(default_factory=set)

    def add(self, kind: RowKind, subject: str, reason: str = "") -> None:
        """Add a row, with secrets masked, unless it exists already."""
        subject = one_line(secret_patterns.mask_text(subject), max_chars=MAX_ROW_CHARS)
        self.rows.setdefault(ReportRow(kind, subject, secret_patterns.mask_text(reason)))

    def ask(self, key: str, text: str, choices: Iterable[str] = ()) -> str:
        """Return the user's answer to a question. If there is none, add the question to the report and return "".

        Raises Refused for an answer that is not among the choices.
        """
        valid_answers = tuple(choices)
        answer = self.find_answer(key)
        if not answer and all(question.key != key for question in self.questions):
            self.questions.append(Question(key, secret_patterns.mask_text(text), valid_answers))
        if answer and valid_answers and answer not in valid_answers:
            message = f"'{one_line(answer, max_chars=80)}' is not a valid answer to `{key}`."
            raise Refused(message, fix=suggest_name(answer, valid_answers))
        return answer

    def find_answer(self, key: str) -> str:
        """Return an answer without adding a question; empty if the user gave none."""
        self.used_keys.add(key)
        return self.answers.get(key, "")

    def refuse_unused_answers(self) -> None:
        """Raise Refused for an answer without a question."""
        unused_keys = sorted(set(self.answers) - self.used_keys)
        if unused_keys and not self.questions:
            fix = f"Questions: {', '.join(sorted(self.used_keys))}." if self.used_keys else "There are no questions."
            raise Refused(f"`--answer {one_line(unused_keys[0], max_chars=80)}=...` answers no question.", fix=fix)

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": [{"sort": row.kind, "what": row.subject, "why": row.reason} for row in self.rows],
            "questions": [
                {"key": question.key, "question": question.text, "choices": list(question.choices)}
                for question in self.questions
            ],
        }


@dataclass
class ForeignRecipe:
    """A recipe from another tool, in a form common to all formats."""

    #: name of the format, for messages
    kind: str
    #: name of the recipe, its file or its container
    name: str
    description: str = ""
    #: empty if the source does not name it
    engine: str = ""
    #: words of the command that starts the server
    words: list[str] = field(default_factory=list)
    #: with tag and digest as written; empty if the source has none
    image: str = ""
    #: OWNER/NAME[:QUANTISATION]; empty if only the command names it
    model: str = ""
    revision: str = ""
    env: dict[str, str] = field(default_factory=dict)
    #: in Docker's notation
    ports: list[str] = field(default_factory=list)
    #: in Docker's notation
    volumes: list[str] = field(default_factory=list)
    #: options of `docker run`, by their names in a recipe
    options: dict[str, Any] = field(default_factory=dict)
    entrypoint: list[str] | None = None
    network: str = ""
    #: number of hosts; 0 if unknown
    hosts: int = 0
    #: empty for text generation
    task: str = ""
    #: True for a running container, which the recipe must reproduce unchanged
    adopted: bool = False
    #: program that the image of an adopted container starts
    image_program: list[str] = field(default_factory=list)


def resolve_merges(value: Any) -> Any:
    """Return untrusted YAML data with its merge keys (`<<`) resolved.

    Raises ShapeError if `<<` refers to anything but mappings, or if a key is too long or has control characters.
    """
    if isinstance(value, list):
        return [resolve_merges(item) for item in value]
    if not isinstance(value, dict):
        return value
    for key in value:
        if len(key) > MAX_KEY_CHARS or one_line(key) != key:
            raise ShapeError(f"has an invalid key: '{one_line(key, max_chars=60)}'")
    resolved = {key: resolve_merges(item) for key, item in value.items() if key != MERGE_KEY}
    merged_mappings = resolve_merges(value.get(MERGE_KEY, []))
    for mapping in merged_mappings if isinstance(merged_mappings, list) else [merged_mappings]:
        if not isinstance(mapping, dict):
            raise ShapeError(f"has a `{MERGE_KEY}` that must be a mapping, got {describe_type(mapping)}")
        resolved = {**mapping, **resolved}
    return resolved


def check_shape(document: Document, data: Any, shape: Shape) -> None:
    """Raise Refused with key and line if a file does not have the shape of its format.

    Args:
        document: the file, for the line.
        data: content of the file, from `resolve_merges`.
    """
    try:
        shapes.validate(data, shape, "")
    except ShapeError as error:
        value: Any = data
        for step in error.path:
            value = value[step]
        reason = error.reason
        if reason in YAML_MESSAGES:
            reason = f"{YAML_MESSAGES[reason]}, got {describe_type(value)}"
        raise Refused(f"{format_place(error.path)} {reason}.", where=document.where(*error.path)) from None


def scalar(value: Any) -> Any:
    """Shape of a string of limited length, a number, a boolean or null."""
    if value is None or (isinstance(value, str | int | float) and len(str(value)) <= MAX_CHARS):
        return value
    if isinstance(value, str):
        raise ShapeError(f"must have at most {MAX_CHARS} characters")
    raise ShapeError(f"must be a string, got {describe_type(value)}")


def word_list(value: Any) -> list[Any]:
    """Shape of a list of scalars."""
    if isinstance(value, list) and len(value) > MAX_WORDS:
        raise ShapeError(f"has more than {MAX_WORDS} items")
    items: list[Any] = shapes.validate(value, [scalar], "")
    return items


def shape_by_type(expected: str, *kinds: tuple[Any, Shape]) -> Callable[[Any], Any]:
    """Return a shape that depends on the type of the value.

    Args:
        expected: the types in words, e.g. "a list or a mapping".
        kinds: types, each with the shape of its values.
    """

    def check(value: Any) -> Any:
        for kind, shape in kinds:
            if isinstance(value, kind):
                return shapes.validate(value, shape, "")
        raise ShapeError(f"must be {expected}, got {describe_type(value)}")

    return check


def partial_mapping(**fields: Shape) -> dict[str, OptionalField]:
    """Return a shape of a mapping: these keys may be missing or null, and other keys are not checked."""
    return {name: optional(shape) for name, shape in fields.items()}


def format_value(value: Any) -> str:
    """Return a value for a message, on one line and without Python's notation: true; 8; a, b; NAME=VALUE."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return ", ".join(f"{one_line(str(name), max_chars=60)}={format_value(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(format_value, value))
    return "nothing" if value is None else one_line(str(value), max_chars=MAX_VALUE_CHARS)


VARIABLES_SHAPE = {str: scalar}
COMMAND_SHAPE = shape_by_type("a string or a list", (SCALAR_TYPES, scalar), (list, word_list))


def as_mapping(value: Any) -> dict[str, Any]:
    """Return a mapping validated by `check_shape`; empty for None."""
    return dict(value or {})


def as_texts(value: Any) -> list[str]:
    """Return a list of scalars as strings; empty for None."""
    return [as_text(item) for item in value or ()]


def as_text(value: Any) -> str:
    """Return a scalar as text; empty for None."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
