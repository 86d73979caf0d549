"""A cluster's deploy without changes, where every host has its own CPU, compared with one host.

    molecule/bed/bed.py up --hosts 3 && make bench-own_cluster          (needs openssh-server and cc)

As own_hosts.py: what the cluster's two hosts and a third one, which serves alone, said in a real deploy is kept with its pace,
and said again by sshds that use no CPU time. Of RUNS real deploys of each the fastest is kept, for other load only adds
to one. The two members share this machine's cores while they are recorded, which the one host does not. The replays take turns.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).parent.parent
sys.path.insert(0, str(TOP))

from tests.remote.sshd import Sshd

from benchmarks.noop_over_ssh import BED, DEPLOY, SSH_PORT, cpu_timed, laid, timed
from benchmarks.own_hosts import RUNS_FOLDER, Recorded, floors, login_config, on_spark, ready_us

RUNS, TURNS = 5, 9


@dataclass(frozen=True)
class Kind:
    """source: the bed's project. pattern: its `--host`. hosts: those that it selects."""

    source: str
    pattern: str
    hosts: tuple[str, ...]


ONE, PAIR = Kind("project", "spark3", ("spark3",)), Kind("pair", "pair", ("spark1", "spark2"))
Command = tuple[list[str], Path, dict[str, str]]


def main() -> None:
    """Print the real hosts, then the replayed ones."""
    if not (BED / "project/hosts/spark3.yml").is_file():
        sys.exit("bring the bed up first: molecule/bed/bed.py up --hosts 3")
    with tempfile.TemporaryDirectory() as place:
        folder, hosts = Path(place), list[Sshd]()
        subprocess.run(["cc", "-O2", "-o", folder / "replay", TOP / "benchmarks/replayed_host.c"], check=True)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "id")], check=True)
        try:
            one, pair = (replayed(folder, kind, hosts) for kind in (ONE, PAIR))
            turns = [(cpu_timed(*one), cpu_timed(*pair)) for _ in range(TURNS)]
        finally:
            for host in hosts:
                host.stop()
    for title, n in (("seconds", 0), ("laptop's CPU", 1)):
        alone, together = ([turn[kind][n] for turn in turns] for kind in (0, 1))
        ratio = statistics.median(b / a for a, b in zip(alone, together, strict=True))
        print(f"{title:<14} {statistics.median(alone):>6.2f}s {statistics.median(together):>6.2f}s {ratio:>6.2f}x")


def replayed(folder: Path, kind: Kind, hosts: list[Sshd]) -> Command:
    """Run the command on hosts that replay the real ones' output. hosts: receives the sshds, which the caller stops."""
    place = folder / kind.source
    place.mkdir()
    project, env = laid(place, SSH_PORT, source=kind.source)
    words = [*DEPLOY, "--host", kind.pattern, "--json"]
    seconds = [timed(words, project, env) for _ in range(RUNS + 1)][1:]
    lines = fastest(kind, env)
    records = {
        name: Recorded(ready_us(env, name, best=min), said) for name, said in zip(kind.hosts, lines, strict=True)
    }
    login_s = min(floors([kind.hosts[0]], env) for _ in range(RUNS))
    print(f"{kind.pattern}, for real: {min(seconds):.2f} to {max(seconds):.2f}s", flush=True)
    mine = [
        Sshd(folder / f"sshd-{name}", folder / f"home-{name}", forced=forced(folder, place, name)) for name in records
    ]
    for host in mine:
        hosts.append(host)
        host.start()
    login_config(place, folder / "id", dict(zip(records, mine, strict=True)))
    for name in records:
        (place / f"record-{name}").write_text("0\n")
    own_s = min(floors([kind.hosts[0]], env) for _ in range(RUNS))
    for name, one in records.items():
        late = Recorded(one.ready_us + int((login_s - own_s) * 1e6), one.lines)
        (place / f"record-{name}").write_text(late.text())
    timed(words, project, env)
    return words, project, env


def forced(folder: Path, place: Path, name: str) -> str:
    """Return the command that an sshd runs at each login."""
    return f"exec {folder}/replay {place}/record-{name}"


def fastest(kind: Kind, env: dict[str, str]) -> list[list[tuple[int, str]]]:
    """Return each host's output in the fastest of the newest runs, judged by its slowest host."""
    runs = zip(*([said(env, host, newest) for newest in range(RUNS)] for host in kind.hosts), strict=True)
    return list(min(runs, key=lambda run: max(lines[-1][0] for lines in run)))


def said(env: dict[str, str], host: str, newest: int) -> list[tuple[int, str]]:
    """Return the lines of a run, with microseconds since its request. newest: 0 is the last one."""
    folder = on_spark(f"ls -1d {RUNS_FOLDER}/* | tail -{newest + 1} | head -1", env, host).strip()
    asked_s = float(on_spark(f"stat -c %.Y {folder}/plan.json", env, host))
    lines = on_spark(f"cat {folder}/events.jsonl", env, host).splitlines()
    return [(max(0, int((json.loads(one)["time"] - asked_s) * 1e6)), one) for one in lines]


if __name__ == "__main__":
    main()
