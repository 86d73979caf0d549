"""A host whose servers take turns in its memory: one is awake, `invoke switch` swaps them, and a gateway's clients wait."""

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
    """A project whose sandbox has both recipes on demand, the large one awake, the small one proved before."""

    def __init__(self, project: SandboxProject) -> None:
        self.project, self.gateway = project, free_port()
        ports = {LARGE: project.port, SMALL: free_port()}
        rows = "".join(f"\n  - {{recipe: {recipe}, port: {port}}}" for recipe, port in ports.items())
        self.hosts = project.root / "hosts/sandbox.yml"
        self.hosts.write_text(f"connection: sandbox\nuser: spark\non_demand:{rows}\n")

    def switch(self, recipe: str, *words: str) -> Any:
        return self.project.run("switch", "--host", "sandbox", "--to", recipe, "--json", *words)

    def states(self, command: str = "status") -> dict[str, str]:
        rows = self.project.run(command, "--host", "sandbox", "--json").events()
        return {row["recipe"]: row["state"] for row in rows}

    def policies(self) -> dict[str, tuple[str, bool, str]]:
        """Return id, state and restart policy of each container."""
        api = self.project.docker().api
        containers = {recipe: api.inspect_container(name) for recipe, name in CONTAINERS.items()}
        return {
            recipe: (value["Id"], value["State"]["Running"], value["HostConfig"]["RestartPolicy"]["Name"])
            for recipe, value in containers.items()
        }

    def awake(self) -> str:
        path: Path = self.project.sandbox / "home" / TURNS
        return str(json.loads(path.read_text())["awake"]) if path.exists() else ""

    def chat(self, recipe: str, timeout_s: float = 60) -> http.client.HTTPResponse:
        """A request through the gateway; its answer begins."""
        link = http.client.HTTPConnection("127.0.0.1", self.gateway, timeout=timeout_s)
        body = {"model": recipe, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
        link.request("POST", "/v1/chat/completions", json.dumps(body))
        return link.getresponse()

    def route(self, not_up: str) -> Any:
        """A gateway in front of both, deployed."""
        gateway = {"host": "sandbox", "port": self.gateway, "tls": "none", "not_up": not_up}
        groups = {"lab": {}, "box": {"hosts": ["sandbox"], "gateway": gateway}}
        (self.project.root / "hosts/groups.yml").write_text(json.dumps(groups))
        return self.project.run("gateway.deploy", "--host", "box", "--json")


@pytest.fixture(scope="module")
def turns() -> Iterator[TurnsProject]:
    with pytest.MonkeyPatch.context() as patch, sandbox_project() as project:
        patch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
        project.edit(f"recipes/{LARGE}.yml", "utilization: 0.85", "utilization: 0.72")
        value = TurnsProject(project)
        first = project.deploy()
        assert first.code == 0, first.out[-3000:]
        assert "qwen3-1.7b is asleep and was never verified: it is the turn of qwen35" in first.out
        assert project.docker().api.containers(all=True, filters={"name": CONTAINERS[SMALL]}) == [], (
            "prepared, not started"
        )
        for recipe in (SMALL, LARGE):
            result = value.switch(recipe)
            assert result.proved, result.out[-3000:]
        yield value


@pytest.fixture(autouse=True)
def large_is_awake(turns: TurnsProject) -> Iterator[None]:
    yield
    if turns.states() != {LARGE: "up", SMALL: "asleep"} and turns.awake() != CONTAINERS[LARGE]:
        assert turns.switch(LARGE).proved


def test_one_is_awake_and_the_other_keeps_its_container_for_its_next_turn(turns: TurnsProject) -> None:
    before = turns.policies()
    assert [item[1:] for item in before.values()] == [(True, "unless-stopped"), (False, "no")]
    result = turns.switch(SMALL)
    assert result.proved and result.task("Stop it")["status"] == "changed"
    after = turns.policies()
    assert {recipe: value[0] for recipe, value in after.items()} == {
        recipe: value[0] for recipe, value in before.items()
    }
    assert [item[1:] for item in after.values()] == [(False, "no"), (True, "unless-stopped")]
    assert turns.states() == {LARGE: "asleep", SMALL: "up"}
    health = turns.project.run("health.check", "--host", "sandbox")
    assert health.code == 0 and "asleep: it is the turn of qwen3-1.7b" in health.out
    second_run = turns.switch(SMALL)
    assert (second_run.code, second_run.recap["changed"]) == (0, 0) and second_run.recap["msg"].endswith(
        "nothing to switch"
    )


def test_no_command_wakes_the_one_that_is_asleep(turns: TurnsProject) -> None:
    before = turns.policies()
    for command in ("restart", "rollback"):
        result = turns.project.run(command, "--host", "sandbox", "--recipe", SMALL)
        assert result.code == 5 and f"switch --host sandbox --to {SMALL}` wakes it" in result.out, command
    deployed = turns.project.deploy("--recipe", SMALL)
    assert (deployed.code, deployed.recap["changed"]) == (0, 0) and "is asleep (since" in deployed.recap["msg"]
    verified = turns.project.run("verify", "--host", "sandbox", "--recipe", SMALL)
    assert verified.code == 0 and "wakes and verifies it" in verified.out
    client = turns.project.run("client", "--host", "sandbox", "--recipe", SMALL)
    assert client.code == 1 and "is asleep: it is the turn of qwen35" in client.out + client.err
    assert turns.policies() == before


def test_check_mode_shows_a_switch_and_touches_nothing(turns: TurnsProject) -> None:
    before = turns.policies()
    result = turns.switch(SMALL, "--check")
    assert result.code == 2 and turns.policies() == before and turns.awake() == CONTAINERS[LARGE]


def test_a_switch_that_fails_wakes_the_other_again(turns: TurnsProject) -> None:
    before, recipe = turns.policies(), turns.project.root / f"recipes/{SMALL}.yml"
    text = recipe.read_text()
    recipe.write_text(text + "  tok_per_s: 9000\n")
    try:
        result = turns.switch(SMALL)
    finally:
        recipe.write_text(text)
    assert result.code == 1 and result.recap["msg"].endswith("qwen35 is awake again.")
    assert turns.policies() == before and turns.awake() == CONTAINERS[LARGE]
    assert turns.states() == {LARGE: "up", SMALL: "asleep"}


def test_a_container_that_docker_refuses_is_refused_before_the_other_is_put_to_sleep(turns: TurnsProject) -> None:
    before, recipe = turns.policies(), turns.project.root / f"recipes/{SMALL}.yml"
    started = turns.project.docker().api.inspect_container(CONTAINERS[LARGE])["State"]["StartedAt"]
    text = recipe.read_text()
    turns.project.edit(f"recipes/{SMALL}.yml", r"(?m)^container:\n", "container:\n  log_driver: lokki\n")
    try:
        result = turns.switch(SMALL)
    finally:
        recipe.write_text(text)
    assert result.code == 1 and 'plugin "lokki" not found.' in result.recap["msg"], result.out[-2000:]
    assert turns.policies() == before and turns.awake() == CONTAINERS[LARGE]
    assert turns.project.docker().api.inspect_container(CONTAINERS[LARGE])["State"]["StartedAt"] == started
    assert not [row for row in turns.project.docker().api.containers(all=True) if "replacement" in row["Names"][0]]


def test_a_new_recipe_of_the_sleeping_one_waits_for_its_turn(turns: TurnsProject) -> None:
    before = turns.policies()
    turns.project.edit(f"recipes/{SMALL}.yml", "max-model-len: 16384", "max-model-len: 8192")
    try:
        deployed = turns.project.deploy("--recipe", SMALL)
        assert deployed.code == 0 and "its recipe changed: the next switch recreates it" in deployed.recap["msg"]
        assert turns.policies() == before
        assert turns.switch(SMALL).proved
        after = turns.policies()
        assert after[SMALL][0] != before[SMALL][0] and after[LARGE][0] == before[LARGE][0]
    finally:
        turns.project.edit(f"recipes/{SMALL}.yml", "max-model-len: 8192", "max-model-len: 16384")


def test_a_switch_that_was_cut_off_is_finished_by_the_same_command(turns: TurnsProject) -> None:
    """As a run leaves it that ended between its word whose turn it is and the stop of the other."""
    path: Path = turns.project.sandbox / "home" / TURNS
    path.write_text(json.dumps({**json.loads(path.read_text()), "awake": CONTAINERS[SMALL]}))
    refused = turns.project.run("deploy", "--host", "sandbox", "--recipe", SMALL)
    assert refused.code == 5 and f"switch --host sandbox --to {SMALL}` finishes it" in refused.out
    assert turns.states()[LARGE] == "degraded"
    assert turns.switch(SMALL).proved
    assert turns.states() == {LARGE: "asleep", SMALL: "up"}


def test_what_is_on_demand_counts_once_and_the_rest_of_the_host_beside_it(turns: TurnsProject) -> None:
    """Two servers that do not fit together fit if they take turns; a third one alongside the largest does not."""
    text, recipe = turns.hosts.read_text(), turns.project.root / f"recipes/{ALWAYS_ON}.yml"
    original = recipe.read_text()
    turns.project.edit(f"recipes/{ALWAYS_ON}.yml", "utilization: 0.05", "utilization: 0.3")
    turns.hosts.write_text(f"{text}serves:\n  - {{recipe: qwen3-embedding-0.6b, port: {free_port()}}}\n")
    try:
        result = turns.project.run("deploy", "--host", "sandbox", "--recipe", LARGE)
    finally:
        turns.hosts.write_text(text)
    assert result.code == 0, "nothing has to be started for what runs already"
    turns.hosts.write_text(f"{text}serves:\n  - {{recipe: qwen3-embedding-0.6b, port: {free_port()}}}\n")
    try:
        refused = turns.switch(SMALL)
    finally:
        turns.hosts.write_text(text)
        recipe.write_text(original)
    assert refused.code == 5
    evidence = next(event for event in refused.events() if event.get("status") == "failed")["data"]["evidence"]
    assert any("qwen35" in row and "the largest of those on demand" in row for row in evidence)
    assert any("qwen35" in row and "GiB of qwen3-1.7b, which it replaces" in row for row in evidence)


def test_one_that_is_always_on_starts_beside_the_larger_of_those_on_demand(turns: TurnsProject) -> None:
    """It fits beside whichever is awake, not beside both."""
    text = turns.hosts.read_text()
    turns.hosts.write_text(f"{text}serves:\n  - {{recipe: {ALWAYS_ON}, port: {free_port()}}}\n")
    try:
        for command in ("deploy", "restart"):
            result = turns.project.run(command, "--host", "sandbox", "--recipe", ALWAYS_ON, "--json")
            assert result.proved, result.out[-3000:]
        assert {**turns.states(), ALWAYS_ON: "up"} == {ALWAYS_ON: "up", LARGE: "up", SMALL: "asleep"}
    finally:
        turns.hosts.write_text(text)
        for container in turns.project.docker().api.containers(all=True, filters={"name": "qwen3-embedding"}):
            turns.project.docker().api.remove_container(container["Id"], force=True)


def test_one_that_is_always_on_from_now_starts_beside_the_other(turns: TurnsProject) -> None:
    """What the host wrote down of turns is forgotten with them."""
    text = turns.hosts.read_text()
    turns.hosts.write_text(text.replace("on_demand:", "serves:"))
    try:
        result = turns.project.deploy("--recipe", SMALL)
        assert result.proved, result.out[-3000:]
        assert turns.states() == {LARGE: "up", SMALL: "up"} and turns.awake() == ""
    finally:
        turns.hosts.write_text(text)
        turns.project.docker().api.stop(CONTAINERS[SMALL])
    assert turns.project.deploy("--recipe", LARGE).code == 0
    assert turns.states() == {LARGE: "up", SMALL: "asleep"}


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("on_demand: [qwen3.5-35b]\n", "`on_demand` has only one recipe: it needs at least two to take turns."),
        ("recipe: qwen3.5-35b\non_demand: [qwen3.5-35b, qwen3-1.7b]\n", "`recipe` and `on_demand` are both set."),
        ("serves: [qwen3-1.7b]\non_demand: [qwen3.5-35b, qwen3-1.7b]\n", "the recipe qwen3-1.7b is listed twice."),
    ],
)
def test_a_list_that_makes_no_sense_is_refused_with_its_line(turns: TurnsProject, written: str, message: str) -> None:
    text = turns.hosts.read_text()
    turns.hosts.write_text(f"connection: sandbox\nuser: spark\n{written}")
    try:
        result = turns.project.run("status", "--host", "sandbox")
    finally:
        turns.hosts.write_text(text)
    assert result.code == 5 and re.search(rf"hosts/sandbox.yml:\d+: {re.escape(message)}", result.err + result.out)


