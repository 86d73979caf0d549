"""`hosts.check`, `hosts.add` and hints with the host's name in a project with a simulated Spark."""

import json
import socket

from sparkwright.project.inventory.inventory import Inventory
from tests.e2e.conftest import SandboxProject


def test_a_serving_host_has_a_row_with_its_server_and_nothing_missing(project: SandboxProject) -> None:
    project.deployed()
    result = project.run("hosts.check", "--host", "sandbox", "--json")
    row = json.loads(result.out)
    (server,) = row["servers"]
    assert (result.code, row["missing"], row["gpu"]["name"]) == (0, [], "NVIDIA GB10"), row["missing"]
    assert (server["name"], server["models"], server["verified"]) == ("qwen35", ["qwen3.5-35b"], True)
    assert row["models"][0]["id"] == "Qwen/Qwen3.5-35B-A3B-FP8"
    output = project.run("hosts.check", "--host", "sandbox").out
    assert f"qwen35:{project.port}" in output and output.rstrip().endswith("nothing missing")


def test_an_unknown_run_is_refused_with_a_command_for_this_host(project: SandboxProject) -> None:
    for command in ("attach", "stop"):
        result = project.run(command, "--host", "sandbox", "--run", "nope")
        assert result.code == 5 and "no run nope on this host. `sparkwright runs --host sandbox`" in result.out


def test_a_missing_requirement_is_named_with_exit_code_1(project: SandboxProject) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        project.edit("hosts/sandbox.yml", r"serve_port: \d+", f"serve_port: {other.getsockname()[1]}")
        result = project.run("hosts.check", "--host", "sandbox", "--json")
        output = project.run("hosts.check", "--host", "sandbox").out
    assert (result.code, [item["check"] for item in json.loads(result.out)["missing"]]) == (1, ["port"])
    assert "port: port" in output


def test_a_host_is_added_with_a_new_group_and_an_invalid_one_changes_nothing(project: SandboxProject) -> None:
    address = ("--address", "ops@10.0.0.7", "--groups", "lab,night")
    result = project.run("hosts.add", "spark2", *address, "--recipe", "llama-3.1-8b", "--offline")
    assert result.code == 0 and "sparkwright doctor --host spark2" in result.out, result.err
    inventory = Inventory.load(project.root)
    assert inventory.groups["night"] == ("spark2",) and inventory.hosts["spark2"].recipe == "llama-3.1-8b"
    before = {path: path.read_bytes() for path in (project.root / "hosts").iterdir()}
    for name, recipe, sentence in (
        ("spark2", "llama-3.1-8b", "a host named spark2 already exists"),
        ("lab", "llama-3.1-8b", "a group named lab already exists"),
        ("spark3", "lama", "Did you mean `llama-3.1-8b`?"),
    ):
        refused = project.run("hosts.add", name, "--address", "10.0.0.8", "--recipe", recipe, "--offline")
        assert refused.code == 5 and sentence in refused.err, refused.err
    assert project.run("hosts.add").code == 5
    assert {path: path.read_bytes() for path in (project.root / "hosts").iterdir()} == before
