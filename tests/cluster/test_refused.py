"""A host that cannot be a member is found before anything is stopped, and the whole cluster stays unchanged."""

import socket
from pathlib import Path

import yaml

from tests.cluster.pair import Pair, failures

CHECK = "Check the fabric"


def edited(pair: Pair, host: str, **fabric: object) -> None:
    """Edit the host's file so that its link has another end."""
    path: Path = pair.root / f"hosts/{host}.yml"
    found = yaml.safe_load(path.read_text())
    found["fabric"] |= fabric
    path.write_text(yaml.safe_dump(found))


def why(pair: Pair, host: str) -> str:
    """Deploy, check that it is refused with nothing changed, and return the message of the host's check."""
    answer = pair.deploy()
    found = list(failures(answer))
    assert answer.code == 5, [event for event in answer.events() if event["event"] == "recap"]
    assert pair.running() == {}
    return next(message for name, task, message in found if (name, task) == (host, CHECK))


def test_an_interface_that_the_host_does_not_have(pair: Pair) -> None:
    edited(pair, "two", interfaces=["eth9"])
    assert why(pair, "two").startswith("no interface eth9 on two; there are: ")


def test_a_master_port_that_is_taken_with_what_holds_it(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", pair.ports["port"])):
        found = why(pair, "one")
    assert f"port {pair.ports['port']}, on which the ranks meet, is in use by " in found and "pid " in found


def test_a_rank_of_another_cluster_that_still_runs(pair: Pair) -> None:
    image = pair.images.name("vllm-openai:v0.32.0")
    labels = ("--label", "sparkwright.rank=1", "--label", "sparkwright.cluster=old")
    pair.docker(
        "two",
        "run",
        "-d",
        "--name",
        f"{pair.name}-left",
        *labels,
        "-v",
        "/usr:/usr:ro",
        "--entrypoint",
        "/usr/bin/sleep",
        image,
        "60",
    )
    try:
        assert why(pair, "two").startswith(f"{pair.name}-left still runs here, a rank of the cluster old.")
    finally:
        pair.docker("two", "rm", "-f", f"{pair.name}-left")


def test_the_servers_own_port_that_is_taken(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", pair.port)):
        answer = pair.deploy()
    found = [message for name, _, message in failures(answer) if name == "one"]
    assert answer.code == 5 and found[0].startswith(f"port {pair.port} is in use by python"), found
    assert pair.running() == {}
