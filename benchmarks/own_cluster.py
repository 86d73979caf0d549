"""A cluster's deploy without changes, where every host has its own CPU, compared with one host.

    molecule/bed/bed.py up --hosts 3 && make bench-own_cluster          (needs openssh-server and cc)

As in own_hosts.py, sshds that use no CPU time replay the timed output of real deploys, to the cluster's two hosts and to a
third one that serves alone. The fastest of RUNS real deploys is replayed, because other load can only make a deploy slower.
While they are recorded, the two members share this machine's cores; the single host has them to itself. The replays
alternate.
"""

import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.remote.sshd import Sshd

from benchmarks.common import create_key, measure, ssh_true_s
from benchmarks.noop_over_ssh import BED, DEPLOY, SSH_PORT, create_project
from benchmarks.own_hosts import Recorded, compile_replay, read_ready_us, read_run, write_login_config

RUNS, TURNS = 5, 9


@dataclass(frozen=True)
class Kind:
    """A kind of deploy: the bed's project, the pattern for `--host`, and the hosts that match."""

    source: str
    pattern: str
    hosts: tuple[str, ...]


ONE, PAIR = Kind("project", "spark3", ("spark3",)), Kind("pair", "pair", ("spark1", "spark2"))
Command = tuple[list[str], Path, dict[str, str]]


def main() -> None:
    if not (BED / "project/hosts/spark3.yml").is_file():
        sys.exit("start the bed first: molecule/bed/bed.py up --hosts 3")
    with tempfile.TemporaryDirectory() as place:
        folder, sshds = Path(place), list[Sshd]()
        compile_replay(folder)
        create_key(folder)
        try:
            one, pair = (replay(folder, kind, sshds) for kind in (ONE, PAIR))
            turns = [(measure(*one), measure(*pair)) for _ in range(TURNS)]
        finally:
            for sshd in sshds:
                sshd.stop()
    print_ratio("seconds", [(alone.seconds, together.seconds) for alone, together in turns])
    print_ratio("laptop's CPU", [(alone.cpu_s, together.cpu_s) for alone, together in turns])


def print_ratio(title: str, turns: list[tuple[float, float]]) -> None:
    alone, together = (statistics.median(column) for column in zip(*turns, strict=True))
    ratio = statistics.median(pair_s / one_s for one_s, pair_s in turns)
    print(f"{title:<14} {alone:>6.2f}s {together:>6.2f}s {ratio:>6.2f}x")


def replay(folder: Path, kind: Kind, sshds: list[Sshd]) -> Command:
    """Return a command for hosts that replay the output of real ones. Their sshds are added to `sshds`; the caller stops them."""
    place = folder / kind.source
    place.mkdir()
    project, env = create_project(place, SSH_PORT, source=kind.source)
    words = [*DEPLOY, "--host", kind.pattern, "--json"]
    seconds = [measure(words, project, env).seconds for _ in range(RUNS + 1)][1:]
    outputs = zip(kind.hosts, find_fastest_run(kind, env), strict=True)
    records = {name: Recorded(read_ready_us(env, name, best=min), lines) for name, lines in outputs}
    login_s = min(ssh_true_s(kind.hosts[:1], env) for _ in range(RUNS))
    print(f"{kind.pattern}, for real: {min(seconds):.2f} to {max(seconds):.2f}s", flush=True)
    hosts = {}
    for name in records:
        command = f"exec {folder}/replay {place}/record-{name}"
        hosts[name] = Sshd(folder / f"sshd-{name}", folder / f"home-{name}", forced=command)
        sshds.append(hosts[name])
        hosts[name].start()
    write_login_config(place, folder / "id", hosts)
    for name in records:
        (place / f"record-{name}").write_text("0\n")
    own_login_s = min(ssh_true_s(kind.hosts[:1], env) for _ in range(RUNS))
    for name, record in records.items():
        (place / f"record-{name}").write_text(record.delayed(login_s - own_login_s).text())
    measure(words, project, env)
    return words, project, env


def find_fastest_run(kind: Kind, env: dict[str, str]) -> list[list[tuple[int, str]]]:
    """Return each host's output in the fastest of the newest runs; a run is as fast as its slowest host."""
    runs = zip(*([read_run(env, host, age) for age in range(RUNS)] for host in kind.hosts), strict=True)
    return list(min(runs, key=lambda run: max(lines[-1][0] for lines in run)))


if __name__ == "__main__":
    main()
