"""A drained server is returned to its gateways, or reported as drained."""

from pathlib import Path

import pytest

from sparkwright.host.containers import replacement
from sparkwright.host.gateway import drain_record, server_operations
from sparkwright.host.gateway.server_operations import Gateway
from sparkwright.modules.gateway.gateway_container import GatewayReturn
from tests.modules.context import RecordingContext
from tests.remote.sshd import free_port


def test_server_without_a_reachable_gateway_is_not_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = RecordingContext(tmp_path)
    server_operations.ensure_key(context.state)
    drain_record.drain(context.state, [Gateway("box", "127.0.0.1", free_port(), False, "spark1")], "run-1")
    monkeypatch.setattr(replacement, "find_current", lambda context, name: {"Id": "x", "State": {"Running": True}})
    result = GatewayReturn().run(GatewayReturn.Args(name="chat", proved=True), context)
    assert (result.changed, result.msg, result.data["returned"]) == (False, "not returned yet", [])
    assert context.notes == ["the gateway box does not answer: not returned there yet."]
    assert drain_record.load_gateways(context.state) != []
