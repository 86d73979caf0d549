"""The model of a cluster is downloaded once: the other members copy it from the first over their own link."""

import shutil
import urllib.request

import pytest

from tests.cluster.pair import ClusterPair, failures
from tests.e2e.conftest import CommandResult

DOWNLOAD = "Download model and verify every file"
SERVE = "Serve it to members that lack it"
COPY = "Copy model from a member and verify every file"


def statuses(answer: CommandResult, task: str) -> dict[str, str]:
    """Return a task's status on each host."""
    events = [event for event in answer.events() if event["event"] == "task_finished" and event["name"] == task]
    return {item["host"]: item["status"] for item in events}


def message(answer: CommandResult, task: str, host: str) -> str:
    return next(
        event["msg"]
        for event in answer.events()
        if event.get("name") == task and event.get("msg") and event["host"] == host
    )


def test_model_is_downloaded_by_one_member_and_copied_by_the_other(pair: ClusterPair) -> None:
    first = pair.deploy()
    assert first.proved, list(failures(first))
    assert statuses(first, DOWNLOAD) == {"one": "changed", "two": "skipped"}
    assert statuses(first, COPY) == {"one": "skipped", "two": "changed"}
    assert message(first, COPY, "two").endswith("from one")
    before = pair.running()
    shutil.rmtree(pair.home("one") / "models/glm")
    second_run = pair.deploy()
    assert second_run.proved, list(failures(second_run))
    assert statuses(second_run, COPY) == {"one": "changed", "two": "skipped"}
    assert message(second_run, COPY, "one").endswith("from two")
    assert pair.running() == before
    url = message(second_run, SERVE, "two").rpartition(" on ")[2]
    assert url.startswith("127.0.0.2:")
    with pytest.raises(OSError):  # refused, or reset: it ends with its last reader
        urllib.request.urlopen(f"http://{url}/here", timeout=5)
    assert statuses(pair.deploy(), SERVE) == {"one": "skipped", "two": "skipped"}
