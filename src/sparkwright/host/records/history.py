"""The history of a host's server: one JSON line per action, in ~/.local/state/sparkwright/history.jsonl.

With several servers on a host, each has its own file, below servers/NAME.

time, run, who, what ("verified", "restored", "rolled back", "stopped for a crash loop"), container_id, image, model, commit,
arguments (protocol/container.py), cluster (of a run in a cluster: "rank 0 of pair"), changed (field, before, after),
measured (figures with their units in their names), why
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
#: the action after which an earlier state is the last verified one, and those after it no longer count
ROLLED_BACK = "rolled back"


def append(context: Context, action: str, **fields: Any) -> None:
    """Append one line. A full disk must not keep a server from being restored: then the line is lost, with a note."""
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
    """Return all lines that are kept, newest first. Incomplete lines are left out."""
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
    """Return user@laptop of this run, from its plan."""
    return str(_load_plan(context).get("who", ""))


def _cluster_rank(context: Context) -> str:
    """Return the host's place in the cluster of this run: "rank 0 of pair"; empty for a host of its own."""
    try:
        cluster = Cluster.from_json(_load_plan(context).get("cluster"))
    except ValueError:
        return ""
    return f"rank {cluster.rank} of {cluster.name}"


def _load_plan(context: Context) -> dict[str, Any]:
    return journal.read_plan(context.state.path / "runs" / context.run_id)
