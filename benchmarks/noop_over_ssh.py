"""A deploy without changes over ssh: seconds, connections and round trips, compared with the lower bound of the same run.

    make bed && make bench

The floor is OpenSSH's own `ssh HOST true` through the same proxy. What is measured is the whole command, from its process's
start to its end, and holds the 0.2 s that one proved answer of the server takes.
"""

from __future__ import annotations

import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

TOP = Path(__file__).parent.parent
sys.path.insert(0, str(TOP))

from benchmarks.delay_proxy import DelayProxy

BED = TOP / ".bed"
RUNS = 5
SSH_PORT = 22201
DEPLOY = [sys.executable, "-c", "from sparkwright.cli import main; main()", "deploy"]


def main() -> None:
    """Print a line for each round-trip time."""
    if not (BED / "project").is_dir():
        sys.exit("bring the bed up first: make bed")
    print(
        f"{'round trip':>10} {'deploy':>8} {'ssh true':>9} {'connections':>12} {'turns':>6} {'KB up':>6} {'KB down':>8}"
    )
    for rtt_ms in (0, 20, 40):
        with tempfile.TemporaryDirectory() as folder:
            print(row(Path(folder), rtt_ms))
    print(f"\n{'hosts':>10} {'deploy':>8} {'of one':>7} {'laptop CPU':>11} {'of one':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for line in rows_by_hosts(Path(folder)):
            print(line)
    with tempfile.TemporaryDirectory() as folder:
        print(row_of_cluster(Path(folder)))


def row(folder: Path, rtt_ms: int) -> str:
    """Return one line: medians over RUNS, after one run that makes sure nothing changes."""
    proxy = DelayProxy(SSH_PORT, rtt_ms / 1000)
    project, env = laid(folder, proxy.port)
    deploy = [*DEPLOY, "--host", "spark1", "--json"]
    timed(deploy, project, env)
    before = vars(proxy.seen).copy()
    seconds = [timed(deploy, project, env) for _ in range(RUNS)]
    each = {name: (count - before[name]) / RUNS for name, count in vars(proxy.seen).items()}
    floor = [timed(["ssh", "spark1", "true"], project, env) for _ in range(RUNS)]
    return (
        f"{rtt_ms:>7} ms {statistics.median(seconds):>7.2f}s {statistics.median(floor):>8.2f}s {each['connections']:>12.1f} "
        f"{each['turns']:>6.1f} {each['bytes_up'] / 1000:>6.1f} {each['bytes_down'] / 1000:>8.1f}"
    )


def rows_by_hosts(folder: Path) -> Iterator[str]:
    """Yield lines for 1, 2, 4 ... of the bed's hosts at once. They share the laptop's cores, so its own CPU time is listed too.

    A bed of eight: `molecule/bed/bed.py up --hosts 8`, then one deploy of all.
    """
    names = sorted(path.stem for path in (BED / "project/hosts").glob("spark*.yml"))
    project, env = laid(folder, SSH_PORT)
    one: tuple[float, float] | None = None
    for count in (1, 2, 4, 8, 16):
        if count > len(names):
            return
        words = [*DEPLOY, "--host", ",".join(names[:count]), "--serial", "100%", "--json"]
        timed(words, project, env)
        runs = [cpu_timed(words, project, env) for _ in range(RUNS)]
        now = statistics.median(wall for wall, _ in runs), statistics.median(cpu for _, cpu in runs)
        one = one or now
        yield f"{count:>10} {now[0]:>7.2f}s {now[0] / one[0]:>6.1f}x {now[1]:>10.2f}s {now[1] / one[1]:>6.1f}x"


def row_of_cluster(folder: Path) -> str:
    """Return a line for the bed's cluster of two hosts, alternating with a third host that serves alone."""
    if not (BED / "project/hosts/spark3.yml").is_file():
        return f"{'a cluster':>10} not measured: molecule/bed/bed.py up --hosts 3"
    commands = []
    for source, host in (("project", "spark3"), ("pair", "pair")):
        (folder / source).mkdir()
        project, env = laid(folder / source, SSH_PORT, source=source)
        commands.append(([*DEPLOY, "--host", host, "--json"], project, env))
        timed(*commands[-1])
    turns = [[cpu_timed(*command) for command in commands] for _ in range(2 * RUNS)]
    ratio, cpu_ratio = (statistics.median(pair[n] / one[n] for one, pair in turns) for n in (0, 1))
    pair_s, cpu_s = (statistics.median(pair[n] for _, pair in turns) for n in (0, 1))
    return f"{'a cluster':>10} {pair_s:>7.2f}s {ratio:>6.1f}x {cpu_s:>10.2f}s {cpu_ratio:>6.1f}x"


def cpu_timed(words: list[str], folder: Path, env: dict[str, str]) -> tuple[float, float]:
    """Return a command's seconds, and the CPU seconds of it and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall_s = timed(words, folder, env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def laid(folder: Path, port: int, of: int = SSH_PORT, source: str = "project") -> tuple[Path, dict[str, str]]:
    """A project of the bed, with ssh going to this port instead of the host's own, through the proxy."""
    project = folder / "project"
    shutil.copytree(BED / source, project)
    groups = project / "hosts/groups.yml"
    groups.write_text(groups.read_text().replace("lab: {}", "lab: {min_serving: 0}"))  # all at once is what is measured
    text = re.sub(rf"Port {of}\b", f"Port {port}", (BED / "ssh_config").read_text())
    text = text.replace(f"{BED}/known_hosts", f"{folder}/known_hosts")
    (folder / "ssh_config").write_text(text)
    known = (BED / "known_hosts").read_text().replace(f":{of} ", f":{port} ")
    (folder / "known_hosts").write_text(known)
    wrapper = folder / "bin" / "ssh"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F "{folder}/ssh_config" "$@"\n')
    wrapper.chmod(0o755)
    path = f"{wrapper.parent}:/usr/local/bin:/usr/bin:/bin"
    return project, {"PATH": path, "HOME": str(Path.home()), "PYTHONPATH": str(TOP / "src")}


def timed(words: list[str], folder: Path, env: dict[str, str]) -> float:
    """Seconds a command takes; one that fails ends the benchmark."""
    started_s = time.perf_counter()
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout[-600:] + done.stderr[-600:])
    return time.perf_counter() - started_s


if __name__ == "__main__":
    main()
