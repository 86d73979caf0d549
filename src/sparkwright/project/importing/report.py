"""The report of an import: the outcome for each part of the source, and the open questions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sparkwright.errors import Refused
from sparkwright.project.documents.validation import nearest
from sparkwright.trust import secret_patterns
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
