"""A recipe of any foreign format in one form, and the report of its import."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sparkwright.errors import Refused
from sparkwright.project.documents.document import Document
from sparkwright.project.documents.validation import describe_type, suggest_name
from sparkwright.trust import secret_patterns, shapes
from sparkwright.trust.shapes import OptionalField, Shape, ShapeError, optional
from sparkwright.visible import one_line

RowKind = Literal["kept", "translated", "dropped", "secret", "note", "warning"]
#: in the report's order
ROW_KINDS: tuple[RowKind, ...] = ("kept", "translated", "dropped", "secret", "note", "warning")
#: the answer that drops a part
DROP_ANSWER = "drop"
#: the answer that keeps it unchanged
KEEP_ANSWER = "keep"
#: the answer that makes a second model one of the recipe's `models`
PIN_ANSWER = "pin"
MAX_ROW_CHARS = 160


@dataclass(frozen=True, slots=True)
class ReportRow:
    """A row of the report."""

    sort: RowKind
    #: a key, a flag or an option
    what: str
    #: what it became, or why it was dropped
    why: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """A question that only the user can answer."""

    #: the name for `--answer KEY=VALUE`
    key: str
    sentence: str
    #: possible answers; empty for any
    choices: tuple[str, ...] = ()


@dataclass
class ImportReport:
    """The report of one import, filled in while the source is read."""

    #: the user's answers, by the questions' keys
    answers: Mapping[str, str] = field(default_factory=dict)
    rows: list[ReportRow] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    #: keys of the questions and answers that were used
    used_keys: set[str] = field(default_factory=set)

    def add(self, sort: RowKind, what: str, why: str = "") -> None:
        """Add a row, unless the same row exists."""
        row = ReportRow(
            sort, one_line(secret_patterns.mask_text(what), max_chars=MAX_ROW_CHARS), secret_patterns.mask_text(why)
        )
        if row not in self.rows:
            self.rows.append(row)

    def ask(self, key: str, sentence: str, choices: Iterable[str] = ()) -> str:
        """Return the answer to a question; if there is none, add the question and return "".

        Raises Refused for an answer that is none of the choices.
        """
        offered = tuple(choices)
        self.used_keys.add(key)
        answer = self.answers.get(key, "")
        if not answer and all(question.key != key for question in self.questions):
            self.questions.append(Question(key, secret_patterns.mask_text(sentence), offered))
        if answer and offered and answer not in offered:
            message = f"'{one_line(answer, max_chars=80)}' is not an answer to `{key}`."
            raise Refused(message, fix=suggest_name(answer, offered))
        return answer

    def find_answer(self, key: str) -> str:
        """Return an answer that may be given without a question; empty for none."""
        self.used_keys.add(key)
        return self.answers.get(key, "")

    def refuse_unused_answers(self) -> None:
        """Raise Refused for an answer to a question that was not asked."""
        spare = sorted(set(self.answers) - self.used_keys)
        if spare and not self.questions:
            fix = f"Questions: {', '.join(sorted(self.used_keys))}." if self.used_keys else "Nothing is asked."
            raise Refused(f"`--answer {one_line(spare[0], max_chars=80)}=...` answers no question.", fix=fix)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return {
            "rows": [{"sort": row.sort, "what": row.what, "why": row.why} for row in self.rows],
            "questions": [
                {"key": question.key, "question": question.sentence, "choices": list(question.choices)}
                for question in self.questions
            ],
        }


MAX_WORDS, MAX_CHARS, MAX_KEY_CHARS, MAX_VALUE_CHARS = 2_000, 64_000, 200, 200
#: YAML's merge key
MERGE_KEY = "<<"
#: messages of `shapes` in the words of YAML
YAML_MESSAGES = {"is not an object": "must be a mapping", "is not a list": "must be a list"}


@dataclass
class ForeignRecipe:
    """A recipe in another tool's format, as its reader understood it."""

    #: the format's usual name
    kind: str
    #: name of the recipe, its file or its container
    name: str
    description: str = ""
    #: "" if the source does not name it
    engine: str = ""
    #: the command that starts the server
    words: list[str] = field(default_factory=list)
    #: with tag and digest as written; "" for none
    image: str = ""
    #: as OWNER/NAME[:QUANTISATION]; "" if only the command names it
    model: str = ""
    revision: str = ""
    env: dict[str, str] = field(default_factory=dict)
    #: as Docker writes them
    ports: list[str] = field(default_factory=list)
    #: as Docker writes them
    volumes: list[str] = field(default_factory=list)
    #: options of `docker run`, by their names in a recipe
    options: dict[str, Any] = field(default_factory=dict)
    entrypoint: list[str] | None = None
    network: str = ""
    #: number of hosts that it is for; 0 if the source does not say
    hosts: int = 0
    #: "" for text generation
    task: str = ""
    #: folder with its mods
    folder: Path | None = None
    #: whether it is a running container that the recipe must reproduce unchanged
    adopted: bool = False
    #: what its image starts by itself
    starts: list[str] = field(default_factory=list)


