"""A gateway whose on-demand model sleeps is up, in `status` and in `gateway.status`."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwright.app.queries import gateway_status
from sparkwright.errors import Exit
from sparkwright.project.inventory.groups import Gateway
from sparkwright.project.inventory.inventory import Inventory

GROUPS = {"lab": {"hosts": ["spark1"], "gateway": {"host": "spark1", "port": 8080, "tls": "none"}}}


@pytest.fixture
def gateway(tmp_path: Path) -> Gateway:
    (tmp_path / "hosts").mkdir()
    (tmp_path / "recipes").mkdir()
    (tmp_path / "hosts/spark1.yml").write_text("address: 192.0.2.1\n")
    (tmp_path / "hosts/groups.yml").write_text(yaml.safe_dump(GROUPS))
    return next(iter(Inventory.load(tmp_path).gateways.values()))


def gateway_state(**models: tuple[str, bool]) -> dict[str, Any]:
    """The answer of a host whose gateway routes these models: each the state of its server, and whether it is on demand."""
    counts = dict.fromkeys(("requests", "running", "queued", "errors"), 0)
    rows = [
        {
            **counts,
            "model": name,
            "on_demand": on_demand,
            "servers": [{"host": "spark1", "state": state, "running": 0, "requests": 0}],
        }
        for name, (state, on_demand) in models.items()
    ]
    return {"running": True, "verified": True, "models": rows}


@pytest.mark.parametrize(
    ("models", "unserved"),
    [
        ({"chat": ("up", False)}, []),
        ({"chat": ("up", True), "small": ("down", True)}, []),
        ({"chat": ("up", True), "small": ("down", False)}, ["small"]),
        ({"chat": ("maintenance", False)}, ["chat"]),
    ],
)
def test_only_a_model_that_should_be_up_makes_a_gateway_fail(
    gateway: Gateway, models: dict[str, tuple[str, bool]], unserved: list[str]
) -> None:
    state = gateway_state(**models)
    row = gateway_status.build_row(gateway, {"gateway": state})
    assert gateway_status.find_unserved_models(state) == unserved
    assert (row.state, row.exit) == (("degraded", Exit.FAILED) if unserved else ("up", Exit.OK))
    assert all(model in row.why for model in unserved)
