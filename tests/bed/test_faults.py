"""The fault matrix's hardest cells where nothing is pretended but the GPU: a real Docker Engine, systemd, sshd, a power cut.

A gate stands before one task of a swap; while the run waits there something is broken on the host, and the gate opens.
Afterwards, or after the next deploy when the run itself was killed, one server serves: the old or the new one.
"""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.bed.conftest import TOP, BedProject

pytestmark = pytest.mark.bed

GATE = "touch /tmp/gate-reached; until [ -e /tmp/gate-open ]; do sleep 0.1; done"
QUERY_COMMAND = """curl -s -m 10 -H 'Content-Type: application/json' 127.0.0.1:8000/v1/chat/completions \
  -d '{"model": "qwen3.5-35b", "messages": [{"role": "user", "content": "ok"}], "max_tokens": 1}'"""
LOCK = ".local/state/sparkwright/lock"
LOCK_PID = f'python3 -c \'import json; print(json.load(open("{LOCK}"))["pid"])\''

#: step before which it happens, what happens, who serves afterwards
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
    """spark1, and what can be done to it."""

    def __init__(self, lab: BedProject) -> None:
        self.lab = lab
        self.books = {path: path.read_text() for path in (lab.root / "playbooks").rglob("*.yml")}

    def gate(self, before: str) -> None:
        gate = f"- name: Gate\n\\1  command: {{argv: [sh, -c, '{GATE}']}}\n\n\\1"
        for path, text in self.books.items():
            path.write_text(re.sub(rf"(?m)^( *)(?=- name: {before}\n)", rf"\1{gate}", text))
        self.lab.on("spark1", "rm -f /tmp/gate-*")

    def ungate(self) -> None:
        for path, text in self.books.items():
            path.write_text(text)
        self.lab.on("spark1", "touch /tmp/gate-open")

    def reached(self) -> None:
        self.until("test -e /tmp/gate-reached && echo yes", "yes")

    def until(self, command: str, expected: str, timeout_s: float = 90) -> None:
        deadline_s = time.monotonic() + timeout_s
        while self.lab.on("spark1", command) != expected:
            assert time.monotonic() < deadline_s, f"{command} did not say {expected}"
            time.sleep(0.2)

    # -- faults --------------------------------------------------------------------------------------------------

    def killed(self) -> None:
        self.lab.on("spark1", f"kill -9 $({LOCK_PID})")

    def cut(self) -> None:
        self.lab.on("spark1", "sudo pkill -KILL -u ops -f 'sshd: ops'")

    def docker(self) -> None:
        self.lab.on("spark1", "sudo systemctl restart docker")
        self.until("docker info > /dev/null 2>&1 && echo yes", "yes")

    def power(self) -> None:
        """The whole host dies at once, and boots."""
        name = "sparkwright-bed-spark1"
        subprocess.run(["docker", "kill", name], check=True, capture_output=True)
        subprocess.run(["docker", "start", name], check=True, capture_output=True)
        subprocess.run([sys.executable, str(TOP / "molecule/bed/bed.py"), "up", "--hosts", "2"], check=True)
        self.until("docker info > /dev/null 2>&1 && echo yes", "yes")

    # -- what came of it -----------------------------------------------------------------------------------------

    def rows(self) -> list[dict[str, str]]:
        """name, state, policy and id of every container."""
        template = '{"name": "{{.Name}}", "state": "{{.State.Status}}", "policy": "{{.HostConfig.RestartPolicy.Name}}", "id": "{{.Id}}"}'
        result = self.lab.on("spark1", f"docker ps -aq | xargs -r docker inspect -f '{template}'")
        return [json.loads(line) for line in result.splitlines()]

    def serves(self) -> str:
        """The Id of the one container there is, which runs with its earned policy and gives a token."""
        self.until(f"{QUERY_COMMAND} | grep -c choices", "1")
        (value,) = self.rows()
        assert (value["name"], value["state"], value["policy"]) == ("/qwen35", "running", "unless-stopped")
        return value["id"]


@pytest.fixture
def host(lab: BedProject) -> Iterator[FaultyHost]:
    """spark1 with a verified server, and a recipe that asks for another one."""
    value = FaultyHost(lab)
    assert lab.run("deploy", "--host", "spark1").code == 0
    lab.recipe("max-num-seqs: 8", "max-num-seqs: 5")
    yield value
    value.ungate()
    lab.recipe("max-num-seqs: 5", "max-num-seqs: 8")


@pytest.mark.parametrize(
    ("step", "fault", "expected"),
    CELLS,
    ids=[f"{fault}: {step}" for step, fault, _ in CELLS],
)
def test_one_verified_server_serves_after_a_fault(host: FaultyHost, step: str, fault: str, expected: str) -> None:
    old_server = host.serves()
    host.gate(step)
    laptop = host.lab.start("deploy", "--host", "spark1", "--json")
    host.reached()
    getattr(host, fault)()
    if fault == "power":
        starting = [row for row in host.rows() if row["policy"] != "no"]
        assert starting == [], "what was not proved does not start by itself after a power cut"
    host.ungate()
    laptop.communicate(timeout=120)
    if fault == "cut":
        assert host.lab.run("attach", "--host", "spark1", "--json").recap["failed"] == 0
    elif fault in ("killed", "power"):
        assert laptop.returncode in (1, 3)
        second_run = host.lab.run("deploy", "--host", "spark1", "--json")
        assert second_run.code == 0, second_run.out[-3000:]
        notes = [item["text"] for item in map(json.loads, second_run.out.splitlines()) if item["event"] == "note"]
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
    groups = host.lab.root / "hosts/groups.yml"
    groups.write_text(
        groups.read_text().replace(
            "vars: {reserve_gib: 0.5}", "vars: {ollama: stop, reload_after: true, reserve_gib: 0}"
        )
    )
    host.lab.on("spark1", "sudo systemctl restart ollama")
    host.until("systemctl is-active ollama", "active")
    host.until("curl -s 127.0.0.1:11434/api/ps | grep -c qwen3:32b", "1")
    host.gate("Start the server")
    laptop = host.lab.start("deploy", "--host", "spark1", "--json")
    host.reached()
    assert host.lab.on("spark1", "systemctl is-active ollama") == "inactive"
    host.ungate()
    out, _ = laptop.communicate(timeout=120)
    assert laptop.returncode == 0, out[-2000:]
    host.until("systemctl is-active ollama", "active")
    assert host.lab.on("spark1", "curl -s 127.0.0.1:11434/api/ps | grep -c qwen3:32b") == "1"
    assert host.serves()
