"""The health check restarts a hung server like `restart`, without a laptop."""

import json
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
from sparkwright.host.runs import journal
from sparkwright.host.state import StateFolder
from sparkwright.protocol.events import decode
from sparkwright.sandbox import control
from tests.e2e.conftest import SandboxProject, sandbox_project
from tests.e2e.health_checks import run_check
from tests.e2e.test_restart import list_ollama_models, running_max_num_seqs, set_max_num_seqs

SETTINGS = Settings(host="sandbox", heal="restart", smoke_every_s=0, limits=Limits(token_s=0.4))
RECIPE = "recipes/qwen3.5-35b.yml"


@dataclass
class HealingHost:
    """A project's host, and how far the clock of its checks is ahead."""

    project: SandboxProject
    state: StateFolder
    ahead_s: float = 0.0

    def check(self) -> Record:
        """Run the scheduled check, five minutes after the last one."""
        self.ahead_s += 300
        return run_check(self.project.sandbox, SETTINGS, later_s=self.ahead_s)

    def heal(self) -> Record:
        """Let the server hang until the second check, and return this check's record."""
        with self.project.fault("wedge"):
            self.check()
            record = self.check()
        self.ahead_s += 3600
        return record

    def last_run(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the plan and the finished tasks of the newest run."""
        folder = next(self.state.runs())
        events = map(decode, (folder / "events.jsonl").read_bytes().splitlines())
        return journal.read_plan(folder), [event for event in events if event["event"] == "task_finished"]

    def container(self) -> tuple[str, str, str]:
        """Return Id, time of the start and restart policy of the server's container."""
        container = self.project.container()
        return container["Id"], container["State"]["StartedAt"], container["HostConfig"]["RestartPolicy"]["Name"]

    def plans(self) -> list[Path]:
        return sorted((self.state.path / "restart_plans").glob("*.json"))


@pytest.fixture(scope="module")
def deployed() -> Iterator[HealingHost]:
    with sandbox_project() as project:
        project.edit("hosts/groups.yml", "vars: {}", "vars: {ollama: leave, reserve_gib: 3, drain_s: 1}")
        project.edit(RECIPE, r"gpu-memory-utilization: [\d.]+", "gpu-memory-utilization: 0.60")
        project.deployed()
        yield HealingHost(project, project.state)


@pytest.fixture
def host(deployed: HealingHost) -> Iterator[HealingHost]:
    """The host as first deployed, with one check."""
    set_max_num_seqs(deployed.project, 8)
    assert deployed.project.deploy().proved
    for path in deployed.state.path.glob("health*"):
        path.unlink()
    assert deployed.check().state == "ok"
    with deployed.project.restored_files():
        yield deployed
    control.set_fault(deployed.project.sandbox, None)


def test_a_hung_server_is_restarted_by_the_playbook_with_the_hosts_variables(host: HealingHost) -> None:
    before = host.container()
    record = host.heal()
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
    assert list_ollama_models(host.project) == ["qwen3:32b"], "the host has `ollama: leave`"
    row = host.project.history()[0]
    assert (row["what"], row["who"]) == ("healed", "the health check") and "token" in row["why"]


def test_each_configuration_has_its_restart_plan_also_after_a_rollback(host: HealingHost) -> None:
    first = host.plans()
    set_max_num_seqs(host.project, 4)
    assert host.project.deploy().proved
    assert len(host.plans()) == len(set(first) | set(host.plans())) == 2
    assert host.heal().healed.startswith("restarted (run ")
    assert running_max_num_seqs(host.project) == "4"
    assert host.project.run("rollback", "--host", "sandbox").code == 0
    host.check()
    assert host.heal().healed.startswith("restarted (run ")
    assert running_max_num_seqs(host.project) == "8"


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("hosts/groups.yml", "drain_s: 1", "drain_s: 2"),
        ("playbooks/parts/prove.yml", "Measure throughput", "Measure how fast it is"),
    ],
    ids=["host variable", "included playbook part"],
)
def test_a_deploy_that_changes_only_the_restart_renews_its_plan(
    host: HealingHost, file: str, before: str, after: str
) -> None:
    def plan_text() -> str:
        return host.plans()[0].read_text().replace('"drain_s"', "drain_s")

    host.project.edit(file, before, after)
    assert before in plan_text()
    result = host.project.deploy()
    assert (result.code, result.recap["changed"]) == (0, 0)
    assert after in plan_text()


def test_install_stores_the_plan_and_warns_if_the_recipe_differs_from_the_verified_one(
    host: HealingHost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything that `health.install` does except its timer, which tests/bed/test_health.py covers."""
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


def test_a_failed_deploy_keeps_the_plan_of_the_serving_server(host: HealingHost) -> None:
    before = [path.read_text() for path in host.plans()]
    host.project.before("Measure throughput", "{name: Break, fail: {msg: broken}}")
    set_max_num_seqs(host.project, 2)
    assert host.project.deploy().code == 1
    assert [path.read_text() for path in host.plans()] == before


def test_a_failed_restart_is_tried_once_more(host: HealingHost) -> None:
    broken_task = r"\1- name: Break\n\1  fail: {msg: broken}\n\n\1- include: parts/prove.yml"
    host.project.edit("playbooks/restart.yml", "( +)- include: parts/prove.yml", broken_task)
    assert host.project.deploy().recap["changed"] == 0
    before = host.container()
    record = host.heal()
    assert record.state == "ok"
    assert "the restart failed (run " in record.healed and "broken Restarted once more; it is serving." in record.healed
    assert host.container()[0] == before[0] and host.container()[2] == "unless-stopped"
    assert host.project.serving()


def test_nothing_is_restarted_without_a_plan_of_this_version(host: HealingHost) -> None:
    before = host.container()
    path = host.plans()[0]
    original = path.read_text()
    path.write_text(json.dumps({**json.loads(original), "runtime": "another"}))
    assert "another version of sparkwright" in host.heal().healed
    path.unlink()
    control.set_fault(host.project.sandbox, "wedge")
    record = host.check()
    assert "no restart plan is stored" in record.healed and "`invoke health.install" in record.healed
    assert record.state == "wedged" and host.container() == before
    path.write_text(original)


def test_a_server_that_differs_from_the_last_good_state_is_not_restarted(host: HealingHost) -> None:
    before = host.container()
    good = host.state.read("verified") or {}
    other_command = [word.replace("0.6", "0.5") for word in good["spec"]["command"]]
    host.state.write("verified", {**good, "container_id": "f" * 64, "spec": {**good["spec"], "command": other_command}})
    assert "differs from the last good state" in host.heal().healed
    assert host.container() == before
    host.state.write("verified", good)


def test_an_invalid_restart_playbook_is_reported_and_the_deploy_continues(host: HealingHost) -> None:
    host.project.edit("playbooks/restart.yml", "wait_memory_released:", "wait_memory_relaesed:")
    result = host.project.run("deploy", "--host", "sandbox")
    assert result.code == 0, result.out + result.err
    assert "no restart plan for its health check: playbooks/restart.yml:" in result.out
    host.project.edit("playbooks/restart.yml", "(?s)^.*$", "- hosts: all\n  tasks: []\n")
    result = host.project.run("deploy", "--host", "sandbox")
    assert (result.code, "needs exactly one play that restarts and verifies it" in result.out) == (0, True), result.out
