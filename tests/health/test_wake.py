"""Decisions about turns on a machine with servers that requests may wake."""

from typing import Any

import pytest

from sparkwright.gateway.wake import DEFAULT_RETRY_S
from sparkwright.health.wake import RETRY_PAUSE_S, Decision, Situation, TurnServer, decide_switch, wake_delays_s
from sparkwright.host.records.turns import SwitchFailure, WakeRecord

#: `large` has been awake since 1000, and keeps its turn until 1600
LARGE = TurnServer("large", 1000.0, stay_awake_s=600.0, switch_s=200.0)
SMALL = TurnServer("small", 500.0, on_request=True, sleep_after_s=1800.0, stay_awake_s=600.0, switch_s=90.0)
THIRD = TurnServer("third", 500.0, on_request=True, stay_awake_s=600.0)


def make_situation(*servers: TurnServer, awake: str = "large", awake_since_s: float = 1000.0, **more: Any) -> Situation:
    all_servers = servers or (LARGE, SMALL, THIRD)
    return Situation({server.name: server for server in all_servers}, awake, awake_since_s, **more)


def decide_wake(now: Situation, now_s: float, **record: Any) -> Decision:
    return decide_switch(now, WakeRecord(**record), now_s)


def test_the_server_requested_first_is_woken_first() -> None:
    decision = decide_wake(make_situation(request_times_s={"small": 1710.0, "third": 1700.0}), 1711.0)
    assert (decision.server, decision.reason) == ("third", "requested at the gateway")


@pytest.mark.parametrize(
    ("requested_s", "now_s", "server"),
    [
        (1599.0, 1599.5, ""),  # `large` keeps its turn
        (1010.0, 1600.0, "small"),  # a request is valid until the end of the minimum turn
        (810.0, 1610.0, "small"),  # so is a request during the switch to `large`, which took 200 s
        (790.0, 1610.0, ""),
        (1700.0, 2200.0, "small"),
        (1700.0, 2301.0, ""),  # the request is no longer valid
        (400.0, 1700.0, ""),  # requested before its last turn
    ],
)
def test_a_request_expires_and_waits_for_the_minimum_turn(requested_s: float, now_s: float, server: str) -> None:
    assert decide_wake(make_situation(request_times_s={"small": requested_s}), now_s).server == server


def test_no_switch_starts_during_another_run() -> None:
    decision = decide_wake(make_situation(request_times_s={"small": 1700.0}, active_run="deploy by me"), 1701.0)
    assert decision.server == "" and decision.messages["small"].endswith("; waiting for deploy by me")


def test_a_server_that_requests_may_not_wake_is_neither_woken_nor_reported() -> None:
    quiet = TurnServer("quiet", 500.0)
    now = make_situation(LARGE, quiet, request_times_s={"quiet": 1700.0})
    assert decide_wake(now, 1701.0) == Decision() and wake_delays_s(now, WakeRecord(), 1701.0) == {}


def test_the_reported_delay_is_the_rest_of_the_turn_and_the_switch() -> None:
    assert wake_delays_s(make_situation(), WakeRecord(), 1500.0) == {"small": 190, "third": 100 + DEFAULT_RETRY_S}
    assert wake_delays_s(make_situation(), WakeRecord(), 1700.0) == {"small": 90, "third": 0}, "third: never measured"


def test_after_a_failed_switch_the_reported_delay_includes_the_pause_also_if_no_switch_was_measured() -> None:
    failures = {"third": SwitchFailure(1, 1700.0, "out of memory")}
    delays_s = wake_delays_s(make_situation(), WakeRecord(failures=failures), 1700.0)
    assert delays_s["third"] == RETRY_PAUSE_S + DEFAULT_RETRY_S


@pytest.mark.parametrize(
    ("count", "requested_s", "now_s", "server"),
    [(1, 1900.0, 1901.0, ""), (1, 3600.0, 3601.0, "small"), (1, 1790.0, 3601.0, ""), (2, 9999.0, 10_000.0, "")],
)
def test_after_a_failure_there_is_a_pause_and_after_two_no_more_attempts(
    count: int, requested_s: float, now_s: float, server: str
) -> None:
    failures = {"small": SwitchFailure(count, 1800.0, "out of memory")}
    decision = decide_wake(make_situation(request_times_s={"small": requested_s}), now_s, failures=failures)
    assert decision.server == server
    assert server or (now_s > 3600 and count == 1) or "out of memory" in decision.messages["small"]
    reported = wake_delays_s(make_situation(), WakeRecord(failures=failures), now_s)
    assert ("small" in reported) == (count == 1)


def test_a_later_verification_ends_the_pause() -> None:
    verified = TurnServer("small", 1900.0, on_request=True)
    failures = {"small": SwitchFailure(2, 1800.0, "out of memory")}
    now = make_situation(LARGE, verified, request_times_s={"small": 2000.0})
    assert decide_wake(now, 2001.0, failures=failures).server == "small"


WOKEN: dict[str, Any] = {"woken": "small", "home": "large"}


@pytest.mark.parametrize(
    ("last_used_s", "now_s", "record", "server"),
    [
        (3000.0, 4799.0, WOKEN, ""),
        (3000.0, 4801.0, WOKEN, "large"),
        (3000.0, 4801.0, {}, ""),  # woken manually, so it stays awake
    ],
)
def test_an_idle_server_that_a_request_woke_is_switched_back(
    last_used_s: float, now_s: float, record: dict[str, Any], server: str
) -> None:
    awake = TurnServer("small", 2000.0, on_request=True, sleep_after_s=1800.0, stay_awake_s=600.0)
    now = make_situation(LARGE, awake, awake="small", awake_since_s=2000.0, last_used_s=last_used_s)
    assert decide_wake(now, now_s, **record).server == server


def test_the_message_explains_why_the_other_server_is_not_woken_again() -> None:
    gone = TurnServer("large", 1000.0, obstacle="the restart plan was made by another version of sparkwright")
    now = make_situation(gone, SMALL, awake="small", awake_since_s=2000.0, last_used_s=2000.0)
    decision = decide_wake(now, 9000.0, **WOKEN)
    assert decision.server == "" and "can't be woken again: the restart plan" in decision.messages["small"]
