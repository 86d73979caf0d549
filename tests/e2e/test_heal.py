"""A server that hangs is restarted by the health check as `invoke restart` would do it, with no laptop."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sparkwright.app.connect import select_hosts
from sparkwright.app.plans import server_context
from sparkwright.app.runs import session
from sparkwright.health.judging.observation import Limits
from sparkwright.health.record import Record
from sparkwright.health.settings import Settings
from sparkwright.host.machine import Machine
from sparkwright.host.runs import journal
from sparkwright.host.runs.context import RunContext
from sparkwright.host.state import StateFolder
from sparkwright.protocol.events import decode
from sparkwright.runner.health_check import build_check
from sparkwright.sandbox import control
from tests.e2e.conftest import SandboxProject, sandbox_project
from tests.e2e.test_restart import ollama_models, server_command, set_max_num_seqs

SETTINGS = Settings(host="sandbox", heal="restart", smoke_every_s=0, limits=Limits(token_s=0.4))
RECIPE = "recipes/qwen3.5-35b.yml"


@dataclass
class HealingHost:
    """A project's host, and the time that its clock has come to."""

    project: SandboxProject
    machine: Machine
    state: StateFolder
    ahead_s: float = 0.0

    def check(self) -> Record:
        """Run the scheduled check, five minutes after the last one."""
        self.ahead_s += 300
        context = RunContext(self.machine, self.state, "run-1", lambda event: None)
        return build_check(context, SETTINGS, scheduled=True, now=lambda: time.time() + self.ahead_s).run()

    def healed(self) -> Record:
        """The server hangs until two checks have seen it."""
        control.set_fault(self.project.sandbox, "wedge")
        self.check()
        found = self.check()
        control.set_fault(self.project.sandbox, None)
        self.ahead_s += 3600
        return found

    def last_run(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The plan and the finished tasks of the newest run."""
        folder = next(self.state.runs())
        events = map(decode, (folder / "events.jsonl").read_bytes().splitlines())
        return journal.read_plan(folder), [event for event in events if event["event"] == "task_finished"]

    def container(self) -> tuple[str, str, str]:
        """The server's container: its id, when it was started, its restart policy."""
        box = self.project.docker().api.inspect_container("qwen35")
        return box["Id"], box["State"]["StartedAt"], box["HostConfig"]["RestartPolicy"]["Name"]

    def plans(self) -> list[Path]:
        return sorted((self.state.path / "restart_plans").glob("*.json"))


@pytest.fixture(scope="module")
def deployed() -> Iterator[HealingHost]:
    with pytest.MonkeyPatch.context() as patch, sandbox_project() as project:
        patch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
        project.edit("hosts/groups.yml", "ollama: unload", "ollama: leave")
        project.edit("hosts/groups.yml", "reserve_gib: 4", "reserve_gib: 3\n    drain_s: 1")
        project.edit(RECIPE, r"gpu-memory-utilization: [\d.]+", "gpu-memory-utilization: 0.60")
        project.deployed()
        machine = Machine.from_environment(control.up(project.sandbox))
        yield HealingHost(project, machine, StateFolder.in_home(machine.home))


@pytest.fixture
def host(deployed: HealingHost) -> Iterator[HealingHost]:
    """The host as it was deployed first, checked once."""
    playbooks = {path: path.read_text() for path in (deployed.project.root / "playbooks").rglob("*.yml")}
    set_max_num_seqs(deployed.project, 8)
    assert deployed.project.deploy().proved
    for path in deployed.state.path.glob("health*"):
        path.unlink()
    assert deployed.check().state == "ok"
    yield deployed
    control.set_fault(deployed.project.sandbox, None)
    for path, text in playbooks.items():
        path.write_text(text)


def test_it_is_the_restart_of_the_playbook_with_the_hosts_own_variables(host: HealingHost) -> None:
    before = host.container()
    record = host.healed()
    assert (record.state, record.healed.startswith("restarted (run ")) == ("ok", True), record.healed
    after = host.container()
    assert after[0] == before[0] and after[1] > before[1] and after[2] == "unless-stopped"
    plan, tasks = host.last_run()
    assert (plan["playbook"], plan["who"]) == ("playbooks/restart.yml", "the health check")
    finished = {task["module"]: task for task in tasks if task["status"] in ("ok", "changed")}
    proofs = {"drain", "stopped", "wait_exited", "wait_memory_released", "verify_health", "verify_logs", "smoke_test"}
    assert proofs <= finished.keys()
    assert finished["smoke_test"]["data"]["tok_per_s"] > 0
    fits = next(step["args"] for step in plan["steps"] if step["module"] == "assert_memory_fits")
    assert (fits["reserve_gib"], fits["ollama"]) == (3, "leave")
    assert ollama_models(host.project) == ["qwen3:32b"], "Ollama was to be left alone"
    row = host.project.run("history", "--host", "sandbox", "--json").events()[0]
    assert (row["what"], row["who"]) == ("healed", "the health check") and "token" in row["why"]


def test_a_deploy_that_changes_the_recipe_renews_the_plan_and_a_roll_back_finds_the_older_one(
    host: HealingHost,
) -> None:
    first = host.plans()
    set_max_num_seqs(host.project, 4)
    assert host.project.deploy().proved
    assert len(host.plans()) == len(set(first) | set(host.plans())) == 2
    assert host.healed().healed.startswith("restarted (run ")
    assert server_command(host.project)[server_command(host.project).index("--max-num-seqs") + 1] == "4"
    assert host.project.run("rollback", "--host", "sandbox").code == 0
    host.check()
    assert host.healed().healed.startswith("restarted (run ")
    assert server_command(host.project)[server_command(host.project).index("--max-num-seqs") + 1] == "8"


def test_a_deploy_that_changes_nothing_but_the_hosts_variables_renews_the_plan(host: HealingHost) -> None:
    host.project.edit("hosts/groups.yml", "drain_s: 1", "drain_s: 2")
    assert '"drain_s": 1' in host.plans()[0].read_text()
    result = host.project.deploy()
    assert (result.code, result.recap["changed"]) == (0, 0)
    assert '"drain_s": 2' in host.plans()[0].read_text()
    host.project.edit("hosts/groups.yml", "drain_s: 2", "drain_s: 1")


def test_a_change_of_a_part_that_the_restart_playbook_includes_renews_the_plan(host: HealingHost) -> None:
    host.project.edit("playbooks/parts/prove.yml", "Measure throughput", "Measure how fast it is")
    assert "Measure throughput" in host.plans()[0].read_text()
    assert host.project.deploy().recap["changed"] == 0
    assert "Measure how fast it is" in host.plans()[0].read_text()


def test_an_install_brings_the_plan_and_says_when_the_recipe_is_not_what_was_verified(
    host: HealingHost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of `health.install` but its timer, which the sandbox has none of (tests/bed/test_health.py has one)."""
    monkeypatch.chdir(host.project.root)
    before = {path: path.read_text() for path in host.plans()}
    host.state.write("health-settings", {"heal": "restart"})

    def install() -> str:
        for path in host.plans():
            path.unlink()
        selection = select_hosts("sandbox")
        server_context.attach_restart_plans(selection)
        assert session.run_module_task(selection, "facts", {}, json=True) == [0]
        return capsys.readouterr().out

    assert "will not restart" not in install()
    assert host.plans()[0].read_text() == before[host.plans()[0]]
    set_max_num_seqs(host.project, 3)
    assert "will not restart this server: no restart plan is stored" in install()
    assert host.plans() == []


def test_a_deploy_that_fails_leaves_the_plan_of_what_serves(host: HealingHost) -> None:
    before = [path.read_text() for path in host.plans()]
    host.project.before("Measure throughput", "{name: Break, fail: {msg: broken}}")
    set_max_num_seqs(host.project, 2)
    assert host.project.deploy().code == 1
    assert [path.read_text() for path in host.plans()] == before


def test_when_the_first_start_fails_it_is_started_once_more(host: HealingHost) -> None:
    broken_task = r"\1- name: Break\n\1  fail: {msg: broken}\n\n\1- include: parts/prove.yml"
    host.project.edit("playbooks/restart.yml", "( +)- include: parts/prove.yml", broken_task)
    assert host.project.deploy().recap["changed"] == 0
    before = host.container()
    record = host.healed()
    assert record.state == "ok"
    assert "the restart failed (run " in record.healed and "broken Restarted once more; it is serving." in record.healed
    assert host.container()[0] == before[0] and host.container()[2] == "unless-stopped"
    assert host.project.serving()


def test_without_a_plan_or_with_another_versions_it_says_so_and_restarts_nothing(host: HealingHost) -> None:
    before = host.container()
    path = host.plans()[0]
    original = path.read_text()
    path.write_text(json.dumps({**json.loads(original), "runtime": "another"}))
    assert "another version of sparkwright" in host.healed().healed
    path.unlink()
    control.set_fault(host.project.sandbox, "wedge")
    record = host.check()
    assert "no restart plan is stored" in record.healed and "`invoke health.install" in record.healed
    assert record.state == "wedged" and host.container() == before
    path.write_text(original)


def test_what_is_not_the_last_good_state_is_not_restarted(host: HealingHost) -> None:
    before = host.container()
    good = host.state.read("verified") or {}
    other_command = [word.replace("0.6", "0.5") for word in good["spec"]["command"]]
    host.state.write("verified", {**good, "container_id": "f" * 64, "spec": {**good["spec"], "command": other_command}})
    assert "not the last good state" in host.healed().healed
    assert host.container() == before
    host.state.write("verified", good)


def test_a_restart_playbook_that_does_not_compile_is_told_and_the_deploy_goes_on(host: HealingHost) -> None:
    host.project.edit("playbooks/restart.yml", "wait_memory_released:", "wait_memory_relaesed:")
    result = host.project.run("deploy", "--host", "sandbox")
    assert result.code == 0, result.out + result.err
    assert "no restart plan for its health check: playbooks/restart.yml:" in result.out
    host.project.edit("playbooks/restart.yml", "(?s)^.*$", "- hosts: all\n  tasks: []\n")
    result = host.project.run("deploy", "--host", "sandbox")
    assert (result.code, "needs exactly one play that restarts and verifies it" in result.out) == (0, True), result.out
