"""The outcome of a failed deploy that restores the previous server: it serves, or neither does."""

import pytest

from tests.e2e.conftest import SandboxProject

FAIL_TASK = "{name: Break, fail: {msg: %s}}"


@pytest.fixture
def broken(project: SandboxProject) -> SandboxProject:
    """A project with a recipe that fails after the server started."""
    project.deployed()
    project.edit("recipes/qwen3.5-35b.yml", r"max-num-seqs: \d+", "max-num-seqs: 17")
    project.before("Wait until it is ready", FAIL_TASK % "the new one is broken.")
    return project


@pytest.mark.parametrize(
    ("task", "outcome", "serves"),
    [
        ("Restore its restart policy", "The previous server serves again, but a later step failed: full disk.", True),
        ("Start previous server", "The previous server failed: neither serves now.", False),
    ],
)
def test_the_outcome_of_a_failed_restore_tells_whether_the_previous_server_serves(
    broken: SandboxProject, task: str, outcome: str, serves: bool
) -> None:
    broken.before(task, FAIL_TASK % "full disk.")
    failed = broken.deploy()
    assert (failed.code, failed.recap["msg"]) == (1, f"the new one is broken. {outcome}")
    assert broken.is_up() == serves


def test_a_failed_rollback_reports_that_neither_server_serves(broken: SandboxProject) -> None:
    assert broken.deploy("--no-rollback").code == 1
    broken.before("Start previous server", FAIL_TASK % "it does not start.")
    failed = broken.run("rollback", "--host", "sandbox", "--json")
    assert failed.code == 1, failed.out[-3000:]
    assert failed.recap["msg"] == "A rollback was requested. The previous server failed: neither serves now."
    assert not broken.is_up()


def test_a_restart_that_fails_twice_reports_that_the_server_does_not_serve(project: SandboxProject) -> None:
    project.deployed()
    project.before("Wait until it is ready", FAIL_TASK % "it is broken.")
    project.before("Start previous server", FAIL_TASK % "full disk.")
    failed = project.run("restart", "--host", "sandbox", "--json")
    outcome = "it is broken. It was started once more and failed: it does not serve now."
    assert (failed.code, failed.recap["msg"]) == (1, outcome)