def test_a_switch_to_what_is_always_on_or_nowhere_is_refused(turns: TurnsProject) -> None:
    assert turns.project.run("switch", "--host", "sandbox").code == 5
    unknown = turns.switch("qwen3-1.8b")
    assert unknown.code == 5 and f"`{SMALL}`" in unknown.out + unknown.err


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")
def test_a_gateway_refuses_the_sleeping_model_and_is_not_degraded_by_it(turns: TurnsProject) -> None:
    routed = turns.route("refuse")
    assert routed.code == 0 and f"asleep: {SMALL}" in routed.out, routed.out[-2000:]
    assert turns.chat(LARGE).status == 200
    refused = turns.chat(SMALL)
    assert (refused.status, json.loads(refused.read())["error"]["code"]) == (503, "model_not_up")
    status = turns.project.run("gateway.status", "--host", "box", "--json")
    assert status.code == 0, "as in `status`: a sleeping model is no failure"
    result = json.loads(status.out)
    assert {model["model"]: model["on_demand"] for model in result["models"]} == {LARGE: True, SMALL: True}
    assert {model["model"]: model["errors"] for model in result["models"]}[SMALL] == 1, (
        "the client's, and none of the proof"
    )
    rows = turns.project.run("status", "--host", "sandbox", "--json").events()
    assert [row["gateway"]["state"] for row in rows if row.get("gateway")] == ["up"]


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")
def test_a_gateway_that_waits_answers_each_request_after_the_switch(turns: TurnsProject) -> None:
    """Clients of the one that goes to sleep, and a request for the one that wakes: none fails."""
    assert turns.route("wait").code == 0
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
