"""The number of aborted requests that `drain` reports if the server has no metrics and a gateway does not answer."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkwright.host.gateway import server_operations
from sparkwright.host.records import history
from sparkwright.modules.server.stop import Drain
from tests.modules.context import RecordingContext
from tests.modules.docker_engine import container_attrs
from tests.remote.sshd import free_port
from tests.transport.servers import OK, send_script, serving


class OneContainerContext(RecordingContext):
    """A host with one container, which publishes no port: its metrics cannot be read."""

    def docker(self) -> Any:
        return SimpleNamespace(api=SimpleNamespace(inspect_container=lambda name: container_attrs()))


def gateway_row(name: str, port: int) -> dict[str, Any]:
    return server_operations.Gateway(name, "127.0.0.1", port, tls=False, server="one").to_json()


@pytest.mark.parametrize(
    ("running", "message"),
    [(2, "at least 2 requests aborted after 0 s"), (0, "number of running requests unknown; they are aborted")],
)
def test_count_of_gateways_only_is_a_minimum(tmp_path: Path, running: int, message: str) -> None:
    context = OneContainerContext(tmp_path)
    server_operations.ensure_key(context.state)
    row = {"backend": "org::qwen", "server": "one", "status": "DRAIN", "running": running}
    body = json.dumps({"servers": [row]}).encode()
    with serving(send_script(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body)) as server:
        gateways = [gateway_row("lab", server.port), gateway_row("gone", free_port())]
        result = Drain().run(Drain.Args("qwen35", drain_s=0.2, gateways=gateways), context)
    assert result.msg == message
    assert context.notes == ["the gateway gone does not answer: not drained there."]
    assert [entry["why"] for entry in history.read(context.state)] == ([message] if running else [])
