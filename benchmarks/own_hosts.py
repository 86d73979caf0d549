"""A deploy of many hosts without changes, where every host has its own CPU, compared with one host.

    make bed && make bench-own_hosts                       (needs openssh-server and cc)

A machine with few cores can't be a laptop and eight Sparks at once. So the timed output of a real deploy to one simulated
Spark of the bed is recorded. Then every host is an sshd whose program replays this output at the same pace, without CPU time
(replayed_host.c). The laptop's side is real. A replayed host is also compared with the real one: if their times differ, the other
results are invalid.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tests.remote.sshd import Sshd

from benchmarks.common import TOP, create_key, measure, medians, ssh_true_s, write_ssh_config
from benchmarks.noop_over_ssh import BED, DEPLOY, SSH_PORT, create_project

RUNS = 7
COUNTS = (1, 2, 4, 8, 16)
RUNTIME = "~/.local/share/sparkwright/runtime"
RUNS_FOLDER = "~/.local/state/sparkwright/runs"


@dataclass(frozen=True)
class Recorded:
    """The recorded output of a host.

    Attributes:
        ready_us: microseconds from the start of the host's program until it reads a request.
        lines: pairs of (microseconds after the request, line).
    """

    ready_us: int
    lines: list[tuple[int, str]]

    def delayed(self, seconds: float) -> Recorded:
        """Return a copy whose program is ready later."""
        return replace(self, ready_us=self.ready_us + int(seconds * 1e6))

    def text(self) -> str:
        """Return the record in the format that replayed_host.c reads."""
        return "".join([f"{self.ready_us}\n", *(f"{at_us} {line}\n" for at_us, line in self.lines)])


def main() -> None:
    """Print a line for the real host, then one for each number of replayed hosts."""
    if not (BED / "project").is_dir():
        sys.exit("start the bed first: make bed")
    print(f"{'hosts':>12} {'deploy':>8} {'of one':>7} {'laptop CPU':>11} {'ssh true':>9} {'of one':>7}")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        project, env = create_project(folder, SSH_PORT)
        words = [*DEPLOY, "--host", "spark1", "--json"]
        measure(words, project, env)
        wall_s, cpu_s = medians([measure(words, project, env) for _ in range(RUNS)])
        recorded = Recorded(read_ready_us(env), read_run(env, "spark1"))
        floor_s = median_login_s(["spark1"], env)
        print(f"{'1, for real':>12} {wall_s:>7.2f}s {'':>7} {cpu_s:>10.2f}s {floor_s:>8.2f}s", flush=True)
        print_replayed(folder, recorded, floor_s)


def print_replayed(folder: Path, recorded: Recorded, login_s: float) -> None:
    """Print the replayed hosts' lines. login_s: duration of `ssh HOST true` on the real host, with its PAM session."""
    compile_replay(folder)
    create_key(folder)
    command = f"exec {folder}/replay {folder}/record"
    names = [f"spark{n}" for n in range(1, max(COUNTS) + 1)]
    sshds = {name: Sshd(folder / f"sshd-{name}", folder / f"home-{name}", forced=command) for name in names}
    for sshd in sshds.values():
        sshd.start()
    try:
        project, env = create_replayed_project(folder, sshds)
        (folder / "record").write_text("0\n")
        delayed = recorded.delayed(login_s - median_login_s(names[:1], env))
        first: tuple[float, float] | None = None
        for count in COUNTS:
            (folder / "record").write_text("0\n")
            floor_s = median_login_s(names[:count], env)
            (folder / "record").write_text(delayed.text())
            words = [*DEPLOY, "--host", ",".join(names[:count]), "--serial", "100%", "--json"]
            wall_s, cpu_s = medians([measure(words, project, env) for _ in range(RUNS)])
            first = first or (wall_s, floor_s)
            ratios = f"{wall_s / first[0]:>6.1f}x {cpu_s:>10.2f}s {floor_s:>8.2f}s {floor_s / first[1]:>6.1f}x"
            print(f"{count:>12} {wall_s:>7.2f}s {ratios}", flush=True)
    finally:
        for sshd in sshds.values():
            sshd.stop()


def median_login_s(names: list[str], env: dict[str, str]) -> float:
    return statistics.median(ssh_true_s(names, env) for _ in range(RUNS))


def compile_replay(folder: Path) -> None:
    subprocess.run(["cc", "-O2", "-o", folder / "replay", TOP / "benchmarks/replayed_host.c"], check=True)


def read_run(env: dict[str, str], host: str, age: int = 0) -> list[tuple[int, str]]:
    """Return the output of a host's run, with microseconds since its request. age: 0 is the newest run, 1 the one before."""
    folder = run_on_spark(f"ls -1d {RUNS_FOLDER}/* | tail -{age + 1} | head -1", env, host).strip()
    requested_s = float(run_on_spark(f"stat -c %.Y {folder}/plan.json", env, host))
    lines = run_on_spark(f"cat {folder}/events.jsonl", env, host).splitlines()
    return [(max(0, int((json.loads(line)["time"] - requested_s) * 1e6)), line) for line in lines]


def read_ready_us(
    env: dict[str, str], host: str = "spark1", best: Callable[[Iterable[int]], float] = statistics.median
) -> int:
    """Return the microseconds until a host's runner is ready for a request."""
    boot = f"d=$(ls -1dt {RUNTIME}/*/ | head -1); p=$(cat $d/python)"
    start = "$p -IS $d/lib/sparkwright/runner/boot.py $d/tag engine </dev/null >/dev/null"
    script = f"{boot}; for n in 1 2 3 4 5 6 7; do date +%s%N; {start}; done; date +%s%N"
    stamps_ns = [int(word) for word in run_on_spark(script, env, host).split()]
    return int(best(after - before for before, after in itertools.pairwise(stamps_ns)) / 1000)


def run_on_spark(command: str, env: dict[str, str], host: str) -> str:
    """Return a command's output on a host of the bed."""
    return subprocess.run(["ssh", host, command], env=env, capture_output=True, text=True, check=True).stdout


def create_replayed_project(folder: Path, sshds: Mapping[str, Sshd]) -> tuple[Path, dict[str, str]]:
    """Create a copy of the bed's project with these hosts, and an ssh that connects to them."""
    place = folder / "replayed"
    place.mkdir()
    project, env = create_project(place, SSH_PORT)
    for name in sshds:
        (project / f"hosts/{name}.yml").write_text(f"address: {name}\ngroups: [lab]\n")
    write_login_config(place, folder / "id", sshds)
    return project, env


def write_login_config(place: Path, key: Path, sshds: Mapping[str, Sshd]) -> None:
    """Configure this project's ssh to connect to these hosts by name."""
    (place / "known_hosts").write_text("".join(sshd.known_hosts_line() for sshd in sshds.values()))
    write_ssh_config(place, key, {name: sshd.port for name, sshd in sshds.items()})


if __name__ == "__main__":
    main()
