"""The state of a gateway in `status` and `gateway.status`: stopped on-demand models do not count."""

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
    """Return a host's answer about its gateway. models: (state of its server, is on demand) of each."""
    counts = dict.fromkeys(("requests", "running", "queued", "errors"), 0)
    server = {"host": "spark1", "running": 0, "requests": 0}
    rows = [
        {**counts, "model": name, "on_demand": on_demand, "servers": [{**server, "state": state}]}
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
    ids=["up", "on-demand model down", "model down", "maintenance"],
)
def test_gateway_is_degraded_by_models_that_should_be_up(
    gateway: Gateway, models: dict[str, tuple[str, bool]], unserved: list[str]
) -> None:
    state = gateway_state(**models)
    row = gateway_status.build_row(gateway, {"gateway": state})
    assert gateway_status.find_unserved_models(state) == unserved
    assert (row.state, row.exit) == (("degraded", Exit.FAILED) if unserved else ("up", Exit.OK))
    assert all(model in row.why for model in unserved)
