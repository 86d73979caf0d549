"""Restarts, rollbacks, their history, and what happens to Ollama, clients and other runs meanwhile."""

import json
import os
import re
import signal
import subprocess
import threading
import urllib.request
from pathlib import Path

import pytest

from sparkwright.sandbox import control
from tests.e2e.conftest import CommandResult, SandboxProject, wait_for_line
from tests.remote.sshd import free_port
from tests.waiting import wait_until

RECIPE = "recipes/qwen3.5-35b.yml"
NO_DOCKER = "no answer from the Docker Engine at unix:///nowhere.sock"
BREAK_TASK = "{name: Break, fail: {msg: broken}}"


def set_max_num_seqs(project: SandboxProject, count: int) -> None:
    project.edit(RECIPE, r"max-num-seqs: \d+", f"max-num-seqs: {count}")


def running_max_num_seqs(project: SandboxProject) -> str:
    """Return --max-num-seqs of the server's command line."""
    command = project.container()["Config"]["Cmd"]
    return str(command[command.index("--max-num-seqs") + 1])


def stop_docker(project: SandboxProject) -> None:
    """Make the host's Docker Engine unreachable for the project's commands."""
    with (project.root / "hosts/sandbox.yml").open("a") as file:
        file.write('env: {DOCKER_HOST: "unix:///nowhere.sock"}\n')


def list_ollama_models(project: SandboxProject) -> list[str]:
    url = f"http://{control.up(project.sandbox)['OLLAMA_HOST']}/api/ps"
    with urllib.request.urlopen(url, timeout=5) as answer:
        return [model["name"] for model in json.loads(answer.read())["models"]]


def test_rollback_recreates_the_last_verified_server_after_its_container_was_removed(project: SandboxProject) -> None:
    project.deployed()
    refused = project.run("rollback", "--host", "sandbox")
    assert (refused.code, "no verified state older than" in refused.out) == (5, True), refused.out
    set_max_num_seqs(project, 4)
    assert project.deploy().proved
    assert project.containers() == ["qwen35 running"]
    result = project.run("rollback", "--host", "sandbox", "--json")
    assert result.code == 0, result.out[-2000:]
    assert running_max_num_seqs(project) == "8"
    assert project.serving() and project.containers() == ["qwen35 running"]
    rows = project.history()
    assert [row["what"] for row in rows] == ["rolled back", "verified", "verified"]
    assert rows[0]["measured"]["tok_per_s"] > 40 and rows[0]["commit"] and "@sha256:" in rows[0]["image"]
    changed = [(item["field"], item["before"], item["after"]) for item in rows[1]["changed"]]
    assert changed == [("--max-num-seqs", "8", "4")]
    assert "by " in project.run("history", "--host", "sandbox").out


@pytest.mark.parametrize("command", ["deploy", "restart", "rollback", "verify"])
def test_a_command_is_refused_while_docker_is_stopped(project: SandboxProject, command: str) -> None:
    stop_docker(project)
    result = project.run(command, "--host", "sandbox")
    assert (result.code, NO_DOCKER in result.out) == (5, True), result.out


def test_provision_fails_while_docker_is_stopped(project: SandboxProject) -> None:
    stop_docker(project)
    result = project.run("provision", "--host", "sandbox")
    assert re.search(f"failed +Check driver, toolkit and Docker +{NO_DOCKER}", result.out), result.out
    assert result.code == 1, "the first run has created the models directory"
    assert project.run("provision", "--host", "sandbox").code == 5


def test_minimum_stops_a_change_of_the_only_host_but_not_a_deploy_without_changes(project: SandboxProject) -> None:
    project.deployed()
    server = project.serving()
    project.edit("hosts/groups.yml", r"all:\n", "all:\n  min_serving: 1\n")
    unchanged = project.deploy()
    assert unchanged.code == 0, unchanged.out + unchanged.err
    set_max_num_seqs(project, 4)
    changed = project.deploy()
    assert (changed.code, "min_serving" in changed.out + changed.err) == (5, True), changed.out + changed.err
    assert project.serving() == server


