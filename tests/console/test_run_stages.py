"""The stages in the recap of a replacement."""

from __future__ import annotations

from sparkwright.console.events.run_stages import RunStages


def told(*tasks: tuple[str, float]) -> str:
    """Return the sentence for tasks of these modules and durations in seconds."""
    stages = RunStages()
    for module, seconds in tasks:
        stages.add({"event": "task_finished", "module": module, "status": "ok", "seconds": seconds})
    return stages.sentence


def test_the_load_of_an_interim_server_is_its_own_stage() -> None:
    before = ("container", 1.0), ("wait_ready", 60.0), ("verify_health", 2.0), ("interim_serves", 1.0)
    after = ("drain", 3.0), ("stopped", 2.0), ("container", 1.0), ("wait_ready", 30.0), ("verify_health", 1.0)
    assert told(*before, *after) == "interim 1m04s, drain 3.0s, stop 2.0s, load 31s, verify 1.0s"


def test_what_loaded_nothing_has_no_stages() -> None:
    assert told(("preflight", 1.0), ("interim_stopped", 0.2)) == ""
