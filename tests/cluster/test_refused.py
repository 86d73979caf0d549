"""A host that cannot be a member is found before anything is stopped, and the whole cluster stays unchanged."""

import socket
from pathlib import Path

import yaml

from tests.cluster.pair import ClusterPair, failures

CHECK = "Check the fabric"


def set_link_peer(pair: ClusterPair, host: str, **fabric: object) -> None:
    """Edit the host's file so that its link has another end."""
    path: Path = pair.root / f"hosts/{host}.yml"
    host_file = yaml.safe_load(path.read_text())
    host_file["fabric"] |= fabric
    path.write_text(yaml.safe_dump(host_file))


def refused_message(pair: ClusterPair, host: str) -> str:
    """Deploy, check that it is refused with nothing changed, and return the message of the host's check."""
    answer = pair.deploy()
    failed = list(failures(answer))
    assert answer.code == 5, [event for event in answer.events() if event["event"] == "recap"]
    assert pair.running() == {}
    return next(message for name, task, message in failed if (name, task) == (host, CHECK))


def test_missing_interface_is_refused(pair: ClusterPair) -> None:
    set_link_peer(pair, "two", interfaces=["eth9"])
    assert refused_message(pair, "two").startswith("two has no interface eth9; its interfaces: ")


def test_used_master_port_is_refused_with_its_holder(pair: ClusterPair) -> None:
    with socket.create_server(("127.0.0.1", pair.ports["port"])):
        message = refused_message(pair, "one")
    assert f"the cluster's master port {pair.ports['port']} is in use by " in message and "pid " in message


def test_running_rank_of_another_cluster_is_refused(pair: ClusterPair) -> None:
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
        assert refused_message(pair, "two").startswith(
            f"{pair.name}-left, a rank of the cluster old, is still running on this host."
        )
    finally:
        pair.docker("two", "rm", "-f", f"{pair.name}-left")


def test_used_server_port_is_refused(pair: ClusterPair) -> None:
    with socket.create_server(("127.0.0.1", pair.port)):
        answer = pair.deploy()
    messages = [message for name, _, message in failures(answer) if name == "one"]
    assert answer.code == 5 and messages[0].startswith(f"port {pair.port} is in use by python"), messages
    assert pair.running() == {}