def test_rollback_removes_an_option_that_the_previous_state_did_not_have(project: SandboxProject) -> None:
    project.deployed()
    project.edit(RECIPE, "  ipc: private", "  ipc: private\n  log_driver: json-file\n  log_options: {max-size: 1m}")
    assert project.deploy().proved
    assert project.container()["HostConfig"]["LogConfig"]["Config"] == {"max-size": "1m"}
    result = project.run("rollback", "--host", "sandbox", "--json")
    assert result.proved, result.out[-2000:]
    assert project.container()["HostConfig"]["LogConfig"]["Config"] == {}


def test_no_rollback_keeps_the_failed_server_for_an_incident_until_rollback(project: SandboxProject) -> None:
    project.deployed()
    before = project.serving()
    project.run("sandbox.fault", "slow")
    set_max_num_seqs(project, 4)
    result = project.deploy("--no-rollback")
    assert result.code == 1
    assert "`sparkwright rollback --host sandbox` restores it" in result.recap["msg"]
    assert project.containers() == ["qwen35 running", "qwen35-previous exited"]
    fetched = project.run("incident", "--host", "sandbox")
    assert fetched.code == 0 and "misconfigured" in fetched.out
    folder = next((project.root / "incidents/sandbox").iterdir())
    names = "container.log inspect.json meminfo dmesg.txt plan.json events.jsonl holders.txt"
    assert {path.name for path in folder.iterdir()} >= set(names.split())
    assert "Application startup complete" in (folder / "container.log").read_text()
    last_event = (folder / "events.jsonl").read_text().splitlines()[-1]
    assert '"recap"' in last_event and last_event.endswith("}")
    project.run("sandbox.fault", "none")
    rolled_back = project.run("rollback", "--host", "sandbox")
    assert rolled_back.code == 0, rolled_back.out
    assert project.serving() == before
    assert project.containers() == ["qwen35 running"]


def test_ollamas_models_are_loaded_again_after_a_deploy_if_they_fit(project: SandboxProject) -> None:
    project.edit("hosts/groups.yml", "vars: {}", "vars: {reload_after: true}")
    project.edit(RECIPE, r"gpu-memory-utilization: [\d.]+", "gpu-memory-utilization: 0.60")
    result = project.deploy()
    assert result.code == 0
    assert result.task("Reload Ollama's models if they fit")["data"]["loaded"] == ["qwen3:32b"]
    assert list_ollama_models(project) == ["qwen3:32b"]
    project.edit(RECIPE, r"gpu-memory-utilization: [\d.]+", "gpu-memory-utilization: 0.85")
    result = project.deploy()
    assert result.code == 0
    assert result.task("Reload Ollama's models if they fit")["data"]["left_out"] == ["qwen3:32b"]
    assert project.serving()


def test_ollamas_models_are_loaded_again_after_a_failed_deploy(project: SandboxProject) -> None:
    project.edit("hosts/groups.yml", "vars: {}", "vars: {reload_after: true}")
    project.edit(RECIPE, r"gpu-memory-utilization: [\d.]+", "gpu-memory-utilization: 0.60")
    project.deployed()
    assert list_ollama_models(project) == ["qwen3:32b"]
    before = project.serving()
    set_max_num_seqs(project, 4)
    project.before("Measure throughput", BREAK_TASK)
    failed = project.deploy()
    assert failed.code == 1
    assert failed.task("Unload Ollama's models")["data"]["unloaded"] == ["qwen3:32b"]
    assert (project.serving(), list_ollama_models(project)) == (before, ["qwen3:32b"])


def test_a_host_may_keep_ollamas_models_until_they_are_unloaded_manually(project: SandboxProject) -> None:
    project.edit("hosts/groups.yml", "vars: {}", "vars: {ollama: leave}")
    project.edit(RECIPE, r"gpu-memory-utilization: [\d.]+", "gpu-memory-utilization: 0.60")
    project.deployed()
    assert list_ollama_models(project) == ["qwen3:32b"]
    assert "qwen3:32b, 20.0 GiB" in project.run("ollama.ps", "--host", "sandbox").out
    assert project.run("ollama.unload", "--host", "sandbox").code == 0
    assert list_ollama_models(project) == []
    assert "no model loaded" in project.run("ollama.ps", "--host", "sandbox").out


