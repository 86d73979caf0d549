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
    """Collect outcomes. After a run of all cases the report is stored and the page in docs/ written; after a partial run the report goes beside the logs."""
    collected: list[agreement.Outcome] = []
    yield collected
    is_complete = {item.case.name for item in collected} == {case.name for case in cases.ALL}
    kept.save_report(record.build_report(collected, answers, engine), kept.DATA if is_complete else RUNS)
    if is_complete:
        page.DOCUMENT.write_text(page.render_page())


@pytest.mark.parametrize("case", cases.ALL, ids=lambda case: case.name)
def test_the_engine_does_what_was_predicted(
    case: Case, engine: Engine, answers: Answers, outcomes: list[agreement.Outcome]
) -> None:
    answer = answers.by_case[case.name]
    outcome = agreement.evaluate_answer(case, answer, engine, RUNS)
    refused_later = outcome.predicted.starts is False and STARTED
    if outcome.starts and (case.name in STARTED or refused_later):
        outcome = agreement.run_case(case, engine, RUNS, answer)
    outcomes.append(outcome)
    assert not outcome.wrong, "\n".join([*outcome.wrong, f"its log: {outcome.folder}/server.log"])


def test_the_tables_say_of_this_release_what_it_shows(
    engine: Engine, answers: Answers, outcomes: list[agreement.Outcome]
) -> None:
    assert tables.disagreements(record.build_report(outcomes, answers, engine)) == []
