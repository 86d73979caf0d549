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
    ownership,
    recipe_files,
    replacement,
    server_key,
)
from sparkwright.host.memory import holders, host_lost, memory_fit, service_guard
from sparkwright.host.models import model_folders
from sparkwright.host.module import Context, StateModule
from sparkwright.host.records import history, start_memory, verified_states
from sparkwright.protocol.container import ContainerSpec, fingerprint
from sparkwright.protocol.result import Change, arg
from sparkwright.visible import format_count


@dataclass(frozen=True, slots=True)
class RestorePreviousState:
    """The current and the previous container, and the records about them."""

    #: inspect of the container; empty if there is none
    current: dict[str, Any]
    #: inspect of the kept previous container; empty if there is none
    previous: dict[str, Any]
    #: record that `stop_and_keep` or `stopped` wrote before it acted
    stop_record: dict[str, Any]
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
    def previous_exists(self) -> bool:
        """True if the previous server still exists, renamed or not."""
        return bool(self.previous) or self.halfway or self.untouched

    @property
    def halfway(self) -> bool:
        """True if the previous server still has its name, but lost its restart policy or was stopped already."""
        mine = bool(self.current) and self.current["Id"] == self.stop_record.get("id")
        return mine and not self.previous and bool(self.stop_record.get("running", True))

    @property
    def untouched(self) -> bool:
        """True if the last verified server is still in place: the run failed before anything was done to it."""
        mine = bool(self.current) and self.current["Id"] == self.verified_id
        return mine and not self.previous and not self.halfway


class RestorePrevious(StateModule["RestorePrevious.Args", RestorePreviousState]):
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

    def read(self, args: Args, context: Context) -> RestorePreviousState:
        good = verified_states.load_last(context.state)
        kept = model_folders.replaced_folders(context)
        return RestorePreviousState(
            _own_container(replacement.find_current(context, args.name), context),
            replacement.find_kept(context, args.name),
            context.state.read("previous") or {},
            str(good.get("container_id", "")),
            next(iter(kept.values()), ""),
            good.get("serve") or {},
            str((good.get("spec") or {}).get("name", "")),
            replacement.unstarted_ids(context),
        )

    def differences(self, args: Args, observed: RestorePreviousState) -> list[Change]:
        model = (
            [Change("model files", None, observed.kept_model[:12])]
            if observed.previous_exists and observed.kept_model
            else []
        )
        created = [Change("container", f"{name} (never started)", None) for name in observed.created]
        return self._server_changes(args, observed) + model + created

    @staticmethod
    def _server_changes(args: Args, observed: RestorePreviousState) -> list[Change]:
        if observed.previous:
            kept = replacement.name_of(observed.previous)
            return [Change("container", f"{kept} (stopped)", f"{_serving_name(args, observed)} (stopped)")]
        if observed.untouched or observed.halfway:
            return []
        status = observed.current["State"]["Status"] if observed.current else ""
        if status not in ("running", "restarting"):
            return []
        return [Change("state", status, "stopped", "it failed, and there is no previous one")]

    def describe(self, args: Args, observed: RestorePreviousState) -> dict[str, Any]:
        old = observed.previous or (observed.current if observed.halfway else {})
        message = "The previous server is restored." if old else "There was no previous server to restore."
        if observed.untouched:
            message = "The previous server was not touched."
        if not old:
            nothing = {"name": _serving_name(args, observed), "restart": "no", "base_url": "", "needs": {}}
            nothing |= container_labels.membership_of(observed.current if observed.untouched else {}).to_json()
            return {"to_start": False, **nothing, "why": args.why, "msg": message}
        record = observed.stop_record if observed.stop_record.get("id") == old["Id"] else {}
        fields = {"name": _serving_name(args, observed), "restart": record.get("policy", "no")}
        fields |= {"base_url": containers.url_of(old), "needs": _memory_needs(observed, old)}
        fields |= container_labels.membership_of(old).to_json()
        return {"to_start": record.get("running", True), **fields, "why": args.why, "msg": message}

    def act(
        self, args: Args, observed: RestorePreviousState, changes: list[Change], context: Context
    ) -> dict[str, Any]:
        now = replacement.name_of(observed.current) if observed.current else ""
        for container_id in observed.created.values():
            lifecycle.force_remove(context, container_id)
        if not self._server_changes(args, observed) and not observed.previous_exists:
            return {}
        if not observed.previous_exists:
            lifecycle.set_policy(context, observed.current, "no")
            lifecycle.stop(context, observed.current, 10)
            return {"msg": f"There was no previous server to restore; {now} is stopped."}
        if observed.previous and now:
            holders.record_stop(context, observed.current)
            lifecycle.remove(context, observed.current, 10)
        for folder, commit in model_folders.replaced_folders(context).items() if observed.kept_model else ():
            changed = model_folders.restore_kept_and_record(context, folder)
            context.note(f"{format_count(changed, 'model file')} restored to {commit[:12]}.")
        if observed.previous:
            lifecycle.rename(context, observed.previous, _serving_name(args, observed))
        return {}