def test_a_restart_waits_for_requests_and_counts_those_that_it_aborts(project: SandboxProject) -> None:
    project.deployed()
    running = project.open_stream(100_000)
    plan = project.run("restart", "--host", "sandbox", "--json", "--check")
    assert "1 request running now" in plan.task("Drain requests")["msg"]
    assert "last start" in plan.task("Drain requests")["msg"]
    running.close()
    short = project.open_stream(60)
    text: list[bytes] = []
    reader = threading.Thread(target=lambda: text.append(short.read()))
    reader.start()
    result = project.run("restart", "--host", "sandbox", "--json")
    reader.join(timeout=30)
    assert result.code == 0 and result.task("Drain requests")["data"]["running"] == 0
    assert text and b"[DONE]" in text[0], "the whole answer"
    long = project.open_stream(100_000)
    project.edit("hosts/groups.yml", "vars: {}", "vars: {drain_s: 0.5}")
    result = project.run("restart", "--host", "sandbox", "--json")
    long.close()
    assert result.code == 0
    assert result.task("Drain requests")["msg"].startswith("1 request aborted after")
    before = project.serving()
    set_max_num_seqs(project, 4)
    refused = project.run("restart", "--host", "sandbox", "--json")
    assert (refused.code, project.serving()) == (5, before)
    assert "`deploy` applies it" in refused.recap["msg"]


def test_a_deploy_under_load_keeps_the_new_server_without_a_throughput(project: SandboxProject) -> None:
    project.deployed()
    set_max_num_seqs(project, 4)
    project.before("Measure throughput", f"{{name: Gate, command: {{argv: [sh, -c, '{wait_for_gate(project)}']}}}}")
    laptop = project.start("deploy", "--host", "sandbox", "--json")
    wait_until((project.root / "reached").exists, "the gate")
    with project.open_stream(100_000):
        (project.root / "open").touch()
        out, _ = laptop.communicate(timeout=60)
    result = CommandResult(laptop.returncode, out, "")
    assert result.code == 4, out[-2000:]
    assert "other traffic: 1 request running or waiting" in result.recap["msg"]
    assert running_max_num_seqs(project) == "4"
    assert project.serving()
    assert project.history()[0]["measured"]["tok_per_s"] is None


def test_a_failed_restart_is_tried_once_more(project: SandboxProject) -> None:
    project.deployed()
    before = project.serving()
    project.before("Measure throughput", BREAK_TASK)
    result = project.run("restart", "--host", "sandbox", "--json")
    assert (result.code, result.recap["msg"]) == (1, "broken Restarted once more; it is serving."), result.recap
    assert project.serving() == before


#: field of the plan, and the change of the recipe or host; each change begins with the result of the one before
CHANGES = [
    ("--max-num-seqs", RECIPE, r"max-num-seqs: \d+", "max-num-seqs: 3"),
    ("shm-size", RECIPE, r"shm_size: .*", "shm_size: 32gb"),
    ("env", RECIPE, r"  restart: unless-stopped", "  restart: unless-stopped\n  env: {TZ: UTC}"),
    ("ipc", RECIPE, r"  ipc: private", "  ipc: host"),
    ("restart", RECIPE, r"  restart: unless-stopped", "  restart: always"),
    ("volumes", RECIPE, r"  ipc: (\w+)", r"  ipc: \1\n  volumes: ['~/models:/all:ro']"),
    ("gpus", RECIPE, r"  gpus: all", r"  gpus: '1'"),
    ("ulimits", RECIPE, r"  gpus: '1'", "  gpus: '1'\n  ulimits: {memlock: '-1'}"),
    ("labels", RECIPE, r"  gpus: '1'", "  gpus: '1'\n  labels: {team: lab}"),
    ("ports", "hosts/sandbox.yml", r"serve_port: \d+", "serve_port: ANOTHER"),
    ("image", RECIPE, r"image: .*", "image: vllm/vllm-openai:latest"),
]
COMPARE, STOP = "Compare running container with recipe", "Stop previous server, keep it for rollback"
#: shows a difference only after the start
REMOVE = "Enable restart policy, remove previous container"


def list_changed_tasks(result: CommandResult) -> set[str]:
    return {event["name"] for event in result.events() if event.get("status") == "changed"} - {REMOVE}


