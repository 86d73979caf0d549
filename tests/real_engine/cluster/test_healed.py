"""A real group of two in containers loses a rank: what the checks find, and how long it takes until the group serves again."""

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
def page_update() -> Iterator[None]:
    """Write the readings to the page in docs/."""
    yield
    page.DOCUMENT.write_text(page.render_page())


def test_a_killed_rank_is_detected_and_both_ranks_are_restarted(
    pair: RealPair, capsys: pytest.CaptureFixture[str]
) -> None:
    timeline: list[str] = []

    def add_event(event: str) -> None:
        timeline.append(f"{time.monotonic() - began_s:.0f} s {event}")

    checks = RealChecks(pair)
    pair.deployed()
    before = pair.running()
    assert before.keys() == {"one", "two"} and pair.generates()
    assert pair.deploy().code == 0 and pair.running() == before, "a second deploy changes nothing"
    answer = checks.install("--heal", "restart", "--smoke-every", "0")  # a busy machine has no rate
    assert answer.code == 0, answer.out + answer.err
    for host in pair.names:
        checks.change(host, limits=LIMITS)
    healthy = {host: checks.run(host) for host in pair.names}
    assert [result.record.state for result in healthy.values()] == ["ok", "ok"], healthy

    os.kill(pair.rank_of("two"), signal.SIGKILL)
    began_s = time.monotonic()
    assert pair.docker("two", "wait", pair.name) == "0"
    add_event("its container has exited with 0")
    assert f"rank 1 of pair ({pair.name}) exited" in checks.run("two").out
    add_event("its own check names it")
    assert checks.run("one").record.seen == "down"
    add_event("the head's check gets no token")
    healed = checks.run_all()
    assert all("restarted (run" in result.record.healed for result in healed.values()), healed
    add_event("both were restarted and proved by the head's next check")
    assert pair.generates()
    assert pair.running() == before, "the containers were replaced"
    assert {row["what"] for row in (pair.history(host)[0] for host in pair.names)} == {"healed"}
    with capsys.disabled():
        print(f"\n  rank 1 killed: {', '.join(timeline)}")
    readings.save_reading(
        "deployed in containers, its rank 1 killed while idle",
        "the worker exits with 0; the checks heal the cluster as one",
        ", ".join(timeline),
    )
