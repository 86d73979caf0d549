"""In a cluster, the member that failed on its own is reported first."""

from typing import Any

import pytest

from sparkwright.console.events.host_lines import Board, HostLines
from sparkwright.protocol.events import COUNTS

OWN = "rank 1 exited (OOM-killed): no known reason in its log."


def failed_hosts(first: str, second: str, *, together: bool) -> list[str]:
    """Return the hosts whose failures are shown, in order. spark1 ends before spark2.

    Args:
        first: the failure of spark1.
        second: the failure of spark2.
    """
    printed: list[str] = []
    screen = make_screen(printed, together=together)
    end_host(screen, "spark1", first, code=1)
    end_host(screen, "spark2", second, code=1)
    screen.close()
    return [text.split()[1] for text in printed if text.startswith("failed")]


def make_screen(printed: list[str], *, together: bool) -> HostLines:
    screen = HostLines(write=lambda style, text: printed.append(text.strip()), board=Board(), is_cluster=together)
    screen.set_hosts(["spark1", "spark2"])
    return screen


def end_host(screen: HostLines, host: str, why: str, *, code: int) -> None:
    failed: dict[str, Any] = {"event": "task_finished", "host": host, "status": "failed", "module": "barrier"}
    screen.on({**failed, "name": "x", "msg": why, "fix": "", "where": "", "data": {}, "diff": []})
    recap = {"event": "host_finished", "host": host, "exit": code, "changed": 0, "seconds": 1.0, "msg": why}
    screen.on({**recap, **dict.fromkeys(COUNTS, 0)})


def test_a_member_that_is_refused_is_told_at_once_and_one_that_waits_for_another_after_it() -> None:
    """The other members may wait two minutes for a head that could not listen."""
    printed: list[str] = []
    screen = make_screen(printed, together=True)
    end_host(screen, "spark2", "spark1 (rank 0) failed: port 29499 of spark1 is in use by python3.", code=5)
    assert printed == []
    end_host(screen, "spark1", "port 29499 of spark1, the cluster's barrier port, is in use by python3.", code=5)
    assert [text.split()[1] for text in printed if text.startswith("refused")] == ["spark1", "spark2"]
    alone: list[str] = []
    end_host(make_screen(alone, together=True), "spark1", "port 29499 of spark1 is in use by python3.", code=5)
    assert alone and alone[0].startswith("refused      spark1")


@pytest.mark.parametrize(
    "consequence",
    [
        "spark2 (rank 1) failed at 'Wait until the cluster is verified': rank 1 exited (OOM-killed).",
        "lost spark2 (rank 1): the connection was closed.",
        "rank 0 exited (exit code 1): the connection to the member at 192.168.100.11 was lost: its process exited.",
        "it crashed on the first request (500, /health 503).",
    ],
)
def test_the_root_cause_is_told_first(consequence: str) -> None:
    assert failed_hosts(consequence, OWN, together=True) == ["spark2", "spark1"]
    assert failed_hosts(OWN, "spark1 (rank 0) failed at 'Measure throughput': no answer.", together=True) == [
        "spark1",
        "spark2",
    ]


def test_hosts_that_serve_alone_are_told_as_they_end() -> None:
    assert failed_hosts("spark2 (rank 1) failed: it is a name", OWN, together=False) == ["spark1", "spark2"]


@pytest.mark.parametrize("together", [True, False])
def test_a_cluster_is_told_what_its_members_tasks_note_a_fleet_only_what_its_runs_do(together: bool) -> None:
    """Differences between members are notes of a task, as "kernel differs: spark1 6.14, spark2 6.17"."""
    printed: list[str] = []
    screen = make_screen(printed, together=together)
    for task, text in (("compared", "kernel differs."), ("", "the clock is apart.")):
        screen.on({"event": "note", "host": "spark1", "task": task, "text": text})
    assert printed == (["spark1  kernel differs."] if together else []) + ["spark1  the clock is apart."]