def _own_container(container: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return the container if sparkwright created it; any other is neither stopped nor taken for a failed server."""
    return container if ownership.is_ours(context, container) else {}


def _serving_name(args: RestorePrevious.Args, observed: RestorePreviousState) -> str:
    """Return the name of the previous server when it serves: its recipe may differ from that of the failed server."""
    if not observed.previous:
        return replacement.name_of(observed.current) if observed.current else args.name
    if observed.previous["Id"] == observed.stop_record.get("id"):
        return str(observed.stop_record.get("name") or args.name)
    verified = observed.previous["Id"] == observed.verified_id
    return (observed.verified_name if verified else "") or args.name


def _memory_needs(observed: RestorePreviousState, old: Mapping[str, Any]) -> dict[str, Any]:
    """Return the memory that the previous server takes, as it was verified."""
    if old["Id"] != observed.verified_id or "utilization" not in observed.serve:
        return {}
    engine_memory = {"engine_memory": observed.serve["engine_memory"]} if observed.serve.get("engine_memory") else {}
    return {
        "utilization": observed.serve["utilization"],
        "needs_bytes": observed.serve.get("needs_bytes") or 0,
        **engine_memory,
    }


@dataclass(frozen=True, slots=True)
class GrantRestartState:
    """The server's containers, the last verified state, and the record of the stopped server."""

    #: inspect of the container; empty when there is none
    current: dict[str, Any]
    #: inspect of the kept previous container; empty when there is none
    previous: dict[str, Any]
    #: the last verified state
    verified: dict[str, Any]
    #: record that a run wrote before it stopped the previous server
    stopped: dict[str, Any]


class GrantRestart(StateModule["GrantRestart.Args", GrantRestartState]):
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
        caches_gib: float = arg("size limit of all compile caches together, GiB", default=defaults.MAX_CACHES_GIB)
        why: str = arg("why it was restarted, for the history, if the recipe did not change", default="")

    def read(self, args: Args, context: Context) -> GrantRestartState:
        name, state = args.spec["name"], context.state
        current, previous = containers.inspect(context.docker(), name) or {}, replacement.find_kept(context, name)
        return GrantRestartState(current, previous, state.read("verified") or {}, state.read("previous") or {})

    def differences(self, args: Args, observed: GrantRestartState) -> list[Change]:
        changes = []
        policy = observed.current["HostConfig"]["RestartPolicy"]["Name"] if observed.current else None
        if policy != args.spec["restart"]:
            changes.append(Change("restart", policy, args.spec["restart"], "verified"))
        if observed.current.get("Id") != observed.verified.get("container_id"):
            before = (observed.verified.get("container_id") or "")[:12] or None
            changes.append(Change("last good state", before, observed.current.get("Id", "")[:12]))
        elif observed.current and observed.stopped.get("id") == observed.current["Id"]:
            changes.append(Change("last verification", "before its restart", "now"))
        if observed.previous:
            changes.append(Change("previous container", replacement.name_of(observed.previous), None))
        return changes

    def describe(self, args: Args, observed: GrantRestartState) -> dict[str, Any]:
        return {"container_id": observed.current.get("Id", "")}

    def act(self, args: Args, observed: GrantRestartState, changes: list[Change], context: Context) -> dict[str, Any]:
        name = args.spec["name"]
        if not observed.current or not observed.current["State"]["Running"]:
            raise Failed(f"container {name} is no longer running.", fix=f"On the host: `docker logs --tail 50 {name}`.")
        lowest = context.guards.end_verified()
        log = evidence.read_engine_state(context, name)
        measured = {**args.measured, **_load_stages(log)}
        needs = args.serve.get("engine_memory") or {}
        start = memory_fit.measure_verified_start(
            context, observed.current, needs, log, lowest.lowest_bytes if lowest else None
        )
        good = {**self._build_good_state(args, observed, context), "measured": measured}
        verified_states.save_verified(context.state, good, rolled_back=args.what == history.ROLLED_BACK)
        service_guard.write_configuration(context)
        lifecycle.set_policy(context, observed.current, args.spec["restart"])
        if observed.previous:
            lifecycle.force_remove(context, observed.previous["Id"])
        context.state.remove("previous")
        host_lost.clear_forbidden(context.state, args.spec)
        server_key.remove_unneeded(context, name)
        recipe_files.remove_unneeded(context)
        compile_caches.save_verified(context, observed.current, args.model)
        cache_removal.enforce_limit(context, args.caches_gib)
        for model in verified_states.models_of({"model": args.model}):
            if model.get("dir"):
                model_folders.forget_kept_and_record(context, context.machine.expand(model["dir"]))
        fields = {"image": args.spec["image"], "model": args.model.get("id"), "commit": args.model.get("commit")}
        fields["arguments"] = fingerprint(args.spec)
        more = {"container_id": observed.current["Id"], "changed": args.changed, "measured": measured}
        more |= {"why": args.why} if args.why else {}
        if start is not None:
            start_memory.add(context.state, start)
            more["memory"] = start.to_json()
        history.append(context, args.what, **fields, **more)
        return {}

    @staticmethod
    def _build_good_state(args: Args, observed: GrantRestartState, context: Context) -> dict[str, Any]:
        held_bytes = holders.measure_held(context) or holders.recorded_bytes(context, observed.current["Id"])
        spec = server_key.resolve_key(ContainerSpec.from_json(args.spec), context)
        key_field = {"server_key": spec.server_key} if spec.server_key else {}
        recipe_fields = {"spec": {**args.spec, **key_field}, "model": args.model, "serve": args.serve}
        host_fields = {"container_id": observed.current["Id"], "restart_count": observed.current.get("RestartCount", 0)}
        host_fields |= {"generation": context.cluster.generation} if context.cluster else {}
        host_fields["left_bytes"] = context.machine.meminfo()["MemAvailable"]
        host_fields |= {"guard_gib": context.guards.floor_gib} if context.guards.floor_gib else {}
        return {**recipe_fields, **host_fields, "held_bytes": held_bytes, "run": context.run_id, "since": time.time()}


def _load_stages(log: EngineState | None) -> dict[str, dict[str, float]]:
    """Return the stages of this start in seconds, if its log reports any."""
    stages = log_state.stage_durations(log) if log else {}
    return {"load_s": stages} if stages else {}
