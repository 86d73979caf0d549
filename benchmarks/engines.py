"""A deploy without changes of each engine's recipe on the sandbox, compared with vLLM's.

    make bench-engines              (or: .venv/bin/python benchmarks/engines.py [ROUNDS])

A sandbox for each, deployed to until nothing changes; then they take turns, each round beginning with another. The whole command:
its seconds, and the processor seconds of the laptop's side. Medians, and the ratio to vLLM's.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

TOP = Path(__file__).parent.parent
sys.path[:0] = [str(TOP), str(TOP / "src")]

from benchmarks.clients import Absent
from benchmarks.noop_over_ssh import cpu_timed, timed
from sparkwright.project import starter
from sparkwright.sandbox import control

ROUNDS = 12
#: the exit code of a deploy that was refused before anything was touched
REFUSED = 5
SPARKWRIGHT = [sys.executable, "-c", "from sparkwright.cli import main; main()"]
DEPLOY = [*SPARKWRIGHT, "deploy", "--host", "sandbox", "--json"]
#: an engine and a recipe of it; vLLM's, which the others are compared with, first
RECIPES = {
    "vLLM": "qwen3.5-35b",
    "llama.cpp": "gpt-oss-120b-gguf",
    "SGLang": "examples/qwen3.8-27b-sglang",
}


@dataclass
class Desk:
    """A project whose sandbox serves a recipe. runs: (seconds, CPU seconds) of each deploy."""

    engine: str
    folder: Path
    runs: list[tuple[float, float]] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        own = {"SPARKWRIGHT_SANDBOX_SPEED": "instant", "PYTHONPATH": str(TOP / "src")}
        return {**os.environ, **own, "HOME": str(self.folder), "XDG_CACHE_HOME": str(self.folder / "cache")}

    def lay(self, recipe: str) -> None:
        """Create the files, and deploy until nothing changes. Raises Absent if the sandbox does not have the engine."""
        starter.write_starter(self.folder)
        host = self.folder / "hosts/sandbox.yml"
        with socket.create_server(("127.0.0.1", 0)) as one:
            port = one.getsockname()[1]
        text = re.sub(r"serve_port: \d+", f"serve_port: {port}", host.read_text())
        host.write_text(re.sub(r"(?m)^recipe: .*$", f"recipe: {recipe}", text))
        first = subprocess.run(DEPLOY, cwd=self.folder, env=self.env, capture_output=True, text=True)
        if first.returncode == REFUSED:
            raise Absent(json.loads(first.stdout.splitlines()[-1])["msg"])
        for _ in range(2):
            timed(DEPLOY, self.folder, self.env)

    def deploy(self) -> None:
        """Deploy once more, measured."""
        self.runs.append(cpu_timed(DEPLOY, self.folder, self.env))

    def medians(self) -> tuple[float, float]:
        """The medians of the seconds and of the CPU seconds."""
        wall, cpu = zip(*self.runs, strict=True)
        return statistics.median(wall), statistics.median(cpu)


def main() -> None:
    """Print the table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; medians of {rounds}", flush=True)
    place = Path(tempfile.mkdtemp(prefix="en-"))  # short: a unix socket's path has a limit
    desks: list[Desk] = []
    try:
        for number, (engine, recipe) in enumerate(RECIPES.items()):
            (place / str(number)).mkdir()
            desk = Desk(engine, place / str(number))
            try:
                desk.lay(recipe)
                desks.append(desk)
            except Absent as error:
                print(f"{engine} is left out: {error}", flush=True)
                control.down(desk.folder / ".sandbox")
        for number in range(rounds):
            for at in range(len(desks)):
                desks[(number + at) % len(desks)].deploy()
        table(desks)
    finally:
        for desk in desks:
            control.down(desk.folder / ".sandbox")
        shutil.rmtree(place, ignore_errors=True)


def table(desks: list[Desk]) -> None:
    """Each engine's medians, and their ratio to the first's."""
    usual = desks[0].medians()
    print(f"{'':>10} {'deploy':>8} {'of vLLM':>8} {'CPU':>8} {'of vLLM':>8}")
    for desk in desks:
        wall, cpu = desk.medians()
        print(f"{desk.engine:>10} {wall:>7.3f}s {wall / usual[0]:>8.3f} {cpu:>7.3f}s {cpu / usual[1]:>8.3f}")
    print(f"load {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
