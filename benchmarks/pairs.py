"""A deploy without changes by this tree, compared with one by another commit; they alternate in one run on the same machine.

    .venv/bin/python molecule/bed/bed.py up --hosts 2
    .venv/bin/python -m benchmarks.pairs COMMIT [--pairs 20] [--rtt 0]

Each tree deploys to its own simulated Spark, with its own playbooks, recipes and caches. After half of the pairs they exchange
hosts, which are emptied and deployed to again, so that neither tree keeps a faster host. The trees also take turns in running
first. Both are compiled beforehand, as pip does. The ratio is this tree's median to the other's: above 1, this tree is slower.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common import TOP, Measurement, describe_machine, measure, medians
from benchmarks.delay_proxy import DelayProxy
from benchmarks.noop_over_ssh import BED, DEPLOY, SSH_PORT, create_project

EMPTY = "docker ps -aq | xargs -r docker rm -f; rm -rf ~/.local/state/sparkwright"


@dataclass
class Tree:
    """A checkout that deploys. folder: the folder of its projects and caches."""

    name: str
    top: Path
    folder: Path
    project: Path = Path()
    env: dict[str, str] = field(default_factory=dict)
    runs: list[Measurement] = field(default_factory=list)

    def prepare(self, host: str, rtt_ms: float) -> None:
        """Create the project's files for this tree, and deploy to the emptied host until nothing changes."""
        port = SSH_PORT + int(host.removeprefix("spark")) - 1
        self.folder.mkdir(exist_ok=True)
        place = Path(tempfile.mkdtemp(dir=self.folder))
        self.project, env = create_project(place, DelayProxy(port, rtt_ms / 1000).port if rtt_ms else port, port)
        for name in ("playbooks", "templates", "recipes"):
            shutil.rmtree(self.project / name)
            shutil.copytree(self.top / name, self.project / name)
        shutil.copy(self.top / "molecule/bed/recipe.yml", self.project / "recipes/bed.yml")
        self.env = {**env, "PYTHONPATH": str(self.top / "src"), "XDG_CACHE_HOME": str(self.folder / "cache")}
        subprocess.run(["ssh", host, EMPTY], env=self.env, check=True, stdout=subprocess.DEVNULL)
        for _ in range(3):
            self.deploy(host)

    def deploy(self, host: str) -> Measurement:
        return measure([*DEPLOY, "--host", host, "--json"], self.project, self.env)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="the commit to compare with")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--rtt", type=float, default=0, help="round trip, ms")
    options = parser.parse_args()
    if not (BED / "project/hosts/spark2.yml").is_file():
        sys.exit("start a bed of two first: molecule/bed/bed.py up --hosts 2")
    with tempfile.TemporaryDirectory(prefix="pairs-") as place:
        other = Path(place) / "other"
        subprocess.run(["git", "-C", TOP, "worktree", "add", "--quiet", "--detach", other, options.commit], check=True)
        try:
            for top in (TOP, other):
                subprocess.run([sys.executable, "-m", "compileall", "-q", top / "src"], check=True)
            compare(Tree("this tree", TOP, Path(place) / "a"), Tree(options.commit, other, Path(place) / "b"), options)
        finally:
            subprocess.run(["git", "-C", TOP, "worktree", "remove", "--force", other], check=True)


def compare(ours: Tree, theirs: Tree, options: argparse.Namespace) -> None:
    """Run both trees alternately, and print their results."""
    print(describe_machine(), flush=True)
    for hosts in (("spark1", "spark2"), ("spark2", "spark1")):
        trees = dict(zip(hosts, (ours, theirs), strict=True))
        for host, tree in trees.items():
            tree.prepare(host, options.rtt)
        for n in range(options.pairs // 2):
            for host, tree in sorted(trees.items(), reverse=bool(n % 2)):
                tree.runs.append(tree.deploy(host))
    print(f"{'':>12} {'deploy':>8} {'laptop CPU':>11}")
    for tree in (ours, theirs):
        wall_s, cpu_s = medians(tree.runs)
        print(f"{tree.name[:12]:>12} {wall_s:>7.3f}s {cpu_s:>10.3f}s")
    wall_ratio, cpu_ratio = (a / b for a, b in zip(medians(ours.runs), medians(theirs.runs), strict=True))
    print(f"{'ratio':>12} {wall_ratio:>8.3f} {cpu_ratio:>11.3f}")
    faster = sum(own.seconds < other.seconds for own, other in zip(ours.runs, theirs.runs, strict=True))
    print(f"this tree was the faster one in {faster} of {len(ours.runs)} pairs; {describe_machine()}")


if __name__ == "__main__":
    main()
