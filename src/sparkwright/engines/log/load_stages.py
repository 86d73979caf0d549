"""Durations of the stages of an engine's start by its log, with the same names for every engine. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from sparkwright.engines.log.state import EngineState

#: stages by their names on the screen, in the order of a start; each with the reading that holds its seconds
READINGS: dict[str, str] = {
    "weights": "weights_s",
    "compile": "compile_s",
    "autotune": "autotune_s",
    "graphs": "graphs_s",
}
TENTHS_BELOW_S = 10.0


def of_state(state: EngineState) -> dict[str, float]:
    """Return seconds by stage, for the stages that the log tells."""
    found = {stage: state.value(reading) for stage, reading in READINGS.items()}
    return {stage: float(seconds) for stage, seconds in found.items() if seconds is not None}


def sentence(stages: Mapping[str, Any] | None) -> str:
    """Return stages in words, "weights 210 s, compile 95 s, graphs 40 s"; unknown stages and values that are not numbers are left
    out. Empty for none."""
    found = {stage: (stages or {}).get(stage) for stage in READINGS}
    return ", ".join(f"{stage} {seconds(value)}" for stage, value in found.items() if _is_seconds(value))


def seconds(value: float) -> str:
    """Return seconds as text: whole seconds, tenths below ten."""
    return f"{value:.0f} s" if value >= TENTHS_BELOW_S else f"{value:.1f} s"


def _is_seconds(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
