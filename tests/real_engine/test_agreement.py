"""`make test-engine`: every prediction and every reading agrees with what a real vLLM did. Minutes; not part of `make test-all`."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.real_engine import agreement, report
from tests.real_engine.cases import CASES, Case
from tests.real_engine.engine import ROOT, Engine, EngineMissing, installed

pytestmark = pytest.mark.engine


@pytest.fixture(scope="session")
def engine(pytestconfig: pytest.Config) -> Engine:
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # ended from outside, it still stops the engine it started
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n  {text}", flush=True)

    try:
        return installed(say)
    except EngineMissing as error:
        pytest.exit(str(error), returncode=1)


@pytest.fixture(scope="session")
def outcomes(engine: Engine) -> Iterator[list[agreement.Outcome]]:
    """Of all cases the table goes into docs/; of some it goes beside their logs."""
    kept: list[agreement.Outcome] = []
    yield kept
    whole = {one.case.name for one in kept} == {case.name for case in CASES}
    report.write(kept, engine, report.DOCUMENT if whole else ROOT / "runs" / "engine-agreement.md")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_engine_does_what_was_predicted(case: Case, engine: Engine, outcomes: list[agreement.Outcome]) -> None:
    outcome = agreement.run(case, engine, ROOT / "runs")
    outcomes.append(outcome)
    assert not outcome.wrong, "\n".join([*outcome.wrong, f"its log: {outcome.folder}/server.log"])
