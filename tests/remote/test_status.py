"""`status` and `report` of several hosts over ssh: one connection each, and an unreachable host delays no other."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkwright.health.record import HISTORY_FILE, Container, Record, Speed
from sparkwright.host.state import StateFolder
from tests import commands
from tests.remote import inspected
from tests.remote.conftest import SshLab
from tests.remote.sshd import Sshd, free_port

RECORD = Record(
    *(0.0, "ok", "ok", 0.0), every_s=600.0, container=Container("qwen35", "c" * 64, "running"), speed=Speed(51.0, 52.0)
)


STARTED_S = float(int(time.time()) - 7200)


@pytest.fixture
def project(lab: SshLab, tmp_path: Path) -> Iterator[Path]:
    """Two hosts with scheduled checks of a running container, and an unreachable host."""
    two = lab.start_sshd("two")
    folder = lab.create_project(tmp_path / "project")
    ports = {"spark1": lab.sshd.port, "spark2": two.port, "spark3": free_port()}
    for sshd, state in ((lab.sshd, "ok"), (two, "degraded")):
        write_checks(sshd, replace(RECORD, state=state, why="slow" if state != "ok" else "fine"))  # type: ignore[arg-type]
    with inspected.inspect_engine(inspected.inspect_data(STARTED_S)) as docker_host:
        for name, port in ports.items():
            host_file = f"address: 127.0.0.1\nport: {port}\nenv: {{DOCKER_HOST: '{docker_host}'}}\n"
            (folder / f"hosts/{name}.yml").write_text(host_file)
        yield folder


def write_checks(sshd: Sshd, record: Record) -> None:
    """Write records of a check every ten minutes, up to now."""
    state, now_s = StateFolder.in_home(sshd.home), time.time()
    container = replace(record.container, started_s=STARTED_S)
    speed = replace(record.speed, measured_s=now_s)
    record = replace(record, time_s=now_s, since_s=now_s - 900, container=container, speed=speed)
    state.write("health", record.to_json())
    rows = [replace(record, time_s=record.time_s - 600 * n) for n in range(20, -1, -1)]
    (state.path / HISTORY_FILE).write_text("".join(json.dumps(row.to_json()) + "\n" for row in rows))


def run_command(project: Path, *words: str) -> tuple[int, list[dict[str, Any]]]:
    result = commands.run(*words, cwd=project)
    return result.returncode, [json.loads(line) for line in result.stdout.splitlines()]


def count_connections(lab: SshLab) -> list[int]:
    return [(item.folder / "log").read_text().count("Accepted publickey") for item in lab.started]


def test_status_and_report_use_one_connection_per_host(lab: SshLab, project: Path) -> None:
    code, rows = run_command(project, "status", "--json")
    assert {row["host"]: row["state"] for row in rows} == {
        "spark1": "ok",
        "spark2": "degraded",
        "spark3": "unreachable",
    }
    assert code == 3  # unreachable is worse than degraded
    assert count_connections(lab) == [1, 1]
    assert rows[0]["tok_per_s"] == 51.0
    assert abs(rows[0]["up_s"] - (time.time() - STARTED_S)) < 60
    assert "refuses connections" in rows[2]["why"]

    code, rows = run_command(project, "report", "--since", "3h", "--json")
    assert code == 3
    by_host = {row["host"]: row for row in rows}
    assert 15 <= by_host["spark1"]["checks"] <= 18  # three hours of a check every ten minutes
    assert {span["state"] for span in by_host["spark2"]["spans"]} == {"degraded"}
    assert "refuses connections" in by_host["spark3"]["error"]
    assert count_connections(lab) == [2, 2]


def test_watch_keeps_connections_and_finds_a_returning_host(lab: SshLab, project: Path) -> None:
    run_command(project, "status", "--host", "spark1,spark2", "--json")  # ships the runtime
    before = count_connections(lab)
    lab.started[1].stop()
    command = ["status", "--host", "spark1,spark2", "--watch", "--every", "0.1", "--json"]
    program = "from sparkwright.cli import main; main()"
    with subprocess.Popen([sys.executable, "-c", program, *command], cwd=project, stdout=subprocess.PIPE) as watch:
        assert watch.stdout is not None
        states = [json.loads(watch.stdout.readline())["state"] for _ in range(4)]
        assert states == ["ok", "unreachable"] * 2
        lab.started[1].start()
        deadline_s = time.monotonic() + 60
        while states[-1] != "degraded" and time.monotonic() < deadline_s:
            states.append(json.loads(watch.stdout.readline())["state"])
        watch.send_signal(signal.SIGINT)
        try:
            watch.communicate(timeout=20)
        finally:
            watch.kill()
    assert watch.returncode == 0
    assert states[-1] == "degraded"
    assert count_connections(lab)[0] == before[0] + 1


def test_status_does_not_import_the_modules_of_a_run(lab: SshLab, project: Path) -> None:
    """A quick query does not import what only a run needs."""
    run_command(project, "status", "--host", "spark1", "--json")
    lib = next((lab.sshd.home / ".local/share/sparkwright/runtime").glob("*/lib"))
    (lib / "sparkwright/runner/play.py").write_text("raise SystemExit('a plan is run')\n")
    (lib / "docker/__init__.py").write_text("raise SystemExit('docker is loaded')\n")
    code, rows = run_command(project, "status", "--host", "spark1", "--json")
    assert (code, rows[0]["state"]) == (0, "ok")
