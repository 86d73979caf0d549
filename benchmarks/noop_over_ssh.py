"""A deploy without changes over ssh: seconds, connections and round trips, compared with the lower bound of the same run.

    make bed && make bench

The lower bound is OpenSSH's own `ssh HOST true` through the same proxy. The time is that of the whole command, including
0.2 s for one verified answer of the server.
"""

import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common import SPARKWRIGHT, TOP, measure, medians, ssh_true_s, write_ssh_wrapper
from benchmarks.delay_proxy import DelayProxy

BED = TOP / ".bed"
RUNS = 5
SSH_PORT = 22201
DEPLOY = [*SPARKWRIGHT, "deploy"]


def main() -> None:
    """Print a line for each round-trip time, each number of hosts, and a cluster."""
    if not (BED / "project").is_dir():
        sys.exit("start the bed first: make bed")
    print(
        f"{'round trip':>10} {'deploy':>8} {'ssh true':>9} {'connections':>12} {'turns':>6} {'KB up':>6} {'KB down':>8}"
    )
    for rtt_ms in (0, 20, 40):
        with tempfile.TemporaryDirectory() as folder:
            print(format_row(Path(folder), rtt_ms))
    print(f"\n{'hosts':>10} {'deploy':>8} {'of one':>7} {'laptop CPU':>11} {'of one':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for line in format_rows_by_hosts(Path(folder)):
            print(line)
    with tempfile.TemporaryDirectory() as folder:
        print(format_row_of_cluster(Path(folder)))


def format_row(folder: Path, rtt_ms: int) -> str:
    """Return one line with the medians of RUNS, measured after a run that leaves nothing to change."""
    proxy = DelayProxy(SSH_PORT, rtt_ms / 1000)
    project, env = create_project(folder, proxy.port)
    deploy = [*DEPLOY, "--host", "spark1", "--json"]
    measure(deploy, project, env)
    before = vars(proxy.counts).copy()
    deploy_s = statistics.median(measure(deploy, project, env).seconds for _ in range(RUNS))
    each = {name: (count - before[name]) / RUNS for name, count in vars(proxy.counts).items()}
    floor_s = statistics.median(ssh_true_s(["spark1"], env) for _ in range(RUNS))
    return (
        f"{rtt_ms:>7} ms {deploy_s:>7.2f}s {floor_s:>8.2f}s {each['connections']:>12.1f} "
        f"{each['turns']:>6.1f} {each['bytes_up'] / 1000:>6.1f} {each['bytes_down'] / 1000:>8.1f}"
    )


def format_rows_by_hosts(folder: Path) -> Iterator[str]:
    """Yield lines for 1, 2, 4 ... of the bed's hosts at once. They share the laptop's cores, so its CPU time is listed too.

    For eight hosts, run `molecule/bed/bed.py up --hosts 8`, then deploy to all of them once.
    """
    names = sorted(path.stem for path in (BED / "project/hosts").glob("spark*.yml"))
    project, env = create_project(folder, SSH_PORT)
    first: tuple[float, float] | None = None
    for count in (1, 2, 4, 8, 16):
        if count > len(names):
            return
        words = [*DEPLOY, "--host", ",".join(names[:count]), "--serial", "100%", "--json"]
        measure(words, project, env)
        wall_s, cpu_s = medians([measure(words, project, env) for _ in range(RUNS)])
        first = first or (wall_s, cpu_s)
        yield f"{count:>10} {wall_s:>7.2f}s {wall_s / first[0]:>6.1f}x {cpu_s:>10.2f}s {cpu_s / first[1]:>6.1f}x"


def format_row_of_cluster(folder: Path) -> str:
    """Return a line for the bed's cluster of two hosts, alternating with a third host that serves alone."""
    if not (BED / "project/hosts/spark3.yml").is_file():
        return f"{'a cluster':>10} not measured: molecule/bed/bed.py up --hosts 3"
    commands = []
    for source, host in (("project", "spark3"), ("pair", "pair")):
        (folder / source).mkdir()
        project, env = create_project(folder / source, SSH_PORT, source=source)
        commands.append(([*DEPLOY, "--host", host, "--json"], project, env))
        measure(*commands[-1])
    turns = [[measure(*command) for command in commands] for _ in range(2 * RUNS)]
    wall_s, cpu_s = medians([pair for _, pair in turns])
    ratio = statistics.median(pair.seconds / single.seconds for single, pair in turns)
    cpu_ratio = statistics.median(pair.cpu_s / single.cpu_s for single, pair in turns)
    return f"{'a cluster':>10} {wall_s:>7.2f}s {ratio:>6.1f}x {cpu_s:>10.2f}s {cpu_ratio:>6.1f}x"


def create_project(
    folder: Path, port: int, host_port: int = SSH_PORT, source: str = "project"
) -> tuple[Path, dict[str, str]]:
    """Copy a project of the bed, with an ssh that connects to a proxy's `port` instead of the host's own."""
    project = folder / "project"
    shutil.copytree(BED / source, project)
    groups = project / "hosts/groups.yml"
    groups.write_text(
        groups.read_text().replace("lab: {}", "lab: {min_serving: 0}")
    )  # for deploys of all hosts at once
    config = re.sub(rf"Port {host_port}\b", f"Port {port}", (BED / "ssh_config").read_text())
    (folder / "ssh_config").write_text(config.replace(f"{BED}/known_hosts", f"{folder}/known_hosts"))
    known_hosts = (BED / "known_hosts").read_text().replace(f":{host_port} ", f":{port} ")
    (folder / "known_hosts").write_text(known_hosts)
    path = f"{write_ssh_wrapper(folder)}:/usr/local/bin:/usr/bin:/bin"
    return project, {"PATH": path, "HOME": str(Path.home()), "PYTHONPATH": str(TOP / "src")}


if __name__ == "__main__":
    main()
