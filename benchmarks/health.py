"""The cost of a health check on the host: CPU time of the program that the timer starts, including its children.

    make bench-health                   (or: .venv/bin/python -m benchmarks.health [CHECKS])

The Docker Engine, nvidia-smi and the server are the sandbox's. The check is real: it runs from a copied runtime, each time in a
new process. The goal: less than 0.5 s of CPU time per check.
"""

import compileall
import os
import platform
import re
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.remote.sshd import free_port

from benchmarks.common import SPARKWRIGHT, measure, medians
from sparkwright.health import settings
from sparkwright.host.state import StateFolder
from sparkwright.remote import runtime
from sparkwright.sandbox import control

GOAL_S = 0.5


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    os.environ["SPARKWRIGHT_SANDBOX_SPEED"] = "instant"
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        project = Path(name)
        try:
            run_command(project, "init")
            host = project / "hosts/sandbox.yml"
            host.write_text(re.sub(r"serve_port: \d+", f"serve_port: {free_port()}", host.read_text()))
            run_command(project, "deploy", "--host", "sandbox")
            print_table(project, control.up(project / ".sandbox"), unpack_runtime(project / "runtime"), count)
        finally:
            control.down(project / ".sandbox")


def run_command(project: Path, *words: str) -> None:
    measure([*SPARKWRIGHT, *words], project, os.environ)


def unpack_runtime(folder: Path) -> list[str]:
    """Return the command line of one check, with a runtime like that of a host."""
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    with tarfile.open(runtime.ensure_archive(python, platform.machine())) as tar:
        tar.extractall(folder, filter="data")
    compileall.compile_dir(folder / "lib", quiet=1)
    (folder / "lock").touch()  # as unpack.py does
    interpreter = str(Path(sys.executable).resolve())  # without this checkout's packages
    return [interpreter, "-I", str(folder / "lib/sparkwright/runner/scheduled_checks.py"), str(folder / "tag")]


def print_table(folder: Path, env: dict[str, str], words: list[str], count: int) -> None:
    """Print the table. words: command that runs one check, as the timer does."""
    state = StateFolder.in_home(Path(env["HOME"]))
    print(f"{'check':>28} {'CPU s':>7} {'most':>6} {'wall s':>7}")
    for label, smoke_every_s, times in (("a token", 0.0, count), ("a token and the decode rate", 1e-6, 3)):
        state.write(settings.NAME, settings.Settings(host="bench", smoke_every_s=smoke_every_s).to_json())
        runs = [measure(words, folder, {**os.environ, **env}) for _ in range(times)]
        wall_s, cpu_s = medians(runs)
        print(f"{label:>28} {cpu_s:>7.2f} {max(run.cpu_s for run in runs):>6.2f} {wall_s:>7.2f}")
        if not smoke_every_s and cpu_s > GOAL_S:
            sys.exit(f"more than {GOAL_S} s of CPU time")


if __name__ == "__main__":
    main()
