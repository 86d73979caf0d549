"""Queries to a cluster: the head answers for the cluster, each worker for its rank."""

import json
from typing import Any

from tests.cluster.pair import ClusterPair
from tests.e2e.conftest import CommandResult


def get_verdicts(result: CommandResult) -> dict[str, dict[str, str]]:
    """Return the verdicts of `verify` for each member, by check."""
    verdicts: dict[str, dict[str, str]] = {}
    for event in result.events():
        if event["event"] == "task_finished" and event["module"] == "verdict" and event["status"] != "skipped":
            verdicts[event["host"]] = {row["check"]: row["verdict"] for row in event["data"]["rows"]}
    return verdicts


def parse_rows(result: CommandResult) -> dict[str, dict[str, Any]]:
    """Return JSON lines by host."""
    return {row["host"]: row for row in map(json.loads, result.out.splitlines())}


def test_running_cluster_is_shown_and_verified_by_rank(pair: ClusterPair) -> None:
    pair.deployed()
    before = pair.running()
    result = pair.run_json("verify")
    assert result.code in (0, 4), result.out[-3000:]  # 4: this machine was too busy to measure the throughput
    verdicts = get_verdicts(result)
    assert verdicts["two"] == {"recipe": "proved", "rank": "proved"}
    assert verdicts["one"].items() >= {"recipe": "proved", "rank": "proved", "generates": "proved"}.items()

    status = parse_rows(pair.run_json("status"))
    assert {host: row["state"] for host, row in status.items()} == {"one": "up", "two": "up"}
    assert status["two"]["why"].startswith("rank 1 of 2 is running and has joined the group of pair")

    result = pair.run("health.check", "--host", "pair")
    assert result.code == 0 and "rank 1 of 2 is running and has joined the group of pair" in result.out + result.err
    diagnosed = parse_rows(pair.run_json("diagnose"))
    assert diagnosed["two"]["state"] == "ok" and "rank 1 of 2" in diagnosed["two"]["summary"]
    assert diagnosed["one"]["tok_per_s"]

    logs = pair.run("logs", "--host", "pair").out
    assert "one (rank 0 of pair):" in logs and "two (rank 1 of pair):" in logs
    assert "two (rank 1 of pair)  verified" in pair.run("history", "--host", "pair").out
    result = pair.run_json("bench.smoke", "--prompt-tokens", "64", "--output-tokens", "8")
    assert result.code == 0, result.out[-2000:] + result.err
    assert {event["host"] for event in result.events() if event["event"] == "recap"} == {"one"}
    assert pair.running() == before
    assert pair.run_json("client").out.count("base_url") == 1

    pair.recipe(max_num_seqs=4)
    result = pair.run_json("verify")
    assert {verdict["--max-num-seqs"] for verdict in get_verdicts(result).values()} == {"differs"}
    assert result.code in (2, 4)


def test_dead_rank_is_named_with_exit_code_1(pair: ClusterPair) -> None:
    pair.deployed()
    pair.docker("two", "kill", pair.name)
    for command in ("verify", "health.check", "diagnose", "status"):
        result = pair.run(command, "--host", "pair")
        assert result.code == 1, command
        assert "rank 1" in result.out + result.err and "137" in result.out + result.err, command
        assert "out-of-reach" not in result.out


def test_incidents_of_a_failed_deploy_are_fetched_by_rank(pair: ClusterPair) -> None:
    pair.recipe(fault="crash-loop")
    assert pair.deploy().code == 1
    result = pair.run("incident", "--host", "pair")
    assert result.code == 0, result.err
    assert "one (rank 0 of pair): incidents/one/" in result.out and "two (rank 1 of pair): incidents/two/" in result.out
    result = pair.run("bench.smoke", "--host", "two")
    assert result.code == 5
    assert "two is rank 1 of pair: only the head answers `bench.smoke`. Use `--host pair`." in result.err


def test_ab_experiment_runs_on_both_hosts_and_restores_the_server(pair: ClusterPair) -> None:
    pair.deployed()
    before = pair.running()
    options = "--loads serve --requests 2 --concurrency 2 --prompt-tokens 64 --output-tokens 6"
    result = pair.run_json("bench.ab", "--flag", "chunked-prefill", *options.split())
    assert result.code == 0, result.out[-3000:] + result.err
    results = json.loads((pair.root / "results/ab-pair/results.json").read_text())
    assert [cell["arm"] for cell in results["cells"]] == ["a", "b", "b", "a"]
    assert pair.running() == before and pair.generates()
