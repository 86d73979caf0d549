"""The model of a cluster is downloaded by one member; the others copy it over the fabric."""

import shutil
import urllib.request

import pytest

from tests.cluster.pair import ClusterPair
from tests.e2e.conftest import CommandResult

DOWNLOAD = "Download model and verify every file"
SERVE = "Serve it to members that lack it"
COPY = "Copy model from a member and verify every file"


def statuses(result: CommandResult, task: str) -> dict[str, str]:
    """Return a task's status on each host."""
    events = [event for event in result.events() if event["event"] == "task_finished" and event["name"] == task]
    return {event["host"]: event["status"] for event in events}


def message(result: CommandResult, task: str, host: str) -> str:
    messages = (
        str(event["msg"])
        for event in result.events()
        if event.get("name") == task and event.get("msg") and event["host"] == host
    )
    return next(messages)


def test_model_is_downloaded_by_one_member_and_copied_by_the_other(pair: ClusterPair) -> None:
    first = pair.deployed()
    assert statuses(first, DOWNLOAD) == {"one": "changed", "two": "skipped"}
    assert statuses(first, COPY) == {"one": "skipped", "two": "changed"}
    assert message(first, COPY, "two").endswith("from one")
    before = pair.running()
    shutil.rmtree(pair.home("one") / "models/glm")
    second = pair.deployed()
    assert statuses(second, COPY) == {"one": "changed", "two": "skipped"}
    assert message(second, COPY, "one").endswith("from two")
    assert pair.running() == before
    url = message(second, SERVE, "two").rpartition(" on ")[2]
    assert url.startswith("127.0.0.2:")
    with pytest.raises(OSError):  # refused or reset: the server ends with its last reader
        urllib.request.urlopen(f"http://{url}/here", timeout=5)
    assert statuses(pair.deploy(), SERVE) == {"one": "skipped", "two": "skipped"}
