"""Restarts, roll backs and what is remembered of them, as a user types them."""

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from sparkwright.host.state import StateFolder
from sparkwright.sandbox import control
from tests.e2e.conftest import CommandResult, SandboxProject
from tests.remote.sshd import free_port
from tests.waiting import wait_until

RECIPE = "recipes/qwen3.5-35b.yml"


def set_max_num_seqs(project: SandboxProject, count: int) -> None:
    project.edit(RECIPE, r"max-num-seqs: \d+", f"max-num-seqs: {count}")


def server_command(project: SandboxProject) -> list[str]:
    """Return the server's command line."""
    import docker

    client = docker.DockerClient(base_url=control.up(project.sandbox)["DOCKER_HOST"])
    return list(client.api.inspect_container("qwen35")["Config"]["Cmd"])


def ollama_models(project: SandboxProject) -> list[str]:
    url = f"http://{control.up(project.sandbox)['OLLAMA_HOST']}/api/ps"
    with urllib.request.urlopen(url, timeout=5) as answer:
        return [model["name"] for model in json.loads(answer.read())["models"]]


def state(project: SandboxProject) -> StateFolder:
    return StateFolder.in_home(project.sandbox / "home")


def test_rollback_goes_to_the_last_verified_state_although_its_container_is_gone(project: SandboxProject) -> None:
    project.deployed()
    alone = project.run("rollback", "--host", "sandbox")
    assert (alone.code, "no verified state older than" in alone.out) == (5, True), alone.out
    set_max_num_seqs(project, 4)
    assert project.deploy().proved
    assert project.containers() == ["qwen35 running"]
    result = project.run("rollback", "--host", "sandbox", "--json")
    assert result.code == 0, result.out[-2000:]
    assert server_command(project)[server_command(project).index("--max-num-seqs") + 1] == "8"
    assert project.serving() and project.containers() == ["qwen35 running"]
    rows = project.run("history", "--host", "sandbox", "--json").events()
    assert [row["what"] for row in rows] == ["rolled back", "verified", "verified"]
    assert rows[0]["measured"]["tok_per_s"] > 40 and rows[0]["commit"] and "@sha256:" in rows[0]["image"]
    changed = [(item["field"], item["before"], item["after"]) for item in rows[1]["changed"]]
    assert changed == [("--max-num-seqs", "8", "4")]
    assert "by " in project.run("history", "--host", "sandbox").out


def test_rollback_puts_an_option_back_that_the_last_good_state_did_not_ask_for(project: SandboxProject) -> None:
    project.deployed()
    project.edit(RECIPE, "  ipc: private", "  ipc: private\n  log_driver: json-file\n  log_options: {max-size: 1m}")
    assert project.deploy().proved
    assert project.docker().api.inspect_container("qwen35")["HostConfig"]["LogConfig"]["Config"] == {"max-size": "1m"}
    result = project.run("rollback", "--host", "sandbox", "--json")
    assert result.proved, result.out[-2000:]
    assert project.docker().api.inspect_container("qwen35")["HostConfig"]["LogConfig"]["Config"] == {}


def test_no_rollback_keeps_the_failed_one_the_incident_tells_of_it_and_rollback_puts_back(
    project: SandboxProject,
) -> None:
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
    files = {path.name for path in folder.iterdir()}
    assert files >= {
        "container.log", "inspect.json", "meminfo", "dmesg.txt", "plan.json", "events.jsonl", "holders.txt",
    }  # fmt: skip
    assert "Application startup complete" in (folder / "container.log").read_text()
    assert (folder / "events.jsonl").read_text().rstrip().endswith("}")
    assert '"recap"' in (folder / "events.jsonl").read_text().splitlines()[-1], "the events are whole"
    project.run("sandbox.fault", "none")
    back = project.run("rollback", "--host", "sandbox")
    assert back.code == 0, back.out
    assert project.serving() == before
    assert project.containers() == ["qwen35 running"]


def test_what_will_not_fit_is_refused_with_a_table_before_the_old_server_stops(project: SandboxProject) -> None:
    project.deployed()
    before = project.serving()
    project.edit(RECIPE, r"gpu-memory-utilization: [\d.]+", "gpu-memory-utilization: 0.95")
    result = project.run("deploy", "--host", "sandbox")
    assert result.code == 5, result.out
    assert "GiB needed" in result.out and "GPU's side" in result.out
    assert "gpu-memory-utilization 0.95 of 119.7 GiB" in result.out
    assert project.serving() == before


