"""Modules about the previous server: restored after a failure, or removed once the new one has earned its restart policy."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright import defaults
from sparkwright.engines.log import state as log_state
from sparkwright.engines.log.state import EngineState
from sparkwright.errors import Failed
from sparkwright.host import evidence
from sparkwright.host.containers import (
    cache_removal,
    compile_caches,
    container_labels,
    containers,
    lifecycle,
    recipe_files,
    replacement,
    server_key,
)
from sparkwright.host.memory import holders, host_lost, memory_fit, service_guard
from sparkwright.host.models import model_folders
from sparkwright.host.module import Context, StateModule
from sparkwright.host.records import good_states, history, start_memory
from sparkwright.protocol.container import ContainerSpec, fingerprint
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
    #: ids of the containers that were created to replace a server and never started, by name
    created: Mapping[str, str] = field(default_factory=dict)

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
    """Give the previous server its name back, and remove the failed one.

    Keep the evidence of the failed server before (`incident`). A container that was created as a replacement and never
    started is removed too. If there is nothing to restore, the failed server is stopped with policy `no` and kept for its
    log, so that it cannot crash in a loop.

    A verified server that was not yet stopped is left alone; one that was stopped and not yet renamed is to be started
    again. If another revision replaced the model's files, those that it was verified with are restored.

    The previous server is not started yet: on shared memory that must wait until the failed one's memory is released
    (`memory`, then `started`).

    Returns: to_start (whether there is a previous server to start), name (of its container), restart (its former policy,
    otherwise no), base_url (where it answers, empty if it publishes no port), cluster, rank and members (its place in a
    cluster, or that of a verified server that was left alone; cluster is empty for a single server), needs (utilization,
    needs_bytes and engine_memory, its memory use; empty if it was never verified), why (as given, for the history).
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        why: str = arg("reason, for the history", default="A rollback was requested.")

    def read(self, args: Args, context: Context) -> Found:
        good = good_states.last(context.state)
        kept = model_folders.replaced_folders(context)
        return Found(
            _ours(replacement.current(context, args.name), context),
            replacement.kept(context, args.name),
            context.state.read("previous") or {},
            str(good.get("container_id", "")),
            next(iter(kept.values()), ""),
            good.get("serve") or {},
            str((good.get("spec") or {}).get("name", "")),
            replacement.never_started(context),
        )

    def differences(self, args: Args, found: Found) -> list[Change]:
        model = [Change("model files", None, found.kept_model[:12])] if found.old and found.kept_model else []
        created = [Change("container", f"{name} (never started)", None) for name in found.created]
        return self._of_server(args, found) + model + created

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
        for container_id in found.created.values():
            lifecycle.discard(context, container_id)
        if not self._of_server(args, found) and not found.old:
            return {}
        if not found.old:
            lifecycle.set_policy(context, found.current, "no")
            lifecycle.stop(context, found.current, 10)
            return {"msg": f"There was no previous server to restore; {now} is stopped."}
        if found.previous and now:
            holders.before_stop(context, found.current)
            lifecycle.remove(context, found.current, 10)
        for folder, commit in model_folders.replaced_folders(context).items() if found.kept_model else ():
            changed = model_folders.restore_proved(context, folder)
            context.note(f"{count(changed, 'model file')} restored to {commit[:12]}.")
        if found.previous:
            lifecycle.rename(context, found.previous, _own_name(args, found))
        return {}


