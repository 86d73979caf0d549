"""A cluster of two hosts, each with a Docker Engine of its own: deployed, changed, failed and restored as one."""

from tests.cluster.pair import ClusterPair


def test_both_ranks_are_verified_and_a_second_deploy_changes_nothing(pair: ClusterPair) -> None:
    pair.deployed()
    before = pair.running()
    assert before.keys() == {"one", "two"}
    assert {pair.container(host)["HostConfig"]["RestartPolicy"]["Name"] for host in pair.names} == {"no"}
    second_run = pair.deploy()
    assert second_run.code == 0, second_run.out[-2000:]
    assert pair.running() == before


def test_commands_for_a_single_member_are_refused(pair: ClusterPair) -> None:
    answer = pair.run("deploy", "--host", "two", "--json")
    assert answer.code == 5
    assert "two is rank 1 of pair, and one would be left out. Use `--host pair`." in answer.err
    for command in ("restart", "rollback"):
        answer = pair.run(command, "--host", "one", "--json")
        assert answer.code == 5
        assert "one is rank 0 of pair, and two would be left out. Use `--host pair`." in answer.err
    answer = pair.run("health.install", "--host", "two")
    assert answer.code == 5
    assert "two is rank 1 of pair, and one would be left out. Use `--host pair`." in answer.err
    assert pair.running() == {}


def test_plan_shows_the_changes_of_each_member(pair: ClusterPair) -> None:
    pair.deployed()
    assert pair.run("plan", "--host", "pair").code == 0
    pair.recipe(max_num_seqs=4)
    before = pair.running()
    answer = pair.run("plan", "--host", "pair")
    assert (answer.code, pair.running()) == (2, before)
    assert "  + --max-num-seqs: 4\n" in answer.out and "2 hosts: 2 would change" in answer.out
