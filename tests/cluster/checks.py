"""The scheduled checks of a cluster's hosts: installed by the user's command, and run as the hosts' cron would run them."""

import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from sparkwright.health import schedule
from sparkwright.health.record import Record
from sparkwright.health.store import load_latest
from sparkwright.host.state import StateFolder
from tests.cluster.pair import ClusterPair
from tests.e2e.conftest import CommandResult
from tests.modules.system.test_health_timer import CRONTAB


@dataclass(frozen=True)
class CheckResult:
    """A check's output and its record."""

    out: str
    record: Record


class Checks:
    """The scheduled checks on the hosts of a pair, which have no systemd: a crontab each."""

    ends_within_s = 180.0

    def __init__(self, pair: ClusterPair) -> None:
        self.pair = pair
        program = pair.folder / "cron/crontab"
        program.parent.mkdir()
        program.write_text(CRONTAB)
        program.chmod(0o755)
        for name in pair.names:
            file = pair.root / f"hosts/{name}.yml"
            host = yaml.safe_load(file.read_text())
            host["env"] |= {"PATH": f"{program.parent}:{os.environ['PATH']}", "TABLE": str(self._table(name))}
            file.write_text(yaml.safe_dump(host))

    def install(self, *words: str, host: str = "pair") -> CommandResult:
        """Run health.install, with healing unless other options are given."""
        return self.pair.run("health.install", "--host", host, *(words or ("--heal", "restart")))

    def state(self, host: str) -> StateFolder:
        """Return a host's state folder."""
        return StateFolder.in_home(self.pair.home(host))

    def change(self, host: str, **settings: Any) -> None:
        """Change settings beyond what a command accepts, such as an interval of one second."""
        state = self.state(host)
        state.write("health-settings", {**(state.read("health-settings") or {}), **settings})

    def begin(self, host: str) -> subprocess.Popen[str]:
        """Start the command of a host's crontab."""
        (line,) = (row for row in self._table(host).read_text().splitlines() if row.endswith(schedule.CRON_MARK))
        command = line.split(maxsplit=5)[5].removesuffix(f" >/dev/null 2>&1 {schedule.CRON_MARK}")
        env = {"HOME": str(self.pair.home(host)), "PATH": os.environ["PATH"]}
        return subprocess.Popen(
            ["sh", "-c", command], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def end(self, host: str, check: subprocess.Popen[str]) -> CheckResult:
        """Wait until a check ends."""
        out, _ = check.communicate(timeout=self.ends_within_s)
        assert check.returncode == 0, out
        record = load_latest(self.state(host).path)
        assert record is not None
        return CheckResult(out, record)

    def run(self, host: str) -> CheckResult:
        """Run one check."""
        return self.end(host, self.begin(host))

    def waiting(self, check: subprocess.Popen[str]) -> None:
        """Wait until the head's check waits for the others."""
        until_s = time.monotonic() + 60
        while check.poll() is None and time.monotonic() < until_s:
            if any(item.laddr.port == self.pair.ports["barrier_port"] for item in _list_listeners()):
                return
            time.sleep(0.05)
        raise AssertionError(check.stdout.read() if check.poll() is not None and check.stdout else "it never waited")

    def run_all(self, head: str = "one", worker: str = "two") -> dict[str, CheckResult]:
        """Run a check on each host, the worker's once the head's waits for it."""
        first = self.begin(head)
        self.waiting(first)
        second = self.begin(worker)
        return {worker: self.end(worker, second), head: self.end(head, first)}

    def status(self) -> dict[str, dict[str, Any]]:
        """Return the rows of `status`, by host."""
        rows = self.pair.run("status", "--host", "pair", "--json").out.splitlines()
        return {row["host"]: row for row in map(json.loads, rows)}

    def _table(self, host: str) -> Path:
        return self.pair.home(host) / "crontab"


def _list_listeners() -> list[Any]:
    return [
        net_connection
        for net_connection in psutil.net_connections("tcp")
        if net_connection.status == psutil.CONN_LISTEN
    ]
