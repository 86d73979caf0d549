"""The history of a server: one JSON line per action, in history.jsonl in its records folder (see `verified_states`).

Fields: time, run, who (user@laptop), what ("verified", "restored", "rolled back", "stopped for a crash loop"), container_id,
image, model, commit, arguments (protocol/container.py), cluster ("rank 0 of pair"), changed (field, before, after), measured
(figures with their units in their names), why
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any

from sparkwright.host.module import Context
from sparkwright.host.runs import journal
from sparkwright.host.state import StateFolder
from sparkwright.protocol.cluster import Cluster
from sparkwright.trust import private
from sparkwright.trust.bounds import parse_bounded_json

FILE = "history.jsonl"
MAX_LINES = 500
#: the action that makes an earlier state the last verified one and drops the states after it
ROLLED_BACK = "rolled back"


def append(context: Context, action: str, **fields: Any) -> None:
    """Append one line. A write error, such as a full disk, only produces a note, because the server must still be restored."""
    row = {"time": round(time.time(), 3), "run": context.run_id, "who": requester(context), "what": action, **fields}
    row |= {"cluster": rank} if (rank := _cluster_rank(context)) else {}
    try:
        with open(context.state.ensure_records_folder() / FILE, "ab", opener=private.opener) as file:
            file.write(json.dumps(row).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        context.note(f"cannot write the history: {error.strerror}")


def read(state: StateFolder) -> list[dict[str, Any]]:
    """Return the last MAX_LINES lines, newest first, without incomplete ones."""
    try:
        lines = (state.records_folder / FILE).read_text(errors="replace").splitlines()
    except OSError:
        return []
    rows = []
    for line in reversed(lines[-MAX_LINES:]):
        with contextlib.suppress(ValueError):
            rows.append(parse_bounded_json(line))
    return [row for row in rows if isinstance(row, dict)]


def requester(context: Context) -> str:
    """Return the user@laptop that requested this run; empty if unknown."""
    return str(_load_plan(context).get("who", ""))


def _cluster_rank(context: Context) -> str:
    """Return the host's rank in this run's cluster, as "rank 0 of pair"; empty without a cluster."""
    try:
        cluster = Cluster.from_json(_load_plan(context).get("cluster"))
    except ValueError:
        return ""
    return f"rank {cluster.rank} of {cluster.name}"


def _load_plan(context: Context) -> dict[str, Any]:
    return journal.read_plan(context.state.path / "runs" / context.run_id)
