"""`status` on the sandbox: without a check, with a recent check, and with an overdue one."""

import json
import re
import signal
import time
from typing import Any

from sparkwright.health import record, settings
from sparkwright.health.settings import Settings
from sparkwright.sandbox import control
from tests.e2e.conftest import SandboxProject
from tests.waiting import wait_until


def query_status(project: SandboxProject, *words: str) -> tuple[int, dict[str, Any]]:
    result = project.run("status", "--host", "sandbox", "--json", *words)
    assert result.out, result.err
    row = json.loads(result.out.splitlines()[-1])
    assert row["exit"] == result.code
    return result.code, row


def mark_scheduled(project: SandboxProject, *, age_s: float) -> None:
    """Change the last check into a scheduled one, of a server that was verified an hour ago."""
    changes = {"verified.json": {"since": time.time() - 3600}}
    changes[record.LATEST_FILE] = {"every_s": 300.0, "time_s": time.time() - age_s}
    for name, fields in changes.items():
        path = project.state.path / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_status_before_a_deploy_after_it_and_with_checks(project: SandboxProject) -> None:
    code, row = query_status(project)
    assert (code, row["state"], row["live"]) == (1, "down", True)
    assert "no container qwen35" in row["why"]

    project.deployed()
    code, row = query_status(project)
    assert (code, row["state"], row["live"]) == (0, "up", True)
    assert "no test request sent" in row["why"]
    assert row["drift"] is None and row["digest"].startswith("sha256:")
    assert len(row["commit"]) == 40 and row["up_s"] >= 0
    assert "no schedule" in project.run("status", "--host", "sandbox").out
    project.state.write(settings.NAME, Settings(every_s=300.0).to_json())
    assert "no schedule" not in project.run("status", "--host", "sandbox").out, "the first check has not run yet"

    assert project.run("health", "--host", "sandbox").code == 0
    mark_scheduled(project, age_s=30)
    code, row = query_status(project)
    assert (code, row["state"], row["live"], row["drift"]) == (0, "ok", False, [])
    assert 30 <= row["checked_s"] < 60

    mark_scheduled(project, age_s=1200)
    code, row = query_status(project)
    assert (code, row["state"]) == (4, "unknown")
    assert "overdue" in row["why"]


def test_a_check_does_not_hide_a_later_stop_or_start(project: SandboxProject) -> None:
    project.deployed()
    assert project.run("health", "--host", "sandbox").code == 0
    assert query_status(project)[1]["state"] == "ok"

    project.docker().api.stop("qwen35")
    code, row = query_status(project)
    assert (code, row["state"], row["tok_per_s"]) == (1, "down", None)
    assert row["why"].startswith("qwen35 was stopped by hand: exited (0)")

    # a CUDA context is released a little later than its container
    wait_until(lambda: query_status(project)[1]["memory_available_bytes"] >= 64 * 2**30, "its memory")
    project.docker().api.start("qwen35")
    states = [query_status(project)[1]["state"] for _ in range(40)]
    assert states[-1] == "up" and set(states) <= {"starting", "up"}
    code, row = query_status(project)
    assert (code, row["live"]) == (0, True)
    assert row["outdated"] == "no check since the container was started (last state: ok)"


def test_an_unreachable_host_is_shown(project: SandboxProject) -> None:
    (project.root / "hosts/spark1.yml").write_text("address: 127.0.0.1\nport: 1\n")
    result = project.run("status", "--host", "all")
    assert result.code == 1  # for the sandbox without a server, which counts more than an unreachable host
    lines = {line.split()[0]: line for line in result.out.splitlines()}
    assert "unreachable" in lines["spark1"] and "refuses connections" in lines["spark1"]
    assert "down" in lines["sandbox"]
    result = project.run("status")  # leaves the sandbox out
    assert result.code == 3 and "sandbox" not in result.out


def test_watch_with_json_prints_rows_until_it_is_interrupted(project: SandboxProject) -> None:
    with project.start("status", "--host", "sandbox", "--watch", "--every", "0.1", "--json") as watch:
        assert watch.stdout is not None
        rows = [json.loads(watch.stdout.readline()) for _ in range(3)]
        watch.send_signal(signal.SIGINT)
        assert watch.wait(timeout=20) == 0
    assert {row["host"] for row in rows} == {"sandbox"}


def test_the_report_of_a_host_without_checks_names_health_install(project: SandboxProject) -> None:
    result = project.run("report", "--since", "1d", "--host", "sandbox", "--to", "out/page.html")
    assert result.code == 0, result.err
    assert "sparkwright health.install --host sandbox" in (project.root / "out/page.html").read_text()


def test_a_crash_loop_is_never_shown_as_a_start(project: SandboxProject) -> None:
    project.deployed()
    control.set_fault(project.sandbox, "crash-loop")
    wait_until(lambda: count_restarts(project) > 0, "its first exit")
    while count_restarts(project) < 4:
        code, row = query_status(project)
        assert (code, row["state"]) in ((1, "down"), (1, "crash-looping")) and "exited" in row["why"], row


def test_a_crashed_server_is_down_until_its_next_start_answers(project: SandboxProject) -> None:
    project.deployed()
    with project.fault("slow-start"):
        wait_until(lambda: project.container()["State"]["Status"] == "running" and count_restarts(project), "its start")
        code, row = query_status(project)
        assert (code, row["state"]) == (1, "down")
        assert re.fullmatch(r"qwen35 exited \d+ s ago, restarted once; starting for \d+ s \(up to .*\)", row["why"])
        health = project.run("health", "--host", "sandbox")
        assert health.code == 1 and "restarted once; starting for" in health.out
    wait_until(lambda: query_status(project)[1]["state"] == "up", "the end of its start")


def count_restarts(project: SandboxProject) -> int:
    return int(project.container()["RestartCount"])