def test_ollama_gets_its_models_back_once_the_engine_is_verified_and_they_fit(project: SandboxProject) -> None:
    project.edit("hosts/groups.yml", "reserve_gib: 4", "reserve_gib: 4\n    reload_after: true")
    project.edit(RECIPE, r"gpu-memory-utilization: [\d.]+", "gpu-memory-utilization: 0.60")
    result = project.deploy()
    assert result.code == 0
    assert result.task("Reload Ollama's models if they fit")["data"]["loaded"] == ["qwen3:32b"]
    assert ollama_models(project) == ["qwen3:32b"]
    project.edit(RECIPE, r"gpu-memory-utilization: [\d.]+", "gpu-memory-utilization: 0.85")
    result = project.deploy()
    assert result.code == 0
    assert result.task("Reload Ollama's models if they fit")["data"]["left_out"] == ["qwen3:32b"]
    assert project.serving()


def test_ollama_gets_its_models_back_beside_the_old_server_too(project: SandboxProject) -> None:
    project.edit("hosts/groups.yml", "reserve_gib: 4", "reserve_gib: 4\n    reload_after: true")
    project.edit(RECIPE, r"gpu-memory-utilization: [\d.]+", "gpu-memory-utilization: 0.60")
    project.deployed()
    assert ollama_models(project) == ["qwen3:32b"]
    before = project.serving()
    set_max_num_seqs(project, 4)
    project.before("Measure throughput", "{name: Break, fail: {msg: broken}}")
    failed = project.deploy()
    assert failed.code == 1
    assert failed.task("Unload Ollama's models")["data"]["unloaded"] == ["qwen3:32b"]
    assert (project.serving(), ollama_models(project)) == (before, ["qwen3:32b"])


def test_a_host_may_leave_ollama_alone_and_its_models_are_listed_and_unloaded_by_hand(project: SandboxProject) -> None:
    project.edit("hosts/groups.yml", "ollama: unload", "ollama: leave")
    project.edit(RECIPE, r"gpu-memory-utilization: [\d.]+", "gpu-memory-utilization: 0.60")
    project.deployed()
    assert ollama_models(project) == ["qwen3:32b"]
    assert "qwen3:32b, 20.0 GiB" in project.run("ollama.ps", "--host", "sandbox").out
    assert project.run("ollama.unload", "--host", "sandbox").code == 0
    assert ollama_models(project) == []
    assert "no model loaded" in project.run("ollama.ps", "--host", "sandbox").out


def open_stream(project: SandboxProject, tokens: int) -> Any:
    """A request that is answered for a while."""
    body = {"model": "qwen3.5-35b", "messages": [{"role": "user", "content": "go"}], "max_tokens": tokens}
    data = json.dumps({**body, "stream": True, "ignore_eos": True}).encode()
    url = f"http://127.0.0.1:{project.port}/v1/chat/completions"
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    answer = urllib.request.urlopen(request, timeout=60)
    answer.readline()
    return answer


def test_requests_end_before_the_server_stops_and_those_that_do_not_are_counted(project: SandboxProject) -> None:
    project.deployed()
    running = open_stream(project, 100_000)
    plan = project.run("restart", "--host", "sandbox", "--json", "--check")
    assert "1 request running now" in plan.task("Drain requests")["msg"]
    assert "last start" in plan.task("Drain requests")["msg"]
    running.close()
    short = open_stream(project, 60)
    text: list[bytes] = []
    reader = threading.Thread(target=lambda: text.append(short.read()))
    reader.start()
    result = project.run("restart", "--host", "sandbox", "--json")
    reader.join(timeout=30)
    assert result.code == 0 and result.task("Drain requests")["data"]["running"] == 0
    assert text and b"[DONE]" in text[0], "it was answered to its end"
    long = open_stream(project, 100_000)
    project.edit("hosts/groups.yml", "reserve_gib: 4", "reserve_gib: 4\n    drain_s: 0.5")
    result = project.run("restart", "--host", "sandbox", "--json")
    long.close()
    assert result.code == 0
    assert result.task("Drain requests")["msg"].startswith("1 request aborted after")
    before = project.serving()
    set_max_num_seqs(project, 4)
    refused = project.run("restart", "--host", "sandbox", "--json")
    assert (refused.code, project.serving()) == (5, before)
    assert "`deploy` applies it" in refused.recap["msg"]