def test_a_deploy_makes_exactly_the_changes_of_its_plan(project: SandboxProject) -> None:
    project.deployed()
    assert project.run("plan", "--host", "sandbox").code == 0
    port = next(item for item in iter(free_port, 0) if item != project.port)
    for field, file, before, after in CHANGES:
        text = (project.root / file).read_text()
        project.edit(file, before, after.replace("ANOTHER", str(port)))
        assert (project.root / file).read_text() != text, field
        plan = project.run("plan", "--host", "sandbox", "--json")
        assert plan.code == 2, (field, plan.out[-1500:])
        deployed = project.deploy()
        assert deployed.code in (0, 4), (field, deployed.out[-1500:])  # 4: this machine is too busy to measure
        for task in (COMPARE, STOP):
            assert plan.task(task)["diff"] == deployed.task(task)["diff"], (field, task)
        differences = [
            row["field"] for task in (COMPARE, "Start the server", REMOVE) for row in plan.task(task)["diff"]
        ]
        assert any(field in difference for difference in differences), (field, differences)
        assert list_changed_tasks(plan) == list_changed_tasks(deployed), field
        compared = [row["field"] for row in plan.task(COMPARE)["diff"]]
        assert len(compared) <= 1 or field == "image", (field, compared)  # the deploy before left no difference
    assert project.run("plan", "--host", "sandbox").code == 0


def update_model(project: SandboxProject) -> tuple[Path, bytes]:
    """Lock a new revision of the model, and return the path and the old content of a changed file."""
    shard = project.sandbox / "home/models/qwen35-35b-hf/model-00001-of-00014.safetensors"
    before = shard.read_bytes()
    project.run("sandbox.fault", "moved-model")
    assert project.run("lock", "--host", "sandbox", "--update", "--yes").code == 0
    return shard, before


def test_a_new_model_revision_replaces_the_server_and_a_failure_restores_the_old_files(
    project: SandboxProject,
) -> None:
    project.deployed()
    before = project.serving()
    shard, old = update_model(project)
    plan = project.run("plan", "--host", "sandbox", "--json")
    assert plan.code == 2
    assert plan.task("Compare running container with recipe")["diff"][0]["field"] == "model revision"
    assert plan.task("Stop previous server, keep it for rollback")["status"] == "changed"
    for task in ("Check flags against engine and model", "Measure throughput"):  # before the swap, and in it
        with project.restored_files():
            project.before(task, BREAK_TASK)
            failed = project.deploy()
        assert failed.code == 1 and "broken" in failed.recap["msg"]
        assert project.serving() == before
        assert shard.read_bytes() == old, "the verified files of the old server"
        assert not (shard.parent / ".before").exists()
    result = project.deploy()
    assert result.code == 0
    assert project.serving() != before and shard.read_bytes() != old
    assert not (shard.parent / ".before").exists()
    assert project.run("plan", "--host", "sandbox").code == 0
    assert [item["field"] for item in project.history()[0]["changed"]] == ["model revision"]


def test_after_a_killed_run_an_early_failure_keeps_the_new_model_files(project: SandboxProject) -> None:
    project.deployed()
    shard, old = update_model(project)
    with project.restored_files():
        project.before("Measure throughput", "{name: Die, command: {argv: [sh, -c, 'kill -9 $PPID']}}")
        assert project.deploy().code == 1
    with project.restored_files():
        project.before("Check flags against engine and model", BREAK_TASK)
        assert "broken" in project.deploy().recap["msg"]
    assert shard.read_bytes() != old, "the running server uses them"
    assert project.deploy().proved
    assert shard.read_bytes() != old
    assert not (shard.parent / ".before").exists()


def test_a_crash_loop_is_stopped_once_and_reported(project: SandboxProject) -> None:
    project.deployed()
    (project.root / "playbooks/look.yml").write_text(
        "- hosts: all\n  tasks:\n    - crash_loop: {name: qwen35, most: 2, within_s: 600}\n"
    )
    assert project.run("play", "look", "--host", "sandbox").code == 0
    project.run("sandbox.fault", "crash-loop")
    wait_until(lambda: project.container()["RestartCount"] > 2, "a loop")
    result = project.run("play", "look", "--host", "sandbox")
    assert (result.code, "qwen35 is no longer restarted" in result.out) == (1, True), result.out
    assert project.container()["HostConfig"]["RestartPolicy"]["Name"] == "no"
    assert project.containers() == ["qwen35 exited"]
    assert project.run("play", "look", "--host", "sandbox").code == 0, "a stopped loop is not reported again"
    assert project.run("incident", "--host", "sandbox").code == 0
    assert project.history()[0]["what"] == "stopped for a crash loop"


