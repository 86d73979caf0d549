"""Which looks change the state that is told."""

from __future__ import annotations

import pytest

from sparkwright.health.damping import damp

FLAPS = ["ok", "down", "ok", "down", "ok"]


@pytest.mark.parametrize(
    ("before", "seen", "told"),
    [
        (None, "ok", "ok"),
        (None, "degraded", "degraded"),  # the first look is all there is
        ("ok", "ok degraded", "ok"),  # once is chance
        ("ok", "ok degraded degraded", "degraded"),
        ("ok", "ok unknown", "ok"),
        ("ok", "ok down", "down"),
        ("ok", "ok ok wedged", "wedged"),
        ("ok", "ok crash-looping", "crash-looping"),
        ("down", "down starting", "starting"),
        ("starting", "starting ok", "ok"),
        ("degraded", "degraded ok", "ok"),
        ("degraded", "degraded down", "down"),
        ("down", "ok down ok down ok", "down"),  # it comes and goes
        ("down", "ok down ok down ok ok", "down"),
        ("down", "ok down ok down ok ok ok", "ok"),
    ],
)
def test_what_is_told(before: str | None, seen: str, told: str) -> None:
    assert damp(before, seen.split()).state == told  # type: ignore[arg-type]


def test_flapping_is_said_until_it_is_long_ago() -> None:
    assert damp("down", FLAPS).flapping  # type: ignore[arg-type]
    assert not damp("ok", [*FLAPS, *["ok"] * 12]).flapping  # type: ignore[list-item]
