"""The cost of `status --watch` for eight hosts without keyboard input: share of one core, bytes drawn per second.

    make bench-watch        (or: .venv/bin/python -m benchmarks.watch [--hosts 8] [--seconds 60]; needs openssh-server)

The hosts are those of benchmarks/status.py. The lower bound is a process that sleeps for the same time.
"""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from benchmarks.common import SPARKWRIGHT
from benchmarks.status import Lab, create_parser, run_lab

WATCH = [*SPARKWRIGHT, "status", "--host", "all", "--watch"]
SETTLED_S = 12.0


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    with run_lab(options.hosts) as lab:
        lab.write_project({name: sshd.port for name, sshd in lab.hosts.items()})
        lab.status()  # copies the runtime
        share, rate = measure_watch(lab, options.seconds)
    idle = measure_sleep(options.seconds)
    print(
        f"{options.hosts} hosts, every 5 s: {share:.2%} of a core (a sleeping process: {idle:.2%}), {rate:.0f} bytes/s drawn"
    )


def measure_watch(lab: Lab, for_s: float) -> tuple[float, float]:
    """Return the share of a core that the command and its ssh clients use once it has settled, and its bytes per second."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    env = {**lab.env, "TERM": "xterm-256color"}
    process = subprocess.Popen(
        WATCH, cwd=lab.project, env=env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    try:
        count_bytes(ours, SETTLED_S)
        before_s, started_s = session_cpu_s(process.pid), time.monotonic()
        count = count_bytes(ours, for_s)
        took_s = time.monotonic() - started_s
        return (session_cpu_s(process.pid) - before_s) / took_s, count / took_s
    finally:
        os.write(ours, b"q")
        process.wait(20)
        os.close(ours)
        os.close(theirs)


def count_bytes(terminal: int, for_s: float) -> int:
    """Return the number of bytes that arrive within for_s seconds."""
    until_s, count = time.monotonic() + for_s, 0
    while (left_s := until_s - time.monotonic()) > 0:
        if select.select([terminal], [], [], left_s)[0]:
            count += len(os.read(terminal, 65536))
    return count


def session_cpu_s(session: int) -> float:
    """Return the CPU seconds of all processes of a session, including children that have ended."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def measure_sleep(for_s: float) -> float:
    """Return the share of a core that a process uses while it only sleeps."""
    process = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({for_s + 2})"], start_new_session=True)
    time.sleep(1)
    before_s = session_cpu_s(process.pid)
    time.sleep(for_s / 4)
    share = (session_cpu_s(process.pid) - before_s) / (for_s / 4)
    process.kill()
    process.wait()
    return share


if __name__ == "__main__":
    main()
