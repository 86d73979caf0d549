"""The scheduled health checks of a cluster's hosts, installed by a command and run like cron does."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from sparkwright.health import schedule
from sparkwright.health.record import Record
from sparkwright.health.store import load_latest
from sparkwright.host.state import StateFolder
from tests.cluster.pair import ClusterPair
from tests.e2e.conftest import CommandResult
from tests.modules.system.test_health_timer import CRONTAB
from tests.waiting import wait_until


@dataclass(frozen=True)
class CheckResult:
    out: str
    record: Record


class Checks:
    """The scheduled checks on the hosts of a pair. Each host has a crontab, because there is no systemd."""

    ends_within_s = 180.0

    def __init__(self, pair: ClusterPair) -> None:
        self.pair = pair
        program = pair.folder / "cron/crontab"
        program.parent.mkdir()
        program.write_text(CRONTAB)
        program.chmod(0o755)
        for name in pair.names:
            host = pair.read_host(name)
            host["env"] |= {"PATH": f"{program.parent}:{os.environ['PATH']}", "TABLE": str(self._table(name))}
            pair.write_host(name, host)

    def install(self, *options: str) -> CommandResult:
        """Run health.install, with healing unless other options are given."""
        return self.pair.run("health.install", "--host", "pair", *(options or ("--heal", "restart")))

    def state(self, host: str) -> StateFolder:
        return StateFolder.in_home(self.pair.home(host))

    def change(self, host: str, **settings: Any) -> None:
        """Change settings that a command would refuse, such as an interval of one second."""
        state = self.state(host)
        state.write("health-settings", {**(state.read("health-settings") or {}), **settings})

    def start(self, host: str) -> subprocess.Popen[str]:
        """Start the command of a host's crontab."""
        (line,) = (row for row in self._table(host).read_text().splitlines() if row.endswith(schedule.CRON_MARK))
        command = line.split(maxsplit=5)[5].replace(" >/dev/null 2>&1", "")
        env = {"HOME": str(self.pair.home(host)), "PATH": os.environ["PATH"]}
        return subprocess.Popen(
            ["sh", "-c", command], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def finish(self, host: str, check: subprocess.Popen[str]) -> CheckResult:
        """Wait until a check ends."""
        out, _ = check.communicate(timeout=self.ends_within_s)
        assert check.returncode == 0, out
        record = load_latest(self.state(host).path)
        assert record is not None
        return CheckResult(out, record)

    def run(self, host: str) -> CheckResult:
        return self.finish(host, self.start(host))

    def wait_for_barrier(self, check: subprocess.Popen[str]) -> None:
        """Wait until the head's check waits for the others."""

        def is_waiting() -> bool:
            assert check.poll() is None, check.stdout and check.stdout.read()
            return self.pair.ports["barrier_port"] in _list_listening_ports()

        wait_until(is_waiting, "the barrier of the head's check")

    def run_all(self, head: str = "one", worker: str = "two") -> dict[str, CheckResult]:
        """Run a check on each host; the worker's starts when the head's waits for it."""
        head_check = self.start(head)
        self.wait_for_barrier(head_check)
        worker_check = self.start(worker)
        return {worker: self.finish(worker, worker_check), head: self.finish(head, head_check)}

    def status(self) -> dict[str, dict[str, Any]]:
        """Return the rows of `status`, by host."""
        rows = self.pair.run_json("status").out.splitlines()
        return {row["host"]: row for row in map(json.loads, rows)}

    def _table(self, host: str) -> Path:
        return self.pair.home(host) / "crontab"


def _list_listening_ports() -> set[int]:
    listeners: list[Any] = [item for item in psutil.net_connections("tcp") if item.status == psutil.CONN_LISTEN]
    return {listener.laddr.port for listener in listeners}
