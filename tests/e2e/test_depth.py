"""The decode rate at depth, from the recipe to the verdict: a kernel that falls back behind long prompts alone is found."""

from collections.abc import Iterator

import pytest

from tests.e2e.conftest import SandboxProject, sandbox_project


@pytest.fixture
def deep(monkeypatch: pytest.MonkeyPatch) -> Iterator[SandboxProject]:
    monkeypatch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
    with sandbox_project() as project:
        project.edit("recipes/qwen3.5-35b.yml", r"(?m)^expect:.*\n", "expect:\n  depths: [4608]\n")
        yield project


def test_a_rate_that_falls_at_depth_alone_fails_verify_and_not_the_throughput(deep: SandboxProject) -> None:
    deployed = deep.deploy()
    assert deployed.code == 0, deployed.err + deployed.out
    assert "behind 4608 tokens" in deployed.task("Measure decode rate at depth")["msg"]
    deep.run("sandbox.fault", "slow-at-depth")
    result = deep.run("verify", "--host", "sandbox", "--json")
    rows = {row["check"]: row for row in result.task("Summarize the checks")["data"]["rows"]}
    assert (result.code, rows["at depth"]["verdict"]) == (1, "failed")
    assert "slower at depth" in rows["at depth"]["evidence"]
    assert rows["throughput"]["verdict"] != "failed"
