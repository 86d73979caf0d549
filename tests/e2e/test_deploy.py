"""The product's story on the sandbox: from bare to verified, again without a change, and with a change."""

import os
import signal
import subprocess
import sys

from sparkwright.sandbox import control
from tests import commands
from tests.e2e.conftest import SandboxProject


def test_a_bare_host_becomes_a_verified_server_and_a_second_deploy_changes_nothing(project: SandboxProject) -> None:
    first = project.deploy()
    assert first.code == 0, first.out + first.err
    assert first.task("Unload Ollama's models")["data"]["unloaded"] == ["qwen3:32b"]
    assert first.task("Check the engine log")["data"]["state"]["chunked_prefill"] is True
    assert 40 < first.task("Measure throughput")["data"]["tok_per_s"] < 50
    server = project.serving()
    assert server
    second = project.deploy()
    assert (second.code, second.recap["changed"], second.recap["failed"]) == (0, 0, 0)
    assert project.serving() == server


def test_plan_shows_a_change_field_by_field_and_deploy_does_just_that(project: SandboxProject) -> None:
    project.deploy()
    before = project.serving()
    project.edit("recipes/qwen3.5-35b.yml", "max-num-seqs: 8", "max-num-seqs: 4")
    plan = project.run("plan", "--host", "sandbox")
    assert plan.code == 2
    assert "- --max-num-seqs: 8" in plan.out
    assert "+ --max-num-seqs: 4" in plan.out
    assert project.serving() == before
    result = project.deploy()
    assert result.code == 0, result.out
    assert project.serving() not in ("", before)
    assert project.containers() == ["qwen35 running"]
    assert project.run("plan", "--host", "sandbox").code == 0


def test_a_restart_keeps_the_container_and_proves_it_again(project: SandboxProject) -> None:
    project.deploy()
    before = project.serving()
    result = project.run("restart", "--host", "sandbox", "--json")
    assert result.code == 0, result.out + result.err
    assert result.task("Measure throughput")["status"] == "ok"
    assert project.serving() == before


def test_verify_proves_and_changes_nothing(project: SandboxProject) -> None:
    project.deploy()
    result = project.run("verify", "--host", "sandbox", "--json")
    assert (result.code, result.recap["changed"]) == (0, 0)


def test_the_laptop_can_go_away_and_follow_again(project: SandboxProject) -> None:
    command = [
        sys.executable,
        "-c",
        "from sparkwright.cli import main; main()",
        "deploy",
        "--host",
        "sandbox",
        "--json",
    ]
    project.sandbox.mkdir()
    control.set_fault(project.sandbox, "slow-start")  # the run lasts until it is cleared
    laptop = subprocess.Popen(command, cwd=project.root, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert laptop.stdout is not None
    for line in laptop.stdout:
        if '"name": "Start the server"' in line:
            os.killpg(laptop.pid, signal.SIGKILL)
            break
    laptop.wait()
    assert "running  Deploy" in project.run("runs", "--host", "sandbox").out
    control.set_fault(project.sandbox, None)
    result = project.run("attach", "--host", "sandbox", "--json")
    assert (result.code, result.recap["failed"]) == (0, 0), result.out
    assert project.serving()


def test_json_is_json_lines_with_the_recap_last_on_failure_too(project: SandboxProject) -> None:
    result = project.run("deploy", "--host", "sandbx", "--json")
    assert result.code == 5
    assert result.recap["event"] == "recap"
    assert "Did you mean `sandbox`?" in result.err
    outcome = project.deploy("--tags", "image")
    assert outcome.recap["event"] == "recap"
    assert {"ok", "changed", "failed", "skipped", "unreachable"} <= outcome.recap.keys()


def test_what_the_sandbox_pins_never_reaches_the_projects_lock(project: SandboxProject) -> None:
    project.deploy("--tags", "image")
    assert not (project.root / "spark.lock").exists()
    assert (project.sandbox / "spark.lock").exists()


def test_a_folder_laid_by_init_deploys(project: SandboxProject) -> None:
    new = project.root / "new"
    assert project.run("init", str(new)).code == 0
    for file in ("hosts/spark1.yml", "recipes/qwen3.5-35b.yml", "tasks.py"):
        assert (new / file).exists(), file
    assert not (new / "playbooks").exists() and not (new / "templates").exists()
    (new / "hosts/sandbox.yml").write_text((project.root / "hosts/sandbox.yml").read_text())
    planned = commands.run("plan", "--host", "sandbox", "--json", cwd=new, env={**os.environ})
    control.down(new / ".sandbox")
    assert planned.returncode == 2, planned.stdout[-2000:]
    second_run = project.run("init", str(new))
    assert (second_run.code, "already exists" in second_run.err) == (5, True)


def test_a_playbook_for_other_hosts_is_refused_not_green(project: SandboxProject) -> None:
    (project.root / "playbooks/other.yml").write_text("- hosts: spark1\n  tasks:\n    - facts:\n")
    result = project.run("play", "other", "--host", "sandbox")
    assert (result.code, "no play of other is for sandbox" in result.err) == (5, True)


def test_provision_is_idempotent(project: SandboxProject) -> None:
    assert project.run("provision", "--host", "sandbox", "--json").code == 0
    second_run = project.run("provision", "--host", "sandbox", "--json")
    assert (second_run.code, second_run.recap["changed"]) == (0, 0)
