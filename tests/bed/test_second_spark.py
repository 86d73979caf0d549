"""Copies of images and models to a second Spark that can't reach the hub and the registry."""

from collections.abc import Iterator

import pytest
import yaml

from tests import published
from tests.bed.conftest import BedProject
from tests.waiting import wait_until

CLEAR_COMMAND = (
    "docker rm -f $(docker ps -aq); docker rmi -f $(docker images -aq); "
    "rm -rf models .local/state/sparkwright; sudo systemctl restart ollama"
)
SOURCES_OFF = "sudo systemctl stop hub; sudo iptables -I OUTPUT -p tcp --dport 5000 -j REJECT"
SOURCES_ON = "sudo systemctl start hub; sudo iptables -D OUTPUT -p tcp --dport 5000 -j REJECT"
QUERY_SOURCES = "curl -s -o /dev/null -m 5 http://127.0.0.1:5000/v2/ || curl -s -o /dev/null -m 5 http://127.0.0.1:8080/ || echo off"
SERVER_STATE = "docker inspect -f '{{.State.Running}} {{.HostConfig.RestartPolicy.Name}}' qwen35"
HASHES = "cd models/qwen35-35b-hf && sha256sum $(find . -type f -not -path './.cache/*' | sort)"
IMAGE = "127.0.0.1:5000/vllm/vllm-openai:v0.32.0"
REMOVE_IMAGES = "docker rm -f $(docker ps -aq); docker rmi -f $(docker images -aq); rm -rf .local/state/sparkwright"
#: prints keys, images and large files that a copy left
FIND_LEFTOVERS = "cat .ssh/authorized_keys; docker images | grep incoming; find / -xdev -size +20M -newer /run/mark 2>/dev/null | grep -v docker"
#: prints the processes that serve a model to other hosts; each ends when its link is closed
FIND_PEER = "pgrep -f [s]parkwright.host.models.peer"


@pytest.fixture
def first(lab: BedProject) -> Iterator[BedProject]:
    """spark1 serves, spark2 has nothing, and the hub and the registry are unreachable."""
    lab.deployed()
    lab.on("spark2", CLEAR_COMMAND)
    for host in ("spark1", "spark2"):
        lab.on(host, SOURCES_OFF)
        assert lab.on(host, QUERY_SOURCES) == "off"
    yield lab
    for host in ("spark1", "spark2"):
        lab.on(host, SOURCES_ON)


def test_copied_image_and_model_are_deployed(first: BedProject) -> None:
    for command in (["images.copy"], ["models.copy"]):
        result = first.run(*command, "--from", "spark1", "--to", "spark2")
        assert result.code == 0, result.output
    assert first.on("spark2", HASHES) == first.on("spark1", HASHES) != ""
    deployed = first.deployed("spark2")
    assert deployed.task("Pull image by digest")["status"] == "ok"
    assert deployed.task("Download model and verify every file")["status"] == "ok"
    assert first.on("spark2", SERVER_STATE) == "true unless-stopped"
    second_run = first.run("models.copy", "--from", "spark1", "--to", "lab", "--json")
    assert published.check_output("models.copy", second_run.out) == []
    assert (second_run.code, second_run.recap["changed"]) == (0, 0)


def test_model_from_copies_the_model_during_a_deploy(first: BedProject) -> None:
    result = first.run("images.copy", "--from", "spark1", "--to", "spark2")
    assert result.code == 0, result.output
    first.edit("hosts/groups.yml", "lab: {}", "lab: {model_from: spark1}")
    assert "; from spark1" in first.deployed("lab").out
    assert first.on("spark2", HASHES) == first.on("spark1", HASHES) != ""
    assert first.on("spark2", SERVER_STATE) == "true unless-stopped"
    wait_until(lambda: first.on("spark1", FIND_PEER) == "", "the end of the transfer's server")


def test_deploy_without_a_source_fails_and_leaves_nothing(first: BedProject) -> None:
    result = first.run("deploy", "--host", "spark2")
    assert result.code == 1, result.output
    assert "does not answer" in result.out and "a host that already has the image needs no registry" in result.out
    assert first.on("spark2", "docker ps -aq; ls models") == ""


@pytest.fixture
def image_only(lab: BedProject) -> Iterator[BedProject]:
    """spark1 has the image; spark2 has nothing and can't reach the registry."""
    assert lab.run("deploy", "--host", "spark1", "--tags", "image").code == 0
    lab.on("spark2", REMOVE_IMAGES)
    lab.on("spark2", "sudo touch /run/mark; sudo iptables -I OUTPUT -p tcp --dport 5000 -j REJECT")
    yield lab
    lab.on("spark2", "sudo iptables -D OUTPUT -p tcp --dport 5000 -j REJECT")


def layers(lab: BedProject, host: str) -> str:
    return lab.on(host, f"docker inspect -f '{{{{.Id}}}} {{{{.RootFS.Layers}}}}' {IMAGE}")


def test_image_is_copied_from_the_first_spark_and_deployed(image_only: BedProject) -> None:
    result = image_only.run("images.copy", "--from", "spark1", "--to", "spark2")
    assert result.code == 0, result.output
    assert "straight to" in result.out and ":22" in result.out
    assert layers(image_only, "spark2") == layers(image_only, "spark1") != ""
    assert image_only.on("spark2", FIND_LEFTOVERS) == ""
    assert "incoming" not in image_only.on("spark1", "docker images")
    assert image_only.deployed("spark2").task("Pull image by digest")["status"] == "ok"
    assert image_only.deploy("spark2").recap["changed"] == 0
    digest = yaml.safe_load((image_only.root / "spark.lock").read_text())["images"][IMAGE]["digest"]
    assert digest.replace(":", "-") in image_only.on("spark2", "docker images --format '{{.Tag}}'")
    second_run = image_only.run("images.copy", "--from", "spark1", "--to", "lab")
    assert (second_run.code, "already" in second_run.out) == (0, True)


def test_image_goes_through_the_laptop_if_hosts_cannot_connect(image_only: BedProject) -> None:
    image_only.on("spark1", "sudo iptables -I OUTPUT -p tcp --dport 22 -j REJECT")
    try:
        result = image_only.run("images.copy", "--from", "spark1", "--to", "spark2", "--json")
        assert published.check_output("images.copy", result.out) == []
    finally:
        image_only.on("spark1", "sudo iptables -D OUTPUT -p tcp --dport 22 -j REJECT")
    assert result.code == 0, result.output
    assert "through this laptop" in result.err
    assert '"progress"' in result.out
    assert layers(image_only, "spark2") == layers(image_only, "spark1") != ""
    assert image_only.on("spark2", FIND_LEFTOVERS) == ""


def test_missing_image_of_the_source_is_refused(image_only: BedProject) -> None:
    result = image_only.run("images.copy", "--from", "spark2", "--to", "spark1")
    assert result.code == 5
    assert "spark2 has no" in result.out
