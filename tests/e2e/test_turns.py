"""Servers of a host that take turns: one is awake, `switch` wakes another, and a gateway's clients wait."""

import http.client
import json
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import SandboxProject, sandbox_project
from tests.gateway.steady import SteadyClients
from tests.remote.sshd import free_port

LARGE, SMALL, ALWAYS_ON = "qwen3.5-35b", "qwen3-1.7b", "qwen3-embedding-0.6b"
CONTAINERS = {LARGE: "qwen35", SMALL: "qwen3-1.7b"}
TURNS = ".local/state/sparkwright/turns.json"


class TurnsProject:
    """A project with two recipes on demand."""

    def __init__(self, project: SandboxProject) -> None:
        self.project, self.gateway = project, free_port()
        ports = {LARGE: project.port, SMALL: free_port()}
        rows = "".join(f"\n  - {{recipe: {recipe}, port: {port}}}" for recipe, port in ports.items())
        self.hosts = project.root / "hosts/sandbox.yml"
        self.hosts.write_text(f"connection: sandbox\nuser: spark\non_demand:{rows}\n")

    def add_always_on(self) -> None:
        with self.hosts.open("a") as file:
            file.write(f"serves:\n  - {{recipe: {ALWAYS_ON}, port: {free_port()}}}\n")

    def switch(self, recipe: str, *words: str) -> Any:
        return self.project.run("switch", "--host", "sandbox", "--to", recipe, "--json", *words)

    def states(self, command: str = "status") -> dict[str, str]:
        rows = self.project.run(command, "--host", "sandbox", "--json").events()
        return {row["recipe"]: row["state"] for row in rows}

    def containers(self) -> dict[str, tuple[str, bool, str]]:
        """Return id, state and restart policy of each container."""
        containers = {recipe: self.project.container(name) for recipe, name in CONTAINERS.items()}
        return {
            recipe: (value["Id"], value["State"]["Running"], value["HostConfig"]["RestartPolicy"]["Name"])
            for recipe, value in containers.items()
        }

    def awake(self) -> str:
        path: Path = self.project.sandbox / "home" / TURNS
        return str(json.loads(path.read_text())["awake"]) if path.exists() else ""

    def chat(self, recipe: str, timeout_s: float = 60) -> http.client.HTTPResponse:
        """Send a request through the gateway, and return the answer when it begins."""
        link = http.client.HTTPConnection("127.0.0.1", self.gateway, timeout=timeout_s)
        body = {"model": recipe, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
        link.request("POST", "/v1/chat/completions", json.dumps(body))
        return link.getresponse()

    def deploy_gateway(self, not_up: str) -> Any:
        gateway = {"host": "sandbox", "port": self.gateway, "tls": "none", "not_up": not_up}
        groups = {"lab": {}, "box": {"hosts": ["sandbox"], "gateway": gateway}}
        (self.project.root / "hosts/groups.yml").write_text(json.dumps(groups))
        return self.project.run("gateway.deploy", "--host", "box", "--json")


@pytest.fixture(scope="module")
def turns() -> Iterator[TurnsProject]:
    with sandbox_project() as project:
        project.edit(f"recipes/{LARGE}.yml", "utilization: 0.85", "utilization: 0.72")
        value = TurnsProject(project)
        first = project.deploy()
        assert first.code == 0, first.out[-3000:]
        assert "qwen3-1.7b is asleep and was never verified: it is the turn of qwen35" in first.out
        assert project.docker().api.containers(all=True, filters={"name": CONTAINERS[SMALL]}) == [], "not started"
        health = project.run("health", "--host", f"sandbox/{SMALL}")
        assert health.code == 0 and "asleep: it is the turn of qwen35" in health.out, health.out
        for recipe in (SMALL, LARGE):
            result = value.switch(recipe)
            assert result.proved, result.out[-3000:]
        yield value


def test_a_measurement_of_a_sleeping_server_is_refused_with_the_command_that_wakes_it(turns: TurnsProject) -> None:
    recipe = SMALL if turns.awake() == CONTAINERS[LARGE] else LARGE
    result = turns.project.run("bench.smoke", "--host", f"sandbox/{recipe}")
    assert result.code == 1 and f"`sparkwright switch --host sandbox --to {recipe}`" in result.out, result.out
    assert "sparkwright deploy" not in result.out


@pytest.fixture(autouse=True)
def large_is_awake(turns: TurnsProject) -> Iterator[None]:
    yield
    if turns.states() != {LARGE: "up", SMALL: "asleep"} and turns.awake() != CONTAINERS[LARGE]:
        assert turns.switch(LARGE).proved


def test_a_switch_stops_one_server_and_starts_the_other_in_its_container(turns: TurnsProject) -> None:
    before = turns.containers()
    assert [item[1:] for item in before.values()] == [(True, "unless-stopped"), (False, "no")]
    result = turns.switch(SMALL)
    assert result.proved and result.task("Stop it")["status"] == "changed"
    after = turns.containers()
    assert [after[recipe][0] == before[recipe][0] for recipe in CONTAINERS] == [True, True], "the same Ids"
    assert [item[1:] for item in after.values()] == [(False, "no"), (True, "unless-stopped")]
    assert turns.states() == {LARGE: "asleep", SMALL: "up"}
    health = turns.project.run("health.check", "--host", "sandbox")
    assert health.code == 0 and "asleep: it is the turn of qwen3-1.7b" in health.out
    second_run = turns.switch(SMALL)
    assert (second_run.code, second_run.recap["changed"]) == (0, 0)
    assert second_run.recap["msg"].endswith("nothing to switch")


def test_other_commands_do_not_wake_the_sleeping_server(turns: TurnsProject) -> None:
    before = turns.containers()
    for command in ("restart", "rollback"):
        result = turns.project.run(command, "--host", "sandbox", "--recipe", SMALL)
        assert result.code == 5 and f"switch --host sandbox --to {SMALL}` wakes it" in result.out, command
    deployed = turns.project.deploy("--recipe", SMALL)
    assert (deployed.code, deployed.recap["changed"]) == (0, 0) and "is asleep (since" in deployed.recap["msg"]
    verified = turns.project.run("verify", "--host", "sandbox", "--recipe", SMALL)
    assert verified.code == 0 and "wakes and verifies it" in verified.out
    client = turns.project.run("client", "--host", "sandbox", "--recipe", SMALL)
    assert client.code == 1 and "is asleep: it is the turn of qwen35" in client.out + client.err
    assert turns.containers() == before


def test_check_mode_of_a_switch_changes_nothing(turns: TurnsProject) -> None:
    before = turns.containers()
    result = turns.switch(SMALL, "--check")
    assert result.code == 2 and turns.containers() == before and turns.awake() == CONTAINERS[LARGE]


def test_a_failed_switch_wakes_the_other_server_again(turns: TurnsProject) -> None:
    before = turns.containers()
    with turns.project.restored_files():
        with (turns.project.root / f"recipes/{SMALL}.yml").open("a") as recipe:
            recipe.write("  tok_per_s: 9000\n")
        result = turns.switch(SMALL)
    assert result.code == 1 and result.recap["msg"].endswith("qwen35 is awake again.")
    assert turns.containers() == before and turns.awake() == CONTAINERS[LARGE]
    assert turns.states() == {LARGE: "up", SMALL: "asleep"}


def test_a_failed_switch_says_if_the_other_server_does_not_start_either(turns: TurnsProject) -> None:
    with turns.project.fault("oom"):
        result = turns.switch(SMALL)
    assert result.code == 1 and result.recap["msg"].endswith("qwen35 failed too: neither serves now.")
    assert turns.switch(LARGE).proved and turns.states() == {LARGE: "up", SMALL: "asleep"}


def test_a_container_that_docker_rejects_fails_before_the_other_server_is_stopped(turns: TurnsProject) -> None:
    before = turns.containers()
    started = turns.project.container(CONTAINERS[LARGE])["State"]["StartedAt"]
    with turns.project.restored_files():
        turns.project.edit(f"recipes/{SMALL}.yml", r"(?m)^container:\n", "container:\n  log_driver: lokki\n")
        result = turns.switch(SMALL)
    assert result.code == 1 and 'plugin "lokki" not found.' in result.recap["msg"], result.out[-2000:]
    assert turns.containers() == before and turns.awake() == CONTAINERS[LARGE]
    assert turns.project.container(CONTAINERS[LARGE])["State"]["StartedAt"] == started
    assert not [name for name in turns.project.containers() if "replacement" in name]


def test_a_changed_recipe_of_the_sleeping_server_is_applied_by_the_next_switch(turns: TurnsProject) -> None:
    before = turns.containers()
    with turns.project.restored_files():
        turns.project.edit(f"recipes/{SMALL}.yml", "max-model-len: 16384", "max-model-len: 8192")
        deployed = turns.project.deploy("--recipe", SMALL)
        assert deployed.code == 0 and "its recipe changed: the next switch recreates it" in deployed.recap["msg"]
        assert turns.containers() == before
        assert turns.switch(SMALL).proved
        after = turns.containers()
        assert after[SMALL][0] != before[SMALL][0] and after[LARGE][0] == before[LARGE][0]


def test_the_same_command_finishes_an_interrupted_switch(turns: TurnsProject) -> None:
    """The run ended after it recorded the turn and before it stopped the other server."""
    path: Path = turns.project.sandbox / "home" / TURNS
    path.write_text(json.dumps({**json.loads(path.read_text()), "awake": CONTAINERS[SMALL]}))
    refused = turns.project.run("deploy", "--host", "sandbox", "--recipe", SMALL)
    assert refused.code == 5 and f"switch --host sandbox --to {SMALL}` keeps only this one awake" in refused.out
    assert turns.states()[LARGE] == "degraded"
    assert turns.switch(SMALL).proved
    assert turns.states() == {LARGE: "asleep", SMALL: "up"}


def test_the_largest_server_on_demand_counts_together_with_those_always_on(turns: TurnsProject) -> None:
    """Two servers that do not fit together fit if they take turns; a third one with the largest does not."""
    with turns.project.restored_files():
        turns.project.edit(f"recipes/{ALWAYS_ON}.yml", "utilization: 0.05", "utilization: 0.3")
        turns.add_always_on()
        result = turns.project.run("deploy", "--host", "sandbox", "--recipe", LARGE)
        assert result.code == 0, "a running server needs no more memory"
        refused = turns.switch(SMALL)
    assert refused.code == 5
    evidence = next(event for event in refused.events() if event.get("status") == "failed")["data"]["evidence"]
    assert any("qwen35" in row and "the largest of those on demand" in row for row in evidence)
    assert any("qwen35" in row and "GiB of qwen3-1.7b, which it replaces" in row for row in evidence)


def test_an_always_on_server_starts_if_it_fits_with_the_largest_on_demand(turns: TurnsProject) -> None:
    try:
        with turns.project.restored_files():
            turns.add_always_on()
            for command in ("deploy", "restart"):
                result = turns.project.run(command, "--host", "sandbox", "--recipe", ALWAYS_ON, "--json")
                assert result.proved, result.out[-3000:]
            assert turns.states() == {ALWAYS_ON: "up", LARGE: "up", SMALL: "asleep"}
    finally:
        for container in turns.project.docker().api.containers(all=True, filters={"name": "qwen3-embedding"}):
            turns.project.docker().api.remove_container(container["Id"], force=True)


def test_servers_changed_from_on_demand_to_always_on_run_together(turns: TurnsProject) -> None:
    try:
        with turns.project.restored_files():
            turns.project.edit("hosts/sandbox.yml", "on_demand:", "serves:")
            turns.project.deploy_proved("--recipe", SMALL)
            assert turns.states() == {LARGE: "up", SMALL: "up"}
            assert turns.awake() == "", "the record of turns is removed"
    finally:
        turns.project.docker().api.stop(CONTAINERS[SMALL])
    assert turns.project.deploy("--recipe", LARGE).code == 0
    assert turns.states() == {LARGE: "up", SMALL: "asleep"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("on_demand: [qwen3.5-35b]\n", "`on_demand` has only one recipe: it needs at least two to take turns."),
        ("recipe: qwen3.5-35b\non_demand: [qwen3.5-35b, qwen3-1.7b]\n", "`recipe` and `on_demand` are both set."),
        ("serves: [qwen3-1.7b]\non_demand: [qwen3.5-35b, qwen3-1.7b]\n", "the recipe qwen3-1.7b is listed twice."),
    ],
)
def test_an_invalid_list_is_refused_with_its_line(turns: TurnsProject, text: str, message: str) -> None:
    with turns.project.restored_files():
        turns.hosts.write_text(f"connection: sandbox\nuser: spark\n{text}")
        result = turns.project.run("status", "--host", "sandbox")
    assert result.code == 5 and re.search(rf"hosts/sandbox.yml:\d+: {re.escape(message)}", result.err + result.out)


