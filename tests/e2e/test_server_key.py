"""A server that asks for a key: it is deployed, changed, put back and checked with it, and the key turns up nowhere else."""

import json
import secrets
import stat
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sparkwright.health.judging.observation import Limits
from sparkwright.health.record import Record
from sparkwright.health.settings import Settings
from sparkwright.host.machine import Machine
from sparkwright.host.runs.context import RunContext
from sparkwright.host.state import StateFolder
from sparkwright.runner.health_check import build_check
from sparkwright.sandbox import control
from tests.e2e.conftest import CommandResult, SandboxProject, sandbox_project
from tests.watching import ProcessWatcher, find_files_with_secret

RECIPE = "recipes/qwen3.5-35b.yml"


@contextmanager
def keyed_desk() -> Iterator[SandboxProject]:
    """A project whose recipe asks for a key that the environment holds."""
    with sandbox_project() as project:
        project.edit(RECIPE, "(?m)^publish: loopback", "server_key: {env: SPARK_KEY}")
        yield project


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> Iterator[SandboxProject]:
    monkeypatch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
    monkeypatch.delenv("SPARK_KEY", raising=False)
    with keyed_desk() as value:
        yield value


def set_new_key(monkeypatch: pytest.MonkeyPatch) -> str:
    key = "spk-" + secrets.token_hex(20)
    monkeypatch.setenv("SPARK_KEY", key)
    return key


