"""A cluster of both simulated Sparks: which ranks run, and faults of a member."""

import json
import subprocess
from pathlib import Path

from tests.bed.conftest import BUSY_CODES, LOCK, PROBE_DOCKER, BedProject, CommandResult
from tests.waiting import wait_until

HOSTS = ("spark1", "spark2")
QUERY_COMMAND = """curl -s -m 10 -H 'Content-Type: application/json' 127.0.0.1:8000/v1/completions \
  -d '{"model": "qwen3.5-35b", "prompt": "1", "max_tokens": 1}'"""
#: removes containers and records of checks, which limit the number of restarts
CLEAR_COMMAND = (
    "docker rm -f qwen35 qwen35-previous; sudo systemctl restart ollama; "
    "find .local/state/sparkwright -maxdepth 1 -name 'health*' -exec rm -rf {} +"
)
#: waits for the file `open` on a host with the file `hold`
GATE = (
    "test -e /tmp/hold || exit 0; touch /tmp/reached; until [ -e /tmp/open ]; do sleep 0.1; done; test ! -e /tmp/fail"
)
RUN_TIMEOUT_S = 150.0


class ClusterProject(BedProject):
    """A project with a cluster of the two hosts. The run of a host can be stopped at a gate before a task."""

    def __init__(self, folder: Path, bin_folder: Path) -> None:
        super().__init__(folder, bin_folder)
        self.seqs = 8

    def deploy(self, host: str = "pair") -> CommandResult:
        return super().deploy(host)

    def deployed(self, host: str = "pair", codes: tuple[int, ...] = BUSY_CODES) -> CommandResult:
        return super().deployed(host, codes)

    def change(self) -> None:
        before, self.seqs = self.seqs, self.seqs % 60 + 1
        self.recipe(f"max-num-seqs: {before}", f"max-num-seqs: {self.seqs}", "pair")

    # -- what runs ---------------------------------------------------------------------------------------------------

    def running(self) -> dict[str, str]:
        """Return the Id of the running container by host."""
        containers = {host: self.on(host, "docker ps --no-trunc -q").split() for host in HOSTS}
        assert all(len(rows) < 2 for rows in containers.values()), f"two servers run on one host: {containers}"
        return {host: rows[0] for host, rows in containers.items() if rows}

    def arguments(self, flag: str) -> dict[str, str]:
        """Return the value of a flag of the server's command line, by host."""
        inspect = "docker inspect -f '{{json .Config.Cmd}}' qwen35"
        commands = {host: list(json.loads(self.on(host, inspect))) for host in HOSTS}
        return {host: command[command.index(f"--{flag}") + 1] for host, command in commands.items()}

    def generates(self) -> bool:
        return '"choices"' in self.on("spark1", QUERY_COMMAND)

    def outcome(self, old: dict[str, str]) -> str:
        """Return which ranks serve: old, new, none, or half if only one runs. old: the Ids of the ranks that served before."""
        current = self.running()
        if len(current) < len(HOSTS):
            return "half" if current else "none"
        return ("old" if current == old else "new") if self.generates() else "broken"

    def wait_for_state(self, host: str, state: str) -> None:
        wait_until(lambda: self.health_record(host).get("state") == state, f"{state} on {host}", RUN_TIMEOUT_S)

    # -- a gate ------------------------------------------------------------------------------------------------------

    def gate(self, task: str, host: str) -> dict[Path, str]:
        """Hold this host's run before a task of the swap, and return the playbooks without the gate."""
        self.on(host, "rm -f /tmp/reached /tmp/open /tmp/fail; touch /tmp/hold")
        return self.insert_gate(task, GATE, "playbooks/cluster")

    def reached(self, host: str, laptop: subprocess.Popen[str]) -> None:
        def reached_or_ended() -> bool:
            return laptop.poll() is not None or self.on(host, "test -e /tmp/reached && echo yes") == "yes"

        wait_until(reached_or_ended, "the gate", RUN_TIMEOUT_S)
        assert laptop.poll() is None, laptop.communicate()[0][-3000:]

    def ended(self) -> None:
        """Wait until no run holds its host's lock, with or without a laptop."""
        for host in HOSTS:
            self.wait_for(host, f"flock -n {LOCK} true && echo free", "free", RUN_TIMEOUT_S)

    # -- faults ------------------------------------------------------------------------------------------------------

    def fails(self, host: str) -> None:
        self.on(host, "touch /tmp/fail")

    def docker(self, host: str) -> None:
        """Kill the host's Docker Engine and its containers, and let systemd start it again."""
        self.on(host, "sudo systemctl kill -s KILL docker containerd; sudo systemctl restart docker")
        self.wait_for(host, PROBE_DOCKER, "yes", RUN_TIMEOUT_S)
