"""A real group of two, deployed in containers, loses a rank: what the checks find, and how long it is until it serves again."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.real_engine.cluster.pair import LIMITS, RealChecks, RealPair
from tests.real_engine.group import readings
from tests.real_engine.releases import page

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("newest")]


@pytest.fixture(scope="module", autouse=True)
def written_down() -> Iterator[None]:
    """The page in docs/ has what was kept."""
    yield
    page.DOCUMENT.write_text(page.render_page())


class Timeline:
    """Events with their seconds since the first."""

    def __init__(self) -> None:
        self.began_s = time.monotonic()
        self.rows: list[str] = []

    def at(self, what: str) -> None:
        self.rows.append(f"{time.monotonic() - self.began_s:.0f} s {what}")

    def __str__(self) -> str:
        return ", ".join(self.rows)


def test_a_rank_that_is_killed_is_found_and_both_are_started_again(
    pair: RealPair, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = RealChecks(pair)
    pair.deployed()
    before = pair.running()
    assert before.keys() == {"one", "two"} and pair.generates()
    assert pair.deploy().code == 0 and pair.running() == before, "a second deploy changes nothing"
    answer = checks.install("--heal", "restart", "--smoke-every", "0")  # a busy machine has no rate
    assert answer.code == 0, answer.out + answer.err
    for host in pair.names:
        checks.change(host, limits=LIMITS)
    well = {host: checks.run(host) for host in pair.names}
    assert [item.record.state for item in well.values()] == ["ok", "ok"], well

    os.kill(pair.rank_of("two"), signal.SIGKILL)
    timeline = Timeline()
    assert pair.docker("two", "wait", pair.name) == "0", "Exited (0) of a member is a failure"
    timeline.at("its container has exited with 0")
    assert f"rank 1 of pair ({pair.name}) exited" in checks.run("two").out
    timeline.at("its own check names it")
    assert checks.run("one").record.seen == "down"
    timeline.at("the head's check gets no token")
    healed = checks.run_all()
    assert all("restarted (run" in item.record.healed for item in healed.values()), healed
    timeline.at("both were restarted and proved by the head's next check")
    assert pair.generates()
    assert pair.running() == before, "the same containers"
    assert {row["what"] for row in (pair.history(host)[0] for host in pair.names)} == {"healed"}
    with capsys.disabled():
        print(f"\n  rank 1 killed: {timeline}")
    readings.save_reading(
        "deployed in containers, its rank 1 killed while idle",
        "the worker exits with 0; the checks heal the cluster as one",
        f"{timeline}",
    )
