"""Cells of the fault matrix in which only the GPU is simulated: a real Docker Engine, systemd, sshd, power cuts.

A run waits at a gate before a task of a swap, the host has a fault, and the gate opens. Afterwards a server serves, the previous
or the new one; if the run was killed, after the next deploy.
"""

import json
from collections.abc import Iterator

import pytest

from tests.bed.conftest import PROBE_DOCKER, BedProject

GATE = "touch /tmp/gate-reached; until [ -e /tmp/gate-open ]; do sleep 0.1; done"
QUERY_COMMAND = """curl -s -m 10 -H 'Content-Type: application/json' 127.0.0.1:8000/v1/chat/completions \
  -d '{"model": "qwen3.5-35b", "messages": [{"role": "user", "content": "ok"}], "max_tokens": 1}'"""

#: step before the fault, fault, and the server that serves afterwards
CELLS = [
    ("Wait for its processes to exit", "killed", "new"),
    ("Check that it generates", "killed", "new"),
    ("Start the server", "cut", "new"),
    ("Wait for its processes to exit", "docker", "new"),
    ("Check that it generates", "docker", "old"),
    ("Start the server", "power", "new"),
    ("Check that it generates", "power", "new"),
]


class FaultyHost:
    """spark1, its faults and its containers."""

    def __init__(self, lab: BedProject) -> None:
        self.lab = lab
        self.playbooks = {path: path.read_text() for path in (lab.root / "playbooks").rglob("*.yml")}

    def gate(self, task: str) -> None:
        self.lab.insert_gate(task, GATE)
        self.lab.on("spark1", "rm -f /tmp/gate-*")

    def ungate(self) -> None:
        for path, text in self.playbooks.items():
            path.write_text(text)
        self.lab.on("spark1", "touch /tmp/gate-open")

    def reached(self) -> None:
        self.wait_for("test -e /tmp/gate-reached && echo yes", "yes")

    def wait_for(self, command: str, expected: str) -> None:
        self.lab.wait_for("spark1", command, expected, timeout_s=90)

    def inject(self, fault: str) -> None:
        if fault == "docker":
            self.lab.on("spark1", "sudo systemctl restart docker")
        else:
            getattr(self.lab, fault)("spark1")
        self.wait_for(PROBE_DOCKER, "yes")

    def containers(self) -> list[dict[str, str]]:
        """Return name, state, policy and id of every container."""
        template = '{"name": "{{.Name}}", "state": "{{.State.Status}}", "policy": "{{.HostConfig.RestartPolicy.Name}}", "id": "{{.Id}}"}'
        result = self.lab.on("spark1", f"docker ps -aq | xargs -r docker inspect -f '{template}'")
        return [json.loads(line) for line in result.splitlines()]

    def serves(self) -> str:
        """Wait until the only container generates, check its restart policy, and return its Id."""
        self.wait_for(f"{QUERY_COMMAND} | grep -c choices", "1")
        (container,) = self.containers()
        assert (container["name"], container["state"], container["policy"]) == ("/qwen35", "running", "unless-stopped")
        return container["id"]


@pytest.fixture
def host(lab: BedProject) -> Iterator[FaultyHost]:
    """spark1 with a verified server and a changed recipe."""
    value = FaultyHost(lab)
    assert lab.run("deploy", "--host", "spark1").code == 0
    lab.recipe("max-num-seqs: 8", "max-num-seqs: 5")
    yield value
    value.ungate()
    lab.recipe("max-num-seqs: 5", "max-num-seqs: 8")


@pytest.mark.parametrize(("step", "fault", "expected"), CELLS, ids=[f"{fault}: {step}" for step, fault, _ in CELLS])
def test_one_verified_server_serves_after_a_fault(host: FaultyHost, step: str, fault: str, expected: str) -> None:
    old_server = host.serves()
    host.gate(step)
    laptop = host.lab.start("deploy", "--host", "spark1", "--json")
    host.reached()
    host.inject(fault)
    if fault == "power":
        starting = [container for container in host.containers() if container["policy"] != "no"]
        assert starting == [], "no unverified server is started after a power cut"
    host.ungate()
    laptop.communicate(timeout=120)
    if fault == "cut":
        assert host.lab.run("attach", "--host", "spark1", "--json").recap["failed"] == 0
    elif fault in ("killed", "power"):
        assert laptop.returncode in (1, 3)
        second_run = host.lab.deployed()
        notes = [event["text"] for event in second_run.events if event["event"] == "note"]
        assert any("an earlier run was interrupted" in note and "in: Gate" in note for note in notes), notes
        guarded = step == "Check that it generates" and fault == "power"
        assert ("the host went down at" in second_run.out) == guarded
        if guarded:
            assert "while qwen35 was starting" in second_run.out
            assert "host went down" in host.lab.run("history", "--host", "spark1").out
    else:
        assert laptop.returncode == (0 if expected == "new" else 1)
    now = host.serves()
    assert ("old" if now == old_server else "new") == expected


def test_ollama_stays_stopped_during_the_swap_and_is_started_again(host: FaultyHost) -> None:
    settings = "vars: {ollama: stop, reload_after: true, reserve_gib: 0}"
    host.lab.edit("hosts/groups.yml", "vars: {reserve_gib: 0.5}", settings)
    host.lab.on("spark1", "sudo systemctl restart ollama")
    host.wait_for("systemctl is-active ollama", "active")
    host.wait_for("curl -s 127.0.0.1:11434/api/ps | grep -c qwen3:32b", "1")
    host.gate("Start the server")
    laptop = host.lab.start("deploy", "--host", "spark1", "--json")
    host.reached()
    assert host.lab.on("spark1", "systemctl is-active ollama") == "inactive"
    host.ungate()
    out, _ = laptop.communicate(timeout=120)
    assert laptop.returncode == 0, out[-2000:]
    host.wait_for("systemctl is-active ollama", "active")
    assert host.lab.on("spark1", "curl -s 127.0.0.1:11434/api/ps | grep -c qwen3:32b") == "1"
    assert host.serves()
