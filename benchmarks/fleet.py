"""Ten idempotent tasks without changes, on 1, 8 and 32 sshds on loopback: sparkwright, ansible-playbook, pyinfra.

    make bench-fleet                    (or: .venv/bin/python -m benchmarks.fleet [HOSTS ...])

Needs root and sshd. Ansible and pyinfra are installed into the venv .bench/peers. The time is that of the whole command, the
median of RUNS; the three tools alternate, so that they run under the same conditions, on the same cores as the hosts.
Ansible is tuned: pipelining, ControlPersist, no facts, a fork per host, a given interpreter. Peak memory is that of the
command's largest process. The goals: 7x faster than Ansible, 2x faster than pyinfra, 0.6 s for 1 host and 0.8 s for 10, and
less than 150 MB for 32 hosts.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from tests.remote.sshd import Sshd

from benchmarks import common
from benchmarks.common import SPARKWRIGHT, TOP, Measurement, measure

RUNS = 3
TASKS = 5
PEERS = TOP / ".bench/peers"
PINNED = ("ansible-core==2.19.*", "pyinfra==3.10.*")
RUNTIME = ".local/share/sparkwright"


def main() -> None:
    counts = [int(word) for word in sys.argv[1:]] or [1, 8, 10, 32]
    install_peers()
    with tempfile.TemporaryDirectory(prefix="fl-") as folder:
        lab = Lab(Path(folder), max(counts))
        try:
            print(f"{common.describe_machine()}; ten tasks without changes; median of {RUNS}")
            print(f"{'hosts':>5} {'ours':>8} {'ansible':>9} {'':>7} {'pyinfra':>9} {'':>7} {'ours, peak':>11}")
            for count in counts:
                print(format_row(lab, count), flush=True)
        finally:
            lab.stop()


def format_row(lab: Lab, count: int) -> str:
    """Measure and return one line. The first run of each tool, which copies its files, is not counted."""
    commands = {"ours": lab.ours(count), "ansible": lab.ansible(count), "pyinfra": lab.pyinfra(count)}
    runs: dict[str, list[Measurement]] = {name: [] for name in commands}
    for n in range(RUNS + 1):
        for name, words in commands.items():
            run = measure(words, lab.root, lab.env)
            if n:
                runs[name].append(run)
    seconds = {name: statistics.median(run.seconds for run in rows) for name, rows in runs.items()}
    ours_s, peak_mb = seconds.pop("ours"), max(run.peak_mb for run in runs["ours"])
    cells = "".join(f" {median_s:>8.2f}s {median_s / ours_s:>6.1f}x" for median_s in seconds.values())
    return f"{count:>5} {ours_s:>7.2f}s{cells} {peak_mb:>8.0f} MB"


def install_peers() -> None:
    if (PEERS / "bin/pyinfra").exists() and (PEERS / "bin/ansible-playbook").exists():
        return
    venv.create(PEERS, with_pip=True)
    subprocess.run([str(PEERS / "bin/pip"), "install", "--quiet", *PINNED], check=True)


class Lab:
    """The sshds, and the same ten tasks in each tool's format."""

    def __init__(self, root: Path, hosts: int) -> None:
        self.root = root
        key = common.create_key(root)
        self.sshds = {f"h{n}": Sshd(root / f"s{n}", root / f"h{n}") for n in range(1, hosts + 1)}
        for sshd in self.sshds.values():
            sshd.start()
        (root / "known_hosts").write_text("".join(sshd.known_hosts_line() for sshd in self.sshds.values()))
        common.write_ssh_config(root, key, {name: sshd.port for name, sshd in self.sshds.items()})
        self.env = {
            "PATH": f"{common.write_ssh_wrapper(root)}:/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8",
            "HOME": str(Path.home()), "PYTHONPATH": str(TOP / "src"), "ANSIBLE_CONFIG": str(root / "ansible.cfg"),
        }  # fmt: skip
        self._write_ours()
        self._write_ansible()
        self._write_pyinfra()
        self._share_runtime()

    def stop(self) -> None:
        for sshd in self.sshds.values():
            sshd.stop()

    def _names(self, count: int) -> list[str]:
        return list(self.sshds)[:count]

    def ours(self, count: int) -> list[str]:
        return [*SPARKWRIGHT, "play", "ten", "--host", ",".join(self._names(count))]

    def ansible(self, count: int) -> list[str]:
        limit = ",".join(self._names(count))
        return [str(PEERS / "bin/ansible-playbook"), "-i", "inventory.ini", "--limit", limit, "ansible.yml"]

    def pyinfra(self, count: int) -> list[str]:
        limits = [word for name in self._names(count) for word in ("--limit", name)]
        return [str(PEERS / "bin/pyinfra"), "-y", *limits, "inventory.py", "deploy.py"]

    def _write_ours(self) -> None:
        tasks = []
        for n in range(TASKS):
            tasks.append(f'    - file: {{path: "~/ten/d{n}", state: directory, mode: "0755"}}\n')
            tasks.append(f'    - file: {{path: "~/ten/f{n}", content: "line {n}\\n", mode: "0644"}}\n')
        (self.root / "playbooks").mkdir()
        (self.root / "hosts").mkdir()
        (self.root / "playbooks/ten.yml").write_text("- hosts: all\n  tasks:\n" + "".join(tasks))
        for name in self.sshds:
            (self.root / f"hosts/{name}.yml").write_text(f"home: {self.root}/{name}\n")

    def _write_ansible(self) -> None:
        tasks = []
        for n in range(TASKS):
            tasks.append(f'    - ansible.builtin.file: {{path: "~/ten/d{n}", state: directory, mode: "0755"}}\n')
            tasks.append(f'    - ansible.builtin.copy: {{dest: "~/ten/f{n}", content: "line {n}\\n", mode: "0644"}}\n')
        play = "- hosts: all\n  gather_facts: false\n  tasks:\n"
        (self.root / "ansible.yml").write_text(play + "".join(tasks))
        python = shutil.which("python3", path="/usr/bin") or sys.executable
        rows = [f"{name} ansible_python_interpreter={python}" for name in self.sshds]
        (self.root / "inventory.ini").write_text("\n".join(rows) + "\n")
        (self.root / "ansible.cfg").write_text(
            f"[defaults]\nforks = {len(self.sshds)}\ngathering = explicit\nlocal_tmp = {self.root}/tmp\n"
            f"[ssh_connection]\npipelining = True\ncontrol_path_dir = {self.root}/cp\n"
            f"ssh_args = -F {self.root}/ssh_config -o ControlMaster=auto -o ControlPersist=60s\n"
        )

    def _write_pyinfra(self) -> None:
        same = {"ssh_user": "root", "ssh_key": f"{self.root}/id", "ssh_known_hosts_file": f"{self.root}/known_hosts"}
        rows = [
            (name, {"ssh_hostname": "127.0.0.1", "ssh_port": sshd.port, **same}) for name, sshd in self.sshds.items()
        ]
        (self.root / "inventory.py").write_text(f"hosts = {rows!r}\n")
        imports = ("pyinfra import host", "pyinfra.facts.server import Home", "pyinfra.operations import files")
        lines = ["import io", *(f"from {line}" for line in imports), "home = host.get_fact(Home)"]
        for n in range(TASKS):
            lines.append(f'files.directory(path=f"{{home}}/ten/d{n}", mode="755")')
            lines.append(f'files.put(src=io.StringIO("line {n}\\n"), dest=f"{{home}}/ten/f{n}", mode="644")')
        (self.root / "deploy.py").write_text("\n".join(lines) + "\n")

    def _share_runtime(self) -> None:
        """Copy our runtime to the first host and link it on the others; the copy is not part of the measurement."""
        measure(self.ours(1), self.root, self.env)
        first, *others = self.sshds.values()
        for sshd in others:
            link = sshd.home / RUNTIME
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(first.home / RUNTIME)


if __name__ == "__main__":
    main()
