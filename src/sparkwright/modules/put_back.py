"""The `put_back` module."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sparkwright.modules import containers
from sparkwright.modules.base import Change, Context, StateModule, arg
from sparkwright.modules.state import write_atomically

LOG_LINES = 400


@dataclass(frozen=True, slots=True)
class Found:
    """Inspects, empty when there is none; remembered: what `set_aside` wrote down."""

    current: dict[str, Any]
    previous: dict[str, Any]
    remembered: dict[str, Any]
    verified_id: str

    @property
    def untouched(self) -> bool:
        """Whether the last good server is still in its place: the failure came before it was set aside."""
        return bool(self.current) and not self.previous and self.current["Id"] == self.verified_id


class PutBack(StateModule["PutBack.Args", Found]):
    """The server that was set aside has its name again, and the failed one does not come back.

    The failed container's log and inspect are kept in the run's folder on the host before it is removed. When there is
    none to put back, the failed one is stopped with policy `no` and stays for its log: a crash loop is broken, never fed.

    A good server that was not yet set aside is left alone.

    It is not started yet: on shared memory that waits until what the failed one held is back (`memory`, then `started`).

    Returns: put_back (whether there is an old server to start again), restart (the policy it had earned, else no), incident
    (the folder of the evidence).
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")

    def read(self, args: Args, context: Context) -> Found:
        client = context.docker()
        return Found(
            containers.inspect(client, args.name) or {},
            containers.inspect(client, args.name + containers.PREVIOUS) or {},
            context.state.read("previous") or {},
            str((context.state.read("verified") or {}).get("container_id", "")),
        )

    def differences(self, args: Args, found: Found) -> list[Change]:
        if found.previous:
            return [Change("container", f"{args.name}{containers.PREVIOUS} (stopped)", f"{args.name} (stopped)")]
        if found.untouched:
            return []
        if found.current and found.current["State"]["Status"] in ("running", "restarting"):
            return [
                Change("state", found.current["State"]["Status"], "stopped", "it failed, and there is no older one")
            ]
        return []

    def describe(self, args: Args, found: Found) -> dict[str, Any]:
        said = "The old server was not touched." if found.untouched else "There was no older server to put back."
        again = bool(found.previous) and bool(found.remembered.get("running", True))
        earned = found.previous.get("Id") == found.verified_id
        return {"put_back": again, "restart": found.remembered.get("policy", "no") if earned else "no", "msg": said}

    def act(self, args: Args, found: Found, changes: list[Change], context: Context) -> dict[str, Any]:
        client, kept = context.docker(), args.name + containers.PREVIOUS
        incident = self._keep_evidence(args.name, found.current, context) if found.current else ""
        if not found.previous:
            containers.set_policy(client, args.name, "no")
            containers.stop(client, args.name, 10)
            return {"incident": incident, "msg": f"There was no older server to put back; {args.name} is stopped."}
        if found.current:
            client.api.remove_container(args.name, force=True)
        client.api.rename(kept, args.name)
        context.state.remove("previous")
        return {"incident": incident, "msg": "The old server is put back."}

    @staticmethod
    def _keep_evidence(name: str, inspected: dict[str, Any], context: Context) -> str:
        folder = context.state.path / "runs" / context.run_id / "incident"
        lines = containers.last_lines(context.docker(), name, LOG_LINES)
        write_atomically(folder / "container.log", "\n".join(lines).encode(), mode=0o600)
        write_atomically(folder / "inspect.json", json.dumps(inspected, indent=1).encode(), mode=0o600)
        write_atomically(folder / "meminfo", context.machine.path("/proc/meminfo").read_bytes(), mode=0o600)
        return str(folder)
