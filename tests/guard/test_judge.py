"""The guard's decisions on memory curves of GB10 hosts, with rates and levels from public issues."""

from collections.abc import Callable
from typing import Any

import pytest

from sparkwright.guard.judge import GIB, Danger, DangerDetector, Floors

TOTAL = int(121.7 * GIB)
HOUR_S = 3600.0


def constant(gib: float) -> Callable[[float], float]:
    return lambda seconds: gib


def fall(begin: float, rate: float, end: float = 0.0) -> Callable[[float], float]:
    """Return a fall from one level to another, in GiB and GiB per second, after five steady seconds."""
    return lambda seconds: max(end, begin - rate * max(0.0, seconds - 5))


def find_danger(
    available: Callable[[float], float],
    for_s: float,
    *,
    floors: Floors | None = None,
    free: float | None = None,
    stalled: float = 0.0,
    most_s: float = 0.1,
) -> Danger | None:
    """Return the danger that a guard finds in a curve of available memory, with the sampling interval of a host."""
    detector, seconds = DangerDetector(floors or Floors(TOTAL)), 0.0
    while seconds < for_s:
        available_bytes = int(available(seconds) * GIB)
        free_bytes = available_bytes if free is None else int(free * GIB)
        danger = detector.add_sample(seconds, available_bytes, free_bytes, seconds * stalled)
        if danger is not None:
            return danger
        seconds += detector.pause_s(most_s)
    return None


HEALTHY_CURVES = {
    "server with 1.5 GiB available": (constant(1.5), HOUR_S / 10, {}),
    "reading weights: nothing free, 32 GiB available": (fall(60, 3, 32), 60, {"free": 0.9}),
    "7 GiB available, little free": (fall(40, 2, 7), 60, {"free": 0.5}),
    "fast fall to the expected memory": (fall(80, 10, 9.4), 60, {"floors": Floors(TOTAL, expected=int(9.4 * GIB))}),
    "start that was verified with 1.7 GiB left": (fall(40, 3, 1.7), 60, {"floors": Floors(TOTAL, expected=int(1.7 * GIB))}),
    "slow fall to 1.6 GiB": (fall(10, 0.05, 1.6), 300, {}),
    "single allocation of most of the memory": (lambda seconds: 113.5 if seconds < 5 else 6.3, 60, {}),
    "fall of half a second": (fall(20, 12, 14), 60, {}),
    "verified server between 1.5 and 1.9 GiB": (
        lambda seconds: 1.7 + 0.2 * (-1) ** int(seconds),
        HOUR_S / 10,
        {"floors": Floors(TOTAL, verified_available=int(1.9 * GIB), expected=int(1.5 * GIB)), "most_s": 1.0},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("available", "for_s", "options"), HEALTHY_CURVES.values(), ids=HEALTHY_CURVES)
def test_healthy_host_is_safe(available: Callable[[float], float], for_s: float, options: dict[str, Any]) -> None:
    assert find_danger(available, for_s, **options) is None


@pytest.mark.parametrize("rate", [0.5, 1, 3, 6, 12])
def test_fall_is_detected_while_a_kill_still_helps(rate: float) -> None:
    danger = find_danger(fall(29, rate), 120)
    assert danger is not None and danger.kind == "falling"
    assert danger.available > 0.4 * rate * GIB  # enough for the duration of a kill
    assert danger.rate == pytest.approx(rate * GIB, rel=0.35)


def test_fall_below_the_expected_memory_is_detected() -> None:
    danger = find_danger(fall(40, 3), 60, floors=Floors(TOTAL, expected=int(9.4 * GIB)))
    assert danger is not None
    assert 2.5 * GIB < danger.available < 9.4 * GIB


def test_sudden_fall_is_detected() -> None:
    danger = find_danger(lambda seconds: 20 if seconds < 5 else 0.3, 60)
    assert (danger.kind if danger else "") in ("gone", "falling")


def test_stalled_host_with_little_memory_is_in_danger() -> None:
    danger = find_danger(constant(5), 60, free=0.5, stalled=0.4)
    assert danger is not None and danger.kind == "stalled"
    assert find_danger(constant(30), 60, free=0.5, stalled=0.4) is None


def test_leak_of_a_verified_server_leaves_time_for_a_graceful_stop() -> None:
    floors = Floors(TOTAL, verified_available=10 * GIB, expected=10 * GIB)
    danger = find_danger(fall(10, 0.05), 600, floors=floors, most_s=1.0)
    assert danger is not None and danger.is_graceful
    assert danger.available > floors.floor


def test_floors_depend_on_the_memory_left_by_the_server() -> None:
    wide, narrow = Floors(TOTAL, verified_available=40 * GIB), Floors(TOTAL, verified_available=int(1.6 * GIB))
    assert wide.floor == int(TOTAL * 0.01)
    assert narrow.floor == int(1.6 * GIB) // 2
    assert Floors(TOTAL, floor=12 * GIB).floor == 12 * GIB


def test_floor_of_the_host_is_kept_at_any_rate() -> None:
    danger = find_danger(fall(20, 0.01, 11.9), 1200, floors=Floors(TOTAL, floor=12 * GIB))
    assert danger is not None and danger.available < 12 * GIB
    assert find_danger(constant(12.5), HOUR_S / 10, floors=Floors(TOTAL, floor=12 * GIB)) is None
