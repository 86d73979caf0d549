"""The runner for short questions that are sent to many hosts at once: half the imports of `main`, which answers all others.

A host's whole answer to `status` costs it some 60 ms of CPU this way.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from sparkwright.errors import Refused
from sparkwright.host.machine import Machine
from sparkwright.host.state import StateFolder
from sparkwright.protocol.events import Event, lines
from sparkwright.runner import request as requests
from sparkwright.runner import status
from sparkwright.trust.redact import Redactor

_VERBS: dict[str, Callable[[dict[str, Any], Machine, StateFolder], Iterator[Event]]] = {
    "status": status.read_status,
    "checks": status.read_checks,
}


def main() -> int:
    """Answer one request. See `main.main`."""
    try:
        request = requests.read(sys.stdin.buffer)
    except Refused as refusal:
        return int(_every().refuse(refusal))
    try:
        verb = _VERBS[request["verb"]]
        os.environ.update(request.get("env", {}))
        os.environ["LC_ALL"] = "C"
        machine = Machine.here()
        state = StateFolder.of(machine.home)
        state.refuse_newer()
        events = list(verb(request, machine, state.of_server(request.get("server", ""))))
    except Refused as refusal:
        return int(_every().refuse(refusal))
    except Exception:  # another verb, or an error that `main` explains
        return int(_every().answer(request))
    hidden = Redactor(request.get("secrets", {}).values())
    for event in events:
        sys.stdout.buffer.writelines(lines(event, hidden))
    sys.stdout.buffer.flush()
    return 0


def _every() -> ModuleType:
    from sparkwright.runner import main as every

    return every
