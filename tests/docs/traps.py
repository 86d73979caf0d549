"""docs/traps.md, a table of a public registry's traps and how this project handles them, rendered from traps.yml.

python -m tests.docs.traps        # writes the page (`make docs` does, too)
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

TOP = Path(__file__).parents[2]
PAGE = TOP / "docs" / "traps.md"
DATA = Path(__file__).with_name("traps.yml")
#: number of traps in the registry
REGISTERED = 124
#: minimum numbers of traps in scope, and of those that are prevented or named
MIN_IN_SCOPE, MIN_MET = 80, 64

Answer = Literal["prevented", "named", "seen", "silent", "out"]
MET: tuple[Answer, ...] = ("prevented", "named")


@dataclass(frozen=True, slots=True)
class Trap:
    """A trap of the registry, and how this project handles it."""

    number: int
    trap: str
    answer: Answer
    #: how it is prevented or detected; the reason if it is silent or out of scope
    how: str
    tests: tuple[str, ...] = ()  # names without parameters
    rules: tuple[str, ...] = ()  # names of lint rules

    @property
    def row(self) -> str:
        rules = [f"[`{rule}`](rules.md#{rule})" for rule in self.rules]
        tests = [f"`{test.removeprefix('tests/').replace('.py::', '::')}`" for test in self.tests]
        answer = "out of reach" if self.answer == "out" else self.answer
        cells = (str(self.number), self.trap, answer, self.how, "<br>".join((*rules, *tests)))
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


@cache
def load_traps() -> tuple[Trap, ...]:
    rows: Mapping[int, Mapping[str, Any]] = yaml.safe_load(DATA.read_text())
    return tuple(
        Trap(number, row["trap"], row["answer"], row["how"], tuple(row.get("tests", ())), tuple(row.get("rules", ())))
        for number, row in sorted(rows.items())
    )


def is_missing(test: str) -> bool:
    path, _, name = test.partition("::")
    file = TOP / path
    return not file.is_file() or not re.search(rf"^(?:async )?def {re.escape(name)}\(", file.read_text(), re.MULTILINE)


def traps_in_scope() -> list[Trap]:
    return [trap for trap in load_traps() if trap.answer != "out"]


def render_page() -> str:
    in_scope = traps_in_scope()
    counts = {answer: sum(trap.answer == answer for trap in load_traps()) for answer in get_args(Answer)}
    met = sum(counts[answer] for answer in MET)
    lines = [
        HEAD.format(registered=REGISTERED, reach=len(in_scope), met=met, share=met / REGISTERED, **counts),
        "| no. | trap | result | how | tests and rules |\n|---|---|---|---|---|",
        *(trap.row for trap in load_traps()),
    ]
    return "\n".join(lines) + "\n"


HEAD = """# Silent faults of served models

[model-serving-minefield](https://github.com/Blackwellboy/model-serving-minefield) is a public registry of faults that health checks miss:
the server answers with status 200, but wrongly. Its {registered} entries are an independent measure for a tool that deploys, verifies,
monitors and diagnoses servers. This page describes each entry in our own words, and how sparkwright handles it:

| result | traps | meaning |
|---|---|---|
| prevented | {prevented} | refused before anything is touched, or not possible here |
| named | {named} | found, with its cause |
| seen | {seen} | a check fails, but does not name the cause |
| silent | {silent} | in scope, but not detected |
| out of reach | {out} | how benchmarks are written and scored, training data, other engines, other vendors' GPUs, properties of a model |

Of the {reach} traps in reach, {met} are prevented or named ({share:.0%} of all {registered}). The results, and what is out of reach, are this
project's own judgement of the registry's entries as of August 2026.

*Prevented* and *named* need a test that fails without the feature, or a lint rule, which its own example tests. If a trap has several forms,
the one that affects a server on a GB10 counts. Checks that a recipe must request (`expect.probes`, `expect.load`), and commands that describe
a model (`model.inspect`, `client`), count too. Tests can't show whether such a fault is detected in models that were never served here.

The page is written by `python -m tests.docs.traps` from `tests/docs/traps.yml`; a test checks that the named tests and rules exist.
"""


def find_mistakes() -> Iterator[str]:
    """Yield the mistakes in the table, one sentence each."""
    numbers = [trap.number for trap in load_traps()]
    if numbers != list(range(1, REGISTERED + 1)):
        yield f"numbers from 1 to {REGISTERED} are expected, each once."
    for trap in load_traps():
        if trap.answer not in get_args(Answer):
            yield f"{trap.number}: '{trap.answer}' is no answer."
        if (trap.answer in ("silent", "out")) == bool(trap.tests or trap.rules):
            yield f"{trap.number}: {trap.answer}, with {len(trap.tests)} tests and {len(trap.rules)} rules."
        for test in filter(is_missing, trap.tests):
            yield f"{trap.number}: there is no {test}."


if __name__ == "__main__":
    PAGE.write_text(render_page())