def query_models(project: SandboxProject, key: str = "") -> int:
    """Return the status of a request from outside."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(f"http://127.0.0.1:{project.port}/v1/models", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def key_files(project: SandboxProject) -> list[Path]:
    folder = project.sandbox / "home/.local/state/sparkwright/server_keys"
    return sorted(path for path in folder.glob("*.yaml") if not path.is_symlink())


def inspect_text(project: SandboxProject) -> str:
    import docker

    client = docker.DockerClient(base_url=control.up(project.sandbox)["DOCKER_HOST"])
    return json.dumps([client.api.inspect_container(row["Id"]) for row in client.api.containers(all=True)])


def test_a_key_comes_changes_and_goes_back_and_every_check_knows_it(
    project: SandboxProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.edit("recipes/qwen3.5-35b.yml", "vllm-openai:v0.32.0", "vllm-openai:cu130-nightly")  # it prints its key
    result: list[CommandResult] = []

    def run(*words: str) -> CommandResult:
        result.append(project.run_apart(*words, "--host", "sandbox"))
        return result[-1]

    first = set_new_key(monkeypatch)
    with ProcessWatcher(first) as watch:
        assert run("deploy", "--json").proved, result[-1].out[-3000:]
    assert [line for line, _ in watch.leaks if "sparkwright.cli" not in line] == []
    assert watch.saw_command("sparkwright.sandbox serve") and watch.saw_command("sparkwright.runner")
    assert (query_models(project), query_models(project, "spk-wrong"), query_models(project, first)) == (401, 401, 200)
    second_run = run("deploy", "--json")
    assert second_run.proved and second_run.recap["changed"] == 0, second_run.out[-3000:]

    monkeypatch.delenv("SPARK_KEY")  # no check needs it from the laptop
    assert run("health").code == 0, result[-1].out
    assert run("verify").proved, result[-1].out + result[-1].err
    assert run("diagnose").code == 0, result[-1].out
    assert "'api_key': ['••••']" in run("logs").out  # this engine writes its key into its log

    second = set_new_key(monkeypatch)
    planned = run("plan", "--diff")
    assert (planned.code, "+ server_key: changed" in planned.out) == (2, True), planned.out
    assert run("deploy", "--diff").proved, result[-1].out
    assert (query_models(project, first), query_models(project, second)) == (401, 200)
    assert len(key_files(project)) == 2
    assert run("rollback").proved, result[-1].out
    assert (query_models(project, first), query_models(project, second)) == (200, 401)
    assert run("health").code == 0
    assert run("history", "--json").code == 0

    for key in (first, second):
        assert key not in "".join(item.out + item.err for item in result)
        assert key not in inspect_text(project)
        assert set(find_files_with_secret(key, project.root)) <= set(map(str, key_files(project)))
    assert {stat.S_IMODE(path.stat().st_mode) for path in key_files(project)} == {0o600}
    assert stat.S_IMODE(key_files(project)[0].parent.stat().st_mode) == 0o700


def test_a_deploy_that_fails_leaves_the_server_its_key_and_the_bundle_holds_none(
    project: SandboxProject, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        assert set(find_files_with_secret(key, project.root)) <= set(map(str, key_files(project)))


def test_a_key_that_is_not_there_or_too_short_is_refused_with_its_line(
    project: SandboxProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = (project.root / RECIPE).read_text().splitlines().index("server_key: {env: SPARK_KEY}") + 1
    missing = project.run("deploy", "--host", "sandbox")
    assert missing.code == 5
    assert (
        f"{RECIPE}:{line}: `server_key`: the environment variable SPARK_KEY provides no key."
        in missing.out + missing.err
    )
    monkeypatch.setenv("SPARK_KEY", "hunter2")
    short = project.run("deploy", "--host", "sandbox")
    assert (short.code, "16 to 512" in short.out + short.err, "hunter2" in short.out + short.err) == (5, True, False)
    assert project.containers() == []


def test_a_server_that_anyone_can_use_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
    sentence = "anyone on the network can use this server; set `server_key` or `publish: loopback`"
    with sandbox_project() as project:
        project.edit(RECIPE, "(?m)^publish: loopback", "publish: lan")
        assert sentence in project.run("plan", "--host", "sandbox").out
        assert "open-to-network" in project.run("lint", "--recipe", "qwen3.5-35b").out
        result = project.run("deploy", "--host", "sandbox")
        assert result.proved and sentence in result.out, result.out
        assert 'apiKey: "none"' in project.run("client", "--host", "sandbox").out
        project.edit(RECIPE, "publish: lan", "publish: loopback")
        planned = project.run("plan", "--host", "sandbox")
        assert sentence not in planned.out and "127.0.0.1" in planned.out
        assert "open-to-network" not in project.run("lint", "--recipe", "qwen3.5-35b").out
        project.edit(RECIPE, "(?m)^publish: loopback", "server_key: {env: SPARK_KEY}")
        set_new_key(monkeypatch)
        result = project.run("deploy", "--host", "sandbox")
        assert result.proved and sentence not in result.out
        message = project.run("client", "--host", "sandbox").out
        assert "key        $SPARK_KEY" in message and 'apiKey: "${SPARK_KEY}"' in message


def test_a_host_heals_its_server_with_the_key_it_keeps(
    project: SandboxProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = set_new_key(monkeypatch)
    project.deployed()
    monkeypatch.delenv("SPARK_KEY")
    machine = Machine.from_environment(control.up(project.sandbox))
    state = StateFolder.in_home(machine.home)
    settings = Settings(host="sandbox", heal="restart", smoke_every_s=0, limits=Limits(token_s=0.4))

    def check(later_s: float) -> Record:
        context = RunContext(machine, state, "run-1", lambda event: None)
        return build_check(context, settings, now=lambda: time.time() + later_s, scheduled=True).run()

    assert (check(0).state, check(300).server.token) == ("ok", "made")
    control.set_fault(project.sandbox, "wedge")
    healed = [check(600.0 + 300 * n).healed for n in range(3)]
    assert any("restarted (run" in item for item in healed), healed
    assert check(3600).state == "ok"
    assert query_models(project, key) == 200
    assert set(find_files_with_secret(key, project.root)) <= set(map(str, key_files(project)))


def test_the_lab_measures_a_server_with_a_key_and_starts_its_arms_with_it(
    project: SandboxProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = set_new_key(monkeypatch)
    project.deployed()
    small = ("--requests", "2", "--concurrency", "2", "--prompt-tokens", "64", "--output-tokens", "6")
    result = [project.run("bench.serve", "--host", "sandbox", *small)]
    result.append(
        project.run("bench.sweep", "--host", "sandbox", "--max-num-batched-tokens", "4096", "--loads", "serve", *small)
    )
    for item in result:
        assert item.code == 0, item.out[-3000:] + item.err
        assert key not in item.out + item.err
    assert query_models(project, key) == 200
    assert set(find_files_with_secret(key, project.root)) <= set(map(str, key_files(project)))
