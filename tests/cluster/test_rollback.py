"""Rollbacks of a cluster, and of its members to the servers that they had before."""

import json
import urllib.request
from collections.abc import Iterator

import pytest
import yaml

from tests.cluster.pair import ClusterPair, failures
from tests.remote.sshd import free_port


def read_flags(pair: ClusterPair) -> list[str]:
    """Return the --max-num-seqs of each member."""
    commands = [pair.container(host)["Config"]["Cmd"] for host in pair.names]
    return [command[command.index("--max-num-seqs") + 1] for command in commands]


def deploy_twice(pair: ClusterPair) -> None:
    """Deploy with --max-num-seqs 2, then with 4."""
    for max_num_seqs in (2, 4):
        pair.recipe(max_num_seqs=max_num_seqs)
        pair.deployed()


def test_rollback_restores_the_previous_deploy_on_all_members(pair: ClusterPair) -> None:
    deploy_twice(pair)
    pair.run_proved("rollback")
    assert read_flags(pair) == ["2", "2"]
    assert pair.generates()
    assert pair.history("two")[0]["what"] == "rolled back"
    assert pair.run_json("rollback").code == 5
    assert read_flags(pair) == ["2", "2"]


def test_rollback_to_different_deploys_is_refused(pair: ClusterPair) -> None:
    deploy_twice(pair)
    before = pair.running()
    path = pair.home("two") / ".local/state/sparkwright/verified_before.json"
    states = json.loads(path.read_text())
    states["states"][0]["generation"] = "abcdefabcdef"
    path.write_text(json.dumps(states))
    result = pair.run_json("rollback")
    assert result.code == 5
    assert {host for host, _, msg in failures(result) if "deploy differs: one " in msg and "two abcdefabcdef" in msg}
    assert "history --host pair` shows those of each" in result.out
    assert pair.running() == before


def test_failed_rollback_restores_the_running_cluster(pair: ClusterPair) -> None:
    deploy_twice(pair)
    before = pair.running()
    pair.fail_worker_before("Wait until it is ready")
    result = pair.run_json("rollback")
    assert result.code == 1
    assert {host for host, _, msg in failures(result) if "The previous cluster is restored." in msg} == {"one", "two"}
    assert pair.running() == before
    assert pair.generates()


def own_name(pair: ClusterPair, host: str) -> str:
    """Return the container name of a member's own server."""
    return f"{pair.name}-of-{host}"


def own_servers(pair: ClusterPair) -> dict[str, tuple[str, str]]:
    """Return the Id and the restart policy of each member's own running server."""
    template = "{{.State.Running}} {{.Id}} {{.HostConfig.RestartPolicy.Name}}"
    servers = {}
    for host in pair.names:
        row = pair.docker(host, "inspect", "-f", template, own_name(pair, host), check=False).split()
        if row and row[0] == "true":
            servers[host] = (row[1], row[2])
    return servers


@pytest.fixture
def own_ports(pair: ClusterPair) -> Iterator[dict[str, int]]:
    """Deploy a server on each member before there is a cluster, and yield their ports."""
    ports = dict(zip(pair.names, (free_port(), free_port()), strict=True))
    for host, port in ports.items():
        recipe = yaml.safe_load((pair.root / "recipes/served.yml").read_text())
        del recipe["parallel"]
        recipe["container"] |= {"name": own_name(pair, host), "network": "host", "restart": "unless-stopped"}
        recipe["vllm"] |= {"port": port, "served-model-name": f"of-{host}"}
        (pair.root / f"recipes/of-{host}.yml").write_text(yaml.safe_dump(recipe))
        pair.write_host(host, {**pair.read_host(host), "recipe": f"of-{host}"})
    (pair.root / "hosts/groups.yml").write_text("{}\n")
    result = pair.run("deploy", "--host", "one,two", "--json")
    assert result.proved, "\n".join(map(str, failures(result))) + result.err
    for host in pair.names:
        host_file = pair.read_host(host)
        del host_file["recipe"]
        pair.write_host(host, host_file)
    pair.write_groups()
    yield ports
    for host in pair.names:
        pair.docker(host, "rm", "-fv", own_name(pair, host), check=False)


def served_models(ports: dict[str, int]) -> list[str]:
    names = []
    for port in ports.values():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=30) as result:
            names.append(json.load(result)["data"][0]["id"])
    return names


def test_failed_first_cluster_restores_the_server_of_each_member(pair: ClusterPair, own_ports: dict[str, int]) -> None:
    before = own_servers(pair)
    assert {policy for _, policy in before.values()} == {"unless-stopped"}
    pair.recipe(fault="crash-loop")
    result = pair.deploy()
    assert result.code == 1
    assert (own_servers(pair), pair.running()) == (before, {})
    assert served_models(own_ports) == ["of-one", "of-two"]


def test_rollback_restores_kept_but_not_older_single_servers(pair: ClusterPair, own_ports: dict[str, int]) -> None:
    before = own_servers(pair)
    pair.recipe(fault="crash-loop")
    assert pair.deploy("--no-rollback").code == 1
    assert own_servers(pair) == {}
    pair.recipe()
    pair.run_proved("rollback")
    assert (own_servers(pair), pair.running()) == (before, {})
    assert served_models(own_ports) == ["of-one", "of-two"]
    pair.deployed()
    assert own_servers(pair) == {}
    now = pair.running()
    result = pair.run_json("rollback")
    assert result.code == 5
    assert "the last verified state is a single server, not rank 0 of pair (one, two)" in result.out
    assert pair.running() == now


def test_incomplete_previous_cluster_is_not_started(pair: ClusterPair) -> None:
    pair.deployed()
    pair.docker("two", "rm", "-f", pair.name)
    pair.recipe(max_num_seqs=4, fault="crash-loop")
    result = pair.deploy()
    assert result.code == 1
    message = "stays stopped, because not all of its members can be started: only one of one, two"
    assert any(message in msg for _, _, msg in failures(result))
    assert pair.running() == {}
