"""The time limit for a host's whole answer to a question.

A runner writes something every two seconds, so silence is detected. A host that never stops writing would hold up a command, and
with it the rows of every other host, so questions have a limit. Runs have none: a deploy takes as long as its download.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: for answers from a host's files, and from its Docker Engine, its server or its disks, seconds; several times the need of a
#: loaded host
QUICK_S, LONG_S = 120.0, 600.0
#: for a measurement on a server that serves others meanwhile
MEASURED_S = 1800.0
VERBS: Mapping[str, float] = {
    **dict.fromkeys(("status", "checks", "history", "runs", "lock", "stop"), QUICK_S),
    **dict.fromkeys(("incident", "diagnose", "serving", "unlock"), LONG_S),
    "health": MEASURED_S,
}
#: the limit of a plan whose only task is one of these modules, which change nothing
MODULES: Mapping[str, float] = {
    **dict.fromkeys(("gateway_own_key", "copy_key", "bench_cells"), QUICK_S),
    **dict.fromkeys(("doctor", "survey", "inspect_image", "inspect_server", "container_settings"), LONG_S),
    **dict.fromkeys(("engine_log", "fabric", "gateway_state", "models", "ollama_ps", "undo_load"), LONG_S),
}


def answer_s(header: Mapping[str, Any]) -> float | None:
    """Return the time limit of a request, seconds; None for no limit.

    Args:
        header: of the request: its verb, and the plan of a run.
    """
    if header["verb"] != "run":
        return VERBS.get(header["verb"])
    steps: Sequence[Mapping[str, Any]] = header.get("plan", {}).get("steps") or ()
    return MODULES.get(steps[0].get("module", "")) if len(steps) == 1 else None
