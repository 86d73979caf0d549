"""Power is lost in the moment of `docker start`, on a real Docker Engine: it comes back with a port forwarder that serves nobody.

Nothing is imitated: the engine's own docker-proxy holds the port, for a container that never ran.
"""

import json
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.bed.conftest import BedProject, CommandResult
from tests.bed.test_faults import FaultyHost

pytestmark = pytest.mark.bed

FREE_PORT_TASK = "Free a port that Docker occupies without a container"
HOST = "sparkwright-bed-spark1"
#: after the forwarder was started, seconds: the engine writes down in between that it has the port
MOMENTS_S = (0.0, 0.2, 0.5)


@pytest.fixture
def host(lab: BedProject) -> Iterator[FaultyHost]:
    value = FaultyHost(lab)
    assert lab.run("deploy", "--host", "spark1").code in (0, 4)
    yield value
    lab.on("spark1", "sudo systemctl restart docker")
    value.until("docker info > /dev/null 2>&1 && echo yes", "yes")


def has_port_forwarder() -> bool:
    """Return True if the host's engine has a port forwarder."""
    return not subprocess.run(
        ["docker", "exec", HOST, "pgrep", "-x", "docker-proxy"], capture_output=True, check=False
    ).returncode


def cut_power_at_start(host: FaultyHost, seqs: int, after_s: float) -> None:
    """A deploy of a changed recipe loses its host while the new container is being started."""
    path = host.lab.root / "recipes/bed.yml"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(f"  max-num-seqs: {seqs}" if "max-num-seqs:" in line else line for line in lines) + "\n")
    laptop = host.lab.start("deploy", "--host", "spark1", "--json")
    assert laptop.stdout is not None
    for line in laptop.stdout:
        message = json.loads(line)
        if (message["event"], message.get("name")) == ("task_started", "Start the server"):
            break
    deadline_s = time.monotonic() + 60
    while not has_port_forwarder():
        assert time.monotonic() < deadline_s, "no container was started"
    time.sleep(after_s)  # not a wait for anything: it chooses the moment
    host.power()
    laptop.communicate(timeout=120)


def deploy(lab: BedProject) -> CommandResult:
    return lab.run("deploy", "--host", "spark1", "--json")


def test_orphaned_port_forwarder_is_reported_and_freed(host: FaultyHost) -> None:
    lab, left = host.lab, False
    for seqs, after_s in enumerate(MOMENTS_S, 20):
        cut_power_at_start(host, seqs, after_s)
        left = has_port_forwarder() and not lab.on("spark1", "docker ps -q")
        if left:
            break
        assert deploy(lab).code in (0, 4), "what was half made is taken up"
    if not left:
        pytest.skip("the engine came back without a forwarder each time")

    message = deploy(lab)
    assert message.code == 5, message.out[-2000:]
    assert "port 8000 is in use by Docker's port forwarder (docker-proxy, pid " in message.recap["msg"]
    assert (
        "which was for qwen35 and belongs to no container. On the host: `sudo systemctl restart docker`"
        in message.recap["msg"]
    )
    back = lab.run("rollback", "--host", "spark1", "--json")
    assert (back.code, "docker-proxy" in back.recap["msg"]) == (5, True), back.out[-2000:]
    assert "sudo systemctl restart docker" in lab.run("doctor", "--host", "spark1").out
    assert has_port_forwarder(), "nothing was touched"

    groups = lab.root / "hosts/groups.yml"
    groups.write_text(groups.read_text().replace("vars: {", "vars: {restart_docker: true, "))
    again = deploy(lab)
    assert again.code in (0, 4), again.out[-3000:]
    assert again.task(FREE_PORT_TASK)["status"] == "changed"
    host.serves()
    assert deploy(lab).recap["changed"] == 0
