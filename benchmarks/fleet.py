"""Ten idempotent tasks without changes, on 1, 8 and 32 sshds on loopback: sparkwright, ansible-playbook, pyinfra.

    make bench-fleet                    (or: .venv/bin/python benchmarks/fleet.py [HOSTS ...])

Needs root and sshd. The peers are installed into .bench/peers, a venv of its own. What is measured is the whole command, from
its process's start to its end, the median of RUNS; the three take turns, so that they meet the same machine. Everybody runs
on the same cores as the hosts. Ansible is tuned: pipelining, ControlPersist, no facts, a fork a host, the interpreter given.
Peak memory is that of the command's own process, and of the largest of its children for Ansible, which forks.
The aims: 7 x faster than Ansible, 2 x faster than pyinfra, 0.6 s for 1 host and 0.8 s for 10, under 150 MB at 32 hosts.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

TOP = Path(__file__).parent.parent
sys.path[:0] = [str(TOP), str(TOP / "src")]

from tests.remote.sshd import Sshd

RUNS = 3
TASKS = 5
PEERS = TOP / ".bench/peers"
PINNED = ("ansible-core==2.19.*", "pyinfra==3.10.*")
OURS = [sys.executable, "-c", "from sparkwright.cli import main; main()"]
RUNTIME = ".local/share/sparkwright"


@dataclass
class Measured:
    """A tool's runs: the seconds of each, and the highest peak memory in MB."""

    seconds: list[float] = field(default_factory=list)
    peak_mb: float = 0

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)


def main() -> None:
    """Print a line for each number of hosts."""
    counts = [int(word) for word in sys.argv[1:]] or [1, 8, 10, 32]
    peers()
    with tempfile.TemporaryDirectory(prefix="fl-") as folder:
        lab = Lab(Path(folder), max(counts))
        try:
            print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; ten tasks, nothing to do; median of {RUNS}")
            print(f"{'hosts':>5} {'ours':>8} {'ansible':>9} {'':>7} {'pyinfra':>9} {'':>7} {'ours, peak':>11}")
            for count in counts:
                print(row(lab, count), flush=True)
        finally:
            lab.stop()


def row(lab: Lab, count: int) -> str:
    """Return one line. The first run of each tool, which copies its files, is not counted."""
    commands = {"ours": lab.ours(count), "ansible": lab.ansible(count), "pyinfra": lab.pyinfra(count)}
    found = {name: Measured() for name in commands}
    for n in range(RUNS + 1):
        for name, words in commands.items():
            seconds, peak_mb = timed(words, lab.root, lab.env)
            if n:
                found[name].seconds.append(seconds)
                found[name].peak_mb = max(found[name].peak_mb, peak_mb)
    ours = found["ours"].median_s
    cells = "".join(f" {found[n].median_s:>8.2f}s {found[n].median_s / ours:>6.1f}x" for n in ("ansible", "pyinfra"))
    return f"{count:>5} {ours:>7.2f}s{cells} {found['ours'].peak_mb:>8.0f} MB"


