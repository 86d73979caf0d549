"""Repair of the gateways after a killed run: it left a healthy server drained, with another one serving in its place."""

from __future__ import annotations

from sparkwright.health.judging.state_filter import SERVES
from sparkwright.health.record import Record
from sparkwright.host.module import Context
from sparkwright.host.state import StateFolder

#: see host/gateway/drain_record.py and interim.py, whose client of HTTP most checks do without
DRAINED, INTERIM = "drained", "interim"


def give_back(context: Context, record: Record) -> None:
    """Return a drained server to its gateway and remove the interim one. Problems are noted.

    Only if no run works on the host and the running server is the verified one.
    """
    if record.busy or record.drift or record.seen not in SERVES:
        return
    if _kept(context.state, DRAINED):
        from sparkwright.host.gateway import drain_record

        returned, problems = drain_record.give_back(context.state)
        for problem in (*(f"returned to the gateway {name}" for name in returned), *problems):
            context.note(f"{problem}.")
    if _kept(context.state, INTERIM):
        from sparkwright.host.gateway import interim

        if message := interim.end_kept(context):
            context.note(f"{message}.")


def _kept(state: StateFolder, name: str) -> bool:
    return (state.memory / f"{name}.json").exists()