def test_clients_that_come_back_at_once_do_not_undo_a_change(project: SandboxProject) -> None:
    """Beside them no throughput can be proved: that is said, and the server that generates is kept."""
    project.deployed()
    set_max_num_seqs(project, 4)
    wait = f"touch {project.root}/reached; until [ -e {project.root}/open ]; do sleep 0.02; done"
    project.before("Measure throughput", f'{{name: Gate, command: {{argv: [sh, -c, "{wait}"]}}}}')
    result: list[CommandResult] = []
    laptop = threading.Thread(target=lambda: result.append(project.deploy()))
    laptop.start()
    wait_until((project.root / "reached").exists, "the gate")
    busy = open_stream(project, 100_000)
    (project.root / "open").touch()
    laptop.join(timeout=60)
    busy.close()
    outcome = result[0]
    assert outcome.code == 4, outcome.out[-2000:]
    assert "other traffic: 1 request running or waiting" in outcome.recap["msg"]
    assert server_command(project)[server_command(project).index("--max-num-seqs") + 1] == "4"
    assert project.serving(), "with its restart policy"
    assert project.run("history", "--host", "sandbox", "--json").events()[0]["measured"]["tok_per_s"] is None


def test_a_restart_that_does_not_come_up_is_tried_once_more(project: SandboxProject) -> None:
    project.deployed()
    before = project.serving()
    project.before("Measure throughput", "{name: Break, fail: {msg: broken}}")
    result = project.run("restart", "--host", "sandbox", "--json")
    assert (result.code, result.recap["msg"]) == (1, "broken Restarted once more; it is serving."), result.recap
    assert project.serving() == before


#: what a plan shows must be what a deploy does: one field at a time
DRIFTS = [
    ("a flag", RECIPE, r"max-num-seqs: \d+", "max-num-seqs: 3", "--max-num-seqs"),
    ("shared memory", RECIPE, r"shm_size: .*", "shm_size: 32gb", "shm-size"),
    ("a variable", RECIPE, r"  restart: unless-stopped", "  restart: unless-stopped\n  env: {TZ: UTC}", "env"),
    ("ipc", RECIPE, r"  ipc: private", "  ipc: host", "ipc"),
    ("the policy", RECIPE, r"  restart: unless-stopped", "  restart: always", "restart"),
    ("a mount", RECIPE, r"  ipc: (\w+)", r"  ipc: \1\n  volumes: ['~/models:/all:ro']", "volumes"),
    ("gpus", RECIPE, r"  gpus: all", r"  gpus: '1'", "gpus"),
    ("a limit", RECIPE, r"  gpus: '1'", "  gpus: '1'\n  ulimits: {memlock: '-1'}", "ulimits"),
    ("a label", RECIPE, r"  gpus: '1'", "  gpus: '1'\n  labels: {team: lab}", "labels"),
    ("the port", "hosts/sandbox.yml", r"serve_port: \d+", "serve_port: ANOTHER", "ports"),
    ("the image", RECIPE, r"image: .*", "image: vllm/vllm-openai:latest", "image"),
]


def test_what_plan_says_is_what_deploy_does(project: SandboxProject) -> None:
    project.deployed()
    clean = project.run("plan", "--host", "sandbox", "--json")
    assert clean.code == 0
    port = next(item for item in iter(free_port, 0) if item != project.port)
    for what, file, before, after, field in DRIFTS:
        recipe = (project.root / file).read_text()
        project.edit(file, before, after.replace("ANOTHER", str(port)))
        assert (project.root / file).read_text() != recipe, what
        plan = project.run("plan", "--host", "sandbox", "--json")
        assert plan.code == 2, (what, plan.out[-1500:])
        outcome = project.deploy()
        assert outcome.code in (0, 4), (what, outcome.out[-1500:])  # 4: too busy here to measure
        for task in ("Compare running container with recipe", "Stop previous server, keep it for rollback"):
            assert plan.task(task)["diff"] == outcome.task(task)["diff"], (what, task)
        result = plan.task("Compare running container with recipe")["diff"] + plan.task("Start the server")["diff"]
        result += plan.task("Enable restart policy, remove previous container")["diff"]
        assert any(field in change["field"] for change in result), (what, result)
        would = {event["name"] for event in plan.events() if event.get("status") == "changed"}
        did = {event["name"] for event in outcome.events() if event.get("status") == "changed"}
        late_tasks = {"Enable restart policy, remove previous container"}  # known after the start
        assert would - late_tasks == did - late_tasks, what
        drift = [change["field"] for change in plan.task("Compare running container with recipe")["diff"]]
        assert len(drift) <= 1 or what == "the image", (what, drift)  # the deploy before left nothing to do
    assert project.run("plan", "--host", "sandbox").code == 0


