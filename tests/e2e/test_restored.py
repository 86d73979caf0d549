"""The outcome of a failed deploy whose previous server is restored: it serves, or neither does."""

import urllib.request
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import SandboxProject, sandbox_project

RECIPE = "recipes/qwen3.5-35b.yml"
FAIL_TASK = "{name: Break, fail: {msg: %s}}"


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[SandboxProject]:
    """A project whose next server fails after it started."""
    monkeypatch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
    with sandbox_project() as project:
        project.deployed()
        project.edit(RECIPE, r"max-num-seqs: \d+", "max-num-seqs: 17")
        project.before("Wait until it is ready", FAIL_TASK % "the new one is broken.")
        yield project


def is_answering(project: SandboxProject) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{project.port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.parametrize(
    ("task", "outcome", "serves"),
    [
        (
            "Restore its restart policy",
            "The previous server serves again, but a later step failed: the state folder is full.",
            True,
        ),
        ("Start previous server", "The previous server failed: neither serves now.", False),
    ],
)
def test_a_previous_server_that_is_not_as_it_was_is_asked_before_it_is_said_that_neither_serves(
    broken: SandboxProject, task: str, outcome: str, serves: bool
) -> None:
    broken.before(task, FAIL_TASK % "the state folder is full.")
    failed = broken.deploy()
    assert (failed.code, failed.recap["msg"]) == (1, f"the new one is broken. {outcome}")
    assert is_answering(broken) == serves


def test_a_roll_back_to_a_kept_server_that_fails_says_that_neither_serves(broken: SandboxProject) -> None:
    assert broken.deploy("--no-rollback").code == 1
    broken.before("Start previous server", FAIL_TASK % "it does not start.")
    failed = broken.run("rollback", "--host", "sandbox", "--json")
    assert failed.code == 1, failed.out[-3000:]
    assert failed.recap["msg"] == "A rollback was requested. The previous server failed: neither serves now."
    assert not is_answering(broken)