def test_a_switch_without_a_known_recipe_is_refused(turns: TurnsProject) -> None:
    assert turns.project.run("switch", "--host", "sandbox").code == 5
    unknown = turns.switch("qwen3-1.8b")
    assert unknown.code == 5 and f"`{SMALL}`" in unknown.out + unknown.err


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")
def test_a_gateway_refuses_the_sleeping_model_and_is_not_degraded(turns: TurnsProject) -> None:
    routed = turns.deploy_gateway("refuse")
    assert routed.code == 0 and f"asleep: {SMALL}" in routed.out, routed.out[-2000:]
    assert turns.chat(LARGE).status == 200
    refused = turns.chat(SMALL)
    assert (refused.status, json.loads(refused.read())["error"]["code"]) == (503, "model_not_up")
    status = turns.project.run("gateway.status", "--host", "box", "--json")
    assert status.code == 0, "a sleeping model is not a failure"
    result = json.loads(status.out)
    assert {model["model"]: model["on_demand"] for model in result["models"]} == {LARGE: True, SMALL: True}
    errors = {model["model"]: model["errors"] for model in result["models"]}
    assert errors[SMALL] == 1, "only the client's, not the verification's"
    rows = turns.project.run("status", "--host", "sandbox", "--json").events()
    assert [row["gateway"]["state"] for row in rows if row.get("gateway")] == ["up"]


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")
def test_with_a_gateway_that_waits_no_request_fails_during_a_switch(turns: TurnsProject) -> None:
    assert turns.deploy_gateway("wait").code == 0
    steady = SteadyClients(turns.gateway, LARGE)
    with ThreadPoolExecutor(1) as pool, steady.running():
        steady.wait_for_answers(10)
        waiting_request = pool.submit(turns.chat, SMALL)
        switch_to_small = turns.switch(SMALL)
        assert switch_to_small.proved and "not drained" not in switch_to_small.out, switch_to_small.out[-3000:]
        assert waiting_request.result().status == 200
        switch_back = turns.switch(LARGE)
        assert switch_back.code in (0, 4), switch_back.out[-3000:]
        steady.wait_for_answers(10)
    assert not steady.wrong
