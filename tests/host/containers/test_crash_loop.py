"""Detection of a restart loop: a table of observations and verdicts."""

from typing import Any

import pytest

from sparkwright.host.containers.crash_loop import RestartSample, evaluate_restarts

NOW_S = 100_000.0


def container_attrs(
    *, restarts: int = 0, policy: str = "unless-stopped", status: str = "running", code: int = 0
) -> dict[str, Any]:
    state = {"Status": status, "ExitCode": code}
    return {"State": state, "RestartCount": restarts, "HostConfig": {"RestartPolicy": {"Name": policy}}}


def restart_sample(minutes: float, restarts: int) -> RestartSample:
    return RestartSample(NOW_S - 60 * minutes, restarts)


@pytest.mark.parametrize(
    ("found", "seen", "why"),
    [
        (container_attrs(restarts=0), [restart_sample(300, 0)], ""),
        (container_attrs(restarts=3), [restart_sample(300, 0), restart_sample(11, 0)], ""),
        (
            container_attrs(restarts=4),
            [restart_sample(300, 0), restart_sample(11, 0)],
            "restarted 4 times within 10 minutes",
        ),
        (container_attrs(restarts=35), [restart_sample(2, 0)], "restarted 35 times within 10 minutes"),
        (container_attrs(restarts=35), [restart_sample(900, 0), restart_sample(12, 34), restart_sample(6, 34)], ""),
        (container_attrs(restarts=9), [], ""),  # never seen before: nothing is known of when
        (
            container_attrs(restarts=4),
            [restart_sample(300, 7), restart_sample(5, 0)],
            "restarted 4 times",
        ),  # a start by hand began its count again
        (
            container_attrs(restarts=9, policy="no"),
            [restart_sample(2, 0)],
            "",
        ),  # a deploy has it in its hands, or it is broken already
        (container_attrs(status="exited", code=0), [restart_sample(2, 0)], "exited with code 0"),
        (container_attrs(status="exited", code=0, policy="no"), [restart_sample(2, 0)], ""),
        (container_attrs(status="exited", code=1, policy="on-failure"), [restart_sample(2, 0)], ""),
    ],
)
def test_a_loop_is_told_from_a_restart(found: dict[str, Any], seen: list[RestartSample], why: str) -> None:
    result = evaluate_restarts(found, seen, now_s=NOW_S, max_restarts=3, window_s=600)
    assert why in result and bool(why) == bool(result)
