"""The second Spark gets image and model from the first, with the hub and the registry switched off."""

from collections.abc import Iterator

import pytest

from tests import published
from tests.bed.conftest import Lab

pytestmark = pytest.mark.bed

NOTHING = (
    "docker rm -f $(docker ps -aq); docker rmi -f $(docker images -aq); "
    "rm -rf models .local/state/sparkwright; sudo systemctl restart ollama"
)
OFF = "sudo systemctl stop hub; sudo iptables -I OUTPUT -p tcp --dport 5000 -j REJECT"
ON = "sudo systemctl start hub; sudo iptables -D OUTPUT -p tcp --dport 5000 -j REJECT"
ASKED = "curl -s -o /dev/null -m 5 http://127.0.0.1:5000/v2/ || curl -s -o /dev/null -m 5 http://127.0.0.1:8080/ || echo off"
SERVES = "docker inspect -f '{{.State.Running}} {{.HostConfig.RestartPolicy.Name}}' qwen35"
HASHES = "cd models/qwen35-35b-hf && sha256sum $(find . -type f -not -path './.cache/*' | sort)"


@pytest.fixture
def first(lab: Lab) -> Iterator[Lab]:
    """spark1 serves; spark2 has nothing; nobody can ask the hub or the registry any more."""
    result = lab.run("deploy", "--host", "spark1")
    assert result.code == 0, result.out + result.err
    lab.on("spark2", NOTHING)
    for host in ("spark1", "spark2"):
        lab.on(host, OFF)
        assert lab.on(host, ASKED) == "off"
    yield lab
    for host in ("spark1", "spark2"):
        lab.on(host, ON)


def test_image_and_model_are_copied_and_a_deploy_is_verified(first: Lab) -> None:
    for words in (["images.copy"], ["models.copy"]):
        result = first.run(*words, "--from", "spark1", "--to", "spark2")
        assert result.code == 0, result.out + result.err
    assert first.on("spark2", HASHES) == first.on("spark1", HASHES) != ""
    deployed = first.run("deploy", "--host", "spark2", "--json")
    assert deployed.code == 0, deployed.out[-3000:]
    assert deployed.task("Pull image by digest")["status"] == "ok"
    assert deployed.task("Download model and verify every file")["status"] == "ok"
    assert first.on("spark2", SERVES) == "true unless-stopped"
    again = first.run("models.copy", "--from", "spark1", "--to", "lab", "--json")
    assert published.check_output("models.copy", again.out) == []
    assert (again.code, again.recap["changed"]) == (0, 0)


def test_model_from_brings_it_in_a_deploy(first: Lab) -> None:
    result = first.run("images.copy", "--from", "spark1", "--to", "spark2")
    assert result.code == 0, result.out + result.err
    (first.root / "hosts/groups.yml").write_text(
        (first.root / "hosts/groups.yml").read_text().replace("lab: {}", "lab: {model_from: spark1}")
    )
    deployed = first.run("deploy", "--host", "lab", "--json")
    assert deployed.code == 0, deployed.out[-3000:]
    assert "; from spark1" in deployed.out
    assert first.on("spark2", HASHES) == first.on("spark1", HASHES) != ""
    assert first.on("spark2", SERVES) == "true unless-stopped"
    assert first.on("spark1", "pgrep -f [s]parkwright.host.models.peer") == "", "it still hands out"


def test_nobody_to_ask_and_nothing_copied_says_so_and_leaves_nothing(first: Lab) -> None:
    result = first.run("deploy", "--host", "spark2")
    assert result.code == 1, result.out + result.err
    assert "does not answer" in result.out and "a host that already has the image needs no registry" in result.out
    assert first.on("spark2", "docker ps -aq; ls models") == ""
