"""A deploy without changes of this tree and of another commit, alternating in one run on the same machine.

    .venv/bin/python molecule/bed/bed.py up --hosts 2
    .venv/bin/python benchmarks/pairs.py COMMIT [--pairs 20] [--rtt 0]

Each tree deploys to a pretend Spark of its own, with its own playbooks, recipes and caches. In the second half they change
places: the hosts are emptied and deployed to anew, so that neither tree has the faster host. Within a pair they take turns to
be the first. Both are compiled before, as pip installs them. The ratio is this tree's median to the other's; above 1 this
tree is slower.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

TOP = Path(__file__).parent.parent
sys.path.insert(0, str(TOP))

from benchmarks.delay_proxy import DelayProxy
from benchmarks.noop_over_ssh import BED, DEPLOY, SSH_PORT, cpu_timed, laid, timed

EMPTY = "docker ps -aq | xargs -r docker rm -f; rm -rf ~/.local/state/sparkwright"


@dataclass
class Tree:
    """A checkout that deploys. runs: (seconds of the command, CPU seconds on the laptop)."""

    name: str
    top: Path
    folder: Path
    project: Path = Path()
    env: dict[str, str] = field(default_factory=dict)
    runs: list[tuple[float, float]] = field(default_factory=list)

    def lay(self, host: str, rtt_ms: float) -> None:
        """Create the project's files for this tree, and an ssh that reaches the host with this latency."""
        port = SSH_PORT + int(host.removeprefix("spark")) - 1
        place = Path(tempfile.mkdtemp(dir=self.folder))
        self.project, env = laid(place, DelayProxy(port, rtt_ms / 1000).port if rtt_ms else port, port)
        for name in ("playbooks", "templates", "recipes"):
            shutil.rmtree(self.project / name)
            shutil.copytree(self.top / name, self.project / name)
        shutil.copy(self.top / "molecule/bed/recipe.yml", self.project / "recipes/bed.yml")
        self.env = {**env, "PYTHONPATH": str(self.top / "src"), "XDG_CACHE_HOME": str(self.folder / "cache")}

    def deploy(self, host: str) -> tuple[float, float]:
        """Deploy to this host, and record the seconds and the CPU seconds."""
        return cpu_timed([*DEPLOY, "--host", host, "--json"], self.project, self.env)


def main() -> None:
    """Print both trees' medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="the commit to compare with")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--rtt", type=float, default=0, help="round trip, ms")
    given = parser.parse_args()
    if not (BED / "project/hosts/spark2.yml").is_file():
        sys.exit("bring a bed of two up first: molecule/bed/bed.py up --hosts 2")
    with tempfile.TemporaryDirectory(prefix="pairs-") as place:
        other = Path(place) / "other"
        subprocess.run(["git", "-C", TOP, "worktree", "add", "--quiet", "--detach", other, given.commit], check=True)
        try:
            for top in (TOP, other):
                subprocess.run([sys.executable, "-m", "compileall", "-q", top / "src"], check=True)
            compare(Tree("this tree", TOP, folder(place, "a")), Tree(given.commit, other, folder(place, "b")), given)
        finally:
            subprocess.run(["git", "-C", TOP, "worktree", "remove", "--force", other], check=True)


def folder(place: str, name: str) -> Path:
    """Return the folder of a tree."""
    path = Path(place) / name
    path.mkdir()
    return path


def compare(ours: Tree, theirs: Tree, given: argparse.Namespace) -> None:
    """Run both trees alternately, and print their results."""
    print(f"load {os.getloadavg()[0]:.2f}", flush=True)
    for hosts in (("spark1", "spark2"), ("spark2", "spark1")):
        trees = dict(zip(hosts, (ours, theirs), strict=True))
        for host, tree in trees.items():
            prepare(tree, host, given.rtt)
        for n in range(given.pairs // 2):
            for host, tree in sorted(trees.items(), reverse=bool(n % 2)):
                tree.runs.append(tree.deploy(host))
    print(f"{'':>12} {'deploy':>8} {'laptop CPU':>11}")
    for tree in (ours, theirs):
        wall, cpu = medians(tree)
        print(f"{tree.name[:12]:>12} {wall:>7.3f}s {cpu:>10.3f}s")
    ratios = [one / other for one, other in zip(medians(ours), medians(theirs), strict=True)]
    print(f"{'ratio':>12} {ratios[0]:>8.3f} {ratios[1]:>11.3f}")
    quicker = sum(one < other for (one, _), (other, _) in zip(ours.runs, theirs.runs, strict=True))
    print(f"this tree was the faster one in {quicker} of {len(ours.runs)} pairs; load {os.getloadavg()[0]:.2f}")


def prepare(tree: Tree, host: str, rtt_ms: float) -> None:
    """Deploy to an empty host until nothing changes."""
    tree.lay(host, rtt_ms)
    subprocess.run(["ssh", host, EMPTY], env=tree.env, check=True, stdout=subprocess.DEVNULL)
    for _ in range(3):
        timed([*DEPLOY, "--host", host, "--json"], tree.project, tree.env)


def medians(tree: Tree) -> tuple[float, float]:
    """The medians of the seconds and of the CPU seconds."""
    wall, cpu = zip(*tree.runs, strict=True)
    return statistics.median(wall), statistics.median(cpu)


if __name__ == "__main__":
    main()
