"""`status` on the sandbox: without a check, with one, and with one that is overdue."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from typing import Any

from sparkwright.health import record
from sparkwright.sandbox import control
from tests.e2e.conftest import SandboxProject
from tests.waiting import wait_until


def query_status(desk: SandboxProject, *words: str) -> tuple[int, dict[str, Any]]:
    result = desk.run("status", "--host", "sandbox", "--json", *words)
    assert result.out, result.err
    row = json.loads(result.out.splitlines()[-1])
    assert row["exit"] == result.code
    return result.code, row


def mark_scheduled(desk: SandboxProject, *, age_s: float) -> None:
    """As if the last check, made by hand, had been the timer's, of a server that was verified an hour ago."""
    folder = desk.sandbox / "home/.local/state/sparkwright"
    verified = json.loads((folder / "verified.json").read_text())
    (folder / "verified.json").write_text(json.dumps({**verified, "since": time.time() - 3600}))
    latest = json.loads((folder / record.LATEST_FILE).read_text())
    latest |= {"every_s": 300.0, "time_s": time.time() - age_s}
    (folder / record.LATEST_FILE).write_text(json.dumps(latest))


def test_from_nothing_to_a_checked_server(desk: SandboxProject) -> None:
    code, row = query_status(desk)
    assert (code, row["state"], row["live"]) == (1, "down", True)
    assert "no container qwen35" in row["why"]

    desk.deployed()
    code, row = query_status(desk)
    assert (code, row["state"], row["live"]) == (0, "up", True)
    assert "no test request sent" in row["why"]
    assert row["drift"] is None
    assert row["digest"].startswith("sha256:")
    assert len(row["commit"]) == 40
    assert row["up_s"] >= 0
    assert "no schedule" in desk.run("status", "--host", "sandbox").out

    assert desk.run("health", "--host", "sandbox").code == 0
    mark_scheduled(desk, age_s=30)
    code, row = query_status(desk)
    assert (code, row["state"], row["live"], row["drift"]) == (0, "ok", False, [])
    assert 30 <= row["checked_s"] < 60

    mark_scheduled(desk, age_s=1200)
    code, row = query_status(desk)
    assert (code, row["state"]) == (4, "unknown")
    assert "overdue" in row["why"]


def test_a_check_says_nothing_of_what_came_after_it(desk: SandboxProject) -> None:
    """A server that died, one that was started again by hand, one that hangs: each time what is there now is told."""
    desk.deployed()
    assert desk.run("health", "--host", "sandbox").code == 0
    assert query_status(desk)[1]["state"] == "ok"

    desk.docker().api.stop("qwen35")
    code, row = query_status(desk)
    assert (code, row["state"], row["tok_per_s"]) == (1, "down", None)
    assert row["why"].startswith("qwen35 was stopped by hand: exited (0)")

    while query_status(desk)[1]["memory_available_bytes"] < 64 * 2**30:  # a context outlives its container a little
        pass
    desk.docker().api.start("qwen35")
    states = [query_status(desk)[1]["state"] for _ in range(40)]
    assert states[-1] == "up" and set(states) <= {"starting", "up"}
    code, row = query_status(desk)
    assert (code, row["live"]) == (0, True)
    assert row["outdated"] == "no check since the container was started (last state: ok)"


def test_an_unreachable_host_is_a_line(desk: SandboxProject) -> None:
    (desk.root / "hosts/spark1.yml").write_text("address: 127.0.0.1\nport: 1\n")
    result = desk.run("status", "--host", "all")
    assert result.code == 1  # the sandbox has no server; 3 alone would be an unreachable host
    lines = {line.split()[0]: line for line in result.out.splitlines()}
    assert "unreachable" in lines["spark1"]
    assert "refuses connections" in lines["spark1"]
    assert "down" in lines["sandbox"]
    result = desk.run("status")  # nobody asked for a sandbox
    assert result.code == 3
    assert "sandbox" not in result.out


def test_watching_looks_again_until_it_is_interrupted(desk: SandboxProject) -> None:
    program = "from sparkwright.cli import main; main()"
    command = ["status", "--host", "sandbox", "--watch", "--every", "0.1", "--json"]
    env = {**os.environ, "SPARKWRIGHT_SANDBOX_SPEED": "instant"}
    with subprocess.Popen(
        [sys.executable, "-c", program, *command], cwd=desk.root, env=env, stdout=subprocess.PIPE
    ) as watch:
        assert watch.stdout is not None
        rows = [json.loads(watch.stdout.readline()) for _ in range(3)]
        watch.send_signal(signal.SIGINT)
        assert watch.wait(timeout=20) == 0
    assert {row["host"] for row in rows} == {"sandbox"}


def test_a_report_of_a_host_that_was_never_checked_says_so(desk: SandboxProject) -> None:
    result = desk.run("report", "--since", "1d", "--host", "sandbox", "--to", "out/page.html")
    assert result.code == 0, result.err
    assert "sparkwright health.install --host sandbox" in (desk.root / "out/page.html").read_text()
    assert desk.run("report", "--since", "soon").code == 5


def test_a_crash_loop_is_never_a_start(desk: SandboxProject) -> None:
    """Asked again and again, between two starts and in the first second of one."""
    desk.deployed()
    control.set_fault(desk.sandbox, "crash-loop")
    wait_until(lambda: count_restarts(desk) > 0, "its first exit")
    while count_restarts(desk) < 4:
        code, row = query_status(desk)
        assert (code, row["state"]) in ((1, "down"), (1, "crash-looping")) and "exited" in row["why"], row


def test_a_server_that_died_and_loads_again_is_down_until_it_answers(desk: SandboxProject) -> None:
    desk.deployed()
    control.set_fault(desk.sandbox, "slow-start")
    wait_until(
        lambda: desk.docker().api.inspect_container("qwen35")["State"]["Status"] == "running" and count_restarts(desk),
        "its start",
    )
    code, row = query_status(desk)
    assert (code, row["state"]) == (1, "down")
    assert re.fullmatch(r"qwen35 exited \d+ s ago, restarted once; starting for \d+ s \(up to .*\)", row["why"])
    health = desk.run("health", "--host", "sandbox")
    assert health.code == 1 and "restarted once; starting for" in health.out
    control.set_fault(desk.sandbox, None)
    wait_until(lambda: query_status(desk)[1]["state"] == "up", "the end of its start")


def count_restarts(desk: SandboxProject) -> int:
    return int(desk.docker().api.inspect_container("qwen35")["RestartCount"])
