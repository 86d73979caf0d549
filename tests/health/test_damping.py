"""Damping: the checks that change the reported state."""

from __future__ import annotations

import pytest

from sparkwright.health.judging.judge import damp, is_news

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
        ("down", "ok down ok down ok", "ok"),  # it comes and goes, and now it generates
        ("wedged", "ok wedged ok wedged ok", "ok"),
        ("crash-looping", "ok down ok crash-looping degraded", "degraded"),
        ("down", "ok down ok down starting", "down"),  # a start proves nothing of one that comes and goes
        ("down", "ok down ok down starting starting starting", "starting"),
        ("ok", "ok down ok down", "down"),
    ],
)
def test_what_is_told(before: str | None, seen: str, told: str) -> None:
    assert damp(before, seen.split()).state == told  # type: ignore[arg-type]


def test_flapping_is_said_until_it_is_long_ago() -> None:
    assert damp("down", FLAPS).flapping  # type: ignore[arg-type]
    assert not damp("ok", [*FLAPS, *["ok"] * 12]).flapping  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("seen", "news"),
    [
        ("ok", True),
        ("down ok", True),
        ("ok down ok down", True),
        ("ok down ok down ok", False),
        ("ok down ok down ok ok", False),
        ("ok down ok down ok ok ok", True),
        ("ok down ok down ok down", True),
    ],
)
def test_good_news_of_a_server_that_flaps_wait_until_they_have_held(seen: str, news: bool) -> None:
    assert is_news(seen.split()) == news  # type: ignore[arg-type]
