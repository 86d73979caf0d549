"""Deploys to the sandbox: of a bare host, without a change, and with a change."""

import os
import signal

from sparkwright.sandbox import control
from tests import commands
from tests.e2e.conftest import SandboxProject, wait_for_line


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


def test_plan_shows_each_changed_field_and_deploy_applies_them(project: SandboxProject) -> None:
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


def test_a_restart_keeps_the_container_and_verifies_it(project: SandboxProject) -> None:
    project.deploy()
    before = project.serving()
    result = project.run("restart", "--host", "sandbox", "--json")
    assert result.code == 0, result.out + result.err
    assert result.task("Measure throughput")["status"] == "ok"
    assert project.serving() == before


def test_a_deploy_continues_without_the_laptop_and_attach_follows_it(project: SandboxProject) -> None:
    project.sandbox.mkdir()
    with project.fault("slow-start"):  # the run lasts until it is cleared
        with project.start("deploy", "--host", "sandbox", "--json", start_new_session=True) as laptop:
            wait_for_line(laptop, '"name": "Start the server"')
            os.killpg(laptop.pid, signal.SIGKILL)
        assert "running  Deploy" in project.run("runs", "--host", "sandbox").out
    result = project.run("attach", "--host", "sandbox", "--json")
    assert (result.code, result.recap["failed"]) == (0, 0), result.out
    assert project.serving()


def test_json_output_ends_with_the_recap_also_on_failure(project: SandboxProject) -> None:
    result = project.run("deploy", "--host", "sandbx", "--json")
    assert result.code == 5
    assert result.recap["event"] == "recap"
    assert "Did you mean `sandbox`?" in result.err
    recap = project.deploy("--tags", "image").recap
    assert recap["event"] == "recap" and {"ok", "changed", "failed", "skipped", "unreachable"} <= recap.keys()
    assert not (project.root / "spark.lock").exists() and (project.sandbox / "spark.lock").exists()


def test_a_project_made_by_init_deploys(project: SandboxProject) -> None:
    new = project.root / "new"
    assert project.run("init", str(new)).code == 0
    for file in ("hosts/spark1.yml", "recipes/qwen3.5-35b.yml", "tasks.py"):
        assert (new / file).exists(), file
    assert not (new / "playbooks").exists() and not (new / "templates").exists()
    (new / "hosts/sandbox.yml").write_text((project.root / "hosts/sandbox.yml").read_text())
    planned = commands.run("plan", "--host", "sandbox", "--json", cwd=new)
    control.down(new / ".sandbox")
    assert planned.returncode == 2, planned.stdout[-2000:]
    second_run = project.run("init", str(new))
    assert (second_run.code, "already exists" in second_run.err) == (5, True)


def test_a_playbook_for_other_hosts_is_refused(project: SandboxProject) -> None:
    (project.root / "playbooks/other.yml").write_text("- hosts: spark1\n  tasks:\n    - facts:\n")
    result = project.run("play", "other", "--host", "sandbox")
    assert (result.code, "no play in other is for sandbox" in result.err) == (5, True)


def test_provision_is_idempotent(project: SandboxProject) -> None:
    assert project.run("provision", "--host", "sandbox", "--json").code == 0
    second_run = project.run("provision", "--host", "sandbox", "--json")
    assert (second_run.code, second_run.recap["changed"]) == (0, 0)