def test_another_revision_of_the_model_restarts_the_server_and_a_failure_brings_the_old_files_back(
    project: SandboxProject,
) -> None:
    project.deployed()
    before = project.serving()
    shard = project.sandbox / "home/models/qwen35-35b-hf/model-00001-of-00014.safetensors"
    old = shard.read_bytes()
    project.run("sandbox.fault", "moved-model")
    assert project.run("lock", "--host", "sandbox", "--update", "--yes").code == 0
    plan = project.run("plan", "--host", "sandbox", "--json")
    assert plan.code == 2
    assert plan.task("Compare running container with recipe")["diff"][0]["field"] == "model revision"
    assert plan.task("Stop previous server, keep it for rollback")["status"] == "changed"
    playbooks = {path: path.read_text() for path in (project.root / "playbooks").rglob("*.yml")}
    for step in (
        "Check flags against engine and model",
        "Measure throughput",
    ):  # before, in the swap
        project.before(step, "{name: Break, fail: {msg: broken}}")
        failed = project.deploy()
        assert failed.code == 1
        assert "broken" in failed.recap["msg"]
        assert project.serving() == before
        assert shard.read_bytes() == old, "the old server has the files that it was verified with"
        assert not (shard.parent / ".before").exists()
        for path, text in playbooks.items():
            path.write_text(text)
    result = project.deploy()
    assert result.code == 0
    assert project.serving() != before and shard.read_bytes() != old
    assert not (shard.parent / ".before").exists()
    assert project.run("plan", "--host", "sandbox").code == 0
    rows = project.run("history", "--host", "sandbox", "--json").events()
    assert [item["field"] for item in rows[0]["changed"]] == ["model revision"]


def test_a_new_revision_whose_run_was_killed_keeps_its_files_when_the_next_one_fails_early(
    project: SandboxProject,
) -> None:
    project.deployed()
    shard = project.sandbox / "home/models/qwen35-35b-hf/model-00001-of-00014.safetensors"
    old = shard.read_bytes()
    project.run("sandbox.fault", "moved-model")
    assert project.run("lock", "--host", "sandbox", "--update", "--yes").code == 0
    playbooks = {path: path.read_text() for path in (project.root / "playbooks").rglob("*.yml")}
    project.before("Measure throughput", "{name: Die, command: {argv: [sh, -c, 'kill -9 $PPID']}}")
    assert project.deploy().code == 1
    for path, text in playbooks.items():
        path.write_text(text)
    project.before("Check flags against engine and model", "{name: Break, fail: {msg: broken}}")
    assert "broken" in project.deploy().recap["msg"]
    assert shard.read_bytes() != old, "the server that runs was started with these"
    for path, text in playbooks.items():
        path.write_text(text)
    assert project.deploy().proved
    assert shard.read_bytes() != old
    assert not (shard.parent / ".before").exists()


def test_a_loop_of_restarts_is_broken_once_and_reported(project: SandboxProject) -> None:
    project.deployed()
    (project.root / "playbooks/look.yml").write_text(
        "- hosts: all\n  tasks:\n    - crash_loop: {name: qwen35, most: 2, within_s: 600}\n"
    )
    assert project.run("play", "look", "--host", "sandbox").code == 0
    project.run("sandbox.fault", "crash-loop")
    import docker

    client = docker.DockerClient(base_url=control.up(project.sandbox)["DOCKER_HOST"])
    wait_until(lambda: client.api.inspect_container("qwen35")["RestartCount"] > 2, "a loop")
    result = project.run("play", "look", "--host", "sandbox")
    assert (result.code, "qwen35 is no longer restarted" in result.out) == (1, True), result.out
    assert client.api.inspect_container("qwen35")["HostConfig"]["RestartPolicy"]["Name"] == "no"
    assert project.containers() == ["qwen35 exited"]
    assert project.run("play", "look", "--host", "sandbox").code == 0, "it is broken once"
    assert project.run("incident", "--host", "sandbox").code == 0
    assert project.run("history", "--host", "sandbox", "--json").events()[0]["what"] == "stopped for a crash loop"


