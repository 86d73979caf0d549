"""Two servers that take turns on the real Docker Engine: the real llama-server, and the sandbox's vLLM in a container of its own."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.conftest import CommandResult
from tests.real_llama.container_desk import Desk, Images, docker
from tests.real_llama.test_container import hub_url, images  # noqa: F401
from tests.remote.sshd import free_port

LLAMA, VLLM = "llama", "glm"


class Turns(Desk):
    """A project whose host has both on demand, each with a container and a port of its own."""

    def __init__(self, folder: Path, registry: Images, hub: str) -> None:
        super().__init__(folder, registry, hub)
        self.names = {}
        for recipe, write in ((LLAMA, self.llama), (VLLM, self.vllm)):
            write()
            self.names[recipe] = self.name
            (self.root / "recipes/served.yml").rename(self.root / f"recipes/{recipe}.yml")
            self.name, self.port = f"{self.name}-too", free_port()
        host = yaml.safe_load((self.root / "hosts/here.yml").read_text())
        del host["recipe"]
        (self.root / "hosts/here.yml").write_text(yaml.safe_dump({**host, "on_demand": [LLAMA, VLLM]}))

    def switch(self, recipe: str) -> CommandResult:
        return self.run("switch", "--host", "here", "--to", recipe, "--json")

    def states(self) -> dict[str, str]:
        rows = self.run("status", "--host", "here", "--json").events()
        return {row["recipe"]: row["state"] for row in rows}

    def boxes(self) -> dict[str, tuple[str, bool, str]]:
        found = {recipe: json.loads(docker("inspect", name))[0] for recipe, name in self.names.items()}
        return {
            recipe: (value["Id"], value["State"]["Running"], value["HostConfig"]["RestartPolicy"]["Name"])
            for recipe, value in found.items()
        }

    def close(self) -> None:
        for name in self.names.values():
            docker("rm", "-fv", name, f"{name}-previous", check=False)


@pytest.fixture
def desk(tmp_path: Path, images: Images, hub_url: str) -> Iterator[Turns]:  # noqa: F811
    value = Turns(tmp_path, images, hub_url)
    try:
        yield value
    finally:
        value.close()


def test_they_take_turns_in_the_same_containers(desk: Turns) -> None:
    for recipe in (LLAMA, VLLM):
        result = desk.run("deploy", "--host", "here", "--recipe", recipe, "--json")
        assert result.proved, result.out[-3000:] + result.err
    assert docker("ps", "-aq", "--filter", f"name={desk.names[VLLM]}") == "", "prepared, and not started"
    there = desk.switch(VLLM)
    assert there.proved, there.out[-3000:]
    after = desk.boxes()
    assert {recipe: value[1:] for recipe, value in after.items()} == {
        LLAMA: (False, "no"),
        VLLM: (True, "unless-stopped"),
    }
    assert desk.states() == {LLAMA: "asleep", VLLM: "up"}
    assert desk.run("health.check", "--host", "here").code == 0
    back = desk.switch(LLAMA)
    assert back.proved, back.out[-3000:]
    assert {recipe: box[0] for recipe, box in desk.boxes().items()} == {
        recipe: value[0] for recipe, value in after.items()
    }
    assert desk.states() == {LLAMA: "up", VLLM: "asleep"}


def test_one_that_does_not_start_leaves_the_other_awake(desk: Turns) -> None:
    assert desk.run("deploy", "--host", "here", "--recipe", LLAMA, "--json").proved
    before = json.loads(docker("inspect", desk.names[LLAMA]))[0]["Id"]
    path = desk.root / f"recipes/{VLLM}.yml"
    stated = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**stated, "expect": {**stated["expect"], "tok_per_s": 9000}}))
    result = desk.switch(VLLM)
    assert result.code == 1 and result.recap["msg"].endswith(f"{desk.names[LLAMA]} is awake again."), result.out[-3000:]
    found = desk.boxes()
    assert found[LLAMA] == (before, True, "unless-stopped") and found[VLLM][1:] == (False, "no")
    assert desk.states() == {LLAMA: "up", VLLM: "asleep"}
    assert desk.run("health.check", "--host", "here/llama").code == 0
