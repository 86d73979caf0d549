"""A power cut during `docker start`: the real Docker Engine starts again with a docker-proxy for a container that never ran."""

import re
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.bed.conftest import BUSY_CODES, PROBE_DOCKER, BedProject
from tests.bed.test_faults import FaultyHost
from tests.waiting import wait_until

FREE_PORT_TASK = "Free a port that Docker occupies without a container"
HOST = "sparkwright-bed-spark1"
#: seconds after the start of the forwarder; the engine records the port in between
MOMENTS_S = (0.0, 0.2, 0.5)


@pytest.fixture
def host(lab: BedProject) -> Iterator[FaultyHost]:
    value = FaultyHost(lab)
    lab.deployed(codes=BUSY_CODES)
    yield value
    lab.on("spark1", "sudo systemctl restart docker")
    value.wait_for(PROBE_DOCKER, "yes")


def has_port_forwarder() -> bool:
    command = ["docker", "exec", HOST, "pgrep", "-x", "docker-proxy"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def cut_power_at_start(host: FaultyHost, seqs: int, after_s: float) -> None:
    path = host.lab.root / "recipes/bed.yml"
    path.write_text(re.sub(r"max-num-seqs: \d+", f"max-num-seqs: {seqs}", path.read_text()))
    laptop = host.lab.start_until('"name": "Start the server"', "deploy", "--host", "spark1", "--json")
    wait_until(has_port_forwarder, "a port forwarder")
    time.sleep(after_s)  # chooses the moment
    host.inject("power")
    laptop.communicate(timeout=120)


def test_orphaned_port_forwarder_is_reported_and_freed(host: FaultyHost) -> None:
    lab, left = host.lab, False
    for seqs, after_s in enumerate(MOMENTS_S, 20):
        cut_power_at_start(host, seqs, after_s)
        left = has_port_forwarder() and not lab.on("spark1", "docker ps -q")
        if left:
            break
        lab.deployed(codes=BUSY_CODES)
    if not left:
        pytest.skip("the engine started without a forwarder each time")

    refused = lab.deploy()
    assert refused.code == 5, refused.output
    message = refused.recap["msg"]
    assert "port 8000 is in use by Docker's port forwarder (docker-proxy, pid " in message
    assert (
        "which was started for qwen35 and belongs to no container. On the host: `sudo systemctl restart docker`"
        in message
    )
    rollback = lab.run("rollback", "--host", "spark1", "--json")
    assert (rollback.code, "docker-proxy" in rollback.recap["msg"]) == (5, True), rollback.output
    assert "sudo systemctl restart docker" in lab.run("doctor", "--host", "spark1").out
    assert has_port_forwarder()

    lab.edit("hosts/groups.yml", "vars: {", "vars: {restart_docker: true, ")
    assert lab.deployed(codes=BUSY_CODES).task(FREE_PORT_TASK)["status"] == "changed"
    host.serves()
    assert lab.deploy().recap["changed"] == 0
