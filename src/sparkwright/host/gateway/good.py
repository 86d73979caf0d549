"""The verified states of a gateway: the last one and those before it, each with its files.

A state holds spec (the container), digest (of its files), container_id, models, proof (the requests of `gateway_proof`), run,
since, and script (the docker run command) if one was written.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from sparkwright.errors import Failed
from sparkwright.host.gateway import place
from sparkwright.host.module import Context
from sparkwright.host.state import StateFolder
from sparkwright.trust.names import STEP

KEPT = 5


def kept(context: Context, digest: str) -> dict[str, str]:
    """Return the files of a state that is to run again. Raises Failed if they are gone."""
    found = files(context, digest)
    if not found:
        raise Failed("the files of that gateway are no longer on the host.", fix="`invoke gateway.deploy` makes one.")
    return found


def last(context: Context) -> dict[str, Any]:
    """Return the last verified state; empty if there is none."""
    return last_in(place.state(context))


def last_in(gateway: StateFolder) -> dict[str, Any]:
    """Return the last verified state of the gateway in this folder; empty if there is none."""
    return _usable(gateway.read("verified"))


def before(context: Context) -> list[dict[str, Any]]:
    """Return the verified states before the last one, newest first."""
    kept = (place.state(context).read("verified_before") or {}).get("states")
    return [row for row in map(_usable, kept if isinstance(kept, list) else ()) if row]


def files(context: Context, digest: str) -> dict[str, str]:
    """Return the files of the state with this digest; empty if they are gone or were changed."""
    found = place.read(_folder(context, digest))
    return found if place.unaltered(found, digest) else {}


def remember(context: Context, now: dict[str, Any], *, rolled_back: bool = False) -> None:
    """Record this as the last verified state, with the present files. A rollback forgets the states that came after it.

    Args:
        now: spec, digest, container_id, models, proof.
    """
    digest, was = now["digest"], last(context)
    known = ([was] if was else []) + before(context)
    again = next((n for n, row in enumerate(known) if _same(row, now)), None)
    if again is not None and "script" in known[again]:
        now = {"script": known[again]["script"], **now}
    older = known[again + 1 :] if rolled_back and again is not None else [row for row in known if not _same(row, now)]
    older = older[:KEPT]
    state = place.state(context)
    place.write(_folder(context, digest), place.read(place.current(state).files))
    state.write("verified_before", {"states": older})
    state.write("verified", {**now, "run": context.run_id, "since": time.time()})
    _tidy(context, {digest, *(row["digest"] for row in older)})


def _folder(context: Context, digest: str) -> Path:
    return place.folder(context, place.GOOD) / digest


def _same(first: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return True if two states describe the same gateway, in whichever container."""
    return first["digest"] == other["digest"] and _essence(first) == _essence(other)


def _essence(state: dict[str, Any]) -> str:
    """Return its container as text: a spec that was read back has lists instead of tuples."""
    return json.dumps({key: value for key, value in state["spec"].items() if key != "image_ids"}, sort_keys=True)


def _tidy(context: Context, needed: set[str]) -> None:
    for path in place.folder(context, place.GOOD).iterdir():
        if path.name not in needed:
            place.drop(path)


def _usable(good: Any) -> dict[str, Any]:
    """Return a state if its fields have the expected types; empty otherwise."""
    if not isinstance(good, dict) or not isinstance(good.get("spec"), dict):
        return {}
    digest = good.get("digest")
    return good if isinstance(digest, str) and STEP.fullmatch(digest) and good["spec"].get("name") else {}
