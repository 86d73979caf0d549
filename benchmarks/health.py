"""The cost of a health check for the host: CPU time of the program that the timer starts, including its children.

    make bench-health                   (or: .venv/bin/python benchmarks/health.py [CHECKS])

On the sandbox: the engine, the GPU's program and the server are its, the check is the real one, from a shipped runtime, each time
in a process of its own.
The aim: under 0.5 s of CPU time a check.
"""

from __future__ import annotations

import compileall
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

TOP = Path(__file__).parent.parent
sys.path.insert(0, str(TOP))

from tests.remote.sshd import free_port

from sparkwright.health import settings
from sparkwright.host.state import StateFolder
from sparkwright.remote import runtime
from sparkwright.sandbox import control

PROGRAM = "from sparkwright.cli import main; main()"
AIM_S = 0.5


def main() -> None:
    """Print a row for each kind of check."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    os.environ["SPARKWRIGHT_SANDBOX_SPEED"] = "instant"
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        project = Path(name)
        try:
            command(project, "init")
            host = project / "hosts/sandbox.yml"
            host.write_text(re.sub(r"serve_port: \d+", f"serve_port: {free_port()}", host.read_text()))
            command(project, "deploy", "--host", "sandbox")
            report(control.up(project / ".sandbox"), unpacked(project / "runtime"), count)
        finally:
            control.down(project / ".sandbox")


def command(project: Path, *words: str) -> None:
    """Run one of sparkwright's commands."""
    subprocess.run([sys.executable, "-c", PROGRAM, *words], cwd=project, check=True, stdout=subprocess.DEVNULL)


def unpacked(folder: Path) -> list[str]:
    """Return the command line of one check, with a runtime as a host gets it."""
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    with tarfile.open(runtime.ensure_archive(python, platform.machine())) as tar:
        tar.extractall(folder, filter="data")
    compileall.compile_dir(folder / "lib", quiet=1)
    (folder / "lock").touch()  # as unpack.py leaves it
    interpreter = str(Path(sys.executable).resolve())  # without this checkout's packages
    return [interpreter, "-I", str(folder / "lib/sparkwright/runner/scheduled_checks.py"), str(folder / "tag")]


def report(env: dict[str, str], words: list[str], count: int) -> None:
    """Print the table."""
    state = StateFolder.in_home(Path(env["HOME"]))
    print(f"{'check':>28} {'CPU s':>7} {'most':>6} {'wall s':>7}")
    for label, smoke_every_s, times in (("a token", 0.0, count), ("a token and the decode rate", 1e-6, 3)):
        state.write(settings.NAME, settings.Settings(host="bench", smoke_every_s=smoke_every_s).to_json())
        rows = [measured(lambda: check(words, env)) for _ in range(times)]
        cpu, wall = [row[0] for row in rows], [row[1] for row in rows]
        print(f"{label:>28} {statistics.median(cpu):>7.2f} {max(cpu):>6.2f} {statistics.median(wall):>7.2f}")
        if not smoke_every_s and statistics.median(cpu) > AIM_S:
            sys.exit(f"more than {AIM_S} s of CPU time")


def check(words: list[str], env: dict[str, str]) -> None:
    """Run one check as the timer starts it."""
    subprocess.run(words, env={**os.environ, **env}, check=True, stdout=subprocess.DEVNULL)


def measured(act: Callable[[], None]) -> tuple[float, float]:
    """Return the CPU time of its processes and the elapsed time, in seconds."""
    before, started_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    act()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.monotonic() - started_s


if __name__ == "__main__":
    main()
