"""The second Spark gets image and model from the first, without the hub and the registry."""

from collections.abc import Iterator

import pytest

from tests import published
from tests.bed.conftest import BedProject

pytestmark = pytest.mark.bed

CLEAR_COMMAND = (
    "docker rm -f $(docker ps -aq); docker rmi -f $(docker images -aq); "
    "rm -rf models .local/state/sparkwright; sudo systemctl restart ollama"
)
SOURCES_OFF = "sudo systemctl stop hub; sudo iptables -I OUTPUT -p tcp --dport 5000 -j REJECT"
SOURCES_ON = "sudo systemctl start hub; sudo iptables -D OUTPUT -p tcp --dport 5000 -j REJECT"
QUERY_SOURCES = "curl -s -o /dev/null -m 5 http://127.0.0.1:5000/v2/ || curl -s -o /dev/null -m 5 http://127.0.0.1:8080/ || echo off"
SERVER_STATE = "docker inspect -f '{{.State.Running}} {{.HostConfig.RestartPolicy.Name}}' qwen35"
HASHES = "cd models/qwen35-35b-hf && sha256sum $(find . -type f -not -path './.cache/*' | sort)"


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
    assert first.on("spark1", "pgrep -f [s]parkwright.host.models.peer") == "", "the transfer's server is gone"


def test_deploy_without_a_source_fails_and_leaves_nothing(first: BedProject) -> None:
    result = first.run("deploy", "--host", "spark2")
    assert result.code == 1, result.output
    assert "does not answer" in result.out and "a host that already has the image needs no registry" in result.out
    assert first.on("spark2", "docker ps -aq; ls models") == ""
