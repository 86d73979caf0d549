"""Damaged groups with a gateway, statistics of HAProxy, and a host's answers about its gateway."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwright.app.queries import gateway_status, host_requests
from sparkwright.errors import SparkwrightError
from sparkwright.gateway import clients, render, statistics, usage
from sparkwright.host.gateway import haproxy_sockets
from sparkwright.project import gateway_routes, starter
from sparkwright.project.inventory.inventory import Inventory
from sparkwright.trust.shapes import validate
from tests.fuzz.harness import damaged_texts, damaged_values, feed, feed_texts
from tests.fuzz.test_user_files import via_project_file

GATEWAY = {"host": "spark1", "port": 8080, "tls": "none", "publish": "lan", "key": {"env": "GATEWAY_KEY"}}
GROUPS: dict[str, Any] = {
    "lab": {"hosts": ["spark1", "spark2"], "gateway": GATEWAY},
    "pair": {"hosts": ["spark3", "spark4"], "cluster": {"recipe": "qwen3.5-35b", "head": "spark3"}, "vars": {"a": 1}},
}
STATISTICS = (
    b"# pxname,svname,qcur,scur,stot,hrsp_5xx,status,\n"
    b"clients,FRONTEND,,3,512,0,OPEN,\nmodel_qwen,spark1,0,2,300,1,UP 1/3,\nmodel_qwen,BACKEND,1,3,500,2,UP,\n"
)
INFO = b"Name: HAProxy\nVersion: 2.6.12\nDescription: gateway " + b"a" * 64 + b"\n"
ROUTED = {"model": "qwen", "requests": 5, "running": 1, "queued": 0, "errors": 0, "on_demand": False}
STATE = {
    "running": True, "verified": True, "changed": [],
    "clients": [{"client": "alice", **dict.fromkeys((*usage.FIELDS, "running", "tokens_per_day"), 1)}],
    "models": [{**ROUTED, "servers": [{"host": "spark1", "state": "up", "running": 1, "requests": 5}]}],
}  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    starter.write_starter(root)
    shutil.rmtree(root / "hosts")
    (root / "hosts").mkdir()
    for name in ("spark1", "spark2", "spark3", "spark4"):
        recipe = "recipe: qwen3.5-35b\n" if name < "spark3" else ""
        (root / f"hosts/{name}.yml").write_text(f"address: 192.0.2.{name[-1]}\n{recipe}")
    return root


def test_groups_with_a_gateway(project: Path) -> None:
    def read() -> None:
        inventory = Inventory.load(project)
        for gateway in inventory.gateways.values():
            built_gateway, _ = gateway_routes.build_routes(project, inventory, gateway)
            for name, content in render.render_files(built_gateway).items():
                assert name and "\0" not in content

    def read_value(value: Any) -> None:
        read_file(yaml.safe_dump(value, allow_unicode=True).encode(errors="replace"))

    read_file = via_project_file(project / "hosts/groups.yml", read)
    feed(read_value, damaged_values([GROUPS]))
    feed(read_file, damaged_texts([yaml.safe_dump(GROUPS).encode()]))


def test_statistics_of_haproxy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def read(text: str) -> None:
        monkeypatch.setattr(haproxy_sockets, "send_command", lambda folder, command, at="": text)
        rows = statistics.model_statistics(haproxy_sockets.read_statistics(tmp_path))
        json.dumps(rows, allow_nan=False)
        for row in rows:
            assert row["queued"] >= 0 and all(server["state"] in statistics.STATES for server in row["servers"])
        assert isinstance(haproxy_sockets.running_digest(tmp_path), str)

    feed_texts(read, [STATISTICS, INFO])


def test_usage_file_and_table_of_clients() -> None:
    def read(text: str) -> None:
        (row,) = clients.client_usage(text, text, text, ["alice"])
        json.dumps(row, allow_nan=False)
        assert row["client"] == "alice" and all(row[field] >= 0 for field in usage.FIELDS)

    day, table = b"alice 1 2 3 0 0 0 40\nalice 1 1 1 1 1 1 1\n", b"0x1: key=alice use=0 exp=9 gpc0=3 conn_cur=1\n"
    feed_texts(read, [day, table])


def test_answer_of_a_host_about_its_gateway() -> None:
    def read(value: Any) -> None:
        try:
            answer = host_requests.validate_answer("gateway_state", value, host="spark1")
        except SparkwrightError as error:
            assert "\n" not in str(error)
            return
        assert isinstance(haproxy_sockets.describe_problem(answer), str)
        for row in answer["models"]:
            assert all(isinstance(cell, str) for cell in gateway_status._model_row(row))
        for row in answer["clients"]:
            assert all(isinstance(cell, str) for cell in gateway_status._client_row(row))

    feed(read, damaged_values([STATE]))


def test_status_of_a_gateway(project: Path) -> None:
    (project / "hosts/groups.yml").write_text(yaml.safe_dump(GROUPS))
    gateway = next(iter(Inventory.load(project).gateways.values()))

    def read(value: Any) -> None:
        row = gateway_status.build_row(gateway, {"gateway": value})
        assert row.state in ("up", "down", "degraded", "unknown") and "\n" not in row.why

    feed(read, damaged_values([STATE, {}]))
    assert validate(STATE, host_requests.GATEWAY_SHAPE, "gateway")