def resolve_merges(value: Any) -> Any:
    """Return a stranger's YAML with its `<<` resolved: what a mapping does not have, the mappings named there give it.

    Raises:
        Misfit: `<<` names something that is not a mapping, or a key is not a word that a sentence can repeat.
    """
    if isinstance(value, list):
        return [resolve_merges(item) for item in value]
    if not isinstance(value, dict):
        return value
    for key in value:
        if len(key) > MAX_KEY_CHARS or one_line(key) != key:
            raise ShapeError(f"has a key that is not a word: '{one_line(key, max_chars=60)}'")
    resolved = {key: resolve_merges(item) for key, item in value.items() if key != MERGE_KEY}
    merged = resolve_merges(value.get(MERGE_KEY, []))
    for more in merged if isinstance(merged, list) else [merged]:
        if not isinstance(more, dict):
            raise ShapeError(f"has a `{MERGE_KEY}` that must be a mapping, got {describe_type(more)}")
        resolved = {**more, **resolved}
    return resolved


def check_shape(document: Document, data: Any, shape: Shape) -> None:
    """Check that a file has the shape of its format, before a reader relies on it.

    Args:
        document: the file, for the line.
        data: its content, as `resolve_merges` returns it.
        shape: as `trust.shapes` writes it.

    Raises:
        Refused: it does not match; the message names the key, and the location the line.
    """
    try:
        shapes.validate(data, shape, "")
    except ShapeError as misfit:
        value: Any = data
        for step in misfit.path:
            value = value[step]
        key = one_line(".".join(map(str, misfit.path)), max_chars=120)
        reason = (
            f"{YAML_MESSAGES[misfit.reason]}, got {describe_type(value)}"
            if misfit.reason in YAML_MESSAGES
            else misfit.reason
        )
        raise Refused(f"`{key}` {reason}.", where=document.where(*misfit.path)) from None


#: types of a `scalar`
SCALAR_TYPES = (str, int, float)


def scalar(value: Any) -> Any:
    """A shape: a text, a number, or true or false, where a word is written."""
    if value is None or (isinstance(value, str | int | float) and len(str(value)) <= MAX_CHARS):
        return value
    raise ShapeError(
        "must be a text, got a longer one" if isinstance(value, str) else f"must be a text, got {describe_type(value)}"
    )


def word_list(value: Any) -> list[Any]:
    """A shape: a list of texts and numbers."""
    if isinstance(value, list) and len(value) > MAX_WORDS:
        raise ShapeError(f"has more than {MAX_WORDS} items")
    items: list[Any] = shapes.validate(value, [scalar], "")
    return items


def by_type(expected: str, *kinds: tuple[Any, Shape]) -> Callable[[Any], Any]:
    """A shape that goes by a value's type.

    Args:
        expected: the types in words, as "a list or a mapping".
        kinds: a type, and the shape of its values.
    """

    def check(value: Any) -> Any:
        for kind, shape in kinds:
            if isinstance(value, kind):
                return shapes.validate(value, shape, "")
        raise ShapeError(f"must be {expected}, got {describe_type(value)}")

    return check


def partial_mapping(**fields: Shape) -> dict[str, OptionalField]:
    """A shape: a mapping in which each of these keys may be missing or empty, and other keys are not checked."""
    return {name: optional(shape) for name, shape in fields.items()}


def format_value(value: Any) -> str:
    """Return a value on one line as people write it: true, 8, a, b, NAME=VALUE. Never Python's own form."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return ", ".join(f"{one_line(str(name), max_chars=60)}={format_value(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(format_value, value))
    return "nothing" if value is None else one_line(str(value), max_chars=MAX_VALUE_CHARS)


#: shapes: variables, and a command, as a mapping or in words
VARIABLES_SHAPE = {str: scalar}
COMMAND_SHAPE = by_type("a text or a list", (SCALAR_TYPES, scalar), (list, word_list))


def as_mapping(value: Any) -> dict[str, Any]:
    """Return a part that `check_shape` found to be a mapping; empty if it is absent."""
    return dict(value or {})


def as_texts(value: Any) -> list[str]:
    """Return the words of a list of texts and numbers; an absent one is empty."""
    return [as_text(item) for item in value or ()]


def as_text(value: Any) -> str:
    """Return a text or a number as a word; an absent one is empty."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
