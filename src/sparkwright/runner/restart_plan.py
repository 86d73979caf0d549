"""The restart plan that is sent with a run: kept if the run succeeds, for restarts by the health check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparkwright.errors import Refused
from sparkwright.host.records import good_states, restart_plans, wakes
from sparkwright.host.state import StateFolder
from sparkwright.trust.redact import Redactor


def keep(given: dict[str, Any], state: StateFolder, hidden: Redactor, note: Callable[[str], None]) -> None:
    """Keep the restart plan. An error is noted and never fails the run; so is a reason why an installed check can't use it."""
    try:
        if given:
            restart_plans.keep(state, given, hidden)
        if _heals(state) and good_states.last(state):
            restart_plans.usable(state, _runtime_of_checks())
        if restart_plans.wake(state).get("on_request") and not wakes.running(state):
            note(f"no request wakes {state.server} yet: {wakes.STARTS}")
    except Refused as error:
        note(f"the health check will not restart this server: {error}")
    except OSError as error:
        note(f"the restart plan could not be kept: {error.strerror}")


def _runtime_of_checks() -> str:
    """Return the hash of the host's side that the installed checks run, if it is this one; else empty."""
    from sparkwright import host_side
    from sparkwright.health.schedule import places

    here = places.runtime()
    return host_side.content_hash() if here is None or (here / places.MARK).exists() else ""


def _heals(state: StateFolder) -> bool:
    """Return True if a check that restarts is installed: `Settings.heal`, whose import costs every deploy 10 ms."""
    return (state.read("health-settings") or {}).get("heal") == "restart"
