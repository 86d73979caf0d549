"""Deploys and plans of a cluster of two hosts, each with its own Docker Engine."""

import pytest

from tests.cluster.pair import ClusterPair


def test_both_ranks_are_verified_and_a_second_deploy_changes_nothing(pair: ClusterPair) -> None:
    pair.deployed()
    before = pair.running()
    assert before.keys() == {"one", "two"}
    assert {pair.container(host)["HostConfig"]["RestartPolicy"]["Name"] for host in pair.names} == {"no"}
    second_run = pair.deploy()
    assert second_run.code == 0, second_run.out[-2000:]
    assert pair.running() == before


@pytest.mark.parametrize(
    ("command", "host", "message"),
    [
        ("deploy", "two", "two is rank 1 of pair, and one would be left out."),
        ("restart", "one", "one is rank 0 of pair, and two would be left out."),
        ("rollback", "one", "one is rank 0 of pair, and two would be left out."),
        ("health.install", "two", "two is rank 1 of pair, and one would be left out."),
    ],
)
def test_commands_for_a_single_member_are_refused(pair: ClusterPair, command: str, host: str, message: str) -> None:
    result = pair.run(command, "--host", host)
    assert result.code == 5
    assert f"{message} Use `--host pair`." in result.err
    assert pair.running() == {}


def test_plan_shows_the_changes_of_each_member(pair: ClusterPair) -> None:
    pair.deployed()
    assert pair.run("plan", "--host", "pair").code == 0
    pair.recipe(max_num_seqs=4)
    before = pair.running()
    result = pair.run("plan", "--host", "pair")
    assert (result.code, pair.running()) == (2, before)
    assert "  + --max-num-seqs: 4\n" in result.out and "2 hosts: 2 would change" in result.out
