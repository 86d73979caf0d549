"""`images.copy` between hosts: the second Spark needs no registry."""

from collections.abc import Iterator

import pytest
import yaml

from tests import published
from tests.bed.conftest import BedProject

pytestmark = pytest.mark.bed

IMAGE = "127.0.0.1:5000/vllm/vllm-openai:v0.32.0"
REMOVE_IMAGES = "docker rm -f $(docker ps -aq); docker rmi -f $(docker images -aq); rm -rf .local/state/sparkwright"
#: prints keys, images and large files that a copy left
FIND_LEFTOVERS = "cat .ssh/authorized_keys; docker images | grep incoming; find / -xdev -size +20M -newer /run/mark 2>/dev/null | grep -v docker"


@pytest.fixture
def pair(lab: BedProject) -> Iterator[BedProject]:
    """spark1 has the image; spark2 has nothing and can't reach the registry."""
    assert lab.run("deploy", "--host", "spark1", "--tags", "image").code == 0
    lab.on("spark2", REMOVE_IMAGES)
    lab.on("spark2", "sudo touch /run/mark; sudo iptables -I OUTPUT -p tcp --dport 5000 -j REJECT")
    yield lab
    lab.on("spark2", "sudo iptables -D OUTPUT -p tcp --dport 5000 -j REJECT")


def layers(lab: BedProject, host: str) -> str:
    return lab.on(host, f"docker inspect -f '{{{{.Id}}}} {{{{.RootFS.Layers}}}}' {IMAGE}")


def test_image_is_copied_from_the_first_spark_and_deployed(pair: BedProject) -> None:
    result = pair.run("images.copy", "--from", "spark1", "--to", "spark2")
    assert result.code == 0, result.output
    assert "straight to" in result.out and ":22" in result.out
    assert layers(pair, "spark2") == layers(pair, "spark1") != ""
    assert pair.on("spark2", FIND_LEFTOVERS) == ""
    assert "incoming" not in pair.on("spark1", "docker images")
    assert pair.deployed("spark2").task("Pull image by digest")["status"] == "ok"
    assert pair.deploy("spark2").recap["changed"] == 0
    digest = yaml.safe_load((pair.root / "spark.lock").read_text())["images"][IMAGE]["digest"]
    assert digest.replace(":", "-") in pair.on("spark2", "docker images --format '{{.Tag}}'")
    second_run = pair.run("images.copy", "--from", "spark1", "--to", "lab")
    assert (second_run.code, "already" in second_run.out) == (0, True)


def test_image_goes_through_the_laptop_if_hosts_cannot_connect(pair: BedProject) -> None:
    pair.on("spark1", "sudo iptables -I OUTPUT -p tcp --dport 22 -j REJECT")
    try:
        result = pair.run("images.copy", "--from", "spark1", "--to", "spark2", "--json")
        assert published.check_output("images.copy", result.out) == []
    finally:
        pair.on("spark1", "sudo iptables -D OUTPUT -p tcp --dport 22 -j REJECT")
    assert result.code == 0, result.output
    assert "through this laptop" in result.err
    assert '"progress"' in result.out
    assert layers(pair, "spark2") == layers(pair, "spark1") != ""
    assert pair.on("spark2", FIND_LEFTOVERS) == ""


def test_missing_image_of_the_source_is_refused(pair: BedProject) -> None:
    result = pair.run("images.copy", "--from", "spark2", "--to", "spark1")
    assert result.code == 5
    assert "spark2 has no" in result.out
