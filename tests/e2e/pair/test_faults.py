"""A cluster of two simulated Sparks: deploys, refusals, and what each command reports for each fault of a member."""

import json
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwright.sandbox.faults import MEMBER_FAULTS
from tests.cells import matches_cell
from tests.e2e.pair.project import HOSTS, NAME, RECIPE, PairProject, pair_project
from tests.waiting import wait_until

ROWS: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "faults.yml").read_text())
#: faults that end the member's container after a moment
FATAL_FAULTS = ("rank-killed", "reboot")
#: faults of any host that have another outcome in a cluster, where one host in danger fails all
HOST_FAULTS = ("overshoot",)
COMMANDS = ("cluster.check", "status", "diagnose", "plan", "deploy")


@pytest.fixture(scope="module")
def pair() -> Iterator[PairProject]:
    with pair_project() as value:
        yield value


def ensure_serving(pair: PairProject) -> dict[str, str]:
    """Repair the cluster if needed, and return the Ids of its containers."""
    for host in HOSTS:
        pair.run("sandbox.fault", "none", "--host", host)
        for item in pair.engine_of(host).containers.list(filters={"name": "left-behind"}):
            item.remove(force=True)
    if pair.ids().keys() != set(HOSTS) or pair.token()[0] != 200:
        pair.deployed()
    return pair.ids()


def test_every_fault_of_a_member_has_a_row() -> None:
    assert {row.partition(" on ")[0] for row in ROWS} == {*MEMBER_FAULTS, *HOST_FAULTS}


def test_the_head_proves_the_promised_load(pair: PairProject) -> None:
    with pair.restored_files():
        pair.edit(RECIPE, "  ready_s: 8\n", "  ready_s: 8\n  load: {context: 512, streams: 2}\n")
        proofs = pair.deploy_proved().task_by_host("Test the promised load")
    assert {host: event["status"] for host, event in proofs.items()} == {HOSTS[0]: "ok", HOSTS[1]: "skipped"}
    assert proofs[HOSTS[0]]["data"]["rungs"][-1]["streams"] == 2
    assert "survives 512 x 2: " in pair.run("history", "--host", HOSTS[0]).out


def test_a_container_that_docker_rejects_fails_before_any_member_stops(pair: PairProject) -> None:
    before = ensure_serving(pair)
    with pair.restored_files():
        pair.edit(RECIPE, r"(?m)^container:\n", "container:\n  log_driver: lokki\n")
        result = pair.deploy()
    assert result.code == 1 and 'plugin \\"lokki\\" not found.' in result.out, result.out[-3000:]
    assert pair.ids() == before and pair.token()[0] == 200
    rows = [row["Names"][0] for host in HOSTS for row in pair.engine_of(host).api.containers(all=True)]
    assert rows == [f"/{NAME}"] * 2


def test_a_restored_cluster_keeps_serving_if_a_later_step_fails(pair: PairProject) -> None:
    before = ensure_serving(pair)
    with pair.restored_files():
        pair.edit(RECIPE, r"max-num-seqs: \d+", "max-num-seqs: 7")
        pair.before("Wait until it is ready", "{name: Break, fail: {msg: the new one is broken.}, when: head}")
        pair.before("Record that it serves again", "{name: Break, fail: {msg: the state folder is full.}}")
        result = pair.deploy()
    assert result.code == 1, result.out[-3000:]
    assert "The previous cluster serves again, but a later step failed: the state folder is full." in result.out
    assert pair.ids() == before and pair.token()[0] == 200
    pair.deployed()


def test_links_are_inspected_and_a_second_deploy_changes_nothing(pair: PairProject) -> None:
    inspected = pair.run("cluster.inspect", "--host", "sandbox-pair")
    assert (inspected.code, inspected.out.count("200 Gb/s")) == (0, 4), inspected.out
    checked = pair.run("cluster.check", "--host", "sandbox-pair")
    assert checked.out == "The links between sandbox1 and sandbox2 are ready for a cluster.\n"
    pair.deployed()
    before = pair.ids()
    second_run = pair.deploy()
    assert (second_run.code, second_run.recap["changed"], pair.ids()) == (0, 0, before)
    ranks = second_run.task_by_host("Check that this rank is in its group")
    assert {host: event["msg"] for host, event in ranks.items()} == {
        "sandbox1": "rank 0 of 2, over rdma",
        "sandbox2": "rank 1 of 2, over rdma",
    }
    rows = [json.loads(line) for line in pair.run("runs", "--host", "sandbox-pair", "--json").out.splitlines()]
    run_ids = [row["run"] for row in rows]
    assert {row["host"] for row in rows} == set(HOSTS) and len(run_ids) >= 4
    assert run_ids == sorted(run_ids, reverse=True), "the newest run of both hosts is the first"


