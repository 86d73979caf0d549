"""A server that requires a key: deployed, changed, rolled back and checked with it, and the key is stored nowhere else."""

import json
import secrets
import stat
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from sparkwright.health.judging.observation import Limits
from sparkwright.health.settings import Settings
from sparkwright.sandbox import control
from tests.e2e.conftest import CommandResult, SandboxProject
from tests.e2e.health_checks import run_check
from tests.e2e.test_bench import SMALL
from tests.watching import ProcessWatcher, find_files_with_secret

RECIPE = "recipes/qwen3.5-35b.yml"


@pytest.fixture
def keyed(project: SandboxProject, monkeypatch: pytest.MonkeyPatch) -> SandboxProject:
    """A project with a recipe that requires a key from the environment."""
    monkeypatch.delenv("SPARK_KEY", raising=False)
    project.edit(RECIPE, "(?m)^publish: loopback", "server_key: {env: SPARK_KEY}")
    return project


def set_new_key(monkeypatch: pytest.MonkeyPatch) -> str:
    key = "spk-" + secrets.token_hex(20)
    monkeypatch.setenv("SPARK_KEY", key)
    return key


def query_models(project: SandboxProject, key: str = "") -> int:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(f"http://127.0.0.1:{project.port}/v1/models", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def key_files(project: SandboxProject) -> list[Path]:
    return sorted(path for path in (project.state.path / "server_keys").glob("*.yaml") if not path.is_symlink())


def is_only_in_key_files(key: str, project: SandboxProject) -> bool:
    return set(find_files_with_secret(key, project.root)) <= set(map(str, key_files(project)))


def inspect_text(project: SandboxProject) -> str:
    return json.dumps([project.container(row["Id"]) for row in project.docker().api.containers(all=True)])


def test_a_key_is_added_changed_and_rolled_back_and_every_check_uses_it(
    keyed: SandboxProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = keyed
    project.edit(RECIPE, "vllm-openai:v0.32.0", "vllm-openai:cu130-nightly")  # this version prints its key
    results: list[CommandResult] = []

    def run(*words: str) -> CommandResult:
        results.append(project.run_apart(*words, "--host", "sandbox"))
        return results[-1]

    first = set_new_key(monkeypatch)
    with ProcessWatcher(first) as watch:
        assert run("deploy", "--json").proved, results[-1].out[-3000:]
    assert [line for line, _ in watch.leaks if "sparkwright.cli" not in line] == []
    assert watch.saw_command("sparkwright.sandbox serve") and watch.saw_command("sparkwright.runner")
    assert (query_models(project), query_models(project, "spk-wrong"), query_models(project, first)) == (401, 401, 200)
    second_run = run("deploy", "--json")
    assert second_run.proved and second_run.recap["changed"] == 0, second_run.out[-3000:]

    monkeypatch.delenv("SPARK_KEY")  # checks read the host's copy
    assert run("health").code == 0, results[-1].out
    assert run("verify").proved, results[-1].out + results[-1].err
    assert run("diagnose").code == 0, results[-1].out
    assert "'api_key': ['••••']" in run("logs").out

    second = set_new_key(monkeypatch)
    planned = run("plan", "--diff")
    assert (planned.code, "+ server_key: changed" in planned.out) == (2, True), planned.out
    assert run("deploy", "--diff").proved, results[-1].out
    assert (query_models(project, first), query_models(project, second)) == (401, 200)
    assert len(key_files(project)) == 2
    assert run("rollback").proved, results[-1].out
    assert (query_models(project, first), query_models(project, second)) == (200, 401)
    assert run("health").code == 0
    assert run("history", "--json").code == 0

    for key in (first, second):
        assert key not in "".join(result.out + result.err for result in results)
        assert key not in inspect_text(project)
        assert is_only_in_key_files(key, project)
    assert {stat.S_IMODE(path.stat().st_mode) for path in key_files(project)} == {0o600}
    assert stat.S_IMODE(key_files(project)[0].parent.stat().st_mode) == 0o700


def test_a_failed_deploy_keeps_the_servers_key_and_the_incident_contains_none(
    keyed: SandboxProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = keyed
    old = set_new_key(monkeypatch)
    project.deployed()
    new = set_new_key(monkeypatch)
    project.edit(RECIPE, "tok_per_s: 47", "tok_per_s: 4700")
    failed = project.deploy()
    assert failed.code == 1, failed.out[-2000:]
    assert (query_models(project, old), query_models(project, new)) == (200, 401)
    assert project.run("incident", "--host", "sandbox").code == 0
    for key in (old, new):
        assert key not in failed.out + failed.err
        assert is_only_in_key_files(key, project)


def test_a_missing_or_short_key_is_refused_with_its_line(
    keyed: SandboxProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = (keyed.root / RECIPE).read_text().splitlines().index("server_key: {env: SPARK_KEY}") + 1
    missing = keyed.run("deploy", "--host", "sandbox")
    message = f"{RECIPE}:{line}: `server_key`: the environment variable SPARK_KEY provides no key."
    assert missing.code == 5 and message in missing.out + missing.err
    monkeypatch.setenv("SPARK_KEY", "hunter2")
    short = keyed.run("deploy", "--host", "sandbox")
    assert (short.code, "16 to 512" in short.out + short.err, "hunter2" in short.out + short.err) == (5, True, False)
    assert keyed.containers() == []


def test_a_server_open_to_the_network_causes_a_warning(
    project: SandboxProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    warning = "anyone on the network can use this server; set `server_key` or `publish: loopback`"
    project.edit(RECIPE, "(?m)^publish: loopback", "publish: lan")
    assert warning in project.run("plan", "--host", "sandbox").out
    assert "open-to-network" in project.run("lint", "--recipe", "qwen3.5-35b").out
    result = project.run("deploy", "--host", "sandbox")
    assert result.proved and warning in result.out, result.out
    assert '"apiKey": "none"' in project.run("client", "--host", "sandbox", "--for", "openclaw").out
    project.edit(RECIPE, "publish: lan", "publish: loopback")
    planned = project.run("plan", "--host", "sandbox")
    assert warning not in planned.out and "127.0.0.1" in planned.out
    assert "open-to-network" not in project.run("lint", "--recipe", "qwen3.5-35b").out
    project.edit(RECIPE, "(?m)^publish: loopback", "server_key: {env: SPARK_KEY}")
    set_new_key(monkeypatch)
    result = project.run("deploy", "--host", "sandbox")
    assert result.proved and warning not in result.out
    settings = project.run("client", "--host", "sandbox").out
    assert "key        $SPARK_KEY" in settings


def test_health_checks_and_measurements_use_the_hosts_copy_of_the_key(
    keyed: SandboxProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = set_new_key(monkeypatch)
    keyed.deployed()
    for options in (("bench.serve", *SMALL[2:]), ("bench.sweep", "--max-num-batched-tokens", "4096", *SMALL)):
        result = keyed.run(*options, "--host", "sandbox")
        assert result.code == 0, result.out[-3000:] + result.err
        assert key not in result.out + result.err
    assert query_models(keyed, key) == 200
    monkeypatch.delenv("SPARK_KEY")
    settings = Settings(host="sandbox", heal="restart", smoke_every_s=0, limits=Limits(token_s=0.4))
    records = [run_check(keyed.sandbox, settings, later_s=later_s) for later_s in (0, 300)]
    assert (records[0].state, records[1].server.token) == ("ok", "made")
    control.set_fault(keyed.sandbox, "wedge")
    healed = [run_check(keyed.sandbox, settings, later_s=600.0 + 300 * n).healed for n in range(3)]
    assert any("restarted (run" in text for text in healed), healed
    assert run_check(keyed.sandbox, settings, later_s=3600).state == "ok"
    assert query_models(keyed, key) == 200
    assert is_only_in_key_files(key, keyed)
