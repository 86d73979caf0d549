"""A cluster is rolled back as a whole, and one that never served leaves each member with its previous server."""

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


def test_rollback_restores_the_previous_deploy_on_all_members(pair: ClusterPair) -> None:
    pair.recipe(max_num_seqs=2)
    pair.deployed()
    pair.recipe(max_num_seqs=4)
    pair.deployed()
    answer = pair.run("rollback", "--host", "pair", "--json")
    assert answer.proved, "\n".join(map(str, failures(answer))) + answer.err
    assert read_flags(pair) == ["2", "2"]
    assert pair.generates()
    assert pair.history("two")[0]["what"] == "rolled back"
    second_run = pair.run("rollback", "--host", "pair", "--json")
    assert second_run.code == 5
    assert read_flags(pair) == ["2", "2"]


def test_rollback_to_different_deploys_is_refused(pair: ClusterPair) -> None:
    for seqs in (2, 4):
        pair.recipe(max_num_seqs=seqs)
        pair.deployed()
    before = pair.running()
    path = pair.home("two") / ".local/state/sparkwright/verified_before.json"
    states = json.loads(path.read_text())
    states["states"][0]["generation"] = "abcdefabcdef"
    path.write_text(json.dumps(states))
    answer = pair.run("rollback", "--host", "pair", "--json")
    assert answer.code == 5
    assert {host for host, _, msg in failures(answer) if "deploy differs: one " in msg and "two abcdefabcdef" in msg}
    assert "history --host pair` shows those of each" in answer.out
    assert pair.running() == before


def test_failed_rollback_restores_the_running_cluster(pair: ClusterPair) -> None:
    for seqs in (2, 4):
        pair.recipe(max_num_seqs=seqs)
        pair.deployed()
    before = pair.running()
    pair.before("Wait until it is ready", "{name: Break, fail: {msg: broken for a test}, when: not head}")
    answer = pair.run("rollback", "--host", "pair", "--json")
    assert answer.code == 1
    assert {host for host, _, msg in failures(answer) if "The previous cluster is restored." in msg} == {"one", "two"}
    assert pair.running() == before
    assert pair.generates()


def own_name(pair: ClusterPair, host: str) -> str:
    """Return the container name of a member's own server."""
    return f"{pair.name}-of-{host}"


def own_servers(pair: ClusterPair) -> dict[str, tuple[str, str]]:
    """Return the Id and the restart policy of each member's own running server."""
    template = "{{.State.Running}} {{.Id}} {{.HostConfig.RestartPolicy.Name}}"
    result = {
        host: pair.docker(host, "inspect", "-f", template, own_name(pair, host), check=False) for host in pair.names
    }
    rows = {host: text.split() for host, text in result.items() if text.startswith("true")}
    return {host: (row[1], row[2]) for host, row in rows.items()}


@pytest.fixture
def alone(pair: ClusterPair) -> Iterator[dict[str, int]]:
    """Each member serves a model by itself before there is a cluster. Yields their ports."""
    ports = dict(zip(pair.names, (free_port(), free_port()), strict=True))
    for host, port in ports.items():
        recipe = yaml.safe_load((pair.root / "recipes/served.yml").read_text())
        del recipe["parallel"]
        recipe["container"] |= {"name": own_name(pair, host), "network": "host", "restart": "unless-stopped"}
        recipe["vllm"] |= {"port": port, "served-model-name": f"of-{host}"}
        (pair.root / f"recipes/of-{host}.yml").write_text(yaml.safe_dump(recipe))
        host_file = yaml.safe_load((pair.root / f"hosts/{host}.yml").read_text())
        (pair.root / f"hosts/{host}.yml").write_text(yaml.safe_dump({**host_file, "recipe": f"of-{host}"}))
    (pair.root / "hosts/groups.yml").write_text("{}\n")
    answer = pair.run("deploy", "--host", "one,two", "--json")
    assert answer.proved, "\n".join(map(str, failures(answer))) + answer.err
    for host in pair.names:
        host_file = yaml.safe_load((pair.root / f"hosts/{host}.yml").read_text())
        del host_file["recipe"]
        (pair.root / f"hosts/{host}.yml").write_text(yaml.safe_dump(host_file))
    pair.group()
    yield ports
    for host in pair.names:
        pair.docker(host, "rm", "-fv", own_name(pair, host), check=False)


def served_models(ports: dict[str, int]) -> list[str]:
    names = []
    for port in ports.values():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=30) as answer:
            names.append(json.load(answer)["data"][0]["id"])
    return names


def test_failed_first_cluster_restores_the_server_of_each_member(pair: ClusterPair, alone: dict[str, int]) -> None:
    before = own_servers(pair)
    assert {policy for _, policy in before.values()} == {"unless-stopped"}
    pair.recipe(fault="crash-loop")
    answer = pair.deploy()
    assert answer.code == 1
    assert (own_servers(pair), pair.running()) == (before, {})
    assert served_models(alone) == ["of-one", "of-two"]


def test_rollback_restores_kept_servers_and_refuses_states_without_a_cluster(
    pair: ClusterPair, alone: dict[str, int]
) -> None:
    before = own_servers(pair)
    pair.recipe(fault="crash-loop")
    assert pair.deploy("--no-rollback").code == 1
    assert own_servers(pair) == {}
    pair.recipe()
    answer = pair.run("rollback", "--host", "pair", "--json")
    assert answer.proved, "\n".join(map(str, failures(answer))) + answer.err
    assert (own_servers(pair), pair.running()) == (before, {})
    assert served_models(alone) == ["of-one", "of-two"]
    pair.deployed()
    assert own_servers(pair) == {}
    now = pair.running()
    answer = pair.run("rollback", "--host", "pair", "--json")
    assert answer.code == 5
    assert "the last verified state is a single server, not rank 0 of pair (one, two)" in answer.out
    assert pair.running() == now


def test_incomplete_previous_cluster_is_not_started(pair: ClusterPair) -> None:
    pair.deployed()
    pair.docker("two", "rm", "-f", pair.name)
    pair.recipe(max_num_seqs=4, fault="crash-loop")
    answer = pair.deploy()
    assert answer.code == 1
    assert any(
        "stays stopped, because not all of its members can be started: only one of one, two" in msg
        for _, _, msg in failures(answer)
    )
    assert pair.running() == {}
