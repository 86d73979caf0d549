"""A cluster of two hosts is restarted as one, from whatever is left of it."""

from tests.cluster.pair import ClusterPair, failures


def start_times(pair: ClusterPair) -> dict[str, str]:
    return {host: str(pair.container(host)["State"]["StartedAt"]) for host in pair.names}


def test_restart_keeps_the_containers_and_stops_the_head_first(pair: ClusterPair) -> None:
    pair.deployed()
    before, since = pair.running(), start_times(pair)
    answer = pair.run("restart", "--host", "pair", "--json")
    assert answer.proved, answer.out[-3000:] + answer.err
    assert pair.running() == before
    assert all(now > since[host] for host, now in start_times(pair).items())
    assert pair.generates()
    assert [row["what"] for row in pair.history("two")] == ["verified", "verified"]
    finished = [
        event for event in answer.events() if event["event"] == "task_finished" and event["status"] == "changed"
    ]
    acts = [(item["host"], item["name"]) for item in finished if item["name"].startswith(("Stop the", "Start the"))]
    assert acts == [
        ("one", "Stop the head"),
        ("two", "Stop the worker"),
        ("two", "Start the worker"),
        ("one", "Start the head"),
    ]


def test_restart_recovers_a_dead_worker(pair: ClusterPair) -> None:
    pair.deployed()
    before = pair.running()
    pair.docker("two", "kill", pair.name)
    answer = pair.run("restart", "--host", "pair", "--json")
    assert answer.proved, answer.out[-3000:] + answer.err
    assert pair.running() == before
    assert pair.generates()


def test_restart_with_a_changed_or_missing_member_is_refused(pair: ClusterPair) -> None:
    pair.deployed()
    before, since = pair.running(), start_times(pair)
    pair.recipe(max_num_seqs=4)
    answer = pair.run("restart", "--host", "pair", "--json")
    assert answer.code == 5
    assert "does not match the recipe; `plan` shows the difference" in answer.out
    assert (pair.running(), start_times(pair)) == (before, since)
    pair.recipe()
    pair.docker("two", "rm", "-f", pair.name)
    answer = pair.run("restart", "--host", "pair", "--json")
    assert answer.code == 5
    assert any(host == "one" and "two (rank 1)" in msg and "no container" in msg for host, _, msg in failures(answer))
    assert pair.container("one")["State"]["StartedAt"] == since["one"]


def test_failed_restart_is_repeated_once_for_the_whole_cluster(pair: ClusterPair) -> None:
    pair.deployed()
    before = pair.running()
    pair.before("Wait until it is ready", "{name: Break, fail: {msg: broken for a test}, when: not head}")
    answer = pair.run("restart", "--host", "pair", "--json")
    assert answer.code == 1
    result = {host: msg for host, task, msg in failures(answer) if task == "Report the outcome"}
    assert result.keys() == {"one", "two"}, result
    assert result["two"].startswith("broken for a test")
    assert all(msg.endswith("Restarted once more; it is serving.") for msg in result.values()), result
    assert pair.running() == before
    assert pair.generates()


def test_worker_is_restarted_with_a_stopped_head(pair: ClusterPair) -> None:
    pair.deployed()
    before, since = pair.running(), start_times(pair)
    pair.before("Wait until the head has stopped", "{name: Break, fail: {msg: broken for a test}, when: not head}")
    answer = pair.run("restart", "--host", "pair", "--json")
    assert answer.code == 1
    assert pair.running() == before
    assert all(now > since[host] for host, now in start_times(pair).items())
    assert pair.generates()