@pytest.mark.parametrize("row", ROWS)
def test_each_command_reports_the_fault(pair: PairProject, row: str) -> None:
    ensure_serving(pair)
    fault, _, host = row.partition(" on ")
    assert pair.run("sandbox.fault", fault, "--host", host).code == 0
    if fault in FATAL_FAULTS:
        pair.engine_of(host).containers.get(NAME).wait(timeout=30)
    if ROWS[row].get("change"):
        pair.change()
    mismatches = []
    for command in COMMANDS:
        if command in ROWS[row]:
            result = pair.run(command, "--host", "sandbox-pair")
            if not matches_cell(ROWS[row][command], result.code, result.out + result.err):
                mismatches.append(f"{command}: {result.code}\n{result.out}{result.err}")
    assert not mismatches, "\n".join(mismatches)
    assert pair.token()[0] == ROWS[row]["client"]


def test_status_gives_the_reason_of_a_rank_that_failed_by_itself_after_a_failed_restart(pair: PairProject) -> None:
    ensure_serving(pair)
    pair.deployed()  # an earlier test may have changed the recipe
    pair.run("sandbox.fault", "oom", "--host", HOSTS[1])
    restarted = pair.run("restart", "--host", "sandbox-pair")
    assert restarted.code == 1 and "did not come up again and was stopped" in restarted.out, restarted.out
    status = pair.run("status", "--host", "sandbox-pair", "--json")
    head, worker = (json.loads(line)["why"] for line in status.out.splitlines())
    assert "exited (143)" in head and "stopped by sparkwright (run " in head, head
    reason = (
        r"exited \(exit code 1\): [\d.]+ of [\d.]+ GiB were free, .*; its cluster was stopped by sparkwright \(run "
    )
    assert re.search(reason, worker), worker


def test_host_clean_refuses_to_remove_the_server_of_one_member(pair: PairProject) -> None:
    before = ensure_serving(pair)
    result = pair.run("host.clean", "--host", "sandbox2", "--server", "--yes")
    assert result.code == 5 and "Use `--host sandbox-pair`." in result.err, result.out + result.err
    assert pair.ids() == before


def test_a_stream_ends_with_an_error_when_a_rank_is_killed_under_load(pair: PairProject) -> None:
    ensure_serving(pair)
    with ThreadPoolExecutor(1) as pool:
        response = pool.submit(pair.token, max_tokens=4000)
        wait_until(pair.running_requests, "the request")
        pair.run("sandbox.fault", "rank-killed", "--host", "sandbox2")
        status, text = response.result(timeout=30)
    assert status == 200 and '"error"' in text.split("data: ")[-2] and text.endswith("data: [DONE]\n\n")
    result = pair.deploy()
    assert result.proved and pair.token()[0] == 200


def test_verify_is_inconclusive_with_the_stage_of_each_starting_rank(pair: PairProject) -> None:
    ensure_serving(pair)
    pair.run("sandbox.fault", "worker-never-joins", "--host", "sandbox2")
    pair.change()
    assert pair.deploy("--no-rollback").code == 1
    with pair.restored_files():
        pair.edit(RECIPE, r"ready_s: \d+", "ready_s: 600")  # the failed start counts as a start for this time
        result = pair.run("verify", "--host", "sandbox-pair")
    assert result.code == 4, result.out + result.err
    stage = r"rank +inconclusive .*rank (\d) has not joined its group; the last stage in its log: \w+"
    assert sorted(re.findall(stage, result.out)) == ["0", "1"], result.out
    ensure_serving(pair)


def test_an_image_is_copied_from_the_member_that_has_it(pair: PairProject) -> None:
    ensure_serving(pair)
    engine = pair.engine_of("sandbox2")
    (container,) = engine.containers.list()
    image = engine.images.get(container.attrs["Image"])
    for item in engine.containers.list(all=True):
        item.remove(force=True)
    image_id = str(image.id)
    engine.images.remove(image_id, force=True)
    copied = pair.deploy_proved().task_by_host("Copy image from a member, or pull it")
    assert copied["sandbox2"]["msg"] == "copied from sandbox1"
    assert engine.images.get(image_id).id == image_id


