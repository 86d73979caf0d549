"""The verb `diagnose`: it keeps no run and takes no lock, so it works beside a run and on a full disk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from sparkwright.doctor.diagnosis import diagnose
from sparkwright.doctor.diagnosis.server_state import RecipeFacts
from sparkwright.errors import Refused
from sparkwright.health.check import DOCKER_S
from sparkwright.host.machine import Machine
from sparkwright.host.runs.context import Engine, RunContext
from sparkwright.host.state import StateFolder
from sparkwright.protocol.events import Event, event
from sparkwright.protocol.plan import new_run_id
from sparkwright.trust.shapes import Usual, fitted, number, text

_ASKED = {
    **dict.fromkeys(("container", "base_url", "model", "model_id"), Usual(text, "")),
    "tok_per_s": Usual((None, number), None),
    "platform": Usual(frozenset(("gb10", "ascend")), "gb10"),
    "token_s": Usual(number, 0.0),
}


def read_diagnosis(request: Mapping[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    """Yield one `diagnosis` event, as `Answer.to_json` has it. Raises Refused for an invalid request."""
    try:
        given = fitted({name: request[name] for name in _ASKED if name in request}, _ASKED, "the request")
    except ValueError as error:
        raise Refused(f"{error}.") from None
    run_id = new_run_id(f"diagnose-{os.getpid()}")
    engine = Engine(machine, timeout_s=DOCKER_S)
    context = RunContext(machine, state, run_id, lambda value: None, check=True, engine=engine)
    yield event("diagnosis", **diagnose(context, RecipeFacts(**given)), sandbox=machine.sandbox)
