"""A host that cannot be a member is refused before any server is stopped."""

import socket

import psutil

from tests.cluster.pair import ClusterPair, failures

CHECK = "Check the fabric"


def refused_message(pair: ClusterPair, host: str) -> str:
    """Deploy, check that the deploy is refused without changes, and return the message of the host's check."""
    result = pair.deploy()
    assert result.code == 5, result.out[-2000:]
    assert pair.running() == {}
    return next(message for name, task, message in failures(result) if (name, task) == (host, CHECK))


def test_missing_interface_is_refused(pair: ClusterPair) -> None:
    host = pair.read_host("two")
    pair.write_host("two", {**host, "fabric": {**host["fabric"], "interfaces": ["eth9"]}})
    assert refused_message(pair, "two").startswith("two has no interface eth9; its interfaces: ")


def test_used_master_port_is_refused_with_its_holder(pair: ClusterPair) -> None:
    with socket.create_server(("127.0.0.1", pair.ports["port"])):
        message = refused_message(pair, "one")
    assert f"the cluster's master port {pair.ports['port']} is in use by " in message and "pid " in message


def test_running_rank_of_another_cluster_is_refused(pair: ClusterPair) -> None:
    name, image = f"{pair.name}-left", pair.images.name("vllm-openai:v0.32.0")
    options = f"--name {name} --label sparkwright.rank=1 --label sparkwright.cluster=old -v /usr:/usr:ro"
    pair.docker("two", "run", "-d", *options.split(), "--entrypoint", "/usr/bin/sleep", image, "60")
    try:
        message = refused_message(pair, "two")
    finally:
        pair.docker("two", "rm", "-f", name)
    assert message.startswith(f"{name}, a rank of the cluster old, is still running on this host.")


def test_used_server_port_is_refused(pair: ClusterPair) -> None:
    with socket.create_server(("127.0.0.1", pair.port)):
        result = pair.deploy()
    messages = [message for name, _, message in failures(result) if name == "one"]
    message = f"port {pair.port} is in use by {psutil.Process().name()} (pid"
    assert result.code == 5 and messages[0].startswith(message), messages
    assert pair.running() == {}
