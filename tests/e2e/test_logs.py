"""`logs --host`: the state of the running engine, and its log."""

import json

from tests.e2e.conftest import SandboxProject


def test_logs_shows_the_state_and_the_last_lines_of_the_running_engine(project: SandboxProject) -> None:
    without_server = project.run("logs", "--host", "sandbox", "--state", "--json")
    assert without_server.code == 4
    assert json.loads(without_server.out)["error"] == "there is no container qwen35."
    project.deployed()
    result = project.run("logs", "--host", "sandbox", "--state", "--json")
    state = json.loads(result.out)
    assert result.code == 0, result.out + result.err
    assert (state["host"], state["ready"], state["failure"]) == ("sandbox", True, None)
    assert (state["chunked_prefill"], state["prefix_caching"]) == (True, True)
    assert state["kv_cache_tokens"] > 0
    assert "enable_chunked_prefill=True" in state["evidence"]["chunked_prefill"]
    text = project.run("logs", "--host", "sandbox", "--tail", "3")
    assert (text.code, len(text.out.splitlines())) == (0, 3)


def test_an_expectation_missing_in_the_log_fails_the_deploy_unless_the_recipe_allows_it(
    project: SandboxProject,
) -> None:
    project.edit("recipes/qwen3.5-35b.yml", r"(?m)^expect:\n", 'expect:\n  log: ["NET/IB"]\n')
    refused = project.deploy()
    task = refused.task("Check the engine log")
    assert (refused.code, task["msg"]) == (1, "a line matches 'NET/IB': not found.")
    project.edit("recipes/qwen3.5-35b.yml", r"(?m)^expect:\n", "expect:\n  log_unknown: pass\n")
    passed = project.deploy()
    assert passed.code == 0, passed.out
    assert "a line matches 'NET/IB': not found" in passed.task("Check the engine log")["msg"]


def test_each_host_has_an_object_and_the_worst_sets_the_exit_code(project: SandboxProject) -> None:
    (project.root / "hosts/far.yml").write_text("address: 127.0.0.1\nport: 9\nrecipe: qwen3.5-35b\n")
    result = project.run("logs", "--host", "far,sandbox", "--state", "--json")
    by_host = {item["host"]: item for item in map(json.loads, result.out.splitlines())}
    assert (result.code, set(by_host)) == (3, {"far", "sandbox"})
    assert (by_host["far"]["version"], by_host["far"]["evidence"]) == (None, {})
    assert "127.0.0.1" in by_host["far"]["error"] or "far" in by_host["far"]["error"]
    assert project.run("logs", "--host", "far").err.startswith("far: unreachable: ")
