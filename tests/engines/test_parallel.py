"""The settings of a member of a cluster, and the predicted rate of a cluster."""

import dataclasses
from collections.abc import Mapping

import pytest
from packaging.version import Version

from sparkwright.engines import engine
from sparkwright.engines.model import roofline
from sparkwright.engines.parallel import ClusterMember, Split
from sparkwright.engines.vllm import flags as vllm_flags
from sparkwright.engines.vllm import parallel
from sparkwright.engines.vllm.option_history import find_existence
from sparkwright.protocol.container import ContainerSpec

HEAD = ClusterMember(
    rank=0,
    split=Split(tensor=2),
    head_address="192.168.100.10",
    master_port=29501,
    address="192.168.100.10",
    interfaces=("enp1s0f1np1", "enP2p1s0f1np1"),
    adapters=("rocep1s0f1", "roceP2p1s0f1"),
)
WORKER = dataclasses.replace(HEAD, rank=1, address="192.168.100.11")


def member_arguments(member: ClusterMember, **recipe: object) -> tuple[str, ...]:
    return vllm_flags.argv({**recipe, **parallel.member_settings(member).flags})


def test_the_part_belongs_to_its_engine() -> None:
    assert engine.get_engine("vllm").parallel is parallel


def test_member_arguments_match_a_real_group() -> None:
    """tests/data/vllm-0.32.0-members was recorded with these arguments, another port and a time limit."""
    line = (
        "--tensor-parallel-size 2 --pipeline-parallel-size 1 --nnodes 2 --node-rank 1 --master-addr 192.168.100.10 "
        "--master-port 29501 --headless"
    )
    assert " ".join(member_arguments(WORKER)) == line
    assert " ".join(member_arguments(HEAD)) == line.replace("--node-rank 1", "--node-rank 0").replace(" --headless", "")


def test_members_differ_in_rank_address_and_head() -> None:
    head, worker = parallel.member_settings(HEAD), parallel.member_settings(WORKER)

    def different_names(first: Mapping[str, object], second: Mapping[str, object]) -> set[str]:
        return {name for name in {**first, **second} if first.get(name) != second.get(name)}

    assert different_names(head.flags, worker.flags) == {"node-rank", "headless"}
    assert different_names(head.env, worker.env) == {"VLLM_HOST_IP", "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"}
    assert head.options == worker.options


def test_a_headless_worker_has_no_api_servers() -> None:
    recipe = {"api-server-count": 4}
    assert "--api-server-count" in member_arguments(HEAD, **recipe)
    assert "--api-server-count" not in member_arguments(WORKER, **recipe)


def test_every_flag_exists_in_the_release() -> None:
    flags = parallel.member_settings(WORKER).flags
    for name in (*flags, *parallel.RESERVED_FLAGS):
        assert find_existence(name, Version("0.32.0")).exists
    assert {name for name, given in flags.items() if given is not None} == set(parallel.RESERVED_FLAGS)


def test_each_member_has_its_interfaces_and_both_adapters() -> None:
    env = parallel.member_settings(WORKER).env
    assert env == {
        "VLLM_HOST_IP": "192.168.100.11",
        "NCCL_SOCKET_IFNAME": "enp1s0f1np1",
        "GLOO_SOCKET_IFNAME": "enp1s0f1np1",
        "TP_SOCKET_IFNAME": "enp1s0f1np1",
        "NCCL_IB_HCA": "rocep1s0f1,roceP2p1s0f1",
    }
    assert set(parallel.VARIABLES) == set(env)


def test_the_head_times_out_before_vllm_does() -> None:
    limit = parallel.member_settings(HEAD).env["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"]
    assert 60 <= int(limit) < 300


def test_no_gid_index_and_no_empty_variable_is_set() -> None:
    """An empty NCCL_IB_GID_INDEX would mean 0, an empty interface would mean none."""
    bare = dataclasses.replace(HEAD, interfaces=(), adapters=(), traced=True)
    for member in (HEAD, WORKER, bare):
        env = parallel.member_settings(member).env
        assert "NCCL_IB_GID_INDEX" not in env and all(env.values())
    assert not {"NCCL_SOCKET_IFNAME", "NCCL_IB_HCA"} & set(parallel.member_settings(bare).env)


def test_nccl_logs_its_network_only_if_traced() -> None:
    assert not [name for name in parallel.member_settings(HEAD).env if name.startswith("NCCL_DEBUG")]
    env = parallel.member_settings(dataclasses.replace(HEAD, traced=True)).env
    assert (env["NCCL_DEBUG"], env["NCCL_DEBUG_SUBSYS"]) == ("INFO", "INIT,NET")


def test_the_container_has_rdma_without_privileges() -> None:
    settings = parallel.member_settings(WORKER)
    assert settings.options == {
        "network": "host",
        "devices": ["/dev/infiniband"],
        "cap_add": ["IPC_LOCK"],
        "ulimits": {"memlock": "-1", "nofile": "1048576"},
    }
    assert set(settings.options) <= {field.name for field in dataclasses.fields(ContainerSpec)}
    assert settings.stop_timeout_s >= 20, "a worker stops in 11 to 12.4 s"


def test_a_host_without_adapters_gets_no_device() -> None:
    options = parallel.member_settings(dataclasses.replace(HEAD, adapters=())).options
    assert options == {"network": "host", "ulimits": {"nofile": "1048576"}}


def test_a_member_command_is_parsed() -> None:
    flags = engine.get_engine("vllm").parse_command(("/model", *member_arguments(WORKER))).flags
    assert flags["node-rank"] == 1 and flags["headless"] is True


@pytest.mark.parametrize(
    ("alone", "layers", "measured"),
    [
        (57.5, 36, 69.0),  # gpt-oss-120b: the rule was fitted to this report
        (16.3, 88, 23.0),  # Nemotron-3-Super-120B NVFP4: not used to fit the rule
    ],
)
def test_predicted_rate_of_two_hosts_with_tensor_parallelism(alone: float, layers: int, measured: float) -> None:
    assert roofline.split_rate(alone, Split(tensor=2), layers) == pytest.approx(measured, rel=0.1)


def test_pipeline_parallelism_does_not_speed_up_one_stream() -> None:
    assert roofline.split_rate(57.5, Split(pipeline=2), 36) == 57.5
    assert roofline.split_rate(57.5, Split(2, 2), 36) == roofline.split_rate(57.5, Split(2), 36)


def test_the_speedup_stays_below_the_number_of_hosts() -> None:
    for hosts in (2, 4, 8):
        rate = roofline.split_rate(57.5, Split(tensor=hosts), 36)
        assert rate is not None and rate < 57.5 * hosts


@pytest.mark.parametrize(("alone", "layers"), [(None, 36), (57.5, None), (0.0, 36)])
def test_an_unknown_input_gives_an_unknown_rate(alone: float | None, layers: int | None) -> None:
    assert roofline.split_rate(alone, Split(tensor=2), layers) is None
