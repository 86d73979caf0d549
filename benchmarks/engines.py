"""A deploy without changes of each engine's recipe on the sandbox, compared with vLLM's.

    make bench-engines              (or: .venv/bin/python -m benchmarks.engines [ROUNDS])

Each engine has its own sandbox, to which its recipe is deployed until nothing changes. Then the engines alternate, and each round
begins with a different one. The table has medians of the whole command's seconds and of the laptop's CPU seconds, and their ratio
to vLLM's.
"""

import json
import os
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from tests.remote.sshd import free_port

from benchmarks.clients import Absent
from benchmarks.common import SPARKWRIGHT, TOP, Measurement, describe_machine, measure, medians
from sparkwright.project import starter
from sparkwright.sandbox import control

ROUNDS = 12
#: the exit code of a deploy that was refused before anything was changed
REFUSED = 5
DEPLOY = [*SPARKWRIGHT, "deploy", "--host", "sandbox", "--json"]
#: a recipe for each engine; the others are compared with the first
RECIPES = {
    "vLLM": "qwen3.5-35b",
    "llama.cpp": "gpt-oss-120b-gguf",
    "SGLang": "examples/qwen3.8-27b-sglang",
}


@dataclass
class SandboxProject:
    """A project whose sandbox serves one engine's recipe."""

    engine: str
    folder: Path
    runs: list[Measurement] = field(default_factory=list)

    def prepare(self, recipe: str) -> None:
        """Create the files, and deploy until nothing changes. Raises Absent if the sandbox does not have the engine."""
        starter.write_starter(self.folder)
        host = self.folder / "hosts/sandbox.yml"
        text = re.sub(r"serve_port: \d+", f"serve_port: {free_port()}", host.read_text())
        host.write_text(re.sub(r"(?m)^recipe: .*$", f"recipe: {recipe}", text))
        last_line = self.deploy(codes=(0, REFUSED)).output.splitlines()[-1]
        if json.loads(last_line)["exit"] == REFUSED:
            raise Absent(json.loads(last_line)["msg"])
        for _ in range(2):
            self.deploy()

    def deploy(self, codes: tuple[int, ...] = (0,)) -> Measurement:
        own = {"SPARKWRIGHT_SANDBOX_SPEED": "instant", "PYTHONPATH": str(TOP / "src")}
        home = {"HOME": str(self.folder), "XDG_CACHE_HOME": str(self.folder / "cache")}
        return measure(DEPLOY, self.folder, {**os.environ, **own, **home}, codes)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    print(f"{describe_machine()}; medians of {rounds}", flush=True)
    place = Path(tempfile.mkdtemp(prefix="en-"))  # short: a unix socket's path has a limit
    projects: list[SandboxProject] = []
    try:
        for number, (engine, recipe) in enumerate(RECIPES.items()):
            (place / str(number)).mkdir()
            project = SandboxProject(engine, place / str(number))
            try:
                project.prepare(recipe)
                projects.append(project)
            except Absent as error:
                print(f"{engine} is left out: {error}", flush=True)
                control.down(project.folder / ".sandbox")
        for number in range(rounds):
            for at in range(len(projects)):
                project = projects[(number + at) % len(projects)]
                project.runs.append(project.deploy())
        print_table(projects)
    finally:
        for project in projects:
            control.down(project.folder / ".sandbox")
        shutil.rmtree(place, ignore_errors=True)


def print_table(projects: list[SandboxProject]) -> None:
    """Print each engine's medians, and their ratio to the first engine's."""
    first_s, first_cpu_s = medians(projects[0].runs)
    print(f"{'':>10} {'deploy':>8} {'of vLLM':>8} {'CPU':>8} {'of vLLM':>8}")
    for project in projects:
        wall_s, cpu_s = medians(project.runs)
        print(
            f"{project.engine:>10} {wall_s:>7.3f}s {wall_s / first_s:>8.3f} {cpu_s:>7.3f}s {cpu_s / first_cpu_s:>8.3f}"
        )
    print(f"{describe_machine()} at the end")


if __name__ == "__main__":
    main()
