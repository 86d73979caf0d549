"""Two simulated Sparks as a newcomer tries them: served as one, left alone, and what is said of each fault of a member."""

import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwright.sandbox.faults import MEMBER_FAULTS
from tests.cells import matches_cell
from tests.e2e.pair.project import HOSTS, NAME, RECIPE, PairProject, pair_project

ROWS: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "faults.yml").read_text())
#: faults that end the member's container, a moment later
FATAL_FAULTS = ("rank-killed", "reboot")
#: faults that are not a member's alone, but end otherwise in a cluster: one host in danger fails all
HOST_FAULTS = ("overshoot",)
COMMANDS = ("cluster.check", "status", "plan", "deploy")


@pytest.fixture(scope="module")
def pair() -> Iterator[PairProject]:
    with pytest.MonkeyPatch.context() as patch, pair_project() as value:
        patch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
        yield value


def ensure_serving(pair: PairProject) -> dict[str, str]:
    """Return the Ids of the serving members, after repairing what an earlier test left."""
    for host in HOSTS:
        pair.run("sandbox.fault", "none", "--host", host)
        for item in pair.engine_of(host).containers.list(filters={"name": "left-behind"}):
            item.remove(force=True)
    if pair.ids().keys() != set(HOSTS) or pair.token()[0] != 200:
        pair.deployed()
    return pair.ids()


def test_every_fault_of_a_member_has_a_row() -> None:
    assert {row.partition(" on ")[0] for row in ROWS} == {*MEMBER_FAULTS, *HOST_FAULTS}


def test_the_head_proves_the_load_that_the_recipe_promises(pair: PairProject) -> None:
    promise = "  ready_s: 8\n  load: {context: 512, streams: 2}\n"
    pair.edit(RECIPE, "  ready_s: 8\n", promise)
    try:
        result = pair.deploy()
    finally:
        pair.edit(RECIPE, promise, "  ready_s: 8\n")
    assert result.proved, result.out[-3000:]
    proofs = {
        event["host"]: event
        for event in result.events()
        if event["event"] == "task_finished" and event["name"] == "Prove the promised load"
    }
    assert {host: event["status"] for host, event in proofs.items()} == {HOSTS[0]: "ok", HOSTS[1]: "skipped"}
    assert proofs[HOSTS[0]]["data"]["rungs"][-1]["streams"] == 2
    assert "survives 512 x 2: " in pair.run("history", "--host", HOSTS[0]).out


def test_a_container_that_docker_refuses_is_refused_before_any_member_stops(pair: PairProject) -> None:
    before = ensure_serving(pair)
    text = (pair.root / RECIPE).read_text()
    pair.edit(RECIPE, r"(?m)^container:\n", "container:\n  log_driver: lokki\n")
    try:
        result = pair.deploy()
    finally:
        (pair.root / RECIPE).write_text(text)
    assert result.code == 1 and 'plugin \\"lokki\\" not found.' in result.out, result.out[-3000:]
    assert pair.ids() == before and pair.token()[0] == 200
    rows = [row["Names"][0] for host in HOSTS for row in pair.engine_of(host).api.containers(all=True)]
    assert rows == [f"/{NAME}"] * 2


def test_a_restored_cluster_that_serves_is_not_stopped_for_a_later_step_that_fails(pair: PairProject) -> None:
    before, text = ensure_serving(pair), (pair.root / RECIPE).read_text()
    playbooks = {path: path.read_text() for path in (pair.root / "playbooks").rglob("*.yml")}
    pair.edit(RECIPE, r"max-num-seqs: \d+", "max-num-seqs: 7")
    pair.before("Wait until it is ready", "{name: Break, fail: {msg: the new one is broken.}, when: head}")
    pair.before("Record that it serves again", "{name: Break, fail: {msg: the state folder is full.}}")
    try:
        result = pair.deploy()
    finally:
        for path, original in playbooks.items():
            path.write_text(original)
        (pair.root / RECIPE).write_text(text)
    assert result.code == 1, result.out[-3000:]
    assert "The previous cluster serves again, but a later step failed: the state folder is full." in result.out
    assert pair.ids() == before and pair.token()[0] == 200
    pair.deployed()


