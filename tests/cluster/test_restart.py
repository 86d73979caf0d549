"""Restarts of a cluster of two hosts, also with a dead or missing member."""

from tests.cluster.pair import ClusterPair, failures


def test_restart_keeps_the_containers_and_stops_the_head_first(pair: ClusterPair) -> None:
    pair.deployed()
    before, started = pair.running(), pair.start_times()
    result = pair.run_proved("restart")
    assert pair.running() == before
    assert all(now > started[host] for host, now in pair.start_times().items())
    assert pair.generates()
    assert [row["what"] for row in pair.history("two")] == ["verified", "verified"]
    finished = [event for event in result.events() if event["event"] == "task_finished"]
    changes = [event for event in finished if event["status"] == "changed"]
    tasks = [(event["host"], event["name"]) for event in changes if event["name"].startswith(("Stop the", "Start the"))]
    stops = [("one", "Stop the head"), ("two", "Stop the worker")]
    assert tasks == [*stops, ("two", "Start the worker"), ("one", "Start the head")]


def test_restart_recovers_a_dead_worker(pair: ClusterPair) -> None:
    pair.deployed()
    before = pair.running()
    pair.docker("two", "kill", pair.name)
    pair.run_proved("restart")
    assert pair.running() == before
    assert pair.generates()


def test_restart_with_a_changed_or_missing_member_is_refused(pair: ClusterPair) -> None:
    pair.deployed()
    before, started = pair.running(), pair.start_times()
    pair.recipe(max_num_seqs=4)
    result = pair.run_json("restart")
    assert result.code == 5
    assert "does not match the recipe; `plan` shows the difference" in result.out
    assert (pair.running(), pair.start_times()) == (before, started)
    pair.recipe()
    pair.docker("two", "rm", "-f", pair.name)
    result = pair.run_json("restart")
    assert result.code == 5
    assert any(host == "one" and "two (rank 1)" in msg and "no container" in msg for host, _, msg in failures(result))
    assert pair.container("one")["State"]["StartedAt"] == started["one"]


def test_failed_restart_is_repeated_once_for_the_whole_cluster(pair: ClusterPair) -> None:
    pair.deployed()
    before = pair.running()
    pair.fail_worker_before("Wait until it is ready")
    result = pair.run_json("restart")
    assert result.code == 1
    outcomes = {host: msg for host, task, msg in failures(result) if task == "Report the outcome"}
    assert outcomes.keys() == {"one", "two"}, outcomes
    assert outcomes["two"].startswith("broken for a test")
    assert all(msg.endswith("Restarted once more; it is serving.") for msg in outcomes.values()), outcomes
    assert pair.running() == before
    assert pair.generates()


def test_worker_is_restarted_with_a_stopped_head(pair: ClusterPair) -> None:
    pair.deployed()
    before, started = pair.running(), pair.start_times()
    pair.fail_worker_before("Wait until the head has stopped")
    result = pair.run_json("restart")
    assert result.code == 1
    assert pair.running() == before
    assert all(now > started[host] for host, now in pair.start_times().items())
    assert pair.generates()
