"""The real vLLM in a real container: deployed from a registry and a hub on loopback, killed, rolled back, measured.

For the image see image.py. A start takes half a minute, so each test continues with the server of the previous one; a
test that runs alone deploys the server that it needs.
"""

import json
import secrets
import signal

import pytest

from tests.real_engine.container.desk import CACHE, OFF, RECURRENT, Project
from tests.real_llama.container_desk import run_docker

pytestmark = pytest.mark.engine

#: GiB, more than any machine has
TOO_MUCH = "100000"
TAKEN = f"its KV cache needs {TOO_MUCH}.0 GiB of memory"
AB = (
    "bench.ab", "--host", "here", "-a", "served", "-b", "other", "--loads", "serve", "--requests", "4",
    "--concurrency",
)  # fmt: skip
SMALL = ("2", "--prompt-tokens", "64", "--output-tokens", "32", "--json")


def test_a_first_deploy_pulls_and_verifies_everything(project: Project) -> None:
    first = project.deploy_proved()
    digest = first.task("Pull image by digest")
    assert digest["status"] == "changed"
    image = project.container()["Config"]["Image"]
    assert "@sha256:" in image or ":sha256-" in image, "the tag: the Docker Engine had the image from an earlier run"
    model = first.task("Download model and verify every file")
    assert "all hashes match" in model["msg"]
    assert project.shelf.usual in first.task("Check flags against engine and model")["msg"]
    assert first.task("Check that it generates")["data"]["verdict"] == "ready"
    read = first.task("Check the engine log")["data"]["state"]
    assert (read["version"], read["chunked_prefill"], read["prefix_caching"]) == (project.shelf.usual, True, True)
    assert first.task("Measure throughput")["data"]["tok_per_s"] > 0
    assert first.task("Compare the reference text")["status"] == "ok"
    before = project.state()
    assert before[2:] == (True, "unless-stopped")
    second = project.deploy()
    assert (second.code, second.recap["changed"], project.state()) == (0, 0, before), second.out


def test_settings_that_this_engine_refuses_are_refused_before_the_swap(project: Project) -> None:
    project.deploy_proved()
    why = project.expect_refusal(model=RECURRENT, expect=OFF, enable_prefix_caching=True)
    assert "chunked prefill cannot be off here: prefix caching on a recurrent model needs it" in why
    why = project.expect_refusal(calculate_kv_scales=True)
    assert "calculate-kv-scales" in why
    assert f"it was removed in 0.28.0; vLLM {project.shelf.usual} refuses to start" in why


def test_a_killed_engine_is_reported_and_started_again_by_a_deploy(project: Project) -> None:
    project.deploy_proved()
    before = project.state()
    pid = next(pid for title, pid in project.processes().items() if "EngineCore" in title)
    code = project.kill(pid, signal.SIGKILL)
    project.assert_failure("diagnose", f"exited ({code})")
    again = project.deploy()
    assert again.proved, again.out[-3000:]
    assert project.state()[0] == before[0] and project.state()[3] == "unless-stopped"


def test_chunked_prefill_can_be_switched_off(project: Project) -> None:
    project.deploy_proved()
    before = project.state()
    result = project.deploy_proved(expect=OFF)
    read = result.task("Check the engine log")["data"]["state"]
    assert read["chunked_prefill"] is False
    assert project.state()[0] != before[0]


def test_a_kv_cache_larger_than_memory_is_reported_and_rolled_back(project: Project) -> None:
    project.deploy_proved(expect=OFF)
    before = project.state()
    project.write_recipe(expect=OFF, env={CACHE: TOO_MUCH})
    result = project.deploy()
    assert result.code == 1, result.out[-3000:]
    why = result.task("Wait until it is ready")["msg"]
    assert TAKEN in why
    assert project.is_same_container(before)
    assert project.is_generating()
    assert project.settings()["chunked_prefill"] is False
    incident = json.loads(project.run("incident", "--host", "here", "--json").out)
    kept = [(project.root / incident["folder"] / name).read_text() for name in incident["files"] if "log" in name]
    assert any("Decrease --kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE" in text for text in kept), incident["files"]


def test_a_failed_server_without_rollback_is_diagnosed_and_rolled_back_manually(project: Project) -> None:
    project.deploy_proved(expect=OFF)
    before = project.state()
    project.write_recipe(expect=OFF, env={CACHE: TOO_MUCH})
    assert project.run("deploy", "--host", "here", "--no-rollback", "--json").code == 1
    project.assert_failure("diagnose", TAKEN)
    result = project.run("rollback", "--host", "here", "--json")
    assert result.proved, result.out[-3000:]
    assert project.is_same_container(before)


def test_a_rollback_returns_to_the_previous_server(project: Project) -> None:
    if not project.is_fulfilled(expect=OFF):
        project.deploy_proved()
        project.deploy_proved(expect=OFF)
    result = project.run("rollback", "--host", "here", "--json")
    assert result.proved, result.out[-3000:]
    assert project.settings()["chunked_prefill"] is True
    project.write_recipe()
    assert project.deploy().recap["changed"] == 0


def test_two_recipes_are_compared_and_the_server_is_restored(project: Project) -> None:
    project.write_recipe(expect=OFF)
    (project.root / "recipes/served.yml").rename(project.root / "recipes/other.yml")
    project.deploy_proved()
    before = project.state()
    result = project.run(*AB, *SMALL)
    assert result.code == 0, result.out[-3000:] + result.err
    data = json.loads((project.root / "results/ab-here/results.json").read_text())
    assert [cell["arm"] for cell in data["cells"]] == ["a", "b", "b", "a"]
    assert [arm["effective"]["chunked_prefill"] for arm in data["arms"]] == [True, False]
    assert any("the arms differ in" in note and "chunked_prefill" in note for note in data["notes"]), data["notes"]
    assert project.is_same_container(before)
    assert project.is_generating()
    (project.root / "recipes/other.yml").unlink()


def test_a_server_with_a_key_is_verified_and_the_key_is_never_shown(project: Project) -> None:
    key = "spk-" + secrets.token_hex(20)
    project.env["SPARK_KEY"] = key
    try:
        result = project.deploy_proved(more={"server_key": {"env": "SPARK_KEY"}})
    finally:
        del project.env["SPARK_KEY"]
    assert result.task("Check that it generates")["data"]["verdict"] == "ready"
    assert project.is_generating(), "the check on the host did not read the key"
    assert key not in json.dumps(project.container()) + run_docker("logs", project.name) + result.out + result.err


def test_an_end_with_exit_code_0_is_a_failure(project: Project) -> None:
    """vLLM exits with 0 after SIGTERM."""
    project.deploy_proved()
    assert project.kill(project.container()["State"]["Pid"], signal.SIGTERM) == 0
