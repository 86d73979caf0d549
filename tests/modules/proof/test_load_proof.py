"""The decode rate at depth: stored with the throughput baseline, compared, and limited in time."""

import json
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines.vllm.http import HTTP
from sparkwright.errors import Refused
from sparkwright.host.records.baselines import Baselines, build_key
from sparkwright.measure.throughput import Baseline
from sparkwright.modules.proof.load_proof import DepthRates, Rate, describe_rate_drops, format_rates, parse_rates
from sparkwright.project import recipe
from sparkwright.project.inventory.host import Host
from sparkwright.protocol.result import Result
from tests.measure.exact_server import ExactServer, Schedule, serving
from tests.modules.context import RecordingContext
from tests.modules.proof.test_smoke_test import FAST, KEY, make_context
from tests.project.recipe.test_engine_settings import load_recipe

DEPTHS = [1024, 2048]


def measure_depths(server: ExactServer, context: RecordingContext, *rates: float, **arguments: Any) -> Result:
    """Measure with these decode rates at each depth, after two short requests that calibrate the length of a word."""
    server.schedule.rates = [300.0, 300.0, *rates]
    server.record.clear()
    args = {"base_url": server.url, "model": "m", "depths": DEPTHS, "baseline_key": KEY, **arguments}
    return DepthRates().run(DepthRates.Args(**args), context)


def save_baseline(context: RecordingContext, depth_rates: dict[str, float]) -> None:
    key = build_key(KEY, context.machine, HTTP)
    Baselines(context.state).write(key, Baseline({"prose": 300.0}, 0.01, 5), {"depth": depth_rates})


def load_depth_rates(context: RecordingContext) -> dict[str, float]:
    (path,) = context.state.path.glob("baselines/*.json")
    return dict(json.loads(path.read_text())["about"]["depth"])


def test_first_depth_rates_are_stored_and_later_rates_compared(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    save_baseline(context, {})
    with serving(Schedule(**FAST)) as server:
        first = measure_depths(server, context, 280.0, 250.0)
        stored = load_depth_rates(context)
        save_baseline(context, {"1024": 0.001, "2048": 1e6})
        dropped = measure_depths(server, context, 280.0, 250.0)
    assert (first.failed, first.data["verdict"], first.data["baseline"]) == (False, "proved", None)
    assert set(stored) == {"1024", "2048"} and stored["2048"] == first.data["tok_per_s"]
    assert (dropped.failed, dropped.data["verdict"], dropped.data["baseline"]) == (True, "regression", 1e6)
    assert "at depth 2048," in dropped.msg and "1024" not in dropped.msg
    assert load_depth_rates(context)["2048"] == 1e6


def test_depth_rates_without_a_baseline_are_not_stored(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    with serving(Schedule(**FAST)) as server:
        result = measure_depths(server, context, 280.0, 250.0)
    assert (result.failed, result.data["verdict"]) == (False, "not compared")
    assert not list(context.state.path.glob("baselines/*"))


def test_depth_beyond_the_time_limit_is_reported_as_not_measured(tmp_path: Path) -> None:
    with serving(Schedule(**FAST)) as server:
        result = measure_depths(server, make_context(tmp_path), 8.0, most_seconds=3.0)
    assert [row["tok_per_s"] is None for row in result.data["rates"]] == [False, True]
    assert "at depth 2048: not measured in time" in result.msg


def test_depths_of_a_recipe_are_limited_by_its_context(tmp_path: Path) -> None:
    text = "vllm: {max-model-len: 16384}\nexpect: {depths: [8k, 32768]}\n"
    names = recipe.scope(Host("spark1", "spark1"), "me", load_recipe(tmp_path, text), {"image": None, "model": None})
    assert names["serve"]["depths"] == [8000]
    with pytest.raises(Refused, match=r"`expect.depths`: 64 is not between"):
        load_recipe(tmp_path, "vllm: {}\nexpect: {depths: [64]}\n")


def test_first_depth_rate_below_half_of_the_short_rate_is_noted() -> None:
    assert "check the attention backend" in format_rates([Rate(8192, 20.0)], 47.0)
    assert "check the attention backend" not in format_rates([Rate(8192, 40.0)], 47.0)


def test_stored_depth_rates_are_read_as_numbers_only() -> None:
    assert parse_rates({"8192": 40.0, "x": "y", "1": True, "2": -1}) == {"8192": 40.0}
    assert parse_rates(None) == {}
    assert describe_rate_drops([Rate(8192, 29.0)], {"8192": 40.0})
    assert not describe_rate_drops([Rate(8192, 31.0)], {"8192": 40.0})