def test_the_links_are_read_and_a_second_deploy_changes_nothing(pair: PairProject) -> None:
    inspected = pair.run("cluster.inspect", "--host", "sandbox-pair")
    assert (inspected.code, inspected.out.count("200 Gb/s")) == (0, 4), inspected.out
    checked = pair.run("cluster.check", "--host", "sandbox-pair")
    assert checked.out == "The links between sandbox1 and sandbox2 are ready for a cluster.\n"
    pair.deployed()
    before = pair.ids()
    second_run = pair.deploy()
    assert (second_run.code, second_run.recap["changed"], pair.ids()) == (0, 0, before)
    ranks = [
        event
        for event in second_run.events()
        if event.get("name") == "Check that this rank is in its group" and "msg" in event
    ]
    joined = {rank["host"]: rank["msg"] for rank in ranks}
    assert joined == {"sandbox1": "rank 0 of 2, over rdma", "sandbox2": "rank 1 of 2, over rdma"}


@pytest.mark.parametrize("row", ROWS)
def test_each_command_says_what_is_so(pair: PairProject, row: str) -> None:
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


def test_the_server_of_one_member_is_not_cleaned_away(pair: PairProject) -> None:
    before = ensure_serving(pair)
    result = pair.run("host.clean", "--host", "sandbox2", "--server", "--yes")
    assert result.code == 5 and "Use `--host sandbox-pair`." in result.err, result.out + result.err
    assert pair.ids() == before


def test_a_stream_ends_with_an_error_when_a_rank_is_killed_under_load(pair: PairProject) -> None:
    ensure_serving(pair)
    responses: list[tuple[int, str]] = []
    client = threading.Thread(target=lambda: responses.append(pair.token(max_tokens=4000)))
    client.start()
    pair.until_busy()
    pair.run("sandbox.fault", "rank-killed", "--host", "sandbox2")
    client.join(timeout=30)
    ((status, text),) = responses
    assert status == 200 and '"error"' in text.split("data: ")[-2] and text.endswith("data: [DONE]\n\n")
    result = pair.deploy()
    assert result.proved and pair.token()[0] == 200


def test_ranks_that_are_still_starting_leave_verify_inconclusive_with_the_stage_of_each(pair: PairProject) -> None:
    ensure_serving(pair)
    pair.run("sandbox.fault", "worker-never-joins", "--host", "sandbox2")
    pair.change()
    assert pair.deploy("--no-rollback").code == 1
    pair.edit(RECIPE, r"ready_s: \d+", "ready_s: 600")  # so long a start may take: what was left there may still be one
    result = pair.run("verify", "--host", "sandbox-pair")
    pair.edit(RECIPE, r"ready_s: \d+", "ready_s: 8")
    assert result.code == 4, result.out + result.err
    stages = re.findall(
        r"rank +inconclusive .*rank (\d) has not joined its group; the last stage in its log: (\w+)", result.out
    )
    assert sorted(rank for rank, _ in stages) == ["0", "1"], result.out
    ensure_serving(pair)


def test_the_image_that_one_member_has_is_copied_to_the_other(pair: PairProject) -> None:
    ensure_serving(pair)
    engine = pair.engine_of("sandbox2")
    (container,) = engine.containers.list()
    image = engine.images.get(container.attrs["Image"])
    for item in engine.containers.list(all=True):
        item.remove(force=True)
    engine.images.remove(image.id, force=True)
    result = pair.deploy()
    assert result.proved, result.out[-3000:]
    copied = {
        event["host"]: event["msg"]
        for event in result.events()
        if event["event"] == "task_finished" and event["name"] == "Copy image from a member, or pull it"
    }
    assert copied["sandbox2"] == "copied from sandbox1"
    assert engine.images.get(image.id).id == image.id


