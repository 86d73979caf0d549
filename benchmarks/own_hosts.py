"""A deploy of many hosts without changes, where every host has its own CPU, compared with one host.

    make bed && make bench-own_hosts                       (needs openssh-server and cc)

A machine of few cores can't be a laptop and eight Sparks at once. So one pretend Spark of the bed is deployed to for real and
what it said is kept, with its pace; then every host is an sshd of its own whose program says the same at the same pace and uses
no CPU time (replayed_host.c). The laptop's side is the real one. One host for real stands beside one that is replayed:
they must take the same, or the rest means nothing.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).parent.parent
sys.path.insert(0, str(TOP))

from tests.remote.sshd import Sshd

from benchmarks.noop_over_ssh import BED, DEPLOY, SSH_PORT, cpu_timed, laid, timed

RUNS = 7
COUNTS = (1, 2, 4, 8, 16)
RUNTIME = "~/.local/share/sparkwright/runtime"
RUNS_FOLDER = "~/.local/state/sparkwright/runs"


@dataclass(frozen=True)
class Recorded:
    """ready_us: from the start of its program until a host reads a request. lines: (microseconds after the request, line)."""

    ready_us: int
    lines: list[tuple[int, str]]

    def text(self) -> str:
        """Return it in the format that replayed_host.c reads."""
        return "".join([f"{self.ready_us}\n", *(f"{at_us} {line}\n" for at_us, line in self.lines)])


def main() -> None:
    """Print the real host, then a line for each number of replayed ones."""
    if not (BED / "project").is_dir():
        sys.exit("bring the bed up first: make bed")
    print(f"{'hosts':>12} {'deploy':>8} {'of one':>7} {'laptop CPU':>11} {'ssh true':>9} {'of one':>7}")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        project, env = laid(folder, SSH_PORT)
        words = [*DEPLOY, "--host", "spark1", "--json"]
        timed(words, project, env)
        real = [cpu_timed(words, project, env) for _ in range(RUNS)]
        recorded = record(env)
        floor = statistics.median(floors(["spark1"], env) for _ in range(RUNS))
        wall, cpu = (statistics.median(values) for values in zip(*real, strict=True))
        print(f"{'1, for real':>12} {wall:>7.2f}s {'':>7} {cpu:>10.2f}s {floor:>8.2f}s", flush=True)
        replayed(folder, recorded, floor)


def replayed(folder: Path, recorded: Recorded, login_s: float) -> None:
    """Print the replayed hosts' lines. login_s: duration of `ssh HOST true` on the real host, with its PAM session."""
    subprocess.run(["cc", "-O2", "-o", folder / "replay", TOP / "benchmarks/replayed_host.c"], check=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "id")], check=True)
    hosts = [
        Sshd(folder / f"sshd{n}", folder / f"home{n}", forced=f"exec {folder}/replay {folder}/record")
        for n in range(1, max(COUNTS) + 1)
    ]
    for one in hosts:
        one.start()
    try:
        project, env = lay(folder, hosts)
        (folder / "record").write_text("0\n")
        own_s = statistics.median(floors(["spark1"], env) for _ in range(RUNS))
        ready_us = recorded.ready_us + int((login_s - own_s) * 1e6)
        first: tuple[float, float] | None = None
        for count in COUNTS:
            names = [f"spark{n}" for n in range(1, count + 1)]
            (folder / "record").write_text("0\n")
            floor = statistics.median(floors(names, env) for _ in range(RUNS))
            (folder / "record").write_text(Recorded(ready_us, recorded.lines).text())
            words = [*DEPLOY, "--host", ",".join(names), "--serial", "100%", "--json"]
            runs = [cpu_timed(words, project, env) for _ in range(RUNS)]
            wall, cpu = (statistics.median(values) for values in zip(*runs, strict=True))
            first = first or (wall, floor)
            ratios = f"{wall / first[0]:>6.1f}x {cpu:>10.2f}s {floor:>8.2f}s {floor / first[1]:>6.1f}x"
            print(f"{count:>12} {wall:>7.2f}s {ratios}", flush=True)
    finally:
        for one in hosts:
            one.stop()


def record(env: dict[str, str]) -> Recorded:
    """Return the timed output of spark1's newest run, and the time until its runner is ready."""
    newest = on_spark(f"ls -1d {RUNS_FOLDER}/* | tail -1", env).strip()
    asked_s = float(on_spark(f"stat -c %.Y {newest}/plan.json", env))
    lines = on_spark(f"cat {newest}/events.jsonl", env).splitlines()
    return Recorded(ready_us(env), [(max(0, int((json.loads(one)["time"] - asked_s) * 1e6)), one) for one in lines])


def ready_us(
    env: dict[str, str], host: str = "spark1", best: Callable[[Iterable[int]], float] = statistics.median
) -> int:
    """Return the microseconds until a host's runner is ready for a request."""
    boot = f"d=$(ls -1dt {RUNTIME}/*/ | head -1); p=$(cat $d/python)"
    started = "$p -IS $d/lib/sparkwright/runner/boot.py $d/tag engine </dev/null >/dev/null"
    say = f"{boot}; for n in 1 2 3 4 5 6 7; do date +%s%N; {started}; done; date +%s%N"
    stamps = [int(word) for word in on_spark(say, env, host).split()]
    return int(best(b - a for a, b in itertools.pairwise(stamps)) / 1000)


def on_spark(command: str, env: dict[str, str], host: str = "spark1") -> str:
    """Return a command's output on a host of the bed."""
    done = subprocess.run(["ssh", host, command], env=env, capture_output=True, text=True, check=True)
    return done.stdout


def lay(folder: Path, hosts: list[Sshd]) -> tuple[Path, dict[str, str]]:
    """The bed's project with these hosts, and an ssh that knows them."""
    place = folder / "replayed"
    place.mkdir()
    project, env = laid(place, SSH_PORT)
    for n, _ in enumerate(hosts, 1):
        (project / f"hosts/spark{n}.yml").write_text(f"address: spark{n}\ngroups: [lab]\n")
    login_config(place, folder / "id", {f"spark{n}": one for n, one in enumerate(hosts, 1)})
    return project, env


def login_config(place: Path, key: Path, hosts: dict[str, Sshd]) -> None:
    """Configure this project's ssh to reach these hosts by name."""
    (place / "known_hosts").write_text("".join(one.known_hosts_line() for one in hosts.values()))
    blocks = [f"Host {name}\n  HostName 127.0.0.1\n  Port {one.port}\n" for name, one in hosts.items()]
    common = f"Host *\n  User {os.environ.get('USER', 'root')}\n  IdentityFile {key}\n  IdentitiesOnly yes\n"
    (place / "ssh_config").write_text(
        "".join(blocks) + common + f"  IdentityAgent none\n  UserKnownHostsFile {place}/known_hosts\n"
    )


def floors(names: list[str], env: dict[str, str]) -> float:
    """Return the seconds until OpenSSH's own `ssh HOST true`, run on all of them at once, has ended."""
    started_s = time.perf_counter()
    with ThreadPoolExecutor(max_workers=len(names)) as pool:
        list(
            pool.map(
                lambda name: subprocess.run(
                    ["ssh", name, "true"], env=env, input=b"\n", capture_output=True, check=True
                ),
                names,
            )
        )
    return time.perf_counter() - started_s


if __name__ == "__main__":
    main()
