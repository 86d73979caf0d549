"""The guard's decisions on recorded memory curves of GB10 hosts. Rates and levels are those of public issues."""

from collections.abc import Callable

import pytest

from sparkwright.guard.judge import GIB, Danger, DangerDetector, Floors

TOTAL = int(121.7 * GIB)
HOUR_S = 3600.0


def constant(gib: float) -> Callable[[float], float]:
    return lambda seconds: gib


def fall(begin: float, rate: float, end: float = 0.0) -> Callable[[float], float]:
    """Return a fall from one level to another, in GiB and GiB a second, after five quiet seconds."""
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
    """Return the danger that a guard finds in this memory, sampled as often as on a host; None for none."""
    detector, seconds = DangerDetector(floors or Floors(TOTAL)), 0.0
    while seconds < for_s:
        available_bytes = int(available(seconds) * GIB)
        danger = detector.add_sample(
            seconds, available_bytes, available_bytes if free is None else int(free * GIB), seconds * stalled
        )
        if danger is not None:
            return danger
        seconds += detector.pause_s(most_s)
    return None


HEALTHY_CURVES = {
    "a server that serves with 1.5 GiB": (constant(1.5), HOUR_S / 10, {}),
    "reading weights: nothing free, 32 GiB available": (fall(60, 3, 32), 60, {"free": 0.9}),
    "7 GiB available and little free": (fall(40, 2, 7), 60, {"free": 0.5}),
    "a fast fall to what the budget says": (fall(80, 10, 9.4), 60, {"floors": Floors(TOTAL, expected=int(9.4 * GIB))}),
    "a start that ended at 1.7 GiB when it was verified": (fall(40, 3, 1.7), 60, {"floors": Floors(TOTAL, expected=int(1.7 * GIB))}),
    "a slow approach to 1.6 GiB": (fall(10, 0.05, 1.6), 300, {}),
    "most of the memory taken by one allocation": (lambda seconds: 113.5 if seconds < 5 else 6.3, 60, {}),
    "half a second of a fall": (fall(20, 12, 14), 60, {}),
    "a verified server that swings between 1.9 and 1.5 GiB": (
        lambda seconds: 1.7 + 0.2 * (-1) ** int(seconds),
        HOUR_S / 10,
        {"floors": Floors(TOTAL, left=int(1.9 * GIB), expected=int(1.5 * GIB)), "most_s": 1.0},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("available", "for_s", "more"), HEALTHY_CURVES.values(), ids=HEALTHY_CURVES)
def test_healthy_host_is_not_in_danger(
    available: Callable[[float], float], for_s: float, more: dict[str, Floors]
) -> None:
    assert find_danger(available, for_s, **more) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("rate", [0.5, 1, 3, 6, 12])
def test_fall_is_detected_while_a_kill_still_helps(rate: float) -> None:
    danger = find_danger(fall(29, rate), 120)
    assert danger is not None
    assert danger.kind == "falling"
    assert danger.available > 0.4 * rate * GIB  # the time that a kill and the end of a process take
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
    assert danger is not None
    assert danger.kind == "stalled"
    assert find_danger(constant(30), 60, free=0.5, stalled=0.4) is None


def test_leak_of_a_verified_server_leaves_time_for_a_graceful_stop() -> None:
    floors = Floors(TOTAL, left=10 * GIB, expected=10 * GIB)
    danger = find_danger(fall(10, 0.05), 600, floors=floors, most_s=1.0)
    assert danger is not None
    assert danger.graceful
    assert danger.available > floors.floor


def test_floors_depend_on_the_memory_left_by_the_server() -> None:
    wide, narrow = Floors(TOTAL, left=40 * GIB), Floors(TOTAL, left=int(1.6 * GIB))
    assert wide.floor == int(TOTAL * 0.01)
    assert narrow.floor == int(1.6 * GIB) // 2
    assert Floors(TOTAL, floor=12 * GIB).floor == 12 * GIB


def test_floor_of_the_host_is_kept_at_any_rate() -> None:
    danger = find_danger(fall(20, 0.01, 11.9), 1200, floors=Floors(TOTAL, floor=12 * GIB))
    assert danger is not None
    assert danger.available < 12 * GIB
    assert find_danger(constant(12.5), HOUR_S / 10, floors=Floors(TOTAL, floor=12 * GIB)) is None
