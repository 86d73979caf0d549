"""A healthy server that a run left drained at its gateways: it was killed before it could return it."""

from __future__ import annotations

from sparkwright.health.judging.damping import SERVES
from sparkwright.health.record import Record
from sparkwright.host.module import Context
from sparkwright.host.state import StateFolder

#: see host/gateway/drained.py, whose client of HTTP most checks do without
DRAINED = "drained"


def give_back(context: Context, record: Record) -> None:
    """Return it, where nobody works on the host and what runs is what was verified. What is not done is noted."""
    if not _kept(context.state) or record.busy or record.drift or record.seen not in SERVES:
        return
    from sparkwright.host.gateway import drained

    returned, problems = drained.give_back(context.state)
    for one in (*(f"returned to the gateway {name}" for name in returned), *problems):
        context.note(f"{one}.")


def _kept(state: StateFolder) -> bool:
    return (state.memory / f"{DRAINED}.json").exists()
