"""Queries to a cluster as a whole: the head answers for it, each worker for its rank."""

import json
from typing import Any

from tests.cluster.pair import ClusterPair
from tests.e2e.conftest import CommandResult


def verdicts(answer: CommandResult) -> dict[str, dict[str, str]]:
    """Return the verdicts of `verify` for each member, by check."""
    verdicts_by_host: dict[str, dict[str, str]] = {}
    for event in answer.events():
        if event["event"] == "task_finished" and event["module"] == "verdict" and event["status"] != "skipped":
            verdicts_by_host[event["host"]] = {row["check"]: row["verdict"] for row in event["data"]["rows"]}
    return verdicts_by_host


def rows(answer: CommandResult) -> dict[str, dict[str, Any]]:
    """Return JSON lines by host."""
    return {row["host"]: row for row in map(json.loads, answer.out.splitlines())}


def test_running_cluster_is_shown_and_verified_by_rank(pair: ClusterPair) -> None:
    pair.deployed()
    before = pair.running()
    answer = pair.run("verify", "--host", "pair", "--json")
    assert answer.code in (0, 4), answer.out[-3000:]  # 4: this machine was too busy to judge the throughput
    by_host = verdicts(answer)
    assert by_host["two"] == {"recipe": "proved", "rank": "proved"}
    assert by_host["one"].items() >= {"recipe": "proved", "rank": "proved", "generates": "proved"}.items()

    status = rows(pair.run("status", "--host", "pair", "--json"))
    assert {host: row["state"] for host, row in status.items()} == {"one": "up", "two": "up"}
    assert status["two"]["why"].startswith("rank 1 of 2 is running and has joined the group of pair")

    answer = pair.run("health.check", "--host", "pair")
    assert answer.code == 0 and "rank 1 of 2 is running and has joined the group of pair" in answer.out + answer.err
    diagnosed = rows(pair.run("diagnose", "--host", "pair", "--json"))
    assert diagnosed["two"]["state"] == "ok" and "rank 1 of 2" in diagnosed["two"]["summary"]
    assert diagnosed["one"]["tok_per_s"]

    logs = pair.run("logs", "--host", "pair").out
    assert "one (rank 0 of pair):" in logs and "two (rank 1 of pair):" in logs
    assert "two (rank 1 of pair)  verified" in pair.run("history", "--host", "pair").out
    answer = pair.run("bench.smoke", "--host", "pair", "--prompt-tokens", "64", "--output-tokens", "8", "--json")
    assert answer.code == 0, answer.out[-2000:] + answer.err
    assert {event["host"] for event in answer.events() if event["event"] == "recap"} == {"one"}
    assert pair.running() == before
    assert pair.run("client", "--host", "pair", "--json").out.count("base_url") == 1

    pair.recipe(max_num_seqs=4)
    answer = pair.run("verify", "--host", "pair", "--json")
    assert {verdict["--max-num-seqs"] for verdict in verdicts(answer).values()} == {"differs"}
    assert answer.code in (2, 4)


def test_dead_rank_is_named_with_exit_code_1(pair: ClusterPair) -> None:
    pair.deployed()
    pair.docker("two", "kill", pair.name)
    for command in ("verify", "health.check", "diagnose", "status"):
        answer = pair.run(command, "--host", "pair")
        assert answer.code == 1, command
        assert "rank 1" in answer.out + answer.err and "137" in answer.out + answer.err, command
        assert "out-of-reach" not in answer.out, "on the host's network the loopback is the host's"


def test_incidents_of_a_failed_deploy_are_fetched_by_rank(pair: ClusterPair) -> None:
    pair.recipe(fault="crash-loop")
    assert pair.deploy().code == 1
    answer = pair.run("incident", "--host", "pair")
    assert answer.code == 0, answer.err
    assert "one (rank 0 of pair): incidents/one/" in answer.out and "two (rank 1 of pair): incidents/two/" in answer.out
    answer = pair.run("bench.smoke", "--host", "two")
    assert answer.code == 5
    assert "two is rank 1 of pair: only the head answers `bench.smoke`. Use `--host pair`." in answer.err


def test_ab_experiment_runs_on_both_hosts_and_restores_the_server(pair: ClusterPair) -> None:
    pair.deployed()
    before = pair.running()
    load = (
        "--loads", "serve", "--requests", "2", "--concurrency", "2", "--prompt-tokens", "64", "--output-tokens", "6",
    )  # fmt: skip
    answer = pair.run("bench.ab", "--host", "pair", "--flag", "chunked-prefill", "--json", *load)
    assert answer.code == 0, answer.out[-3000:] + answer.err
    results = json.loads((pair.root / "results/ab-pair/results.json").read_text())
    assert [cell["arm"] for cell in results["cells"]] == ["a", "b", "b", "a"]
    assert pair.running() == before and pair.generates()
