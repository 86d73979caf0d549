"""Functions that benchmarks share: measured commands, ssh to sshds on loopback."""

import getpass
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).parent.parent
SPARKWRIGHT = (sys.executable, "-c", "from sparkwright.cli import main; main()")


@dataclass(frozen=True)
class Measurement:
    """The output and cost of a command. cpu_s includes its children; peak_mb is that of the largest process."""

    output: str
    seconds: float
    cpu_s: float
    peak_mb: float


def measure(words: Sequence[str], folder: Path, env: Mapping[str, str], codes: Sequence[int] = (0,)) -> Measurement:
    """Run a command until it ends. An exit code other than these ends the benchmark."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        started_s = time.perf_counter()
        process = subprocess.Popen(words, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started_s
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        errors.seek(0)
        output = out.read()
        if process.returncode not in codes:
            sys.exit(f"{' '.join(words[:3])} ended with {process.returncode}: {(output + errors.read())[-1500:]}")
    return Measurement(output, seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def medians(runs: Sequence[Measurement]) -> tuple[float, float]:
    """Return the medians of the seconds and of the CPU seconds."""
    return statistics.median(run.seconds for run in runs), statistics.median(run.cpu_s for run in runs)


def describe_machine() -> str:
    return f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"


def create_key(folder: Path) -> Path:
    """Create a key pair, and return the path of the private key."""
    path = folder / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


def write_ssh_config(folder: Path, key: Path, ports: Mapping[str, int]) -> None:
    """Write an ssh_config that connects to these hosts on loopback by name."""
    hosts = "".join(f"Host {name}\n  HostName 127.0.0.1\n  Port {port}\n" for name, port in ports.items())
    options = f"  User {getpass.getuser()}\n  IdentityFile {key}\n  IdentitiesOnly yes\n  IdentityAgent none\n"
    known_hosts = f"  UserKnownHostsFile {folder}/known_hosts\n"
    (folder / "ssh_config").write_text(f"{hosts}Host *\n{options}{known_hosts}")


def write_ssh_wrapper(folder: Path) -> Path:
    """Write an `ssh` that reads the folder's ssh_config, and return its folder, which goes into the PATH."""
    wrapper = folder / "bin/ssh"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F "{folder}/ssh_config" "$@"\n')
    wrapper.chmod(0o755)
    return wrapper.parent


def ssh_true_s(names: Sequence[str], env: Mapping[str, str]) -> float:
    """Return the seconds that OpenSSH's own `ssh HOST true` takes on all hosts at once."""

    def log_in(name: str) -> None:
        subprocess.run(["ssh", name, "true"], env=env, input=b"\n", capture_output=True, check=True)

    started_s = time.perf_counter()
    with ThreadPoolExecutor(max_workers=len(names)) as pool:
        list(pool.map(log_in, names))
    return time.perf_counter() - started_s
