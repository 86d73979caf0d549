"""`make test-engine`: sparkwright's predictions for a release agree with that release. Not part of `make test-all`.

SPARKWRIGHT_ENGINE_STARTS: for which cases an engine is started: all, some (those of releases.cases.STARTED) or none.
"""

import os
from collections.abc import Iterator

import pytest

from tests.real_engine import agreement
from tests.real_engine.cases import CASES, Case
from tests.real_engine.engine import RUNS, VERSION, Engine
from tests.real_engine.releases import cases, kept, page, record, tables
from tests.real_engine.releases.asked import Answers, query_release
from tests.real_engine.releases.install import NEWEST

pytestmark = pytest.mark.engine
STARTS = os.environ.get("SPARKWRIGHT_ENGINE_STARTS") or ("all" if VERSION == NEWEST else "some")
STARTED = {"all": frozenset(case.name for case in CASES), "some": cases.STARTED, "none": frozenset[str]()}[STARTS]


@pytest.fixture(scope="session")
def answers(engine: Engine) -> Answers:
    return query_release(engine, cases.ALL)


@pytest.fixture(scope="session")
def outcomes(engine: Engine, answers: Answers) -> Iterator[list[agreement.Outcome]]:
    """Collect outcomes. Afterwards store the report and write the page in docs/; a partial report goes to the logs' folder."""
    collected: list[agreement.Outcome] = []
    yield collected
    is_complete = {item.case.name for item in collected} == {case.name for case in cases.ALL}
    kept.save_report(record.build_report(collected, answers, engine), kept.DATA if is_complete else RUNS)
    if is_complete:
        page.DOCUMENT.write_text(page.render_page())


@pytest.mark.parametrize("case", cases.ALL, ids=lambda case: case.name)
def test_the_outcome_of_a_case_agrees_with_the_prediction(
    case: Case, engine: Engine, answers: Answers, outcomes: list[agreement.Outcome]
) -> None:
    answer = answers.by_case[case.name]
    outcome = agreement.evaluate_answer(case, answer, engine, RUNS)
    may_fail_later = outcome.predicted.starts is False and STARTED
    if outcome.starts and (case.name in STARTED or may_fail_later):
        outcome = agreement.run_case(case, engine, RUNS, answer)
    outcomes.append(outcome)
    assert not outcome.wrong, "\n".join([*outcome.wrong, f"log: {outcome.folder}/server.log"])


def test_the_tables_agree_with_this_release(
    engine: Engine, answers: Answers, outcomes: list[agreement.Outcome]
) -> None:
    assert tables.disagreements(record.build_report(outcomes, answers, engine)) == []
