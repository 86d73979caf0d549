"""The decode rate at depth, from the recipe to the verdict: a kernel that falls back only after long prompts is detected."""

from tests.e2e.conftest import SandboxProject


def test_a_rate_that_drops_only_at_depth_fails_verify_but_not_throughput(project: SandboxProject) -> None:
    project.edit("recipes/qwen3.5-35b.yml", r"(?m)^expect:.*\n", "expect:\n  depths: [4608]\n")
    deployed = project.deploy()
    assert deployed.code == 0, deployed.err + deployed.out
    assert "at depth 4608: " in deployed.task("Measure decode rate at depth")["msg"]
    project.run("sandbox.fault", "slow-at-depth")
    result = project.run("verify", "--host", "sandbox", "--json")
    rows = {row["check"]: row for row in result.task("Summarize the checks")["data"]["rows"]}
    assert (result.code, rows["at depth"]["verdict"]) == (1, "failed")
    assert "slower at depth" in rows["at depth"]["evidence"]
    assert rows["throughput"]["verdict"] != "failed"
