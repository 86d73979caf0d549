"""Detection of a restart loop: a table of observations and verdicts."""

from typing import Any

import pytest

from sparkwright.host.containers.crash_loop import RestartSample, evaluate_restarts

NOW_S = 100_000.0


def container(
    *, restarts: int = 0, policy: str = "unless-stopped", status: str = "running", code: int = 0
) -> dict[str, Any]:
    state = {"Status": status, "ExitCode": code}
    return {"State": state, "RestartCount": restarts, "HostConfig": {"RestartPolicy": {"Name": policy}}}


def ago(minutes: float, restarts: int) -> RestartSample:
    return RestartSample(NOW_S - 60 * minutes, restarts)


@pytest.mark.parametrize(
    ("found", "seen", "why"),
    [
        (container(restarts=0), [ago(300, 0)], ""),
        (container(restarts=3), [ago(300, 0), ago(11, 0)], ""),
        (container(restarts=4), [ago(300, 0), ago(11, 0)], "restarted 4 times within 10 minutes"),
        (container(restarts=35), [ago(2, 0)], "restarted 35 times within 10 minutes"),
        (container(restarts=35), [ago(900, 0), ago(12, 34), ago(6, 34)], ""),
        (container(restarts=9), [], ""),  # never seen before: nothing is known of when
        (
            container(restarts=4),
            [ago(300, 7), ago(5, 0)],
            "restarted 4 times",
        ),  # a start by hand began its count again
        (container(restarts=9, policy="no"), [ago(2, 0)], ""),  # a deploy has it in its hands, or it is broken already
        (container(status="exited", code=0), [ago(2, 0)], "exited with code 0"),
        (container(status="exited", code=0, policy="no"), [ago(2, 0)], ""),
        (container(status="exited", code=1, policy="on-failure"), [ago(2, 0)], ""),
    ],
)
def test_a_loop_is_told_from_a_restart(found: dict[str, Any], seen: list[RestartSample], why: str) -> None:
    result = evaluate_restarts(found, seen, now_s=NOW_S, max_restarts=3, window_s=600)
    assert why in result and bool(why) == bool(result)
