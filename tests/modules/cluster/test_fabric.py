"""Missing requirements of a member's fabric, with the files of a Spark with a fast link."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkwright.errors import Exit
from sparkwright.host.containers import containers, replacement
from sparkwright.modules.cluster import fabric as cluster
from sparkwright.modules.cluster.fabric import FabricReady
from sparkwright.protocol.result import Result
from tests.doctor import link_tree
from tests.modules.context import RecordingContext

ARGS: dict[str, Any] = {"name": "glm", "host": "spark1", "address": "192.168.100.1", "peers": ["192.168.100.2"]}
ARGS |= {"interfaces": ["enp1s0f1np1", "enP2p1s0f1np1"], "adapters": ["rocep1s0f1", "roceP2p1s0f1"]}
CheckFabric = Callable[..., Result]


@pytest.fixture
def context(tmp_path: Path) -> RecordingContext:
    return RecordingContext(tmp_path, root=str(tmp_path / "root"))


@pytest.fixture
def check_fabric(context: RecordingContext, monkeypatch: pytest.MonkeyPatch) -> CheckFabric:
    """Return a function that runs the check on a host without other ranks.

    Its arguments are changes of ARGS, `options` of the simulated host, and `files` that it has instead.
    """
    monkeypatch.setattr(cluster, "_check_leftover_ranks", lambda args, context: iter(()))

    def check(options: dict[str, Any] | None = None, files: dict[str, str] | None = None, **changes: Any) -> Result:
        root = Path(context.machine.root)
        link_tree.write_host(root, 1, **(options or {}))
        for name, text in (files or {}).items():
            Path(f"{root}{name}").write_text(f"{text}\n")
        return FabricReady().run(FabricReady.Args(**{**ARGS, **changes}), context)

    return check


def test_ready_fabric_reports_its_peers(check_fabric: CheckFabric) -> None:
    result = check_fabric()
    assert (result.failed, result.msg) == (False, "enp1s0f1np1 is ready for 192.168.100.1; reaches 192.168.100.2")
    assert result.data == {"firmware": "28.45.4028", "mtu": "9000"}, "compared with the other members"


NO_ADAPTER = "spark1 has no RDMA adapter rocep9s0; its adapters: roceP2p1s0f1, rocep1s0f1."


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"interfaces": ["enp9s0"]}, {}, "spark1 has no interface enp9s0; its interfaces: enP2p1s0f1np1, enp1s0f1np1."),
        ({"address": "192.168.100.9"}, {}, "enp1s0f1np1 has 192.168.100.1, not 192.168.100.9."),
        ({"adapters": ["rocep9s0"]}, {}, NO_ADAPTER),
        ({"adapters": ["roceP2p1s0f1"]}, {}, "roceP2p1s0f1 has no RoCE v2 GID for 192.168.100.1."),
        ({}, {"over": "enP7s7"}, "192.168.100.2 is reached over enP7s7, not over the fabric."),
        ({}, {"ping": "exit 1"}, "a frame of 9000 bytes does not reach 192.168.100.2 over enp1s0f1np1."),
    ],
)
def test_missing_requirement_refuses_the_run(
    check_fabric: CheckFabric, changes: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    result = check_fabric(options, **changes)
    assert (result.failed, result.exit, result.msg) == (True, Exit.REFUSED, message)


def test_unchecked_path_is_reported_as_unchecked(check_fabric: CheckFabric) -> None:
    result = check_fabric({"ping": "exit 127"})
    assert result.msg == "enp1s0f1np1 is ready for 192.168.100.1; could not check the path to 192.168.100.2"
    result = check_fabric(address="fd00::1", peers=["fd00::2"])
    assert (result.failed, result.msg) == (
        False,
        "enp1s0f1np1 is ready for fd00::1; could not check the path to fd00::2",
    )


SLOW = {
    "/sys/class/infiniband/rocep1s0f1/ports/1/rate": "100 Gb/sec (1X NDR)",
    "/sys/class/infiniband/roceP2p1s0f1/ports/1/state": "1: DOWN",
}
NO_TWIN_GID = {"/sys/class/infiniband/roceP2p1s0f1/ports/1/gid_attrs/types/3": "IB/RoCE v1"}
NO_MEMORY = {
    "/proc/sys/kernel/osrelease": "7.0.0-1019-nvidia",
    "/proc/meminfo": "MemTotal: 125513728 kB\nMemAvailable: 118000000 kB\nCmaTotal: 32768 kB\nCmaFree: 9900000 kB\n",
}


def test_slow_fabric_is_noted_without_failing(check_fabric: CheckFabric, context: RecordingContext) -> None:
    result = check_fabric(files=SLOW)
    assert (result.failed, result.exit) == (False, None)
    notes = context.notes
    assert [note.partition(":")[0] for note in notes] == [
        "roceP2p1s0f1 is down, but the other half is up",
        "rocep1s0f1",
    ]
    assert notes[1].startswith("rocep1s0f1: 100 Gb/s: ")


STATE_FILE = "/sys/class/net/{}/operstate"
NO_HALF = {"/sys/class/infiniband/rocep1s0f1/ports/1/state": "1: DOWN"}


@pytest.mark.parametrize(
    ("interface", "files", "message"),
    [
        ("enP2p1s0f1np1", SLOW, ""),
        ("enP2p1s0f1np1", {**SLOW, **NO_HALF}, "the interface enP2p1s0f1np1 is down."),
        ("enp1s0f1np1", NO_HALF, "the interface enp1s0f1np1 is down."),
    ],
)
def test_half_of_the_port_without_the_address_may_be_down(
    check_fabric: CheckFabric, interface: str, files: dict[str, str], message: str
) -> None:
    result = check_fabric(files={STATE_FILE.format(interface): "down", **files})
    assert (result.exit, result.msg if message else "") == (Exit.REFUSED if message else None, message)


def test_each_half_of_the_port_needs_a_gid(check_fabric: CheckFabric) -> None:
    result = check_fabric(files=NO_TWIN_GID)
    problem = "roceP2p1s0f1 has no RoCE v2 GID for 192.168.101.1"
    message = f"{problem}: the ranks of a cluster cannot reach this address by RDMA."
    assert (result.exit, result.msg) == (Exit.REFUSED, message)


def test_kernel_that_leaks_rdma_memory_is_refused(check_fabric: CheckFabric) -> None:
    result = check_fabric(files=NO_MEMORY)
    assert result.exit == Exit.REFUSED and "CmaFree 9.4 GiB of CmaTotal 0.03 GiB" in result.msg


def rank_attrs(port: str) -> dict[str, Any]:
    return {"State": {"Running": True}, "Config": {"Cmd": ["--master-port", port]}}


@pytest.mark.parametrize(
    ("current", "refused"), [({}, True), (rank_attrs("29501"), False), (rank_attrs("29777"), True)]
)
def test_only_the_current_rank_may_hold_the_master_port(
    check_fabric: CheckFabric, monkeypatch: pytest.MonkeyPatch, current: dict[str, Any], refused: bool
) -> None:
    monkeypatch.setattr(RecordingContext, "docker", lambda self: None)
    monkeypatch.setattr(replacement, "find_current", lambda context, name: current)
    monkeypatch.setattr(containers, "describe_port_holder", lambda client, port: "python3 (pid 7, user ops)")
    result = check_fabric(port=29501)
    assert result.failed is refused
    if refused:
        assert result.msg == "the cluster's master port 29501 is in use by python3 (pid 7, user ops)."
        assert result.fix == "Stop that program, or set another `port:` for the cluster in hosts/groups.yml."
