"""What a member's host lacks for its fabric, on the files of a Spark with a fast link."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparkwright.errors import Exit
from sparkwright.modules.cluster import fabric_ready
from sparkwright.modules.cluster.fabric_ready import FabricReady
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


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, *, laid: dict[str, Any] | None = None, **given: Any) -> Result:
    """On a host without other ranks."""
    link_tree.lay(folder / "root", 1, **(laid or {}))
    monkeypatch.setattr(fabric_ready, "_leftovers", lambda args, context: iter(()))
    return FabricReady().run(FabricReady.Args(**{**FINE, **given}), RecordingContext(folder, root=str(folder / "root")))


def test_a_host_in_order_is_told_with_whom_it_reaches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(tmp_path, monkeypatch)
    assert (found.failed, found.msg) == (False, "enp1s0f1np1 is there for 192.168.100.1; reaches 192.168.100.2")


@pytest.mark.parametrize(
    ("given", "laid", "message"),
    [
        ({"interfaces": ["enp9s0"]}, {}, "no interface enp9s0 on spark1; there are: enP2p1s0f1np1, enp1s0f1np1."),
        ({"address": "192.168.100.9"}, {}, "enp1s0f1np1 has 192.168.100.1, not 192.168.100.9."),
        ({"adapters": ["rocep9s0"]}, {}, "no RDMA adapter rocep9s0 on spark1; there are: roceP2p1s0f1, rocep1s0f1."),
        ({"adapters": ["roceP2p1s0f1"]}, {}, "roceP2p1s0f1 has no RoCE v2 GID for 192.168.100.1."),
        ({}, {"over": "enP7s7"}, "192.168.100.2 is reached over enP7s7, not over the fabric."),
        ({}, {"ping": "exit 1"}, "a frame of 9000 bytes does not reach 192.168.100.2 over enp1s0f1np1."),
    ],
)
def test_what_is_missing_refuses_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], laid: dict[str, Any], message: str
) -> None:
    found = run(tmp_path, monkeypatch, laid=laid, **given)
    assert (found.failed, found.exit, found.msg) == (True, Exit.REFUSED, message)


def test_a_way_that_could_not_be_tried_is_not_called_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(tmp_path, monkeypatch, laid={"ping": "exit 127"})
    assert found.msg == "enp1s0f1np1 is there for 192.168.100.1; could not try the way to 192.168.100.2"
    six = run(tmp_path, monkeypatch, address="fd00::1", peers=["fd00::2"])
    assert (six.failed, six.msg) == (False, "enp1s0f1np1 is there for fd00::1; could not try the way to fd00::2")
