"""A host that serves several recipes: each has its own records, and none is changed by commands for another."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkwright.health.settings import Settings
from sparkwright.health.store import CheckHistory
from tests.e2e.conftest import SandboxProject, sandbox_project
from tests.e2e.health_checks import run_check
from tests.gateway.steady import SteadyClients
from tests.remote.sshd import free_port

CHAT, VECTORS = "qwen3.5-35b", "qwen3-embedding-0.6b"
CONTAINERS = {CHAT: "qwen35", VECTORS: "qwen3-embedding"}
TOTAL_GIB = 119.7


def set_recipes(project: SandboxProject, *recipes: str) -> None:
    """Let the sandbox serve these recipes on different ports."""
    ports = [project.port, *(free_port() for _ in recipes[1:])]
    rows = "".join(f"\n  - {{recipe: {value}, port: {port}}}" for value, port in zip(recipes, ports, strict=True))
    (project.root / "hosts/sandbox.yml").write_text(f"connection: sandbox\nuser: spark\nserves:{rows}\n")


def start_times(project: SandboxProject) -> dict[str, str]:
    """Return Id and start of each container, by name."""
    rows = [project.container(row["Id"]) for row in project.docker().api.containers(all=True)]
    return {row["Name"].lstrip("/"): f"{row['Id']} {row['State']['StartedAt']}" for row in rows}


@pytest.fixture(scope="module")
def both() -> Iterator[SandboxProject]:
    with sandbox_project() as project:
        project.edit(f"recipes/{CHAT}.yml", "utilization: 0.85", "utilization: 0.72")
        project.deployed()
        before = start_times(project)
        set_recipes(project, CHAT, VECTORS)
        result = project.run("deploy", "--host", "sandbox")
        assert result.code == 0, result.out[-3000:]
        assert start_times(project)["qwen35"] == before["qwen35"], "the first server was not replaced"
        yield project


def test_the_first_server_keeps_its_records(both: SandboxProject) -> None:
    assert [row["what"] for row in both.history("--recipe", CHAT)] == ["verified"]
    state = both.state.path
    assert not (state / "verified.json").exists()
    assert {path.parent.name for path in state.glob("servers/*/verified.json")} == set(CONTAINERS.values())


def test_status_has_a_row_per_server_and_recipe_selects_one(both: SandboxProject) -> None:
    rows = both.run("status", "--host", "sandbox", "--json").events()
    assert [(row["host"], row["state"]) for row in rows] == [(f"sandbox/{CHAT}", "up"), (f"sandbox/{VECTORS}", "up")]
    alone = both.run("status", "--host", "sandbox", "--recipe", VECTORS, "--json").events()
    assert [row["recipe"] for row in alone] == [VECTORS]
    unknown = both.run("status", "--host", "sandbox", "--recipe", "qwen3.5-35c")
    assert unknown.code == 5 and f"Did you mean `{CHAT}`?" in unknown.err + unknown.out


def test_the_history_of_both_servers_is_newest_first(both: SandboxProject) -> None:
    rows = both.run("history", "--host", "sandbox", "--json").events()
    assert {row["host"] for row in rows} == {f"sandbox/{CHAT}", f"sandbox/{VECTORS}"}
    times = [row["at"] for row in rows]
    assert times == sorted(times, reverse=True)


def test_health_and_verify_use_text_or_a_vector(both: SandboxProject) -> None:
    health = both.run("health.check", "--host", "sandbox")
    assert health.code == 0 and "a token in" in health.out and "a vector in" in health.out
    verified = both.run("verify", "--host", "sandbox", "--recipe", VECTORS)
    assert verified.code == 0 and "a vector of 1024 numbers" in verified.out and "qwen35" not in verified.out
    rows = both.run("status", "--host", "sandbox", "--json").events()
    assert [row["state"] for row in rows] == ["ok", "ok"], "each has its own health record"


def test_deploy_restart_and_rollback_of_one_server_leave_the_other(both: SandboxProject) -> None:
    before = start_times(both)
    assert both.run("restart", "--host", f"sandbox/{VECTORS}").code == 0
    with both.restored_files():
        both.edit(f"recipes/{VECTORS}.yml", "max-model-len: 8192", "max-model-len: 4096")
        assert both.run("deploy", "--host", "sandbox", "--recipe", VECTORS).code == 0
        assert start_times(both)["qwen3-embedding"] != before["qwen3-embedding"]
        assert both.run("rollback", "--host", "sandbox", "--recipe", VECTORS).code == 0
    assert start_times(both)["qwen35"] == before["qwen35"]
    acts = [row["what"] for row in both.run("history", "--host", f"sandbox/{VECTORS}", "--json").events()]
    assert acts[:1] == ["rolled back"]
    plan = both.run("plan", "--host", "sandbox")
    assert plan.code == 0, plan.out[-2000:]


def test_a_failed_deploy_is_rolled_back_and_has_its_own_incident(both: SandboxProject) -> None:
    before = start_times(both)
    recipe = both.root / f"recipes/{VECTORS}.yml"
    with both.restored_files():
        recipe.write_text(recipe.read_text().replace("8192", "4096") + "  log: [never seen]\n")
        assert both.run("deploy", "--host", "sandbox", "--recipe", VECTORS).code == 1
    assert start_times(both)["qwen35"] == before["qwen35"]
    assert both.run("health.check", "--host", "sandbox").code == 0
    assert both.run("incident", "--host", "sandbox", "--recipe", VECTORS).code == 0
    none = both.run("incident", "--host", "sandbox", "--recipe", CHAT)
    assert none.code == 1 and "no incidents of qwen35" in none.out + none.err


def test_two_servers_that_do_not_fit_are_refused_with_the_table(both: SandboxProject) -> None:
    before = start_times(both)
    with both.restored_files():
        both.edit(f"recipes/{VECTORS}.yml", "utilization: 0.05", "utilization: 0.2")
        result = both.run("deploy", "--host", "sandbox")
    assert result.code == 5
    table = [line.split()[1:3] for line in result.out.splitlines() if line.strip().startswith("|")]
    names = ["GPU's", "host's", "compile", "/dev/shm", "qwen35", "the", "reserve", "total", "MemTotal"]
    assert [name for _, name in table[1 : len(names) + 1]] == names
    size = {name: float(size.strip("()")) for size, name in table[1 : len(names) + 1]}
    assert size["GPU's"] == round(0.2 * TOTAL_GIB, 1)
    assert size["qwen35"] == pytest.approx(0.72 * TOTAL_GIB + size["host's"], abs=0.2), "as measured, both sides"
    assert size["total"] == pytest.approx(sum(size[name] for name in names[:-2] if name != "/dev/shm"), abs=0.3)
    assert start_times(both) == before


def test_the_memory_of_the_rest_of_the_host_counts_too(both: SandboxProject) -> None:
    """Three servers would fit into the machine alone."""
    before = start_times(both)
    with both.restored_files():
        with (both.root / "hosts/sandbox.yml").open("a") as file:
            file.write(f"  - {{recipe: qwen3-1.7b, port: {free_port()}}}\n")
        result = both.run("deploy", "--host", "sandbox")
    assert result.code == 5 and "the host itself" in result.out
    assert re.search(r"do not fit together: [\d.]+ GiB needed, but the host has [\d.]+ GiB\.", result.out)
    assert start_times(both) == before


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("serves:", f"recipe: {CHAT}\nserves:", "hosts/sandbox.yml:3: `recipe` and `serves` are both set."),
        ("serves:", "serve_port: 8001\nserves:", "hosts/sandbox.yml:3: `serve_port` is ambiguous"),
        (f"recipe: {VECTORS}", f"recipe: {CHAT}", "hosts/sandbox.yml:5: the recipe qwen3.5-35b is listed twice."),
        (f"recipe: {VECTORS}", "recipe: qwen3.5-35b-200k", "would both run as the container 'qwen35'"),
        (r"port: \d+}\n\Z", "port: PORT}\n", "both use port PORT of sandbox"),
    ],
    ids=["recipe and serves", "serve_port", "recipe twice", "container twice", "port twice"],
)
def test_conflicts_between_two_servers_are_refused(both: SandboxProject, before: str, after: str, message: str) -> None:
    port = str(both.port)
    with both.restored_files():
        both.edit("hosts/sandbox.yml", before, after.replace("PORT", port))
        result = both.run("plan", "--host", "sandbox")
    assert result.code == 5 and message.replace("PORT", port) in result.out + result.err, result.out[-800:] + result.err


def test_doctor_examines_the_machine_once_and_each_port(both: SandboxProject) -> None:
    result = both.run("doctor", "--host", "sandbox", "--json")
    (row,) = result.events()
    ports = [finding["evidence"] for finding in row["findings"] if finding["check"] == "port"]
    assert len(ports) == 2 and all("used by this server" in port for port in ports)
    assert len([finding for finding in row["findings"] if finding["check"] == "disk"]) == 1


def test_commands_for_the_machine_report_it_once(both: SandboxProject) -> None:
    checked = both.run("hosts.check", "--host", "sandbox", "--json").events()
    assert [row["host"] for row in checked] == ["sandbox"]
    assert {server["name"] for server in checked[0]["servers"]} == set(CONTAINERS.values())
    assert both.run("recommend", "--host", "sandbox", "--for", "search").code == 0
    options = ("--from-host", "sandbox", "--container", "qwen35", "--answer", "model=a/b", "--check")
    imported = both.run("recipe.import", *options)
    assert imported.code == 0 and "changed nothing on sandbox" in imported.out, imported.err


def test_files_of_the_other_server_are_not_removed(both: SandboxProject) -> None:
    caches = both.run("caches.list", "--host", "sandbox", "--json").events()[0]["caches"]
    assert {row["container"] for row in caches if row["kept"]} == set(CONTAINERS.values())
    models = both.run("models.prune", "--host", "sandbox", "--yes")
    assert models.code == 0 and "nothing to free" in models.out
    items = both.run("host.clean", "--host", "sandbox", "--check", "--json").events()[0]["items"]
    servers = {row["name"]: row["kept"] for row in items if row["kind"] == "container"}
    assert servers == dict.fromkeys(CONTAINERS.values(), "--server removes it")


def test_a_host_that_returns_to_one_recipe_keeps_its_records(both: SandboxProject) -> None:
    before = start_times(both)
    single = f"connection: sandbox\nuser: spark\nrecipe: {CHAT}\nserve_port: {both.port}\n"
    with both.restored_files():
        (both.root / "hosts/sandbox.yml").write_text(single)
        assert both.deploy().code == 0
        assert start_times(both) == before
        assert [row["what"] for row in both.history()] == ["verified"]
    assert both.run("deploy", "--host", "sandbox").code == 0
    assert start_times(both) == before


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")
def test_the_gateway_routes_each_server_of_the_host(both: SandboxProject) -> None:
    gateway = f"{{host: sandbox, port: {free_port()}, tls: none}}"
    with both.restored_files():
        with (both.root / "hosts/groups.yml").open("a") as groups:
            groups.write(f"\nhere: {{hosts: [sandbox], gateway: {gateway}}}\n")
        result = both.run("gateway.deploy", "--host", "here")
        assert result.code == 0, result.out[-2000:]
        status = both.run("gateway.status", "--host", "here")
        assert status.code == 0 and f"sandbox:{CHAT}" in status.out and f"sandbox:{VECTORS}" in status.out, status.out
        before = start_times(both)
        both.edit(f"recipes/{VECTORS}.yml", f"served-model-name: {VECTORS}", f"served-model-name: {CHAT}")
        result = both.run("deploy", "--host", "sandbox")
        assert result.code == 5 and f"both serve `{CHAT}` with different models" in result.err, result.out + result.err
        assert start_times(both) == before


@pytest.mark.parametrize("pattern", ["sandbox2", "sandbox2/qwen3-1.7b"])
def test_a_fault_applies_to_the_host_of_a_named_server(project: SandboxProject, pattern: str) -> None:
    set_recipes(project, CHAT, "qwen3-1.7b")
    (project.root / "hosts/sandbox.yml").rename(project.root / "hosts/sandbox2.yml")
    result = project.run("sandbox.fault", "slow", "--host", pattern)
    assert (result.code, result.err) == (0, "")
    assert json.loads(project.run("sandbox.status", "--host", "sandbox2", "--json").out)["fault"] == "slow"
    assert (project.sandbox / "hosts/sandbox2/fault").read_text() == "slow"


def test_a_low_rate_while_another_server_uses_the_gpu_is_inconclusive(project: SandboxProject) -> None:
    """Without the other server's load, the same rate is a failure."""
    project.edit(f"recipes/{CHAT}.yml", "utilization: 0.85", "utilization: 0.72")
    project.deployed()
    set_recipes(project, CHAT, "qwen3-1.7b")
    assert (result := project.run("deploy", "--host", "sandbox", "--json")).code in (0, 4), result.out[-3000:]
    (bound,) = project.container("qwen3-1.7b")["HostConfig"]["PortBindings"].values()
    verify = ("verify", "--host", "sandbox", "--recipe", CHAT)
    assert project.run("sandbox.fault", "slow").code == 0
    steady = SteadyClients(int(bound[0]["HostPort"]), "qwen3-1.7b", clients=2)
    with steady.running():
        steady.wait_for_answers(2)
        shared = project.run(*verify, timeout_s=300)
    alone = project.run(*verify, timeout_s=300)
    assert (shared.code, "the GPU was shared: qwen3-1.7b generated" in shared.out) == (4, True), shared.out
    assert alone.code == 1, alone.out


def test_a_notification_names_the_server(both: SandboxProject, tmp_path: Path) -> None:
    message = tmp_path / "message"
    settings = Settings(host="sandbox", command=("sh", "-c", f'echo "$SPARKWRIGHT_HOST" > {message}'))
    state = both.state.for_server("qwen35")
    for _ in range(2):
        run_check(both.sandbox, settings, state=state)
        history = CheckHistory.load(state)
        history.notified = "down"
        history.save(state)
    assert message.read_text() == "sandbox/qwen35\n"
