"""`status` of many hosts: seconds of the whole command, connections, round trips, and the cost on the laptop.

    .venv/bin/python benchmarks/status.py [--hosts 8]            (needs openssh-server)

Each host is an sshd of its own on loopback with a home of its own, behind a proxy that adds the round trip. The floor beside
it is OpenSSH's own `ssh HOST true` to one of them, and to all of them at once. Laptop and hosts share this machine's cores.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TOP = Path(__file__).parent.parent
sys.path.insert(0, str(TOP))

from tests.remote.inspected import inspect_data, inspect_engine
from tests.remote.sshd import Sshd

from benchmarks.delay_proxy import DelayProxy
from sparkwright.health.record import Container, Machine, Record, Serves, Speed
from sparkwright.host.records.verified_states import save_verified
from sparkwright.host.state import StateFolder

RUNS = 5
STARTED_S = float(int(time.time()) - 90000)
RECIPE = "qwen3.5-35b"
STATUS = [sys.executable, "-c", "from sparkwright.cli import main; main()", "status", "--host", "all", "--json"]


def main() -> None:
    """Print a line for each round-trip time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=8)
    count = parser.parse_args().hosts
    columns = (
        "hosts",
        "round trip",
        "status",
        "ssh true",
        "all at once",
        "connections",
        "turns each",
        "laptop CPU",
        "hosts' CPU",
        "MB",
    )
    print("  ".join(f"{name:>11}" for name in columns))
    with (
        tempfile.TemporaryDirectory(prefix="status-") as folder,
        inspect_engine(inspect_data(STARTED_S)) as docker_host,
    ):
        lab = Lab(Path(folder), count, docker_host)
        try:
            for rtt_ms in (0, 40):
                print(lab.row(rtt_ms), flush=True)
        finally:
            lab.stop()


class Lab:
    """Several sshds, and a project with them as its hosts."""

    def __init__(self, folder: Path, count: int, docker_host: str) -> None:
        self.folder = folder
        self.docker_host = docker_host
        self.project = folder / "project"
        self.env = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "id")], check=True)
        self.hosts = [Sshd(folder / f"sshd{n}", folder / f"home{n}") for n in range(1, count + 1)]
        for one in self.hosts:
            one.start()
            checked(one.home)
        wrapper = folder / "bin/ssh"
        wrapper.parent.mkdir()
        wrapper.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F "{folder}/ssh_config" "$@"\n')
        wrapper.chmod(0o755)

    def row(self, rtt_ms: int) -> str:
        """Return one line: medians over RUNS, after one run that copies the runtime if it is missing."""
        proxies = [DelayProxy(one.port, rtt_ms / 1000) for one in self.hosts]
        self.lay([proxy.port for proxy in proxies])
        self.status()
        before = [vars(proxy.seen).copy() for proxy in proxies]
        hosts_s = self.hosts_cpu_s()
        runs = [self.status() for _ in range(RUNS)]
        hosts_s = (self.hosts_cpu_s() - hosts_s) / RUNS
        connections = sum(
            proxy.seen.connections - was["connections"] for proxy, was in zip(proxies, before, strict=True)
        )
        turns = sum(proxy.seen.turns - was["turns"] for proxy, was in zip(proxies, before, strict=True))
        one = statistics.median(self.floor(["spark1"]) for _ in range(RUNS))
        everyone = statistics.median(self.floor([f"spark{n + 1}" for n in range(len(self.hosts))]) for _ in range(RUNS))
        wall, cpu, peak_mb = (statistics.median(values) for values in zip(*runs, strict=True))
        cells = (
            *(f"{len(self.hosts)}", f"{rtt_ms} ms", f"{wall:.2f} s", f"{one:.2f} s", f"{everyone:.2f} s"),
            *(
                f"{connections / RUNS:.1f}",
                f"{turns / RUNS / len(self.hosts):.1f}",
                f"{cpu:.2f} s",
                f"{hosts_s:.2f} s",
                f"{peak_mb:.0f}",
            ),
        )
        return "  ".join(f"{cell:>11}" for cell in cells)

    def lay(self, ports: list[int]) -> None:
        """Create the project's files, with every host behind its proxy."""
        hosts = self.project / "hosts"
        hosts.mkdir(parents=True, exist_ok=True)
        (self.project / "playbooks").mkdir(exist_ok=True)
        shutil.copytree(TOP / "recipes", self.project / "recipes", dirs_exist_ok=True)
        known = []
        for n, (one, port) in enumerate(zip(self.hosts, ports, strict=True), 1):
            env = f"env: {{DOCKER_HOST: '{self.docker_host}'}}\n"
            (hosts / f"spark{n}.yml").write_text(f"address: 127.0.0.1\nport: {port}\nrecipe: {RECIPE}\n{env}")
            known.append(one.known_hosts_line().replace(f":{one.port} ", f":{port} "))
        (self.folder / "known_hosts").write_text("".join(known))
        blocks = [f"Host spark{n}\n  HostName 127.0.0.1\n  Port {port}\n" for n, port in enumerate(ports, 1)]
        common = f"Host *\n  IdentityFile {self.folder}/id\n  IdentitiesOnly yes\n  IdentityAgent none\n"
        known_hosts = f"  UserKnownHostsFile {self.folder}/known_hosts\n"
        (self.folder / "ssh_config").write_text("".join(blocks) + common + known_hosts)

    def status(self) -> tuple[float, float, float]:
        """Return the command's seconds, the laptop's CPU seconds and peak MB. Every host has to answer with its check."""
        started_s = time.perf_counter()
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(STATUS, cwd=self.project, env=self.env, stdout=out, stderr=errors)
            _, ended, used = os.wait4(process.pid, 0)
            wall_s = time.perf_counter() - started_s
            out.seek(0), errors.seek(0)
            said = out.read()
            rows = [json.loads(line) for line in said.splitlines()]
            if ended or [row["state"] for row in rows] != ["ok"] * len(self.hosts):
                sys.exit(said[-800:] + errors.read()[-800:])
        return wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss / 1000

    def hosts_cpu_s(self) -> float:
        """Return the CPU seconds that the sshds' sessions and their runners have used so far."""
        ticks = 0
        for one in self.hosts:
            assert one.process is not None
            fields = Path(f"/proc/{one.process.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[13]) + int(fields[14])  # cutime and cstime: of children that have ended
        return ticks / os.sysconf("SC_CLK_TCK")

    def floor(self, names: list[str]) -> float:
        """Return the seconds until `ssh HOST true`, run on all of them at once, has ended."""
        started_s = time.perf_counter()
        with ThreadPoolExecutor(max_workers=len(names)) as pool:
            list(pool.map(lambda name: subprocess.run(["ssh", name, "true"], env=self.env, check=True), names))
        return time.perf_counter() - started_s

    def stop(self) -> None:
        """Stop all sshds."""
        for one in self.hosts:
            one.stop()


def checked(home: Path) -> None:
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
    save_verified(
        state, {"spec": {"name": "qwen35", "image": image}, "model": {"commit": commit}, "container_id": "c" * 64}
    )


if __name__ == "__main__":
    main()
