"""Rolling deploys and restarts of three hosts over a real sshd, with real engines."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bed.conftest import TOP, BedProject, CommandResult

HOSTS = ("spark1", "spark2", "spark3")


@pytest.fixture
def three(bed: Path, lab: BedProject) -> BedProject:
    """Three hosts with the same server."""
    subprocess.run([sys.executable, str(TOP / "molecule/bed/bed.py"), "up", "--hosts", "3"], check=True)
    for host in HOSTS:
        (lab.root / f"hosts/{host}.yml").write_text(f"address: {host}\ngroups: [lab]\n")
    result = lab.run("deploy", "--host", "lab", "--serial", "100%", "--json")
    assert result.code == 0, result.output
    return lab


def inspect_containers(lab: BedProject) -> dict[str, str]:
    return {host: lab.server(host) for host in HOSTS}


def rolled_hosts(result: CommandResult) -> dict[str, list[str]]:
    """Return the hosts by outcome, without empty lists."""
    event = next(event for event in result.events if event["event"] == "rolled")
    return {key: event[key] for key in ("done", "earlier", "failed", "not_begun") if event[key]}


def test_rolling_deploy_stops_restores_and_resumes(three: BedProject) -> None:
    before = inspect_containers(three)
    three.recipe("  max-num-seqs: 8", "  max-num-seqs: 4")
    good, broken = three.root / "recipes/bed.yml", three.root / "recipes/broken.yml"
    broken.write_text(good.read_text().replace("SPEED: instant}", "SPEED: instant, SANDBOX_FAULT: crash-loop}"))
    with (three.root / "hosts/spark2.yml").open("a") as file:
        file.write("recipe: broken\n")

    spark3 = three.root / "hosts/spark3.yml"
    original = spark3.read_text()
    spark3.write_text(original + "serve_port: 5000\n")  # the registry's
    result = three.deploy("lab")
    assert result.code == 5, result.output
    assert rolled_hosts(result) == {"failed": ["spark3"], "not_begun": ["spark1", "spark2"]}
    assert "port 5000 is in use" in result.out
    assert inspect_containers(three) == before
    spark3.write_text(original)

    result = three.deploy("lab")
    assert result.code == 1, result.output
    assert rolled_hosts(result) == {"done": ["spark1"], "failed": ["spark2"], "not_begun": ["spark3"]}
    assert "The previous server is restored" in result.out
    then = inspect_containers(three)
    assert then["spark1"] != before["spark1"]
    assert (then["spark2"], then["spark3"]) == (before["spark2"], before["spark3"])
    assert all(state.endswith("true unless-stopped") for state in then.values())

    broken.write_text(good.read_text())
    result = three.run("deploy", "--resume", "--json")
    assert result.code == 0, result.output
    assert rolled_hosts(result) == {"done": ["spark2", "spark3"], "earlier": ["spark1"]}
    now = inspect_containers(three)
    assert now["spark1"] == then["spark1"]
    assert all(now[host] != before[host] and now[host].endswith("true unless-stopped") for host in HOSTS)


def test_last_server_of_a_group_is_not_stopped(three: BedProject) -> None:
    for host in ("spark1", "spark2"):
        three.on(host, "docker update --restart no qwen35 && docker stop -t 2 qwen35")
    before = inspect_containers(three)
    three.edit("hosts/groups.yml", "lab: {}", "lab: {min_serving: 1}")
    result = three.run("restart", "--host", "spark3")
    assert result.code == 5, result.output
    assert "lab must keep 1 serving" in result.out
    assert inspect_containers(three) == before
    three.edit("hosts/groups.yml", "min_serving: 1", "min_serving: 0")
    assert three.run("restart", "--host", "spark3").code == 0