def wait_for_gate(project: SandboxProject) -> str:
    """Return a shell command that creates the file `reached`, and waits for the file `open`."""
    return f"touch {project.root}/reached; until [ -e {project.root}/open ]; do sleep 0.02; done"


def start_run_with_lock(project: SandboxProject) -> subprocess.Popen[str]:
    """Start a run that holds the lock until the file `open` exists."""
    (project.root / "playbooks/hold.yml").write_text(
        f"- hosts: all\n  tasks:\n    - name: Hold\n      command: {{argv: [sh, -c, '{wait_for_gate(project)}']}}\n"
        "    - name: Next\n      facts:\n"
    )
    process = project.start("play", "hold", "--host", "sandbox", start_new_session=True)
    wait_until((project.root / "reached").exists, "the lock")
    return process


def test_a_second_deploy_is_refused_or_waits_until_unlock_ends_the_first_run(project: SandboxProject) -> None:
    project.deployed()
    first = start_run_with_lock(project)
    refused = project.deploy()
    assert refused.code == 5
    assert "sandbox is locked" in refused.recap["msg"] and "playbooks/hold.yml" in refused.recap["msg"]
    unlock = project.run("unlock", "--host", "sandbox")
    assert (unlock.code, "sandbox: stdin is not a terminal; pass `--stop` or `--kill`." in unlock.err) == (5, True)
    assert "playbooks/hold.yml" in unlock.out
    second = project.start("deploy", "--host", "sandbox", "--json", "--wait")
    assert "playbooks/hold.yml" in wait_for_line(second, '"waiting: ')
    assert project.run("unlock", "--host", "sandbox", "--stop").code == 0
    (project.root / "open").touch()
    out, _ = first.communicate(timeout=60)
    assert "stopped on request, before: Next" in out
    rest, _ = second.communicate(timeout=60)
    assert second.returncode == 0, rest[-1500:]
    (project.root / "open").unlink()
    (project.root / "reached").unlink()
    third = start_run_with_lock(project)
    assert project.run("unlock", "--host", "sandbox", "--kill").code == 0
    out, _ = third.communicate(timeout=60)
    assert "was interrupted" in out
    row = json.loads(project.run("status", "--host", "sandbox", "--json").out)
    assert (row["busy"], row["state"]) == ("", "up")
    assert "was interrupted, in: Hold; `sparkwright unlock --host sandbox` clears it" in row["interrupted"]
    message = project.run("unlock", "--host", "sandbox")
    assert "an earlier run was interrupted" in message.out and "in: Hold" in message.out
    assert project.deploy().proved


def test_a_run_on_a_full_disk_is_not_started(project: SandboxProject, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    assert project.run("sandbox.status").code == 0
    control.up(project.sandbox)
    folder = project.state.path
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        (folder / "filler").write_bytes(b"x" * 4096)
        result = project.run("provision", "--host", "sandbox")
        assert result.code == 1
        assert "run not started" in result.out and "No space left on device" in result.out
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def test_a_deploy_finishes_a_swap_that_a_reboot_interrupted(project: SandboxProject) -> None:
    project.deployed()
    set_max_num_seqs(project, 4)
    laptop = project.start("deploy", "--host", "sandbox", "--json", start_new_session=True)
    wait_for_line(laptop, '"name": "Start the server"')
    sandbox = json.loads((project.sandbox / "state.json").read_text())["pid"]
    runner = json.loads((project.state.path / "lock").read_text())["pid"]
    for pid in (runner, sandbox):
        os.kill(pid, signal.SIGKILL)
    laptop.communicate(timeout=60)
    control.up(project.sandbox)
    assert all(row.endswith(("exited", "created")) for row in project.containers()), "no unverified server is started"
    result = project.deploy()
    assert result.code == 0, result.out[-2000:]
    assert any("an earlier run was interrupted" in event.get("text", "") for event in result.events())
    assert project.serving() and project.containers() == ["qwen35 running"]
