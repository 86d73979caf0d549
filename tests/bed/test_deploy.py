"""Deploys over a real sshd to a real Docker Engine with a real registry."""

import json
from typing import Any

from sparkwright.engines.compile_caches import CACHE_MOUNT
from sparkwright.engines.vllm.caches import CACHES
from sparkwright.protocol.container import OWNER_LABEL, ROLE_LABEL, RUN_LABEL, SERVER_LABEL
from tests.bed.conftest import BedProject

#: the labels of a container that sparkwright created itself
IDENTITY = (OWNER_LABEL, ROLE_LABEL, RUN_LABEL, SERVER_LABEL)


def test_deploy_on_a_bare_host_is_verified_and_idempotent(bare: BedProject) -> None:
    first = bare.deployed()
    assert first.task("Unload Ollama's models")["data"]["unloaded"] == ["qwen3:32b"]
    assert first.task("Check the engine log")["data"]["state"]["chunked_prefill"] is True
    assert first.task("Check that it uses the GPU")["data"]["processes"]
    before = bare.server()
    assert before.endswith("true unless-stopped")
    second = bare.deploy()
    assert (second.code, second.recap["changed"], second.recap["failed"]) == (0, 0, 0)
    assert bare.server() == before


def test_script_on_the_host_creates_the_same_container(bare: BedProject) -> None:
    """`docker inspect` of both may differ only in names, times and sparkwright's labels."""

    def take_container() -> dict[str, Any]:
        """Inspect the container and remove it."""
        container: dict[str, Any] = json.loads(bare.on("spark1", "docker inspect qwen35"))[0]
        bare.on("spark1", "docker rm -f qwen35")
        return container

    bare.run("deploy", "--host", "spark1", "--tags", "image,model,script,server")
    deployed = take_container()
    assert bare.on("spark1", "sh .local/share/sparkwright/run/qwen35.sh")
    started = take_container()
    for container in (deployed, started):
        container["Config"]["Env"].sort()
        mounts = container["HostConfig"]["Mounts"]
        container["HostConfig"]["Mounts"] = [(mount["Source"], mount["Target"]) for mount in mounts]
        for part, key in (("Config", "Hostname"), ("HostConfig", "ContainerIDFile")):
            container[part].pop(key, None)
    assert [target for _, target in deployed["HostConfig"]["Mounts"]] == [CACHE_MOUNT, *CACHES.fixed_folders]
    labels = deployed["Config"]["Labels"]
    assert labels.keys() - started["Config"]["Labels"].keys() <= set(IDENTITY)  # it is not adopted yet
    deployed["Config"]["Labels"] = {name: value for name, value in labels.items() if name not in IDENTITY}
    for part in ("Config", "HostConfig"):
        expected = {key: value for key, value in deployed[part].items() if value}
        assert {key: value for key, value in started[part].items() if value} == expected
    assert deployed["Image"] == started["Image"]


def test_dropped_connection_does_not_stop_a_deploy(bare: BedProject) -> None:
    laptop = bare.start_until('"name": "Start the server"', "deploy", "--host", "spark1", "--json")
    bare.cut("spark1")
    out, err = laptop.communicate(timeout=60)
    assert laptop.returncode == 3
    assert "sparkwright attach --host spark1" in out + err
    result = bare.run("attach", "--host", "spark1", "--json")
    assert (result.code, result.recap["failed"]) == (0, 0), result.out
    assert bare.server().endswith("true unless-stopped")


def test_missing_tag_is_refused_by_name(lab: BedProject) -> None:
    lab.recipe("vllm-openai:v0.32.0", "vllm-openai:v9.9.9")
    result = lab.run("deploy", "--host", "spark1")
    assert result.code == 5
    assert "the registry has no 127.0.0.1:5000/vllm/vllm-openai:v9.9.9" in result.out


def test_refused_docker_socket_names_the_remedy(lab: BedProject) -> None:
    (lab.root / "hosts/spark1.yml").write_text("address: spark1\nuser: guest\n")
    result = lab.run("deploy", "--host", "spark1")
    assert result.code == 5, result.out
    assert "sudo usermod -aG docker guest" in result.out


def test_user_group_adds_the_user_as_root(lab: BedProject) -> None:
    play = lab.root / "playbooks/group.yml"
    play.write_text("- hosts: all\n  tasks:\n    - user_group: {user: guest, group: docker}\n      become: true\n")
    lab.on("spark1", "sudo gpasswd -d guest docker")
    first = lab.run("play", "group", "--host", "spark1", "--json")
    assert (first.code, first.recap["changed"]) == (0, 1), first.out
    assert "guest" in lab.on("spark1", "getent group docker")
    assert lab.run("play", "group", "--host", "spark1", "--json").recap["changed"] == 0
    lab.on("spark1", "sudo gpasswd -d guest docker")


def test_failed_change_restores_the_previous_server(lab: BedProject) -> None:
    assert lab.run("deploy", "--host", "spark1").code == 0
    before = lab.server()
    lab.recipe("SPEED: instant}", "SPEED: instant, SANDBOX_FAULT: crash-loop}")
    result = lab.run("deploy", "--host", "spark1")
    assert result.code == 1, result.out
    assert "The previous server is restored" in result.out
    assert lab.server() == before


def test_version_and_options_are_read_from_the_image(bare: BedProject) -> None:
    """Without labels and variables, `vllm --version` and `vllm serve --help=all` run in temporary containers."""
    bare.on("spark1", "rm -rf .local/state/sparkwright/engines")
    linted = bare.deployed().task("Check flags against engine and model")
    assert linted["data"]["engine_version"] == "0.32.0"
    assert linted["data"]["listed"] > 300
    assert "engine_version: 0.32.0" in (bare.root / "spark.lock").read_text()
    assert bare.on("spark1", "docker ps -aq | wc -l") == "1"
    before = bare.server()
    bare.recipe("  max-num-seqs: 8", "  max-num-sequences: 8")
    refused = bare.run("deploy", "--host", "spark1")
    assert refused.code == 5, refused.out
    assert "max-num-sequences" in refused.out
    assert bare.server() == before


def test_deploy_stops_at_a_safe_point_on_request(bare: BedProject) -> None:
    laptop = bare.start_until('"name": "Gather facts"', "deploy", "--host", "spark1", "--json")
    stop = bare.run("stop", "--host", "spark1")
    assert stop.code == 0 and "will stop at the next safe point" in stop.out
    out, _ = laptop.communicate(timeout=60)
    assert laptop.returncode == 1
    assert "stopped" in json.loads(out.splitlines()[-1])["msg"]
    assert bare.on("spark1", "docker ps -aq") == ""
    assert bare.run("deploy", "--host", "spark1").code == 0
