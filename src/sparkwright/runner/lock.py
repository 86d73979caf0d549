"""The host's lock: one writer at a time. A lock is held by a living process, so a dead owner can't leave one behind."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sparkwright.errors import Refused
from sparkwright.modules.state import StateFolder


@contextmanager
def held(state: StateFolder, *, host: str, what: str, who: str, run_id: str) -> Iterator[None]:
    """Hold the lock for the length of the block. Raises Refused, naming the owner, when somebody else does."""
    state.path.mkdir(parents=True, exist_ok=True)
    with (state.path / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(_sentence(_owner(file), host), fix=f"Follow it with `invoke attach --host {host}`.") from None
        file.truncate(0)
        file.write(json.dumps({"what": what, "who": who, "run": run_id, "since": time.time()}))
        file.flush()
        yield


def _owner(file: Any) -> dict[str, Any]:
    file.seek(0)
    try:
        found = json.loads(file.read())
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _sentence(owner: dict[str, Any], host: str) -> str:
    since = time.strftime("%H:%M:%S", time.localtime(owner.get("since", time.time())))
    who, what = owner.get("who", "somebody"), owner.get("what", "something")
    return f"{host} is locked: {who} runs {what} since {since} (run {owner.get('run', 'unknown')})."
