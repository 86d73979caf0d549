"""A gateway that sends its hosts well-formed nonsense: no operation hangs, fails or is misled."""

import json
from pathlib import Path
from typing import Any

import pytest

from sparkwright.host.gateway import drain_record, interim, server_operations
from sparkwright.host.gateway.server_operations import GatewayError
from tests.modules.context import RecordingContext
from tests.transport.servers import OK, send_script, serving

ROW = {"backend": "org::qwen", "server": "one", "status": "UP", "running": 0}
NONSENSE: dict[str, bytes] = {
    "no JSON": b"servers",
    "half of it": json.dumps({"servers": [ROW]}).encode()[:-9],
    "a list": json.dumps([ROW]).encode(),
    "a number for rows": b'{"servers": 5}',
    "rows without end": json.dumps({"servers": [ROW] * 100_000}).encode(),
    "too many rows": json.dumps({"servers": [ROW] * 257}).encode(),
    "nested": b'{"servers": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "numbers as rows": b'{"servers": [1, null, "x", []]}',
    "another server's rows": json.dumps({"servers": [{**ROW, "server": "two"}]}).encode(),
    "a backend that is a path": json.dumps({"servers": [{**ROW, "backend": "../../v1/models"}]}).encode(),
    "a backend with line ends": json.dumps({"servers": [{**ROW, "backend": "x HTTP/1.1\r\nX: y"}]}).encode(),
    "a backend that paints the screen": json.dumps({"servers": [{**ROW, "backend": "\x1b[2J"}]}).encode(),
    "no backend": json.dumps({"servers": [{**ROW, "backend": None}]}).encode(),
    "the statistics of before": b"# pxname,svname,status\norg::qwen,one,UP\n",
}


def http_response(body: bytes) -> bytes:
    return OK + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


def gateway_at(port: int) -> server_operations.Gateway:
    return server_operations.Gateway("lab", "127.0.0.1", port, tls=False, server="one")


@pytest.mark.parametrize("body", NONSENSE.values(), ids=list(NONSENSE))
def test_nonsense_is_a_gateway_that_did_nothing(tmp_path: Path, body: bytes) -> None:
    context = RecordingContext(tmp_path)
    server_operations.ensure_key(context.state)
    with serving(send_script(http_response(body))) as server:
        at = gateway_at(server.port)
        with pytest.raises(GatewayError) as unheard:
            server_operations.list_servers(at, "key")
        assert str(unheard.value).isprintable() and len(str(unheard.value)) < 200
        (problem,) = drain_record.drain(context.state, [at], "run-1")
        assert problem.startswith("the gateway lab ") and problem.endswith(": not drained there")
        assert drain_record.count_running_requests(context.state, [at]) == 0
        drain_record.pause_checks(context.state, [at])
        assert drain_record.return_server(context.state)[0] == []
        assert interim.check_routing(context.state, [at], "org/qwen").startswith("the gateway lab ")


@pytest.mark.parametrize(
    ("changes", "state", "running"),
    [
        ({"status": "UP 1/3"}, "up", 0),
        ({"status": "NONE OF HAPROXY'S"}, "unknown", 0),
        ({"status": ["UP"]}, "unknown", 0),
        ({"status": "x" * 100_000}, "unknown", 0),
        ({"running": -1}, "up", 0),
        ({"running": 10**400}, "up", 0),
        ({"running": "7"}, "up", 0),
        ({"running": float("nan")}, "up", 0),
        ({"running": True}, "up", 0),
        ({"running": 7, "new": "a field of a later release"}, "up", 7),
    ],
)
def test_fields_are_what_they_may_be(changes: dict[str, Any], state: str, running: int) -> None:
    with serving(send_script(http_response(json.dumps({"servers": [{**ROW, **changes}]}).encode()))) as server:
        (row,) = server_operations.list_servers(gateway_at(server.port), "key")
    assert (row.name, row.state, row.running) == ("one", state, running)
