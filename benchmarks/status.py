"""The cost of `status` for many hosts: seconds of the whole command, connections, round trips, and CPU time on the laptop.

    make bench-status               (or: .venv/bin/python -m benchmarks.status [--hosts 8]; needs openssh-server)

Each host is an sshd on loopback with its own home folder, behind a proxy that adds the round-trip time. The lower bound is
OpenSSH's `ssh HOST true` to one of them, and to all of them at once. Laptop and hosts share this machine's cores.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.remote.inspected import inspect_data, inspect_engine
from tests.remote.sshd import Sshd

from benchmarks import common
from benchmarks.common import SPARKWRIGHT, TOP, Measurement, measure, ssh_true_s
from benchmarks.delay_proxy import DelayProxy
from sparkwright.health.record import Container, Machine, Record, Serves, Speed
from sparkwright.host.records.verified_states import VerifiedState, save_verified
from sparkwright.host.state import StateFolder
from sparkwright.protocol.container import SpecRecord

RUNS = 5
STARTED_S = float(int(time.time()) - 90000)
RECIPE = "qwen3.5-35b"
STATUS = [*SPARKWRIGHT, "status", "--host", "all", "--json"]
COLUMNS = (
    "hosts", "round trip", "status", "ssh true", "all at once", "connections", "turns each", "laptop CPU", "hosts' CPU", "MB",
)  # fmt: skip


def main() -> None:
    count = create_parser(__doc__).parse_args().hosts
    print(format_cells(*COLUMNS))
    with run_lab(count) as lab:
        for rtt_ms in (0, 40):
            print(lab.format_row(rtt_ms), flush=True)


def create_parser(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=8)
    return parser


@contextmanager
def run_lab(count: int) -> Iterator[Lab]:
    with tempfile.TemporaryDirectory(prefix="st-") as folder, inspect_engine(inspect_data(STARTED_S)) as docker_host:
        lab = Lab(Path(folder), count, docker_host)
        try:
            yield lab
        finally:
            lab.stop()


def format_cells(*cells: str) -> str:
    return "  ".join(f"{cell:>11}" for cell in cells)


class Lab:
    """Several sshds, and a project with them as its hosts."""

    def __init__(self, folder: Path, count: int, docker_host: str) -> None:
        self.folder = folder
        self.docker_host = docker_host
        self.project = folder / "project"
        self.key = common.create_key(folder)
        self.hosts = {f"spark{n}": Sshd(folder / f"sshd{n}", folder / f"home{n}") for n in range(1, count + 1)}
        for sshd in self.hosts.values():
            sshd.start()
            write_checked_state(sshd.home)
        path = f"{common.write_ssh_wrapper(folder)}{os.pathsep}{os.environ['PATH']}"
        self.env = {**os.environ, "PATH": path}

    def format_row(self, rtt_ms: int) -> str:
        """Return one line with the medians of RUNS, measured after a run that copies the runtime if it is missing."""
        proxies = {name: DelayProxy(sshd.port, rtt_ms / 1000) for name, sshd in self.hosts.items()}
        self.write_project({name: proxy.port for name, proxy in proxies.items()})
        self.status()
        counts = [proxy.counts for proxy in proxies.values()]
        connections, turns = sum(count.connections for count in counts), sum(count.turns for count in counts)
        hosts_s = self.hosts_cpu_s()
        runs = [self.status() for _ in range(RUNS)]
        hosts_s = (self.hosts_cpu_s() - hosts_s) / RUNS
        connections = sum(count.connections for count in counts) - connections
        turns = sum(count.turns for count in counts) - turns
        names = list(self.hosts)
        one_s, all_s = (
            statistics.median(ssh_true_s(hosts, self.env) for _ in range(RUNS)) for hosts in (names[:1], names)
        )
        wall_s, cpu_s = common.medians(runs)
        peak_mb = statistics.median(run.peak_mb for run in runs)
        times = (f"{seconds:.2f} s" for seconds in (wall_s, one_s, all_s))
        traffic = f"{connections / RUNS:.1f}", f"{turns / RUNS / len(names):.1f}"
        costs = f"{cpu_s:.2f} s", f"{hosts_s:.2f} s", f"{peak_mb:.0f}"
        return format_cells(str(len(names)), f"{rtt_ms} ms", *times, *traffic, *costs)

    def write_project(self, ports: dict[str, int]) -> None:
        """Create the project's files, with every host behind its proxy. ports: map from host to its proxy's port."""
        hosts = self.project / "hosts"
        hosts.mkdir(parents=True, exist_ok=True)
        (self.project / "playbooks").mkdir(exist_ok=True)
        shutil.copytree(TOP / "recipes", self.project / "recipes", dirs_exist_ok=True)
        known_hosts = ""
        for name, port in ports.items():
            env = f"env: {{DOCKER_HOST: '{self.docker_host}'}}\n"
            (hosts / f"{name}.yml").write_text(f"address: 127.0.0.1\nport: {port}\nrecipe: {RECIPE}\n{env}")
            sshd = self.hosts[name]
            known_hosts += sshd.known_hosts_line().replace(f":{sshd.port} ", f":{port} ")
        (self.folder / "known_hosts").write_text(known_hosts)
        common.write_ssh_config(self.folder, self.key, ports)

    def status(self) -> Measurement:
        """Run `status`. Every host must answer with its check."""
        run = measure(STATUS, self.project, self.env)
        if [json.loads(line)["state"] for line in run.output.splitlines()] != ["ok"] * len(self.hosts):
            sys.exit(run.output[-800:])
        return run

    def hosts_cpu_s(self) -> float:
        """Return the CPU seconds that the sshds' sessions and their runners have used so far."""
        ticks = 0
        for sshd in self.hosts.values():
            assert sshd.process is not None
            fields = Path(f"/proc/{sshd.process.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[13]) + int(fields[14])  # cutime and cstime count children that have ended
        return ticks / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        for sshd in self.hosts.values():
            sshd.stop()


def write_checked_state(home: Path) -> None:
    """Write the files that a verified deploy and a scheduled check leave in a home folder."""
    state = StateFolder.in_home(home)
    now_s = time.time()
    image, commit = "vllm/vllm-openai:v0.32.0@sha256:" + "a" * 64, "b" * 40
    record = Record(
        *(now_s, "ok", "ok", now_s - 86400),
        why="fine",
        every_s=3600.0,
        container=Container("qwen35", "c" * 64, "running", 0, "unless-stopped", None, STARTED_S, verified=True),
        serves=Serves(image, "0.32.0", "Qwen/Qwen3.5-35B-A3B", commit, "qwen", now_s - 90000),
        speed=Speed(52.1, 52.4, 0.12, "proved", now_s - 600),
        machine=Machine(128 * 10**9, 20 * 10**9, 0, 0, 10**12, 10**6),
    )
    state.write("health", record.to_json())
    spec: SpecRecord = {"name": "qwen35", "image": image}
    save_verified(state, VerifiedState(spec, {"commit": commit}, container_id="c" * 64))


if __name__ == "__main__":
    main()