def run_holding_lock(project: SandboxProject) -> subprocess.Popen[str]:
    """A run that holds the lock until the file `open` is there."""
    wait = f"touch {project.root}/reached; until [ -e {project.root}/open ]; do sleep 0.02; done"
    (project.root / "playbooks/hold.yml").write_text(
        f"- hosts: all\n  tasks:\n    - name: Hold\n      command: {{argv: [sh, -c, '{wait}']}}\n    - name: Next\n      facts:\n"
    )
    arguments = [sys.executable, "-c", "from sparkwright.cli import main; main()", "play", "hold", "--host", "sandbox"]
    process = subprocess.Popen(arguments, cwd=project.root, stdout=subprocess.PIPE, text=True, start_new_session=True)
    wait_until((project.root / "reached").exists, "the lock")
    return process


def test_a_second_deploy_is_refused_or_waits_and_unlock_stops_or_kills_the_first(project: SandboxProject) -> None:
    project.deployed()
    first = run_holding_lock(project)
    refused = project.deploy()
    assert refused.code == 5
    assert "sandbox is locked" in refused.recap["msg"] and "playbooks/hold.yml" in refused.recap["msg"]
    nobody = project.run("unlock", "--host", "sandbox")
    assert (nobody.code, "stdin is not a terminal; pass `--stop` or `--kill`." in nobody.err) == (5, True)
    assert "playbooks/hold.yml" in nobody.out
    arguments = [
        sys.executable,
        "-c",
        "from sparkwright.cli import main; main()",
        "deploy",
        "--host",
        "sandbox",
        "--json",
        "--wait",
    ]
    second = subprocess.Popen(arguments, cwd=project.root, stdout=subprocess.PIPE, text=True)
    assert second.stdout is not None
    waiting = next(line for line in second.stdout if '"waiting: ' in line)
    assert "playbooks/hold.yml" in waiting
    assert project.run("unlock", "--host", "sandbox", "--stop").code == 0
    (project.root / "open").touch()
    out, _ = first.communicate(timeout=60)
    assert "stopped on request, before: Next" in out
    rest, _ = second.communicate(timeout=60)
    assert second.returncode == 0, rest[-1500:]
    (project.root / "open").unlink()
    (project.root / "reached").unlink()
    third = run_holding_lock(project)
    assert project.run("unlock", "--host", "sandbox", "--kill").code == 0
    out, _ = third.communicate(timeout=60)
    assert "was interrupted" in out
    row = json.loads(project.run("status", "--host", "sandbox", "--json").out)
    assert (row["busy"], row["state"]) == ("", "up"), "nothing is in progress"
    assert "was interrupted, in: Hold; `sparkwright unlock --host sandbox` clears it" in row["interrupted"]
    message = project.run("unlock", "--host", "sandbox")
    assert "an earlier run was interrupted" in message.out and "in: Hold" in message.out
    assert project.deploy().proved


def test_the_runtime_tells_of_a_full_disk_before_anything_began(project: SandboxProject, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a disk to fill is a tmpfs, and mounting one needs root")
    assert project.run("sandbox.status").code == 0
    control.up(project.sandbox)
    room = state(project).path
    room.mkdir(parents=True)
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(room)], capture_output=True, check=False
    ).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        (room / "filler").write_bytes(b"x" * 4096)
        result = project.run("provision", "--host", "sandbox")
        assert result.code == 1
        assert "run not started" in result.out and "No space left on device" in result.out
    finally:
        subprocess.run(["umount", "-l", str(room)], check=False)


def test_a_reboot_in_the_middle_of_a_swap_leaves_one_to_finish_it(project: SandboxProject) -> None:
    project.deployed()
    set_max_num_seqs(project, 4)
    arguments = [
        sys.executable,
        "-c",
        "from sparkwright.cli import main; main()",
        "deploy",
        "--host",
        "sandbox",
        "--json",
    ]
    laptop = subprocess.Popen(arguments, cwd=project.root, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert laptop.stdout is not None
    next(line for line in laptop.stdout if '"name":"Start the server"' in line or '"name": "Start the server"' in line)
    sandbox = json.loads((project.sandbox / "state.json").read_text())["pid"]
    runner = json.loads((state(project).path / "lock").read_text())["pid"]
    for pid in (runner, sandbox):
        os.kill(pid, signal.SIGKILL)
    laptop.communicate(timeout=60)
    control.up(project.sandbox)
    assert all(row.endswith(("exited", "created")) for row in project.containers()), (
        "nothing that was not proved starts by itself"
    )
    result = project.deploy()
    assert result.code == 0, result.out[-2000:]
    assert any("an earlier run was interrupted" in event.get("text", "") for event in result.events())
    assert project.serving() and project.containers() == ["qwen35 running"]
