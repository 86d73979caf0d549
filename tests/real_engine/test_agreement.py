"""`make test-engine`: what sparkwright says of a release agrees with what that release did. Minutes; not part of `make test-all`.

SPARKWRIGHT_ENGINE_STARTS: all, some (those of releases.cases.STARTED) or none; an engine is started for so many of the cases.
"""

import os
from collections.abc import Iterator

import pytest

from tests.real_engine import agreement
from tests.real_engine.cases import CASES, Case
from tests.real_engine.engine import RUNS, VERSION, Engine
from tests.real_engine.releases import cases, kept, page, record, tables
from tests.real_engine.releases.asked import Answers, ask
from tests.real_engine.releases.install import NEWEST

pytestmark = pytest.mark.engine
STARTS = os.environ.get("SPARKWRIGHT_ENGINE_STARTS") or ("all" if VERSION == NEWEST else "some")
STARTED = {"all": frozenset(case.name for case in CASES), "some": cases.STARTED, "none": frozenset[str]()}[STARTS]


@pytest.fixture(scope="session")
def answers(engine: Engine) -> Answers:
    return ask(engine, cases.ALL)


@pytest.fixture(scope="session")
def outcomes(engine: Engine, answers: Answers) -> Iterator[list[agreement.Outcome]]:
    """Of all cases the report is kept and the page in docs/ written anew; of some it goes beside their logs."""
    found: list[agreement.Outcome] = []
    yield found
    whole = {item.case.name for item in found} == {case.name for case in cases.ALL}
    kept.save(record.report(found, answers, engine), kept.DATA if whole else RUNS)
    if whole:
        page.DOCUMENT.write_text(page.text())


@pytest.mark.parametrize("case", cases.ALL, ids=lambda case: case.name)
def test_the_engine_does_what_was_predicted(
    case: Case, engine: Engine, answers: Answers, outcomes: list[agreement.Outcome]
) -> None:
    answer = answers.by_case[case.name]
    outcome = agreement.of_answer(case, answer, engine, RUNS)
    refused_later = outcome.predicted.starts is False and STARTED
    if outcome.starts and (case.name in STARTED or refused_later):
        outcome = agreement.run(case, engine, RUNS, answer)
    outcomes.append(outcome)
    assert not outcome.wrong, "\n".join([*outcome.wrong, f"its log: {outcome.folder}/server.log"])


def test_the_tables_say_of_this_release_what_it_shows(
    engine: Engine, answers: Answers, outcomes: list[agreement.Outcome]
) -> None:
    assert tables.disagreements(record.report(outcomes, answers, engine)) == []