def timed(words: Sequence[str], folder: Path, env: dict[str, str]) -> tuple[float, float]:
    """Return a command's seconds and its peak memory in MB; a failure ends the benchmark."""
    with tempfile.TemporaryFile() as out:
        started_s = time.perf_counter()
        process = subprocess.Popen(words, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started_s
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            out.seek(0)
            sys.exit(f"{' '.join(words[:2])} ended with {process.returncode}: {out.read()[-1500:].decode()}")
    return seconds, usage.ru_maxrss / 1024


def peers() -> None:
    """Install Ansible and pyinfra in their own venv."""
    if (PEERS / "bin/pyinfra").exists() and (PEERS / "bin/ansible-playbook").exists():
        return
    venv.create(PEERS, with_pip=True)
    subprocess.run([str(PEERS / "bin/pip"), "install", "--quiet", *PINNED], check=True)


class Lab:
    """The sshds, and the same ten tasks in each tool's format."""

    def __init__(self, root: Path, hosts: int) -> None:
        self.root = root
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(root / "id")], check=True)
        self.sshds = [Sshd(root / f"s{n}", root / f"h{n}") for n in range(1, hosts + 1)]
        for one in self.sshds:
            one.start()
        (root / "known_hosts").write_text("".join(one.known_hosts_line() for one in self.sshds))
        self.env = {
            "PATH": f"{root / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(Path.home()),
            "PYTHONPATH": str(TOP / "src"),
            "ANSIBLE_CONFIG": str(root / "ansible.cfg"),
            "LC_ALL": "C.UTF-8",
        }
        self._ssh()
        self._ours()
        self._ansible()
        self._pyinfra()
        self._share_runtime()

    def stop(self) -> None:
        """Stop every sshd."""
        for one in self.sshds:
            one.stop()

    def ours(self, count: int) -> list[str]:
        names = ",".join(f"h{n}" for n in range(1, count + 1))
        return [*OURS, "play", "ten", "--host", names]

    def ansible(self, count: int) -> list[str]:
        names = ",".join(f"h{n}" for n in range(1, count + 1))
        return [str(PEERS / "bin/ansible-playbook"), "-i", "inventory.ini", "--limit", names, "ansible.yml"]

    def pyinfra(self, count: int) -> list[str]:
        names = [word for n in range(1, count + 1) for word in ("--limit", f"h{n}")]
        return [str(PEERS / "bin/pyinfra"), "-y", *names, "inventory.py", "deploy.py"]

    def _ssh(self) -> None:
        blocks = [f"Host h{n}\n  HostName 127.0.0.1\n  Port {one.port}\n" for n, one in enumerate(self.sshds, 1)]
        common = "  User root\n  IdentitiesOnly yes\n  IdentityAgent none\n"
        files = f"  IdentityFile {self.root}/id\n  UserKnownHostsFile {self.root}/known_hosts\n"
        (self.root / "ssh_config").write_text("".join(blocks) + f"Host *\n{common}{files}")
        wrapper = self.root / "bin/ssh"
        wrapper.parent.mkdir()
        wrapper.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F "{self.root}/ssh_config" "$@"\n')
        wrapper.chmod(0o755)

    def _ours(self) -> None:
        tasks = []
        for n in range(TASKS):
            tasks.append(f'    - file: {{path: "~/ten/d{n}", state: directory, mode: "0755"}}\n')
            tasks.append(f'    - file: {{path: "~/ten/f{n}", content: "line {n}\\n", mode: "0644"}}\n')
        (self.root / "playbooks").mkdir()
        (self.root / "hosts").mkdir()
        (self.root / "playbooks/ten.yml").write_text("- hosts: all\n  tasks:\n" + "".join(tasks))
        for n in range(1, len(self.sshds) + 1):
            (self.root / f"hosts/h{n}.yml").write_text(f"home: {self.root}/h{n}\n")

    def _ansible(self) -> None:
        tasks = []
        for n in range(TASKS):
            tasks.append(f'    - ansible.builtin.file: {{path: "~/ten/d{n}", state: directory, mode: "0755"}}\n')
            tasks.append(f'    - ansible.builtin.copy: {{dest: "~/ten/f{n}", content: "line {n}\\n", mode: "0644"}}\n')
        play = "- hosts: all\n  gather_facts: false\n  tasks:\n"
        (self.root / "ansible.yml").write_text(play + "".join(tasks))
        python = shutil.which("python3", path="/usr/bin") or sys.executable
        rows = [f"h{n} ansible_python_interpreter={python}" for n in range(1, len(self.sshds) + 1)]
        (self.root / "inventory.ini").write_text("\n".join(rows) + "\n")
        (self.root / "ansible.cfg").write_text(
            f"[defaults]\nforks = {len(self.sshds)}\ngathering = explicit\nlocal_tmp = {self.root}/tmp\n"
            f"[ssh_connection]\npipelining = True\ncontrol_path_dir = {self.root}/cp\n"
            f"ssh_args = -F {self.root}/ssh_config -o ControlMaster=auto -o ControlPersist=60s\n"
        )

    def _pyinfra(self) -> None:
        same = {"ssh_user": "root", "ssh_key": f"{self.root}/id", "ssh_known_hosts_file": f"{self.root}/known_hosts"}
        rows = [
            (f"h{n}", {"ssh_hostname": "127.0.0.1", "ssh_port": one.port, **same})
            for n, one in enumerate(self.sshds, 1)
        ]
        (self.root / "inventory.py").write_text(f"hosts = {rows!r}\n")
        lines = [
            "import io",
            "from pyinfra import host",
            "from pyinfra.facts.server import Home",
            "from pyinfra.operations import files",
            "",
        ]
        lines.append("home = host.get_fact(Home)")
        for n in range(TASKS):
            lines.append(f'files.directory(path=f"{{home}}/ten/d{n}", mode="755")')
            lines.append(f'files.put(src=io.StringIO("line {n}\\n"), dest=f"{{home}}/ten/f{n}", mode="644")')
        (self.root / "deploy.py").write_text("\n".join(lines) + "\n")

    def _share_runtime(self) -> None:
        """Copy our runtime to the first host and reuse it for the others, because copying is not measured."""
        timed(self.ours(1), self.root, self.env)
        for one in self.sshds[1:]:
            folder = one.home / RUNTIME
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.symlink_to(self.sshds[0].home / RUNTIME)


if __name__ == "__main__":
    main()
