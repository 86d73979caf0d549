"""A host that serves several recipes: each with its own record, none touched by what is done to another."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkwright.health.settings import Settings
from sparkwright.health.store import CheckHistory
from sparkwright.host.machine import Machine
from sparkwright.host.runs.context import RunContext
from sparkwright.host.state import StateFolder
from sparkwright.runner.health_check import build_check
from sparkwright.sandbox import control
from tests.e2e.conftest import SandboxProject, sandbox_project
from tests.gateway.steady import SteadyClients
from tests.remote.sshd import free_port

CHAT, VECTORS = "qwen3.5-35b", "qwen3-embedding-0.6b"
CONTAINERS = {CHAT: "qwen35", VECTORS: "qwen3-embedding"}
TOTAL_GIB = 119.7


def set_recipes(project: SandboxProject, *recipes: str) -> None:
    """Let the sandbox serve these, each on a port of its own."""
    ports = [project.port, *(free_port() for _ in recipes[1:])]
    rows = "".join(f"\n  - {{recipe: {value}, port: {port}}}" for value, port in zip(recipes, ports, strict=True))
    (project.root / "hosts/sandbox.yml").write_text(f"connection: sandbox\nuser: spark\nserves:{rows}\n")


def start_times(project: SandboxProject) -> dict[str, str]:
    """Return the start of each container, by name."""
    api = project.docker().api
    rows = [api.inspect_container(row["Id"]) for row in api.containers(all=True)]
    return {row["Name"].lstrip("/"): f"{row['Id']} {row['State']['StartedAt']}" for row in rows}


@pytest.fixture(scope="module")
def both() -> Iterator[SandboxProject]:
    with pytest.MonkeyPatch.context() as patch, sandbox_project() as project:
        patch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
        project.edit(f"recipes/{CHAT}.yml", "utilization: 0.85", "utilization: 0.72")
        project.deployed()
        before = start_times(project)
        set_recipes(project, CHAT, VECTORS)
        result = project.run("deploy", "--host", "sandbox")
        assert result.code == 0, result.out[-3000:]
        assert start_times(project)["qwen35"] == before["qwen35"], "the server that was there is the same"
        yield project


def test_the_server_that_was_there_keeps_its_memory(both: SandboxProject) -> None:
    result = both.run("history", "--host", "sandbox", "--recipe", CHAT, "--json")
    assert [row["what"] for row in result.events()] == ["verified"]
    state = both.sandbox / "home/.local/state/sparkwright"
    assert not (state / "verified.json").exists()
    assert {path.parent.name for path in state.glob("servers/*/verified.json")} == set(CONTAINERS.values())


def test_each_is_a_row_and_recipe_names_one(both: SandboxProject) -> None:
    rows = both.run("status", "--host", "sandbox", "--json").events()
    assert [(row["host"], row["state"]) for row in rows] == [(f"sandbox/{CHAT}", "up"), (f"sandbox/{VECTORS}", "up")]
    alone = both.run("status", "--host", "sandbox", "--recipe", VECTORS, "--json").events()
    assert [row["recipe"] for row in alone] == [VECTORS]
    unknown = both.run("status", "--host", "sandbox", "--recipe", "qwen3.5-35c")
    assert unknown.code == 5 and f"Did you mean `{CHAT}`?" in unknown.err + unknown.out


def test_health_and_verify_prove_each_by_what_it_does(both: SandboxProject) -> None:
    health = both.run("health.check", "--host", "sandbox")
    assert health.code == 0 and "a token in" in health.out and "a vector in" in health.out
    verified = both.run("verify", "--host", "sandbox", "--recipe", VECTORS)
    assert verified.code == 0 and "a vector of 1024 numbers" in verified.out and "qwen35" not in verified.out
    rows = both.run("status", "--host", "sandbox", "--json").events()
    assert [row["state"] for row in rows] == ["ok", "ok"], "each has a health record of its own"


def test_a_deploy_a_restart_and_a_rollback_of_one_leave_the_other(both: SandboxProject) -> None:
    before = start_times(both)
    assert both.run("restart", "--host", f"sandbox/{VECTORS}").code == 0
    both.edit(f"recipes/{VECTORS}.yml", "max-model-len: 8192", "max-model-len: 4096")
    try:
        assert both.run("deploy", "--host", "sandbox", "--recipe", VECTORS).code == 0
        changed = start_times(both)
        assert changed["qwen3-embedding"] != before["qwen3-embedding"]
        assert both.run("rollback", "--host", "sandbox", "--recipe", VECTORS).code == 0
    finally:
        both.edit(f"recipes/{VECTORS}.yml", "max-model-len: 4096", "max-model-len: 8192")
    assert start_times(both)["qwen35"] == before["qwen35"]
    acts = [row["what"] for row in both.run("history", "--host", f"sandbox/{VECTORS}", "--json").events()]
    assert acts[:1] == ["rolled back"]
    plan = both.run("plan", "--host", "sandbox")
    assert plan.code == 0, plan.out[-2000:]


def test_one_that_fails_is_restored_and_its_incident_is_its_own(both: SandboxProject) -> None:
    before = start_times(both)
    recipe = both.root / f"recipes/{VECTORS}.yml"
    text = recipe.read_text()
    recipe.write_text(text.replace("8192", "4096") + "  log: [never seen]\n")
    try:
        assert both.run("deploy", "--host", "sandbox", "--recipe", VECTORS).code == 1
    finally:
        recipe.write_text(text)
    assert start_times(both)["qwen35"] == before["qwen35"]
    assert both.run("health.check", "--host", "sandbox").code == 0
    assert both.run("incident", "--host", "sandbox", "--recipe", VECTORS).code == 0
    none = both.run("incident", "--host", "sandbox", "--recipe", CHAT)
    assert none.code == 1 and "no incidents of qwen35" in none.out + none.err


def test_two_that_cannot_fit_are_refused_with_the_table(both: SandboxProject) -> None:
    before = start_times(both)
    both.edit(f"recipes/{VECTORS}.yml", "utilization: 0.05", "utilization: 0.2")
    try:
        result = both.run("deploy", "--host", "sandbox")
    finally:
        both.edit(f"recipes/{VECTORS}.yml", "utilization: 0.2", "utilization: 0.05")
    assert result.code == 5
    table = [line.split()[1:3] for line in result.out.splitlines() if line.strip().startswith("|")]
    names = ["GPU's", "host's", "compile", "/dev/shm", "qwen35", "the", "reserve", "total", "MemTotal"]
    assert [name for _, name in table[1 : len(names) + 1]] == names
    size = {name: float(size.strip("()")) for size, name in table[1 : len(names) + 1]}
    assert size["GPU's"] == round(0.2 * TOTAL_GIB, 1)
    assert size["qwen35"] == pytest.approx(0.72 * TOTAL_GIB + size["host's"], abs=0.2), "as measured, both sides"
    assert size["total"] == pytest.approx(sum(size[name] for name in names[:-2] if name != "/dev/shm"), abs=0.3)
    assert start_times(both) == before


def test_what_all_else_on_the_host_holds_counts_too(both: SandboxProject) -> None:
    """Three that fit into the machine, but not into what the rest of it leaves: none is started."""
    hosts, before = both.root / "hosts/sandbox.yml", start_times(both)
    text = hosts.read_text()
    hosts.write_text(f"{text}  - {{recipe: qwen3-1.7b, port: {free_port()}}}\n")
    try:
        result = both.run("deploy", "--host", "sandbox")
    finally:
        hosts.write_text(text)
    assert result.code == 5
    assert (
        re.search(r"do not fit together: [\d.]+ GiB needed, but the host has [\d.]+ GiB\.", result.out)
        and "the host itself" in result.out
    )
    assert start_times(both) == before


def test_the_laptop_refuses_what_two_cannot_share(both: SandboxProject) -> None:
    hosts = both.root / "hosts/sandbox.yml"
    text = hosts.read_text()
    cases = {
        text.replace(
            "serves:", "recipe: qwen3.5-35b\nserves:"
        ): "hosts/sandbox.yml:3: `recipe` and `serves` are both set.",
        text.replace("serves:", "serve_port: 8001\nserves:"): "hosts/sandbox.yml:3: `serve_port` is ambiguous",
        text.replace(
            f"recipe: {VECTORS}", f"recipe: {CHAT}"
        ): "hosts/sandbox.yml:5: the recipe qwen3.5-35b is listed twice.",
        text.replace(f"recipe: {VECTORS}", "recipe: qwen3.5-35b-200k"): "would both run as the container 'qwen35'",
        text[: text.rindex("port: ")] + f"port: {both.port}}}\n": f"both use port {both.port} of sandbox",
    }
    try:
        for wrong, sentence in cases.items():
            hosts.write_text(wrong)
            result = both.run("plan", "--host", "sandbox")
            assert result.code == 5 and sentence in result.out + result.err, (sentence, result.out[-800:] + result.err)
    finally:
        hosts.write_text(text)


def test_the_doctor_examines_the_machine_once_and_each_port(both: SandboxProject) -> None:
    result = both.run("doctor", "--host", "sandbox", "--json")
    (row,) = result.events()
    ports = [finding["evidence"] for finding in row["findings"] if finding["check"] == "port"]
    assert len(ports) == 2 and all("used by this server" in port for port in ports)
    assert len([finding for finding in row["findings"] if finding["check"] == "disk"]) == 1


def test_what_is_asked_of_the_machine_is_asked_once(both: SandboxProject) -> None:
    checked = both.run("hosts.check", "--host", "sandbox", "--json").events()
    assert [row["host"] for row in checked] == ["sandbox"]
    assert {server["name"] for server in checked[0]["servers"]} == set(CONTAINERS.values())
    assert both.run("recommend", "--host", "sandbox", "--for", "search").code == 0
    imported = both.run(
        "recipe.import", "--from-host", "sandbox", "--container", "qwen35", "--answer", "model=a/b", "--check"
    )
    assert imported.code == 0 and "changed nothing on sandbox" in imported.out, imported.err


def test_nothing_of_a_neighbour_is_taken_for_a_leftover(both: SandboxProject) -> None:
    caches = both.run("caches.list", "--host", "sandbox", "--json").events()[0]["caches"]
    assert {row["container"] for row in caches if row["kept"]} == set(CONTAINERS.values())
    models = both.run("models.prune", "--host", "sandbox", "--yes")
    assert models.code == 0 and "nothing to free" in models.out
    items = both.run("host.clean", "--host", "sandbox", "--check", "--json").events()[0]["items"]
    servers = {row["name"]: row["kept"] for row in items if row["kind"] == "container"}
    assert servers == dict.fromkeys(CONTAINERS.values(), "--server removes it")


def test_a_host_goes_back_to_one_recipe_and_keeps_what_it_knew(both: SandboxProject) -> None:
    text = (both.root / "hosts/sandbox.yml").read_text()
    before = start_times(both)
    (both.root / "hosts/sandbox.yml").write_text(
        f"connection: sandbox\nuser: spark\nrecipe: {CHAT}\nserve_port: {both.port}\n"
    )
    try:
        assert both.deploy().code == 0
        assert start_times(both) == before
        acts = both.run("history", "--host", "sandbox", "--json").events()
        assert [row["what"] for row in acts] == ["verified"]
    finally:
        (both.root / "hosts/sandbox.yml").write_text(text)
    assert both.run("deploy", "--host", "sandbox").code == 0
    assert start_times(both) == before


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")
def test_the_gateway_routes_each_server_of_the_host(both: SandboxProject) -> None:
    port = free_port()
    groups = both.root / "hosts/groups.yml"
    text, hosts = groups.read_text(), (both.root / "hosts/sandbox.yml").read_text()
    recipe = both.root / f"recipes/{VECTORS}.yml"
    original = recipe.read_text()
    groups.write_text(f"{text}\nhere: {{hosts: [sandbox], gateway: {{host: sandbox, port: {port}, tls: none}}}}\n")
    try:
        result = both.run("gateway.deploy", "--host", "here")
        assert result.code == 0, result.out[-2000:]
        status = both.run("gateway.status", "--host", "here")
        assert status.code == 0 and f"sandbox:{CHAT}" in status.out and f"sandbox:{VECTORS}" in status.out, status.out
        before = start_times(both)
        recipe.write_text(original.replace(f"served-model-name: {VECTORS}", f"served-model-name: {CHAT}"))
        result = both.run("deploy", "--host", "sandbox")
        assert result.code == 5 and f"both serve `{CHAT}` with different models" in result.err, result.out + result.err
        assert start_times(both) == before
    finally:
        recipe.write_text(original)
        groups.write_text(text)
        (both.root / "hosts/sandbox.yml").write_text(hosts)


@pytest.mark.parametrize("pattern", ["sandbox2", "sandbox2/qwen3-1.7b"])
def test_a_fault_is_of_the_host_whichever_of_its_servers_is_named(project: SandboxProject, pattern: str) -> None:
    set_recipes(project, CHAT, "qwen3-1.7b")
    (project.root / "hosts/sandbox.yml").rename(project.root / "hosts/sandbox2.yml")
    result = project.run("sandbox.fault", "slow", "--host", pattern)
    assert (result.code, result.err) == (0, "")
    assert json.loads(project.run("sandbox.status", "--host", "sandbox2", "--json").out)["fault"] == "slow"
    assert (project.sandbox / "hosts/sandbox2/fault").read_text() == "slow"


def test_a_poor_rate_beside_a_server_that_generates_is_inconclusive(project: SandboxProject) -> None:
    """They share the GPU. Alone, the same rate is a failure."""
    project.edit(f"recipes/{CHAT}.yml", "utilization: 0.85", "utilization: 0.72")
    project.deployed()
    set_recipes(project, CHAT, "qwen3-1.7b")
    assert (result := project.run("deploy", "--host", "sandbox", "--json")).code in (0, 4), result.out[-3000:]
    (bound,) = project.docker().api.inspect_container("qwen3-1.7b")["HostConfig"]["PortBindings"].values()
    verify = ("verify", "--host", "sandbox", "--recipe", CHAT)
    assert project.run("sandbox.fault", "slow").code == 0
    steady = SteadyClients(int(bound[0]["HostPort"]), "qwen3-1.7b", clients=2)
    with steady.running():
        steady.wait_for_answers(2)
        extra = project.run(*verify, timeout_s=300)
    alone = project.run(*verify, timeout_s=300)
    assert (extra.code, "the GPU was shared: qwen3-1.7b generated" in extra.out) == (4, True), extra.out
    assert alone.code == 1, alone.out


def test_whoever_is_notified_hears_which_server_it_is(both: SandboxProject, tmp_path: Path) -> None:
    message = tmp_path / "told"
    settings = Settings(host="sandbox", command=("sh", "-c", f'echo "$SPARKWRIGHT_HOST" > {message}'))
    state = StateFolder.in_home(both.sandbox / "home").for_server("qwen35")
    context = RunContext(Machine.from_environment(control.up(both.sandbox)), state, "run-1", lambda event: None)
    for _ in range(2):
        build_check(context, settings, scheduled=True).run()
        history = CheckHistory.load(state)
        history.notified = "down"
        history.save(state)
    assert message.read_text() == "sandbox/qwen35\n"
