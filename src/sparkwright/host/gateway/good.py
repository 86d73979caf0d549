"""The states of a gateway that were verified: the last one, and those before it, each with its files.

A state holds spec (the container), digest (of its files), container_id, models, run, since.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from sparkwright.host.gateway import place
from sparkwright.host.module import Context
from sparkwright.trust.names import STEP

KEPT = 5


def last(context: Context) -> dict[str, Any]:
    """The last verified state; empty when there is none."""
    return _usable(place.state(context).read("verified"))


def before(context: Context) -> list[dict[str, Any]]:
    """The verified states before it, newest first."""
    kept = (place.state(context).read("verified_before") or {}).get("states")
    return [one for one in map(_usable, kept if isinstance(kept, list) else ()) if one]


def files(context: Context, good: dict[str, Any]) -> dict[str, str]:
    """The files of a state; empty when they are gone."""
    return place.read(_folder(context, good["digest"]))


def remember(context: Context, *, spec: dict[str, Any], digest: str, container_id: str, models: list[str]) -> None:
    """Make this the last verified state, with the files that are read now."""
    now = {"spec": spec, "digest": digest, "container_id": container_id, "models": models}
    was = last(context)
    older = [one for one in ([was] if was else []) + before(context) if one["digest"] != digest][:KEPT]
    place.write(_folder(context, digest), place.read(place.folder(context, place.CONFIG)))
    state = place.state(context)
    state.write("verified_before", {"states": older})
    state.write("verified", {**now, "run": context.run_id, "since": time.time()})
    _tidy(context, {digest, *(one["digest"] for one in older)})


def _folder(context: Context, digest: str) -> Path:
    return place.folder(context, place.GOOD) / digest


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
