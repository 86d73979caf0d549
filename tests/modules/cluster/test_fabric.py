"""Missing requirements of a member's fabric, on the files of a Spark with a fast link."""

from pathlib import Path
from typing import Any

import pytest

from sparkwright.errors import Exit
from sparkwright.modules.cluster import fabric as cluster
from sparkwright.modules.cluster.fabric import FabricReady
from sparkwright.protocol.result import Result
from tests.doctor import link_tree
from tests.modules.context import RecordingContext

FINE: dict[str, Any] = {
    "name": "glm",
    "host": "spark1",
    "address": "192.168.100.1",
    "interfaces": ["enp1s0f1np1", "enP2p1s0f1np1"],
    "adapters": ["rocep1s0f1", "roceP2p1s0f1"],
    "peers": ["192.168.100.2"],
}


def check_fabric(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, host_options: dict[str, Any] | None = None, **arguments: Any
) -> Result:
    """On a host without other ranks."""
    link_tree.write_host(folder / "root", 1, **(host_options or {}))
    monkeypatch.setattr(cluster, "_check_leftover_ranks", lambda args, context: iter(()))
    return FabricReady().run(
        FabricReady.Args(**{**FINE, **arguments}), RecordingContext(folder, root=str(folder / "root"))
    )


def test_ready_fabric_reports_its_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = check_fabric(tmp_path, monkeypatch)
    assert (result.failed, result.msg) == (False, "enp1s0f1np1 is ready for 192.168.100.1; reaches 192.168.100.2")
    assert result.data == {"firmware": "28.45.4028", "mtu": "9000"}, "what the members compare"


@pytest.mark.parametrize(
    ("given", "laid", "message"),
    [
        ({"interfaces": ["enp9s0"]}, {}, "spark1 has no interface enp9s0; its interfaces: enP2p1s0f1np1, enp1s0f1np1."),
        ({"address": "192.168.100.9"}, {}, "enp1s0f1np1 has 192.168.100.1, not 192.168.100.9."),
        (
            {"adapters": ["rocep9s0"]},
            {},
            "spark1 has no RDMA adapter rocep9s0; its adapters: roceP2p1s0f1, rocep1s0f1.",
        ),
        ({"adapters": ["roceP2p1s0f1"]}, {}, "roceP2p1s0f1 has no RoCE v2 GID for 192.168.100.1."),
        ({}, {"over": "enP7s7"}, "192.168.100.2 is reached over enP7s7, not over the fabric."),
        ({}, {"ping": "exit 1"}, "a frame of 9000 bytes does not reach 192.168.100.2 over enp1s0f1np1."),
    ],
)
def test_missing_requirement_refuses_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], laid: dict[str, Any], message: str
) -> None:
    result = check_fabric(tmp_path, monkeypatch, host_options=laid, **given)
    assert (result.failed, result.exit, result.msg) == (True, Exit.REFUSED, message)


def test_unchecked_path_is_reported_as_unchecked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = check_fabric(tmp_path, monkeypatch, host_options={"ping": "exit 127"})
    assert result.msg == "enp1s0f1np1 is ready for 192.168.100.1; could not check the path to 192.168.100.2"
    six = check_fabric(tmp_path, monkeypatch, address="fd00::1", peers=["fd00::2"])
    assert (six.failed, six.msg) == (False, "enp1s0f1np1 is ready for fd00::1; could not check the path to fd00::2")


SLOW = {
    "/sys/class/infiniband/rocep1s0f1/ports/1/rate": "100 Gb/sec (1X NDR)",
    "/sys/class/infiniband/roceP2p1s0f1/ports/1/state": "1: DOWN",
}
NO_TWIN_GID = {"/sys/class/infiniband/roceP2p1s0f1/ports/1/gid_attrs/types/3": "IB/RoCE v1"}
NO_MEMORY = {
    "/proc/sys/kernel/osrelease": "7.0.0-1019-nvidia",
    "/proc/meminfo": "MemTotal: 125513728 kB\nMemAvailable: 118000000 kB\nCmaTotal: 32768 kB\nCmaFree: 9900000 kB\n",
}


def check_fabric_with_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]
) -> tuple[Result, list[str]]:
    """On a host with these files instead, and what was noted."""
    link_tree.write_host(folder / "root", 1)
    for name, text in files.items():
        Path(f"{folder}/root{name}").write_text(f"{text}\n")
    monkeypatch.setattr(cluster, "_check_leftover_ranks", lambda args, context: iter(()))
    context = RecordingContext(folder, root=str(folder / "root"))
    return FabricReady().run(FabricReady.Args(**FINE), context), context.notes


def test_slow_fabric_is_noted_without_failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, notes = check_fabric_with_files(tmp_path, monkeypatch, SLOW)
    assert (result.failed, result.exit) == (False, None)
    assert [note.partition(":")[0] for note in notes] == ["roceP2p1s0f1 is down, the other half is up", "rocep1s0f1"]
    assert notes[1].startswith("rocep1s0f1: 100 Gb/s: ")


DOWN = "/sys/class/net/{}/operstate"
NO_HALF = {"/sys/class/infiniband/rocep1s0f1/ports/1/state": "1: DOWN"}


@pytest.mark.parametrize(
    ("interface", "files", "refused"),
    [
        ("enP2p1s0f1np1", SLOW, ""),
        ("enP2p1s0f1np1", {**SLOW, **NO_HALF}, "the interface enP2p1s0f1np1 is down."),
        ("enp1s0f1np1", NO_HALF, "the interface enp1s0f1np1 is down."),
    ],
)
def test_half_of_the_port_without_the_address_may_be_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interface: str, files: dict[str, str], refused: str
) -> None:
    result, _ = check_fabric_with_files(tmp_path, monkeypatch, {DOWN.format(interface): "down", **files})
    assert (result.exit, result.msg if refused else "") == (Exit.REFUSED if refused else None, refused)


def test_each_half_of_the_port_needs_a_gid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, _ = check_fabric_with_files(tmp_path, monkeypatch, NO_TWIN_GID)
    assert (result.exit, result.msg) == (
        Exit.REFUSED,
        "roceP2p1s0f1 has no RoCE v2 GID for 192.168.101.1: the ranks of a cluster cannot reach this address by RDMA.",
    )


def test_kernel_that_leaks_rdma_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, _ = check_fabric_with_files(tmp_path, monkeypatch, NO_MEMORY)
    assert result.exit == Exit.REFUSED and "CmaFree 9.4 GiB of CmaTotal 0.03 GiB" in result.msg


@pytest.mark.parametrize(
    ("own", "refused"),
    [
        (None, True),
        ({"State": {"Running": True}, "Config": {"Cmd": ["--master-port", "29501"]}}, False),
        ({"State": {"Running": True}, "Config": {"Cmd": ["--master-port", "29777"]}}, True),
    ],
)
def test_only_the_current_rank_may_hold_the_master_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: dict[str, Any] | None, refused: bool
) -> None:
    monkeypatch.setattr(RecordingContext, "docker", lambda self: None)
    monkeypatch.setattr(cluster.replacement, "find_current", lambda context, name: own or {})
    monkeypatch.setattr(cluster.containers, "describe_port_holder", lambda client, port: "python3 (pid 7, user ops)")
    result = check_fabric(tmp_path, monkeypatch, port=29501)
    assert result.failed is refused
    if refused:
        assert result.msg == "the cluster's master port 29501 is in use by python3 (pid 7, user ops)."
        assert result.fix == "Stop that program, or set another `port:` for the cluster in hosts/groups.yml."
