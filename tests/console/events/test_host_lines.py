"""In a cluster, the member that failed on its own is reported first."""

import pytest

from sparkwright.console.events.host_lines import Board, HostLines
from sparkwright.protocol.events import Event, event
from tests.console.samples import host_event, task_event

OWN_FAILURE = "rank 1 exited (OOM-killed): no known reason in its log."


def print_lines(*events: Event, is_cluster: bool = True, close: bool = True) -> list[str]:
    printed: list[str] = []
    lines = HostLines(write=lambda style, text: printed.append(text.strip()), board=Board(), is_cluster=is_cluster)
    lines.set_hosts(["spark1", "spark2"])
    for item in events:
        lines.on(item)
    if close:
        lines.close()
    return printed


def end_host(host: str, message: str, code: int = 1) -> list[Event]:
    failed = task_event(host=host, status="failed", module="barrier", msg=message)
    return [failed, host_event("host_finished", host, exit=code, msg=message)]


def hosts_of(lines: list[str], verdict: str = "failed") -> list[str]:
    """Return the hosts of the lines with a verdict, in order."""
    return [line.split()[1] for line in lines if line.startswith(verdict)]


def test_refused_member_is_reported_before_a_member_that_waited_for_it() -> None:
    """The other members may wait two minutes for a head that could not listen."""
    waiting = end_host("spark2", "spark1 (rank 0) failed: port 29499 of spark1 is in use by python3.", code=5)
    refused = end_host("spark1", "port 29499 of spark1, the cluster's barrier port, is in use by python3.", code=5)
    assert print_lines(*waiting, close=False) == []
    assert hosts_of(print_lines(*refused, close=False), "refused") == ["spark1"]
    assert hosts_of(print_lines(*waiting, *refused, close=False), "refused") == ["spark1", "spark2"]


@pytest.mark.parametrize(
    "consequence",
    [
        "spark2 (rank 1) failed at 'Wait until the cluster is verified': rank 1 exited (OOM-killed).",
        "lost spark2 (rank 1): the connection was closed.",
        "rank 0 exited (exit code 1): the connection to the member at 192.168.100.11 was lost: its process exited.",
        "it crashed on the first request (500, /health 503).",
    ],
)
def test_root_cause_is_reported_first(consequence: str) -> None:
    failures = [*end_host("spark1", consequence), *end_host("spark2", OWN_FAILURE)]
    assert hosts_of(print_lines(*failures)) == ["spark2", "spark1"]


def test_root_cause_of_the_first_host_stays_first() -> None:
    consequence = "spark1 (rank 0) failed at 'Measure throughput': no answer."
    failures = [*end_host("spark1", OWN_FAILURE), *end_host("spark2", consequence)]
    assert hosts_of(print_lines(*failures)) == ["spark1", "spark2"]


def test_hosts_without_a_cluster_are_reported_in_order_of_their_ends() -> None:
    failures = [*end_host("spark1", "spark2 (rank 1) failed: it is a name"), *end_host("spark2", OWN_FAILURE)]
    assert hosts_of(print_lines(*failures, is_cluster=False)) == ["spark1", "spark2"]


@pytest.mark.parametrize("is_cluster", [True, False])
def test_notes_of_tasks_are_printed_for_a_cluster_only(is_cluster: bool) -> None:
    """Differences between members are notes of a task, for example "kernel differs: spark1 6.14, spark2 6.17"."""
    notes = [
        event("note", host="spark1", task=task, text=text)
        for task, text in (("compared", "kernel differs."), ("", "the clock is apart."))
    ]
    printed = print_lines(*notes, is_cluster=is_cluster)
    assert ("spark1  kernel differs." in printed) == is_cluster
    assert "spark1  the clock is apart." in printed