def _ours(container: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return the container if sparkwright created it; any other is neither stopped nor taken for a failed server."""
    return container if container_labels.ours(context, container) else {}


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


@dataclass(frozen=True, slots=True)
class RestartFound:
    """The server's containers, the last verified state, and the record of the stopped server."""

    #: inspect of the container; empty when there is none
    current: dict[str, Any]
    #: inspect of the kept previous container; empty when there is none
    previous: dict[str, Any]
    #: the last verified state
    verified: dict[str, Any]
    #: record that a run wrote before it stopped the previous server
    stopped: dict[str, Any]


class GrantRestart(StateModule["GrantRestart.Args", RestartFound]):
    """Enable the restart policy of a verified server, record it as the last verified state, and remove the previous container.

    Use it only after verification, because a rollback returns to the last verified state. The server's memory use is
    recorded with it, so that a later stop can check that it was released. The stages of its start, from its log, and the
    memory figures of the start, for the next budget, are recorded too.

    Returns: container_id. Fails if the container does not exist or is not running.
    """

    @dataclass(frozen=True)
    class Args:
        spec: dict[str, Any] = arg("the container, as `container` in scope")
        model: dict[str, Any] = arg("id and commit of the model it serves", default_factory=dict)
        serve: dict[str, Any] = arg(
            "other values needed to recreate it: served_name, utilization, ready_s, tok_per_s, stop_timeout_s",
            default_factory=dict,
        )
        measured: dict[str, Any] = arg("figures of the verification, with units in their names", default_factory=dict)
        changed: list[Any] = arg("differences from the previous server, for the history", default_factory=list)
        what: str = arg("its name in the history", default="verified")
        caches_gib: float = arg("size limit of all compile caches together, GiB", default=defaults.CACHES_GIB)
        why: str = arg("why it was restarted, for the history, if the recipe did not change", default="")

    def read(self, args: Args, context: Context) -> RestartFound:
        name, state = args.spec["name"], context.state
        current, previous = containers.inspect(context.docker(), name) or {}, replacement.kept(context, name)
        return RestartFound(current, previous, state.read("verified") or {}, state.read("previous") or {})

    def differences(self, args: Args, found: RestartFound) -> list[Change]:
        changes = []
        policy = found.current["HostConfig"]["RestartPolicy"]["Name"] if found.current else None
        if policy != args.spec["restart"]:
            changes.append(Change("restart", policy, args.spec["restart"], "verified"))
        if found.current.get("Id") != found.verified.get("container_id"):
            before = (found.verified.get("container_id") or "")[:12] or None
            changes.append(Change("last good state", before, found.current.get("Id", "")[:12]))
        elif found.current and found.stopped.get("id") == found.current["Id"]:
            changes.append(Change("last verification", "before its restart", "now"))
        if found.previous:
            changes.append(Change("previous container", replacement.name_of(found.previous), None))
        return changes

    def describe(self, args: Args, found: RestartFound) -> dict[str, Any]:
        return {"container_id": found.current.get("Id", "")}

    def act(self, args: Args, found: RestartFound, changes: list[Change], context: Context) -> dict[str, Any]:
        name = args.spec["name"]
        if not found.current or not found.current["State"]["Running"]:
            raise Failed(f"container {name} is no longer running.", fix=f"On the host: `docker logs --tail 50 {name}`.")
        seen = context.guards.verified()
        log = evidence.log(context, name)
        measured = {**args.measured, **_load(log)}
        needs = args.serve.get("engine_memory") or {}
        start = memory_fit.verified_start_of(context, found.current, needs, log, seen.lowest_bytes if seen else None)
        good = {**self._good(args, found, context), "measured": measured}
        good_states.remember(context.state, good, rolled_back=args.what == history.ROLLED_BACK)
        service_guard.write(context)
        lifecycle.set_policy(context, found.current, args.spec["restart"])
        if found.previous:
            lifecycle.discard(context, found.previous["Id"])
        context.state.remove("previous")
        host_lost.verified(context.state, args.spec)
        server_key.tidy(context, name)
        recipe_files.tidy(context)
        compile_caches.verified(context, found.current, args.model)
        cache_removal.within(context, args.caches_gib)
        for model in good_states.models_of({"model": args.model}):
            if model.get("dir"):
                model_folders.forget_all(context, context.machine.expand(model["dir"]))
        about = {"image": args.spec["image"], "model": args.model.get("id"), "commit": args.model.get("commit")}
        about["arguments"] = fingerprint(args.spec)
        more = {"container_id": found.current["Id"], "changed": args.changed, "measured": measured}
        more |= {"why": args.why} if args.why else {}
        if start is not None:
            start_memory.add(context.state, start)
            more["memory"] = start.to_json()
        history.append(context, args.what, **about, **more)
        return {}

    @staticmethod
    def _good(args: Args, found: RestartFound, context: Context) -> dict[str, Any]:
        held = holders.held_now(context) or holders.recorded_share(context, found.current["Id"])
        spec = server_key.resolved(ContainerSpec.from_json(args.spec), context)
        kept = {"server_key": spec.server_key} if spec.server_key else {}
        about = {"spec": {**args.spec, **kept}, "model": args.model, "serve": args.serve}
        ids = {"container_id": found.current["Id"], "restart_count": found.current.get("RestartCount", 0)}
        ids |= {"generation": context.cluster.generation} if context.cluster else {}
        ids["left_bytes"] = context.machine.meminfo()["MemAvailable"]
        ids |= {"guard_gib": context.guards.floor_gib} if context.guards.floor_gib else {}
        return {**about, **ids, "held_bytes": held, "run": context.run_id, "since": time.time()}


def _load(log: EngineState | None) -> dict[str, dict[str, float]]:
    """Return the stages of this start in seconds, if its log reports any."""
    stages = log_state.load_stages(log) if log else {}
    return {"load_s": stages} if stages else {}
