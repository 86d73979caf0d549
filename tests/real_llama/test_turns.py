"""The real llama-server and the sandbox's vLLM take turns in two containers of the real Docker Engine."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from tests.e2e.conftest import CommandResult
from tests.real_llama.container_desk import Images, Project, run_docker
from tests.real_llama.test_container import hub_url, images  # noqa: F401
from tests.remote.sshd import free_port

LLAMA, VLLM = "llama", "glm"


class OnDemandProject(Project):
    """A project whose host has two servers on demand, each with its own container and port."""

    def __init__(self, folder: Path, registry: Images, hub: str) -> None:
        super().__init__(folder, registry, hub)
        self.names = {}
        for recipe, write in ((LLAMA, self.serve_llama), (VLLM, self.serve_vllm)):
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

    def container_states(self) -> dict[str, tuple[str, bool, str]]:
        states = {}
        for recipe, name in self.names.items():
            attrs = json.loads(run_docker("inspect", name))[0]
            states[recipe] = attrs["Id"], attrs["State"]["Running"], attrs["HostConfig"]["RestartPolicy"]["Name"]
        return states

    def close(self) -> None:
        for name in self.names.values():
            run_docker("rm", "-fv", name, f"{name}-previous", check=False)


@pytest.fixture
def project(tmp_path: Path, images: Images, hub_url: str) -> Iterator[OnDemandProject]:  # noqa: F811
    with closing(OnDemandProject(tmp_path, images, hub_url)) as new_project:
        yield new_project


def test_servers_take_turns_in_the_same_containers(project: OnDemandProject) -> None:
    for recipe in (LLAMA, VLLM):
        result = project.run("deploy", "--host", "here", "--recipe", recipe, "--json")
        assert result.proved, result.out[-3000:] + result.err
    assert run_docker("ps", "-aq", "--filter", f"name={project.names[VLLM]}") == "", "prepared, not started"
    switched = project.switch(VLLM)
    assert switched.proved, switched.out[-3000:]
    after = project.container_states()
    assert after[LLAMA][1:] == (False, "no") and after[VLLM][1:] == (True, "unless-stopped")
    assert project.states() == {LLAMA: "asleep", VLLM: "up"}
    assert project.run("health.check", "--host", "here").code == 0
    back = project.switch(LLAMA)
    assert back.proved, back.out[-3000:]
    assert [state[0] for state in project.container_states().values()] == [state[0] for state in after.values()]
    assert project.states() == {LLAMA: "up", VLLM: "asleep"}


def test_a_server_that_does_not_start_leaves_the_other_awake(project: OnDemandProject) -> None:
    assert project.run("deploy", "--host", "here", "--recipe", LLAMA, "--json").proved
    before = run_docker("inspect", "-f", "{{.Id}}", project.names[LLAMA])
    path = project.root / f"recipes/{VLLM}.yml"
    recipe = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**recipe, "expect": {**recipe["expect"], "tok_per_s": 9000}}))
    result = project.switch(VLLM)
    assert result.code == 1, result.out[-3000:]
    assert result.recap["msg"].endswith(f"{project.names[LLAMA]} is awake again.")
    states = project.container_states()
    assert states[LLAMA] == (before, True, "unless-stopped") and states[VLLM][1:] == (False, "no")
    assert project.states() == {LLAMA: "up", VLLM: "asleep"}
    assert project.run("health.check", "--host", "here/llama").code == 0
