"""A gateway that sends nonsense to its hosts: no operation hangs, crashes or is misled."""

import json
from pathlib import Path
from typing import Any

import pytest

from sparkwright.host.gateway import drain_record, interim, server_operations
from sparkwright.host.gateway.server_operations import GatewayError
from tests.modules.context import RecordingContext
from tests.transport.servers import OK, send_script, serving

ROW = {"backend": "org::qwen", "server": "one", "status": "UP", "running": 0}


def encode_rows(*rows: Any) -> bytes:
    return json.dumps({"servers": rows}).encode()


def http_response(body: bytes) -> bytes:
    return OK + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


def gateway_at(port: int) -> server_operations.Gateway:
    return server_operations.Gateway("lab", "127.0.0.1", port, tls=False, server="one")


NONSENSE: dict[str, bytes] = {
    "text instead of JSON": b"servers",
    "truncated JSON": encode_rows(ROW)[:-9],
    "list of rows": json.dumps([ROW]).encode(),
    "number instead of rows": b'{"servers": 5}',
    "answer above the size limit": encode_rows(*[ROW] * 100_000),
    "too many rows": encode_rows(*[ROW] * 257),
    "deep nesting": b'{"servers": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "numbers as rows": encode_rows(1, None, "x", []),
    "rows of another server": encode_rows({**ROW, "server": "two"}),
    "path as backend": encode_rows({**ROW, "backend": "../../v1/models"}),
    "backend with line breaks": encode_rows({**ROW, "backend": "x HTTP/1.1\r\nX: y"}),
    "backend with escape codes": encode_rows({**ROW, "backend": "\x1b[2J"}),
    "no backend": encode_rows({**ROW, "backend": None}),
    "statistics of an earlier release": b"# pxname,svname,status\norg::qwen,one,UP\n",
}


@pytest.mark.parametrize("body", NONSENSE.values(), ids=NONSENSE)
def test_a_nonsense_answer_counts_as_a_failed_operation(tmp_path: Path, body: bytes) -> None:
    context = RecordingContext(tmp_path)
    server_operations.ensure_key(context.state)
    with serving(send_script(http_response(body))) as server:
        gateway = gateway_at(server.port)
        with pytest.raises(GatewayError) as error:
            server_operations.list_servers(gateway, "key")
        assert str(error.value).isprintable() and len(str(error.value)) < 200
        (problem,) = drain_record.drain(context.state, [gateway], "run-1")
        assert problem.startswith("the gateway lab ") and problem.endswith(": not drained there")
        assert drain_record.count_running_requests(context.state, [gateway]) == 0
        drain_record.pause_checks(context.state, [gateway])
        assert drain_record.return_server(context.state)[0] == []
        assert interim.find_routing_problem(context.state, [gateway], "org/qwen").startswith("the gateway lab ")


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
def test_fields_with_invalid_values_become_unknown_or_zero(changes: dict[str, Any], state: str, running: int) -> None:
    with serving(send_script(http_response(encode_rows({**ROW, **changes})))) as server:
        (row,) = server_operations.list_servers(gateway_at(server.port), "key")
    assert (row.name, row.state, row.running) == ("one", state, running)
