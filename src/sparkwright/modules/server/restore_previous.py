from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright.host.containers import container_labels, containers, lifecycle, ownership, replacement
from sparkwright.host.memory import footprint
from sparkwright.host.models import kept_files
from sparkwright.host.module import Context, StateModule
from sparkwright.host.records import good_states
from sparkwright.protocol.result import Change, arg
from sparkwright.visible import count


@dataclass(frozen=True, slots=True)
class Found:
    """The current and the previous container, and the records about them."""

    #: inspect of the container; empty if there is none
    current: dict[str, Any]
    #: inspect of the kept previous container; empty if there is none
    previous: dict[str, Any]
    #: record that `stop_and_keep` or `stopped` wrote before it acted
    remembered: dict[str, Any]
    #: Id of the last verified container
    verified_id: str
    #: revision whose files were kept for the previous server; empty if its files were not replaced
    kept_model: str = ""
    #: `serve` of the last verified state
    serve: Mapping[str, Any] = field(default_factory=dict)
    #: name of the last verified container
    verified_name: str = ""

    @property
    def old(self) -> bool:
        """True if the previous server still exists, renamed or not."""
        return bool(self.previous) or self.halfway or self.untouched

    @property
    def halfway(self) -> bool:
        """True if the previous server still has its name, but lost its restart policy or was stopped already."""
        mine = bool(self.current) and self.current["Id"] == self.remembered.get("id")
        return mine and not self.previous and bool(self.remembered.get("running", True))

    @property
    def untouched(self) -> bool:
        """True if the last verified server is still in place: the run failed before anything was done to it."""
        mine = bool(self.current) and self.current["Id"] == self.verified_id
        return mine and not self.previous and not self.halfway


class RestorePrevious(StateModule["RestorePrevious.Args", Found]):
    """The previous server has its own name again, and the failed one does not come back.

    The failed one is removed; keep its evidence before (`incident`). When there is none to restore, the failed one is stopped
    with policy `no` and stays for its log: a crash loop is broken, never fed.

    A good server that was not yet stopped is left alone; one that was stopped and not yet renamed is to be started again.
    When the model's files were replaced by another revision's, those it was verified with have their place again.

    It is not started yet: on shared memory that waits until what the failed one held is back (`memory`, then `started`).

    Returns: to_start (whether there is a previous server to start), name (of its container), restart (the policy it had, else
    no), base_url (where it answers, empty when it publishes no port), cluster, rank and members (its place in a cluster, or that
    of a good server that was left alone; cluster is empty for a server of its own), needs (utilization, needs_bytes and
    engine_memory, what it takes of the memory; empty when it was never verified), why (as given, for the history).
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        why: str = arg("why it is restored", default="requested")

    def read(self, args: Args, context: Context) -> Found:
        good = good_states.last(context.state)
        kept = kept_files.replaced_folders(context)
        return Found(
            _ours(replacement.current(context, args.name), context),
            replacement.kept(context, args.name),
            context.state.read("previous") or {},
            str(good.get("container_id", "")),
            next(iter(kept.values()), ""),
            good.get("serve") or {},
            str((good.get("spec") or {}).get("name", "")),
        )

    def differences(self, args: Args, found: Found) -> list[Change]:
        model = [Change("model files", None, found.kept_model[:12])] if found.old and found.kept_model else []
        return self._of_server(args, found) + model

    @staticmethod
    def _of_server(args: Args, found: Found) -> list[Change]:
        if found.previous:
            kept = replacement.name_of(found.previous)
            return [Change("container", f"{kept} (stopped)", f"{_own_name(args, found)} (stopped)")]
        if found.untouched or found.halfway:
            return []
        status = found.current["State"]["Status"] if found.current else ""
        if status not in ("running", "restarting"):
            return []
        return [Change("state", status, "stopped", "it failed, and there is no previous one")]

    def describe(self, args: Args, found: Found) -> dict[str, Any]:
        old = found.previous or (found.current if found.halfway else {})
        message = "The previous server is restored." if old else "There was no previous server to restore."
        if found.untouched:
            message = "The previous server was not touched."
        if not old:
            nothing = {"name": _own_name(args, found), "restart": "no", "base_url": "", "needs": {}}
            nothing |= container_labels.membership_of(found.current if found.untouched else {}).to_json()
            return {"to_start": False, **nothing, "why": args.why, "msg": message}
        was = found.remembered if found.remembered.get("id") == old["Id"] else {}
        about = {"name": _own_name(args, found), "restart": was.get("policy", "no")}
        about |= {"base_url": containers.url_of(old), "needs": _needs(found, old)}
        about |= container_labels.membership_of(old).to_json()
        return {"to_start": was.get("running", True), **about, "why": args.why, "msg": message}

    def act(self, args: Args, found: Found, changes: list[Change], context: Context) -> dict[str, Any]:
        now = replacement.name_of(found.current) if found.current else ""
        if not found.old:
            lifecycle.set_policy(context, found.current, "no")
            lifecycle.stop(context, found.current, 10)
            return {"msg": f"There was no previous server to restore; {now} is stopped."}
        if found.previous and now:
            footprint.before_stop(context, found.current)
            lifecycle.remove(context, found.current, 10)
        for folder, commit in kept_files.replaced_folders(context).items() if found.kept_model else ():
            changed = kept_files.restore_proved(context, folder)
            context.note(f"{count(changed, 'model file')} restored to {commit[:12]}.")
        if found.previous:
            lifecycle.rename(context, found.previous, _own_name(args, found))
        return {}


def _ours(container: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return the container if sparkwright created it; any other is neither stopped nor taken for a failed server."""
    return container if ownership.ours(context, container) else {}


def _own_name(args: RestorePrevious.Args, found: Found) -> str:
    """Return the name of the previous server when it serves: its recipe may differ from that of the failed server."""
    if not found.previous:
        return replacement.name_of(found.current) if found.current else args.name
    if found.previous["Id"] == found.remembered.get("id"):
        return str(found.remembered.get("name") or args.name)
    verified = found.previous["Id"] == found.verified_id
    return (found.verified_name if verified else "") or args.name


def _needs(found: Found, old: Mapping[str, Any]) -> dict[str, Any]:
    """Return the memory that the previous server takes, as it was verified."""
    if old["Id"] != found.verified_id or "utilization" not in found.serve:
        return {}
    more = {"engine_memory": found.serve["engine_memory"]} if found.serve.get("engine_memory") else {}
    return {"utilization": found.serve["utilization"], "needs_bytes": found.serve.get("needs_bytes") or 0, **more}