def test_a_rank_killed_during_verification_is_reported_before_the_failure_of_the_head(pair: PairProject) -> None:
    ensure_serving(pair)
    pair.change()
    docker = f"unix://{pair.folder_of('sandbox2')}/docker.sock"
    kill = f"{{argv: [docker, --host, '{docker}', kill, {NAME}]}}"
    with pair.restored_files():
        pair.before("Wait until the cluster is verified", f"{{name: Kill, command: {kill}, when: not head}}")
        result = pair.run("deploy", "--host", "sandbox-pair")
    assert result.code == 1, result.out
    failures = [line for line in result.out.splitlines() if line.startswith("failed")]
    assert [line.split()[2] for line in failures] == ["sandbox2", "sandbox1"], result.out
    assert "rank 1 exited (exit code 137)" in result.out, result.out
    assert pair.token()[0] == 200  # the previous cluster


def test_a_members_fault_is_refused_for_a_single_sandbox(pair: PairProject) -> None:
    result = pair.run("sandbox.fault", "sockets")
    assert result.code == 5
    message = "`sockets` is only for members of a cluster. Add `--host sandbox1` or `--host sandbox2`."
    assert message in result.out + result.err
    assert pair.run("sandbox.pair").code == 5


def test_a_recipe_for_another_number_of_hosts_is_refused_once(pair: PairProject) -> None:
    before = ensure_serving(pair)
    with pair.restored_files():
        pair.edit(RECIPE, "parallel: {tensor: 2}", "parallel: {tensor: 3}")
        result = pair.run("deploy", "--host", "sandbox-pair")
    reason = "the recipe sandbox-pair is for 3 hosts (`parallel`), but the cluster sandbox-pair has 2."
    assert (result.code, (result.out + result.err).count(reason)) == (5, 1), result.out + result.err
    assert pair.ids() == before


def test_a_lint_error_is_reported_once_for_the_cluster(pair: PairProject) -> None:
    before = ensure_serving(pair)
    with pair.restored_files():
        pair.edit(RECIPE, "vllm:\n", "vllm:\n  distributed-executor-backend: ray\n")
        planned, deployed = (pair.run(command, "--host", "sandbox-pair") for command in ("plan", "deploy"))
    for item in (planned, deployed):
        assert (item.code, item.out.count("ray is not supported in a cluster")) == (5, 1), item.out + item.err
    assert "refused: sandbox1 and sandbox2: " in planned.out, planned.out
    assert "same reason as sandbox1" in deployed.out or "same reason as sandbox2" in deployed.out, deployed.out
    assert pair.ids() == before


def test_verify_does_not_report_a_cluster_with_a_failed_member_as_serving(pair: PairProject) -> None:
    ensure_serving(pair)
    pair.deployed()
    assert "sandbox-pair serves" in pair.run("verify", "--host", "sandbox-pair").out
    pair.run("sandbox.fault", "leftover-member", "--host", "sandbox2")
    result = pair.run("verify", "--host", "sandbox-pair")
    assert result.code == 1 and "throughput    proved" in result.out, result.out
    assert "sandbox-pair serves" not in result.out
    ensure_serving(pair)


@pytest.mark.parametrize("command", ["restart", "rollback"])
def test_commands_that_start_ranks_are_refused_if_the_master_port_is_occupied(pair: PairProject, command: str) -> None:
    ensure_serving(pair)
    pair.deployed()
    if command == "rollback":  # it needs a previous state
        pair.change()
        assert pair.deploy().proved
    for host in HOSTS:
        for item in pair.engine_of(host).containers.list():
            item.stop(timeout=30)
    rendered = pair.run("render", "--host", "sandbox-pair").out
    port = int(re.findall(r"--master-port (\d+)", rendered)[0])
    with socket.create_server(("127.0.0.1", port)):
        result = pair.run(command, "--host", "sandbox-pair")
    assert result.code == 5 and f"the cluster's master port {port} is in use by" in result.out, result.out + result.err
    second_run = pair.run(command, "--host", "sandbox-pair")
    assert (second_run.code, pair.token()[0]) == (0, 200), second_run.out + second_run.err
