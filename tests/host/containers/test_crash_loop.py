"""Detection of crash loops by the restart counts of a container."""

from typing import Any

import pytest

from sparkwright.host.containers.crash_loop import RestartSample, evaluate_restarts

NOW_S = 100_000.0


def container_attrs(
    restarts: int = 0, *, policy: str = "unless-stopped", status: str = "running", code: int = 0
) -> dict[str, Any]:
    state = {"Status": status, "ExitCode": code}
    return {"State": state, "RestartCount": restarts, "HostConfig": {"RestartPolicy": {"Name": policy}}}


#: inspect data, earlier samples as (minutes ago, restarts), the reason
CASES: dict[str, tuple[dict[str, Any], list[tuple[float, int]], str]] = {
    "no restart": (container_attrs(), [(300, 0)], ""),
    "three restarts": (container_attrs(3), [(300, 0), (11, 0)], ""),
    "four restarts": (container_attrs(4), [(300, 0), (11, 0)], "restarted 4 times within 10 minutes"),
    "many restarts": (container_attrs(35), [(2, 0)], "restarted 35 times within 10 minutes"),
    "old restarts": (container_attrs(35), [(900, 0), (12, 34), (6, 34)], ""),
    "no samples": (container_attrs(9), [], ""),
    "count reset by a manual start": (container_attrs(4), [(300, 7), (5, 0)], "restarted 4 times"),
    "no policy, as during a deploy": (container_attrs(9, policy="no"), [(2, 0)], ""),
    "exit with 0": (container_attrs(status="exited"), [(2, 0)], "exited with code 0"),
    "exit with 0 without a policy": (container_attrs(status="exited", policy="no"), [(2, 0)], ""),
    "failure with on-failure": (container_attrs(status="exited", code=1, policy="on-failure"), [(2, 0)], ""),
}


@pytest.mark.parametrize(("container", "counts", "why"), CASES.values(), ids=CASES)
def test_a_crash_loop_is_detected(container: dict[str, Any], counts: list[tuple[float, int]], why: str) -> None:
    samples = [RestartSample(NOW_S - 60 * minutes, restarts) for minutes, restarts in counts]
    result = evaluate_restarts(container, samples, now_s=NOW_S, max_restarts=3, window_s=600)
    assert why in result and bool(why) == bool(result)
