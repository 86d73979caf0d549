"""The states of a gateway that were verified: the last one, and those before it, each with its files.

A state holds spec (the container), digest (of its files), container_id, models, proof (what `gateway_proof` asked), run,
since, and script (the docker run command) where one was written.
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
    """The files of a state that is to run again. Raises Failed where they are gone."""
    found = files(context, digest)
    if not found:
        raise Failed("the files of that gateway are no longer on the host.", fix="`invoke gateway.deploy` makes one.")
    return found


def last(context: Context) -> dict[str, Any]:
    """The last verified state; empty when there is none."""
    return last_in(place.state(context))


def last_in(gateway: StateFolder) -> dict[str, Any]:
    """The same. gateway: its folder."""
    return _usable(gateway.read("verified"))


def before(context: Context) -> list[dict[str, Any]]:
    """The verified states before it, newest first."""
    kept = (place.state(context).read("verified_before") or {}).get("states")
    return [row for row in map(_usable, kept if isinstance(kept, list) else ()) if row]


def files(context: Context, digest: str) -> dict[str, str]:
    """Return the files of the state with this digest; empty when they are gone, or are not the ones that it was made of."""
    found = place.read(_folder(context, digest))
    return found if place.unaltered(found, digest) else {}


def remember(context: Context, now: dict[str, Any], *, rolled_back: bool = False) -> None:
    """Make this the last verified state, with the files that are read now. A rollback forgets those that came after it.

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
    """Its container in one text: a spec that was read back has lists where a new one has tuples."""
    return json.dumps({key: value for key, value in state["spec"].items() if key != "image_ids"}, sort_keys=True)


def _tidy(context: Context, needed: set[str]) -> None:
    for path in place.folder(context, place.GOOD).iterdir():
        if path.name not in needed:
            place.drop(path)


def _usable(good: Any) -> dict[str, Any]:
    """A state whose parts are what their readers count on; empty for any other."""
    if not isinstance(good, dict) or not isinstance(good.get("spec"), dict):
        return {}
    digest = good.get("digest")
    return good if isinstance(digest, str) and STEP.fullmatch(digest) and good["spec"].get("name") else {}
