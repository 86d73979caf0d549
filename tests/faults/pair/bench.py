"""A cluster of two simulated Sparks with a fault of a member at a chosen point of a deploy: the run on its host waits at a gate,
the fault is injected, and the gate opens."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparkwright.host.runs import journal
from sparkwright.host.state import StateFolder
from tests.e2e.pair.project import HOSTS, NAME, PairProject
from tests.faults.bench import Watcher, read_events, restart_engine, start_deploy, wait_for_gate
from tests.waiting import wait_until

#: waits for the file `open` if the host's HOME has `hold`; fails if it has `fail`
GATE = "test -e $HOME/hold || exit 0; touch $HOME/reached; until [ -e $HOME/open ]; do sleep 0.02; done; test ! -e $HOME/fail"
GATE_FILES = ("hold", "reached", "open", "fail")
RUN_TIMEOUT_S = 150.0


class PairBench:
    """A pair that is reused from one fault to the next."""

    def __init__(self, project: PairProject) -> None:
        self.project = project
        self.playbooks = {path: path.read_text() for path in (project.root / "playbooks").rglob("*.yml")}

    def home(self, host: str) -> Path:
        return self.project.folder_of(host) / "home"

    def whole(self) -> dict[str, str]:
        """Return the Ids of the serving ranks before a fault. They are deployed if an earlier fault left none."""
        if self.outcome({}) != "new":
            self.project.deployed()
        assert self.outcome({}) == "new", "a deploy does not repair the previous fault"
        return self.project.ids()

    def outcome(self, old: dict[str, str]) -> str:
        """Return which ranks serve: old, new, none, or half if only one runs. old: the Ids of the ranks that served before."""
        current = self.project.ids()
        if len(current) < len(HOSTS):
            return "half" if current else "none"
        status, text = self.project.token()
        return ("old" if current == old else "new") if status == 200 else f"broken ({status}: {text})"

    # -- a deploy with a gate ------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def gate(self, before: str, host: str, fail_at: str = "") -> Iterator[None]:
        """Put a gate on a host. fail_at: a task of the swap before which the run on that host also fails."""
        for name in GATE_FILES:
            (self.home(host) / name).unlink(missing_ok=True)
        (self.home(host) / "hold").touch()
        self.project.before(before, f'{{name: Gate, command: {{argv: [sh, -c, "{GATE}"]}}}}')
        if fail_at:
            self.project.before(fail_at, "{name: Fail, fail: {msg: broken on purpose}}")
        try:
            yield
        finally:
            for path, text in self.playbooks.items():
                path.write_text(text)
            (self.home(host) / "hold").unlink(missing_ok=True)

    def start(self) -> subprocess.Popen[str]:
        return start_deploy(self.project.root, "sandbox-pair")

    def reached(self, host: str, laptop: subprocess.Popen[str]) -> None:
        wait_for_gate(self.project.root, self.home(host) / "reached", laptop, RUN_TIMEOUT_S)

    def open(self, host: str) -> None:
        (self.home(host) / "open").touch()

    def ended(self) -> dict[str, list[dict[str, Any]]]:
        """Wait for the end of the newest runs, with or without a laptop, and return their events by host."""
        events = {}
        for host in HOSTS:
            folder = next(StateFolder.in_home(self.home(host)).runs())
            wait_until(lambda run=folder: not journal.is_running(run), f"the run's end on {host}", RUN_TIMEOUT_S)  # type: ignore[misc]
            events[host] = read_events(folder)
        return events

    # -- faults --------------------------------------------------------------------------------------------------

    def fails(self, host: str, laptop: subprocess.Popen[str]) -> None:
        (self.home(host) / "fail").touch()

    def killed(self, host: str, laptop: subprocess.Popen[str]) -> None:
        os.kill(json.loads((StateFolder.in_home(self.home(host)).path / "lock").read_text())["pid"], signal.SIGKILL)

    def cut(self, host: str, laptop: subprocess.Popen[str]) -> None:
        os.killpg(laptop.pid, signal.SIGKILL)

    def docker(self, host: str, laptop: subprocess.Popen[str]) -> None:
        restart_engine(self.project.folder_of(host))

    def network(self, host: str, laptop: subprocess.Popen[str]) -> None:
        """Drop all packets between the members, of both their runs and their ranks."""
        for rule in self._rules():
            subprocess.run(["iptables", "-I", "INPUT", *rule], check=True)

    def reconnect(self) -> None:
        for rule in self._rules():
            while not subprocess.run(["iptables", "-D", "INPUT", *rule], capture_output=True, check=False).returncode:
                pass

    def _rules(self) -> list[list[str]]:
        ports = (f"--{side}port={port}" for port in self.project.ports.values() for side in ("d", "s"))
        return [["-i", "lo", "-p", "tcp", port, "-j", "DROP"] for port in ports]

    def reboot(self, host: str, laptop: subprocess.Popen[str]) -> None:
        """End every process of the host, and keep its files."""
        self.killed(host, laptop)
        self.docker(host, laptop)


class ServerWatcher(Watcher):
    """A watcher that records the highest number of servers that ran at once on a host."""

    def __init__(self, bench: PairBench) -> None:
        super().__init__()
        self.most = 0
        self._bench = bench

    def look(self) -> None:
        for host in HOSTS:
            with contextlib.suppress(Exception):  # the engine is being restarted
                self.most = max(self.most, len(self._bench.project.running(host)))


def list_containers(bench: PairBench) -> set[str]:
    return {row["Names"][0] for host in HOSTS for row in bench.project.engine_of(host).api.containers(all=True)}


EXPECTED_CONTAINERS = {f"/{NAME}"}
