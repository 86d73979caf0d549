"""The state of a gateway in `status` and `gateway.status`: stopped on-demand models do not count."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwright.app.queries import gateway_status
from sparkwright.console import grid
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


@pytest.mark.parametrize("daily_limit", [0, 2_000_000])
def test_each_client_has_one_line_on_a_terminal_of_80_columns(daily_limit: int) -> None:
    counts = dict.fromkeys(("running", "refused", "errors", "queue_ms", "prompt_tokens", "generated_tokens"), 12_345)
    clients = [
        {**counts, "client": name, "requests": 1_000, "tokens_per_day": daily_limit, "estimated": 0}
        for name in ("alice", "continuous-integration")
    ]
    rows = [gateway_status._client_row(client) for client in clients]
    lines = [grid.plain_text(line) for (line,) in grid.format_rows(gateway_status.CLIENT_COLUMNS, rows, 80)]
    assert len(lines) == 3 and {line.index("1000") for line in lines[1:]} == {lines[0].index("REQUESTS")}
    assert "ERRORS" in lines[0] and lines[1].endswith("1% of 2000000" if daily_limit else "12345")
