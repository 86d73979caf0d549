"""A cluster of both pretend Sparks: what runs on each, and what can happen to one of them."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.bed.conftest import TOP, BedProject, CommandResult

HOSTS = ("spark1", "spark2")
QUERY_COMMAND = """curl -s -m 10 -H 'Content-Type: application/json' 127.0.0.1:8000/v1/completions \
  -d '{"model": "qwen3.5-35b", "prompt": "1", "max_tokens": 1}'"""
#: no container, and nothing remembered of checks: how often a host may be restarted counts from here
CLEAR_COMMAND = (
    "docker rm -f qwen35 qwen35-previous; sudo systemctl restart ollama; "
    "find .local/state/sparkwright -maxdepth 1 -name 'health*' -exec rm -rf {} +"
)
#: waits for the file on one host alone
GATE = (
    "test -e /tmp/hold || exit 0; touch /tmp/reached; until [ -e /tmp/open ]; do sleep 0.1; done; test ! -e /tmp/fail"
)
LOCK = ".local/state/sparkwright/lock"
LOCK_PID = f'python3 -c \'import json; print(json.load(open("{LOCK}"))["pid"])\''
RECORD = ".local/state/sparkwright/health.json"
RUN_TIMEOUT_S = 150.0


class ClusterProject(BedProject):
    """A user's folder whose cluster is the two hosts. One of them can be stopped at a gate before a task."""

    def __init__(self, folder: Path, bin_folder: Path) -> None:
        super().__init__(folder, bin_folder)
        self.seqs = 8

    def deploy(self) -> CommandResult:
        return self.run("deploy", "--host", "pair", "--json")

    def deployed(self) -> CommandResult:
        answer = self.deploy()
        assert answer.code in (0, 4), answer.out[-4000:] + answer.err
        return answer

    def change(self) -> None:
        """Ask for another server than the one that runs."""
        before, self.seqs = self.seqs, self.seqs % 60 + 1
        self.recipe(f"max-num-seqs: {before}", f"max-num-seqs: {self.seqs}", "pair")

    # -- what runs ---------------------------------------------------------------------------------------------------

    def running(self) -> dict[str, str]:
        """The Id of each host's one running container, by host."""
        containers = {host: self.on(host, "docker ps --no-trunc -q").split() for host in HOSTS}
        assert all(len(rows) < 2 for rows in containers.values()), f"two servers run on one host: {containers}"
        return {host: rows[0] for host, rows in containers.items() if rows}

    def arguments(self, flag: str) -> dict[str, str]:
        """The value of a flag of the server's command line, by host."""
        inspect = "docker inspect -f '{{json .Config.Cmd}}' qwen35"
        command = {host: list(json.loads(self.on(host, inspect))) for host in HOSTS}
        return {host: found[found.index(f"--{flag}") + 1] for host, found in command.items()}

    def generates(self) -> bool:
        return '"choices"' in self.on("spark1", QUERY_COMMAND)

    def outcome(self, old: dict[str, str]) -> str:
        """Return which ranks serve: old, new, none, or half if only one runs. old: the Ids of the ranks that served before."""
        current = self.running()
        if len(current) < len(HOSTS):
            return "half" if current else "none"
        return ("old" if current == old else "new") if self.generates() else "broken"

    def record(self, host: str) -> dict[str, Any]:
        """The last health check of a host."""
        return dict(json.loads(self.on(host, f"cat {RECORD}") or "{}"))

    def until(self, condition: object, what: str, timeout_s: float = RUN_TIMEOUT_S) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition():  # type: ignore[operator]
            assert time.monotonic() < deadline_s, what
            time.sleep(0.3)

    # -- a gate ------------------------------------------------------------------------------------------------------

    def gate(self, before: str, host: str) -> dict[Path, str]:
        """Hold this host's run before a task of the swap. Returns the playbooks as they were."""
        self.on(host, "rm -f /tmp/reached /tmp/open /tmp/fail; touch /tmp/hold")
        playbooks = {path: path.read_text() for path in (self.root / "playbooks/cluster").rglob("*.yml")}
        gate = f"\\1- name: Gate\n\\1  command: {{argv: [sh, -c, '{GATE}']}}\n\n\\1"
        changed = {path: re.sub(rf"(?m)^( *)(?=- name: {before}\n)", gate, text) for path, text in playbooks.items()}
        assert changed != playbooks, before
        for path, text in changed.items():
            path.write_text(text)
        return playbooks

    def reached(self, host: str, laptop: subprocess.Popen[str]) -> None:
        def reached_or_ended() -> bool:
            return laptop.poll() is not None or self.on(host, "test -e /tmp/reached && echo yes") == "yes"

        self.until(reached_or_ended, "the gate was not reached")
        assert laptop.poll() is None, laptop.communicate()[0][-3000:]

    def ended(self) -> None:
        """Wait until no host's run holds its lock any more, with or without a laptop."""
        for host in HOSTS:
            is_free = f"flock -n {LOCK} true && echo free"
            self.until(lambda host=host, held=is_free: self.on(host, held) == "free", f"the run on {host} does not end")  # type: ignore[misc]

    # -- faults ------------------------------------------------------------------------------------------------------

    def fails(self, host: str) -> None:
        """Let its step fail."""
        self.on(host, "touch /tmp/fail")

    def killed(self, host: str) -> None:
        """Kill its runner with SIGKILL."""
        self.on(host, f"kill -9 $({LOCK_PID})")

    def cut(self, host: str) -> None:
        """End its ssh connections, as a laptop does that goes to sleep."""
        self.on(host, "sudo pkill -KILL -u ops -f 'sshd: ops'")

    def docker(self, host: str) -> None:
        """Kill its Docker Engine and its containers; systemd starts it again."""
        self.on(host, "sudo systemctl kill -s KILL docker containerd; sudo systemctl restart docker")
        self.until(lambda: self.on(host, "docker info > /dev/null 2>&1 && echo yes") == "yes", "no Docker Engine")

    def power(self, host: str) -> None:
        """Cut its power, and boot it."""
        name = f"sparkwright-bed-{host}"
        subprocess.run(["docker", "kill", name], check=True, capture_output=True)
        subprocess.run(["docker", "start", name], check=True, capture_output=True)
        subprocess.run([sys.executable, str(TOP / "molecule/bed/bed.py"), "up", "--hosts", "2"], check=True)
