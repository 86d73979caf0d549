"""A cluster of both simulated Sparks: a real sshd, two real Docker Engines, and a real network between ranks and runs."""

import json

from tests.bed.cluster import HOSTS, ClusterProject

SMALL = ("--loads", "serve", "--requests", "2", "--concurrency", "2", "--prompt-tokens", "64", "--output-tokens", "6")


def test_cluster_is_verified_healed_and_restored_together(pair: ClusterProject) -> None:
    pair.deployed()
    first = pair.running()
    assert first.keys() == set(HOSTS) and pair.generates()
    second_run = pair.deployed()
    assert (second_run.code, second_run.recap["changed"]) == (0, 0)
    assert pair.running() == first

    pair.on("spark2", "docker kill qwen35")
    assert "changed" in pair.deployed().out
    healed = pair.running()
    assert healed.keys() == first.keys() and not set(healed.values()) & set(first.values())
    assert pair.generates()

    pair.recipe("SPEED: instant}", "SPEED: instant, SANDBOX_FAULT: crash-loop}", "pair")
    result = pair.deploy()
    assert result.code == 1, result.output
    assert pair.running() == healed and pair.generates()


def test_cluster_is_measured_and_rolled_back_together(pair: ClusterProject) -> None:
    pair.deployed()
    first = pair.arguments("max-num-seqs")
    assert pair.run("verify", "--host", "pair", "--json").code in (0, 4)
    served = pair.running()
    result = pair.run("bench.ab", "--host", "pair", "--flag", "chunked-prefill", "--json", *SMALL)
    assert result.code == 0, result.output
    results = json.loads((pair.root / "results/ab-pair/results.json").read_text())
    assert [cell["arm"] for cell in results["cells"]] == ["a", "b", "b", "a"]
    assert [arm["effective"]["chunked_prefill"] for arm in results["arms"]] == [True, False]
    assert pair.running() == served and pair.generates()

    pair.change()
    result = pair.run("verify", "--host", "pair")
    assert result.code == 2 and result.out.count("max-num-seqs") >= len(HOSTS), result.out
    assert "deploy --host pair" in result.out and "deploy --host spark" not in result.out
    pair.deployed()
    assert set(pair.arguments("max-num-seqs").values()) == {str(pair.seqs)}
    result = pair.run("rollback", "--host", "pair", "--json")
    assert result.code in (0, 4), result.output
    assert pair.arguments("max-num-seqs") == first
    assert pair.running().keys() == set(HOSTS) and pair.generates()

    pair.on("spark2", "docker kill qwen35")
    result = pair.run("verify", "--host", "pair")
    assert result.code == 1 and "exited (exit code 137" in result.out and "rank 1 exited" in result.out, result.out
