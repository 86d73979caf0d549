"""Follow a run that another command started."""

from pathlib import Path

import pytest

from sparkwright.host.machine import Machine
from sparkwright.host.runs.journal import Journal
from sparkwright.host.state import StateFolder
from sparkwright.protocol.events import event
from sparkwright.runner import run


@pytest.mark.parametrize(
    ("playbook", "has_note"), [("results/sweep-1/play.yml", True), ("playbooks/deploy.yml", False)]
)
def test_attach_to_a_measurement_says_how_to_get_its_results(tmp_path: Path, playbook: str, has_note: bool) -> None:
    state = StateFolder(tmp_path)
    journal = Journal.begin(state, "run-1", {"playbook": playbook}, ())
    journal.open()
    journal.write(event("recap", host="spark1"))
    events = list(run.attach({"run": "", "host": "spark1"}, Machine(), state))
    assert any("the same `bench` command" in item.get("text", "") for item in events) == has_note
    assert events[-1]["event"] == "recap"
