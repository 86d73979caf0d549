"""A recipe of any foreign format in one form, and the report of its import."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sparkwright.errors import Refused
from sparkwright.project.documents.document import Document
from sparkwright.project.documents.validation import kind_of, nearest
from sparkwright.trust import secret_patterns, shapes
from sparkwright.trust.shapes import Misfit, Shape, Usual, optional
from sparkwright.visible import one_line

Sort = Literal["kept", "translated", "dropped", "secret", "note", "warning"]
#: in the report's order
SORTS: tuple[Sort, ...] = ("kept", "translated", "dropped", "secret", "note", "warning")
#: the answer that drops a part
DROP = "drop"
#: the answer that keeps it unchanged
KEEP = "keep"
#: the answer that makes a second model one of the recipe's `models`
PIN = "pin"
SHOWN_CHARS = 160


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the report."""

    sort: Sort
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
class Report:
    """The report of one import, filled in while the source is read."""

    #: the user's answers, by the questions' keys
    answers: Mapping[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    #: keys of the questions and answers that were used
    heard: set[str] = field(default_factory=set)

    def add(self, sort: Sort, what: str, why: str = "") -> None:
        """Add a row, unless the same row exists."""
        row = Row(sort, one_line(secret_patterns.text(what), at_most=SHOWN_CHARS), secret_patterns.text(why))
        if row not in self.rows:
            self.rows.append(row)

    def ask(self, key: str, sentence: str, choices: Iterable[str] = ()) -> str:
        """Return the answer to a question; if there is none, add the question and return "".

        Raises Refused for an answer that is none of the choices.
        """
        offered = tuple(choices)
        self.heard.add(key)
        answer = self.answers.get(key, "")
        if not answer and all(question.key != key for question in self.questions):
            self.questions.append(Question(key, secret_patterns.text(sentence), offered))
        if answer and offered and answer not in offered:
            message = f"'{one_line(answer, at_most=80)}' is not an answer to `{key}`."
            raise Refused(message, fix=nearest(answer, offered))
        return answer

    def given(self, key: str) -> str:
        """Return an answer that may be given without a question; empty for none."""
        self.heard.add(key)
        return self.answers.get(key, "")

    def refuse_unheard(self) -> None:
        """Raise Refused for an answer to a question that was not asked."""
        spare = sorted(set(self.answers) - self.heard)
        if spare and not self.questions:
            fix = f"Questions: {', '.join(sorted(self.heard))}." if self.heard else "Nothing is asked."
            raise Refused(f"`--answer {one_line(spare[0], at_most=80)}=...` answers no question.", fix=fix)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return {
            "rows": [{"sort": row.sort, "what": row.what, "why": row.why} for row in self.rows],
            "questions": [
                {"key": question.key, "question": question.sentence, "choices": list(question.choices)}
                for question in self.questions
            ],
        }


MOST_WORDS, MOST_CHARS, MOST_KEY_CHARS, MOST_SHOWN = 2_000, 64_000, 200, 200
#: YAML's merge key
MERGED = "<<"
#: messages of `shapes` in the words of YAML
SAYS = {"is not an object": "must be a mapping", "is not a list": "must be a list"}


@dataclass
class Foreign:
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


def plain(value: Any) -> Any:
    """Return a stranger's YAML with its `<<` resolved: what a mapping does not have, the mappings named there give it.

    Raises:
        Misfit: `<<` names something that is not a mapping, or a key is not a word that a sentence can repeat.
    """
    if isinstance(value, list):
        return [plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    for key in value:
        if len(key) > MOST_KEY_CHARS or one_line(key) != key:
            raise Misfit(f"has a key that is not a word: '{one_line(key, at_most=60)}'")
    found = {key: plain(item) for key, item in value.items() if key != MERGED}
    brought = plain(value.get(MERGED, []))
    for more in brought if isinstance(brought, list) else [brought]:
        if not isinstance(more, dict):
            raise Misfit(f"has a `{MERGED}` that must be a mapping, got {kind_of(more)}")
        found = {**more, **found}
    return found


def checked(document: Document, data: Any, shape: Shape) -> None:
    """Check that a file has the shape of its format, before a reader relies on it.

    Args:
        document: the file, for the line.
        data: its content, as `plain` returns it.
        shape: as `trust.shapes` writes it.

    Raises:
        Refused: it has not; the sentence names the key, and the place the line.
    """
    try:
        shapes.fitted(data, shape, "")
    except Misfit as misfit:
        got: Any = data
        for step in misfit.place:
            got = got[step]
        key = one_line(".".join(map(str, misfit.place)), at_most=120)
        why = f"{SAYS[misfit.why]}, got {kind_of(got)}" if misfit.why in SAYS else misfit.why
        raise Refused(f"`{key}` {why}.", where=document.where(*misfit.place)) from None


#: types of a `scalar`
WORD = (str, int, float)


def scalar(value: Any) -> Any:
    """A shape: a text, a number, or true or false, where a word is written."""
    if value is None or (isinstance(value, str | int | float) and len(str(value)) <= MOST_CHARS):
        return value
    raise Misfit(
        "must be a text, got a longer one" if isinstance(value, str) else f"must be a text, got {kind_of(value)}"
    )


def words(value: Any) -> list[Any]:
    """A shape: a list of texts and numbers."""
    if isinstance(value, list) and len(value) > MOST_WORDS:
        raise Misfit(f"has more than {MOST_WORDS} items")
    found: list[Any] = shapes.fitted(value, [scalar], "")
    return found


def either(what: str, *kinds: tuple[Any, Shape]) -> Callable[[Any], Any]:
    """A shape that goes by a value's type.

    Args:
        what: the types in words, as "a list or a mapping".
        kinds: a type, and the shape of its values.
    """

    def check(value: Any) -> Any:
        for kind, shape in kinds:
            if isinstance(value, kind):
                return shapes.fitted(value, shape, "")
        raise Misfit(f"must be {what}, got {kind_of(value)}")

    return check


def partly(**fields: Shape) -> dict[str, Usual]:
    """A shape: a mapping in which each of these keys may be missing or empty, and others are not judged."""
    return {name: optional(shape) for name, shape in fields.items()}


def shown(value: Any) -> str:
    """Return a value on one line as people write it: true, 8, a, b, NAME=VALUE. Never Python's own form."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return ", ".join(f"{one_line(str(name), at_most=60)}={shown(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value))
    return "nothing" if value is None else one_line(str(value), at_most=MOST_SHOWN)


#: shapes: variables, and a command, as a mapping or in words
VARIABLES = {str: scalar}
COMMAND = either("a text or a list", (WORD, scalar), (list, words))


def mapping(value: Any) -> dict[str, Any]:
    """Return a part that is a mapping, as `checked` has found; an absent one is empty."""
    return dict(value or {})


def texts(value: Any) -> list[str]:
    """Return the words of a list of texts and numbers; an absent one is empty."""
    return [text(item) for item in value or ()]


def text(value: Any) -> str:
    """Return a text or a number as a word; an absent one is empty."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
