"""A cluster of two hosts, each with a Docker Engine of its own: deployed, changed, failed and restored as one."""

from __future__ import annotations

import json

from tests.cluster.pair import Pair, failures


def test_both_ranks_are_started_proved_and_a_second_deploy_changes_nothing(pair: Pair) -> None:
    pair.deployed()
    before = pair.running()
    assert before.keys() == {"one", "two"}
    assert {pair.container(host)["HostConfig"]["RestartPolicy"]["Name"] for host in pair.names} == {"no"}
    again = pair.deploy()
    assert again.code == 0, again.out[-2000:]
    assert pair.running() == before


def test_a_failed_change_restores_the_whole_previous_cluster(pair: Pair) -> None:
    pair.deployed()
    before = pair.running()
    pair.recipe(max_num_seqs=4, fault="crash-loop")
    answer = pair.deploy()
    assert answer.code == 1
    assert pair.running() == before
    assert pair.generates()
    assert {host for host, task, _ in failures(answer) if task == "Report the outcome"} == {"one", "two"}


def test_a_rank_that_died_is_noticed_and_the_cluster_started_again_as_one(pair: Pair) -> None:
    pair.deployed()
    before = pair.running()
    pair.docker("two", "kill", pair.name)
    answer = pair.deployed()
    now = pair.running()
    assert now.keys() == before.keys() and not set(now.values()) & set(before.values())
    assert answer.recap["changed"] > 0
    assert pair.generates()


def test_a_member_alone_is_refused_before_anything_is_touched(pair: Pair) -> None:
    answer = pair.run("deploy", "--host", "two", "--json")
    assert answer.code == 5
    assert "two is rank 1 of pair, and one would be left out. Use `--host pair`." in answer.err
    answer = pair.run("verify", "--host", "pair")
    assert answer.code == 5
    assert "pair is a cluster, and this release cannot run `verify` on one yet." in answer.err
    for command in ("health.check", "diagnose"):
        answer = pair.run(command, "--host", "pair")
        assert answer.code == 5
        assert f"two is rank 1 of pair: only the head answers `{command}`. Use `--host one`." in answer.err
    for command in ("health.install", "bench.smoke"):
        answer = pair.run(command, "--host", "pair")
        assert answer.code == 5
        assert f"cannot run `{command}` on its members yet" in answer.err
    assert pair.running() == {}


def test_status_speaks_of_each_rank_and_a_plan_of_what_would_change(pair: Pair) -> None:
    pair.deployed()
    rows = [json.loads(line) for line in pair.run("status", "--host", "pair", "--json").out.splitlines()]
    assert {row["host"]: row["state"] for row in rows} == {"one": "up", "two": "unknown"}
    assert pair.run("plan", "--host", "pair").code == 0
    pair.recipe(max_num_seqs=4)
    before = pair.running()
    answer = pair.run("plan", "--host", "pair")
    assert (answer.code, pair.running()) == (2, before)
    assert answer.out.count("max-num-seqs") >= 2