def test_a_rank_that_ends_while_the_head_is_proved_is_told_before_its_consequence(pair: PairProject) -> None:
    ensure_serving(pair)
    pair.change()
    part = pair.root / "playbooks/cluster/parts/prove.yml"
    original = part.read_text()
    docker = f"unix://{pair.folder_of('sandbox2')}/docker.sock"
    kill = f"{{argv: [docker, --host, '{docker}', kill, {NAME}]}}"
    part.write_text(
        original.replace(
            "- name: Wait until the cluster is verified\n",
            f"- name: Kill\n  command: {kill}\n  when: not head\n\n- name: Wait until the cluster is verified\n",
        )
    )
    result = pair.run("deploy", "--host", "sandbox-pair")
    part.write_text(original)
    assert result.code == 1, result.out
    failures = [line for line in result.out.splitlines() if line.startswith("failed")]
    assert [line.split()[2] for line in failures] == ["sandbox2", "sandbox1"], result.out
    assert "rank 1 exited (exit code 137)" in result.out, result.out
    assert pair.token()[0] == 200  # the previous cluster


def test_a_fault_of_a_member_is_refused_for_the_sandbox_that_is_none(pair: PairProject) -> None:
    result = pair.run("sandbox.fault", "sockets")
    assert result.code == 5
    assert (
        "`sockets` is only for members of a cluster. Add `--host sandbox1` or `--host sandbox2`."
        in result.out + result.err
    )
    assert pair.run("sandbox.pair").code == 5


def test_a_recipe_that_is_not_for_the_group_is_refused_once_and_touches_nothing(pair: PairProject) -> None:
    before, path = ensure_serving(pair), pair.root / RECIPE
    text = path.read_text()
    path.write_text(text.replace("parallel: {tensor: 2}", "parallel: {tensor: 3}"))
    result = pair.run("deploy", "--host", "sandbox-pair")
    path.write_text(text)
    reason = "the recipe sandbox-pair is for 3 hosts (`parallel`), but the cluster sandbox-pair has 2."
    assert (result.code, (result.out + result.err).count(reason)) == (5, 1), result.out + result.err
    assert pair.ids() == before


def test_what_a_rule_refuses_is_said_once_for_the_cluster_and_begins_nothing(pair: PairProject) -> None:
    before, path = ensure_serving(pair), pair.root / RECIPE
    text = path.read_text()
    path.write_text(text.replace("vllm:\n", "vllm:\n  distributed-executor-backend: ray\n"))
    planned, deployed = (pair.run(command, "--host", "sandbox-pair") for command in ("plan", "deploy"))
    path.write_text(text)
    for item in (planned, deployed):
        assert (item.code, item.out.count("ray is not supported in a cluster")) == (5, 1), item.out + item.err
    assert "refused: sandbox1 and sandbox2: " in planned.out, planned.out
    assert "same reason as sandbox1" in deployed.out or "same reason as sandbox2" in deployed.out, deployed.out
    assert pair.ids() == before


def test_a_cluster_with_a_member_that_failed_is_not_said_to_serve(pair: PairProject) -> None:
    ensure_serving(pair)
    pair.deployed()
    assert "sandbox-pair serves" in pair.run("verify", "--host", "sandbox-pair").out
    pair.run("sandbox.fault", "leftover-member", "--host", "sandbox2")
    result = pair.run("verify", "--host", "sandbox-pair")
    assert result.code == 1 and "throughput    proved" in result.out, result.out
    assert "sandbox-pair serves" not in result.out
    ensure_serving(pair)


@pytest.mark.parametrize("command", ["restart", "rollback"])
def test_what_starts_ranks_is_refused_where_their_port_is_taken(pair: PairProject, command: str) -> None:
    ensure_serving(pair)
    pair.deployed()
    if command == "rollback":  # to the state before this one
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
