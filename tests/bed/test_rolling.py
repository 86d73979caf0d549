"""Rolling deploys and restarts of three hosts over a real sshd, with real engines."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bed.conftest import TOP, BedProject, CommandResult

pytestmark = pytest.mark.bed

HOSTS = ("spark1", "spark2", "spark3")


@pytest.fixture
def three(bed: Path, lab: BedProject) -> BedProject:
    """Three hosts that serve the same."""
    subprocess.run([sys.executable, str(TOP / "molecule/bed/bed.py"), "up", "--hosts", "3"], check=True)
    for host in HOSTS:
        (lab.root / f"hosts/{host}.yml").write_text(f"address: {host}\ngroups: [lab]\n")
    result = lab.run("deploy", "--host", "lab", "--serial", "100%", "--json")
    assert result.code == 0, result.out[-3000:] + result.err
    return lab


def inspect_containers(lab: BedProject) -> dict[str, str]:
    """Return Id, state and restart policy of each host's container."""
    inspect = "docker inspect -f '{{.Id}} {{.State.Running}} {{.HostConfig.RestartPolicy.Name}}' qwen35"
    return {host: lab.on(host, inspect) for host in HOSTS}


def rolled_event(result: CommandResult) -> dict[str, list[str]]:
    import json

    event = next(item for item in map(json.loads, result.out.splitlines()) if item["event"] == "rolled")
    return {key: event[key] for key in ("done", "earlier", "failed", "not_begun")}


def test_rolling_deploy_stops_restores_and_resumes(three: BedProject) -> None:
    before = inspect_containers(three)
    three.recipe("  max-num-seqs: 8", "  max-num-seqs: 4")
    broken = three.root / "recipes/broken.yml"
    broken.write_text(
        (three.root / "recipes/bed.yml")
        .read_text()
        .replace("SPEED: instant}", "SPEED: instant, SANDBOX_FAULT: crash-loop}")
    )
    with (three.root / "hosts/spark2.yml").open("a") as file:
        file.write("recipe: broken\n")

    spark3 = three.root / "hosts/spark3.yml"
    as_it_was = spark3.read_text()
    spark3.write_text(as_it_was + "serve_port: 5000\n")  # the registry's
    result = three.run("deploy", "--host", "lab", "--json")
    assert result.code == 5, result.out[-3000:]
    assert rolled_event(result) == {"done": [], "earlier": [], "failed": ["spark3"], "not_begun": ["spark1", "spark2"]}
    assert "port 5000 is in use" in result.out
    assert inspect_containers(three) == before
    spark3.write_text(as_it_was)

    result = three.run("deploy", "--host", "lab", "--json")
    assert result.code == 1, result.out[-3000:]
    assert rolled_event(result) == {"done": ["spark1"], "earlier": [], "failed": ["spark2"], "not_begun": ["spark3"]}
    assert "The previous server is restored" in result.out
    then = inspect_containers(three)
    assert then["spark1"] != before["spark1"]
    assert (then["spark2"], then["spark3"]) == (before["spark2"], before["spark3"])
    assert all(state.endswith("true unless-stopped") for state in then.values())

    broken.write_text((three.root / "recipes/bed.yml").read_text())
    result = three.run("deploy", "--resume", "--json")
    assert result.code == 0, result.out[-3000:] + result.err
    assert rolled_event(result) == {"done": ["spark2", "spark3"], "earlier": ["spark1"], "failed": [], "not_begun": []}
    now = inspect_containers(three)
    assert now["spark1"] == then["spark1"]
    assert all(now[host] != before[host] and now[host].endswith("true unless-stopped") for host in HOSTS)


def test_last_server_of_a_group_is_not_stopped(three: BedProject) -> None:
    for host in ("spark1", "spark2"):
        three.on(host, "docker update --restart no qwen35 && docker stop -t 2 qwen35")
    before = inspect_containers(three)
    groups = three.root / "hosts/groups.yml"
    groups.write_text(groups.read_text().replace("lab: {}", "lab: {min_serving: 1}"))
    result = three.run("restart", "--host", "spark3")
    assert result.code == 5, result.out + result.err
    assert "lab must keep 1 serving" in result.out
    assert inspect_containers(three) == before
    groups.write_text(groups.read_text().replace("min_serving: 1", "min_serving: 0"))
    assert three.run("restart", "--host", "spark3").code == 0
