"""Modules that restore the previous server after a failure, or remove it once the new one is verified."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from sparkwright import defaults
from sparkwright.engines.log import state as log_state
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
from sparkwright.host.memory import holders, host_outage, memory_fit, service_guard
from sparkwright.host.models import model_folders
from sparkwright.host.module import Context, StateModule
from sparkwright.host.records import history, start_memory, stopped_server, verified_states
from sparkwright.host.records.stopped_server import StoppedServer
from sparkwright.host.records.verified_states import Measured, ModelRecord, ServeRecord, VerifiedState
from sparkwright.protocol.container import ContainerSpec, SpecRecord, fingerprint
from sparkwright.protocol.result import Change, Result, arg
from sparkwright.visible import format_count


@dataclass(frozen=True, slots=True)
class RestorePreviousState:
    """The current and the previous container, and the records about them."""

    #: Docker's inspection of the current container; empty if there is none, or if sparkwright did not create it
    current: dict[str, Any]
    #: Docker's inspection of the kept previous container; empty if there is none
    previous: dict[str, Any]
    #: record that `stop_and_keep` or `stopped` wrote before the stop
    stop_record: StoppedServer
    #: Id of the last verified container
    verified_id: str
    #: revision whose files were kept for the previous server; empty if its files were not replaced
    kept_commit: str = ""
    #: `serve` of the last verified state
    serve: Mapping[str, Any] = field(default_factory=dict)
    #: name of the last verified container
    verified_name: str = ""
    #: ids of the replacement containers that were never started, by name
    unstarted_ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def previous_exists(self) -> bool:
        """True if the previous server still exists, renamed or not."""
        return bool(self.previous) or self.is_not_renamed or self.is_untouched

    @property
    def is_not_renamed(self) -> bool:
        """True if a run began to stop the current server, but did not rename it."""
        was_stopping = bool(self.current) and self.current["Id"] == self.stop_record.get("id")
        return was_stopping and not self.previous and bool(self.stop_record.get("running", True))

    @property
    def is_untouched(self) -> bool:
        """True if the last verified server is still in place, because the run failed before it began to stop it."""
        is_verified = bool(self.current) and self.current["Id"] == self.verified_id
        return is_verified and not self.previous and not self.is_not_renamed


class RestorePrevious(StateModule["RestorePrevious.Args", RestorePreviousState]):
    """Remove the failed server and rename the previous one back, without starting it.

    Save the failed server's diagnostics first (`incident`). Replacement containers that were never started are removed
    too. If there is nothing to restore, the failed server is stopped with policy `no`, so that it cannot crash in a loop,
    and kept for its log.

    A verified server that the run did not begin to stop is left alone; one that was stopped but not renamed is reported as
    `to_start`. If another revision replaced the model's files, the previous revision is restored.

    With unified memory, the previous server can only start once the memory of the failed one is released (`memory`, then
    `started`).

    Returns: to_start (there is a previous server to start), replaced (a kept server was renamed back), name (of its container),
    restart (its former policy; `no` if unknown), base_url (empty if it publishes no port), cluster, rank and members (of the
    previous server, or of the verified server that was left alone; cluster is empty for a single server), needs (its memory
    use: utilization, needs_bytes and engine_memory; empty if it was never verified), why (the argument).
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        why: str = arg("reason, for the history", default="A rollback was requested.")

    def read(self, args: Args, context: Context) -> RestorePreviousState:
        verified_state = verified_states.load_last(context.state)
        container = replacement.find_current(context, args.name)
        return RestorePreviousState(
            current=container if ownership.is_ours(context, container) else {},
            previous=replacement.find_kept(context, args.name),
            stop_record=stopped_server.load(context.state),
            verified_id=verified_state.container_id,
            kept_commit=next(iter(model_folders.replaced_folders(context).values()), ""),
            serve=verified_state.serve,
            verified_name=verified_state.spec.get("name", ""),
            unstarted_ids=replacement.unstarted_ids(context),
        )

    def differences(self, args: Args, observed: RestorePreviousState) -> list[Change]:
        changes = self._server_changes(args, observed)
        if observed.previous_exists and observed.kept_commit:
            changes.append(Change("model files", None, observed.kept_commit[:12]))
        return changes + [Change("container", f"{name} (never started)", None) for name in observed.unstarted_ids]

    @staticmethod
    def _server_changes(args: Args, observed: RestorePreviousState) -> list[Change]:
        if observed.previous:
            kept_name = containers.name_of(observed.previous)
            return [Change("container", f"{kept_name} (stopped)", f"{_serving_name(args, observed)} (stopped)")]
        if observed.is_untouched or observed.is_not_renamed:
            return []
        status = observed.current["State"]["Status"] if observed.current else ""
        if status not in ("running", "restarting"):
            return []
        return [Change("state", status, "stopped", "it failed, and there is no previous server")]

    def describe(self, args: Args, observed: RestorePreviousState) -> dict[str, Any]:
        previous = observed.previous or (observed.current if observed.is_not_renamed else {})
        data: dict[str, Any] = {"name": _serving_name(args, observed), "why": args.why}
        data["replaced"] = bool(observed.previous)
        if not previous:
            message = (
                "The previous server was not touched."
                if observed.is_untouched
                else "There was no previous server to restore."
            )
            membership = container_labels.membership_of(observed.current if observed.is_untouched else {}).to_json()
            data |= {"to_start": False, "restart": "no", "base_url": "", "needs": {}, **membership}
            return {**data, "msg": message}
        record = observed.stop_record if observed.stop_record.get("id") == previous["Id"] else {}
        data |= {"to_start": record.get("running", True), "restart": record.get("policy", "no")}
        data |= {"base_url": containers.url_of(previous), "needs": _memory_needs(observed, previous)}
        data |= container_labels.membership_of(previous).to_json()
        return {**data, "msg": "It was stopped." if observed.is_not_renamed else "Its container is back in place."}

    def act(
        self, args: Args, observed: RestorePreviousState, changes: list[Change], context: Context
    ) -> dict[str, Any]:
        current_name = containers.name_of(observed.current) if observed.current else ""
        for container_id in observed.unstarted_ids.values():
            lifecycle.force_remove(context, container_id)
        if not self._server_changes(args, observed) and not observed.previous_exists:
            return {}
        if not observed.previous_exists:
            lifecycle.set_policy(context, observed.current, "no")
            lifecycle.stop(context, observed.current, 10)
            return {"msg": f"There was no previous server to restore; {current_name} is stopped."}
        if observed.previous and current_name:
            holders.record_stop(context, observed.current)
            lifecycle.remove(context, observed.current, 10)
        for folder, commit in model_folders.replaced_folders(context).items() if observed.kept_commit else ():
            restored_count = model_folders.restore_kept_with_manifest(context, folder)
            context.note(f"{format_count(restored_count, 'model file')} restored to {commit[:12]}.")
        if observed.previous:
            lifecycle.rename(context, observed.previous, _serving_name(args, observed))
        return {}


def _serving_name(args: RestorePrevious.Args, observed: RestorePreviousState) -> str:
    """Return the restored server's container name, which is not `args.name` if it is the server of another recipe."""
    if not observed.previous:
        return containers.name_of(observed.current) if observed.current else args.name
    if observed.previous["Id"] == observed.stop_record.get("id"):
        return str(observed.stop_record.get("name") or args.name)
    is_verified = observed.previous["Id"] == observed.verified_id
    return (observed.verified_name if is_verified else "") or args.name


def _memory_needs(observed: RestorePreviousState, previous: Mapping[str, Any]) -> dict[str, Any]:
    """Return the memory use of the previous server from its verified state; empty if it was never verified."""
    serve = observed.serve
    if previous["Id"] != observed.verified_id or "utilization" not in serve:
        return {}
    engine_memory = {"engine_memory": serve["engine_memory"]} if serve.get("engine_memory") else {}
    return {"utilization": serve["utilization"], "needs_bytes": serve.get("needs_bytes") or 0, **engine_memory}


@dataclass(frozen=True, slots=True)
class GrantRestartState:
    """The server's containers, and the records of the verified and the stopped server."""

    #: Docker's inspection of the current container; empty if there is none
    current: dict[str, Any]
    #: Docker's inspection of the kept previous container; empty if there is none
    previous: dict[str, Any]
    #: id of the last verified container
    verified_id: str
    #: record that a run wrote before it stopped the previous server
    stop_record: StoppedServer


class GrantRestart(StateModule["GrantRestart.Args", GrantRestartState]):
    """Enable the restart policy of a verified server, record it as the last verified state, and remove the previous container.

    Use it only after verification, because a rollback returns to the last verified state. That state includes the server's
    memory use, so that a later stop can check that it was released. Also recorded are the durations of the start's stages
    (from the log), and the start's memory figures (for the next budget).

    Returns: container_id. Fails if the container does not exist or is not running.
    """

    valid_in_check_mode = False

    @dataclass(frozen=True)
    class Args:
        spec: dict[str, Any] = arg("the container, in the format of the variable `container`")
        model: dict[str, Any] = arg("id and commit of its model", default_factory=dict)
        serve: dict[str, Any] = arg(
            "other values needed to recreate it: served_name, utilization, ready_s, tok_per_s, stop_timeout_s",
            default_factory=dict,
        )
        measured: dict[str, Any] = arg(
            "figures measured during the verification, with units in their names", default_factory=dict
        )
        changed: list[Any] = arg("differences from the previous server, for the history", default_factory=list)
        what: str = arg("the event kind in the history", default="verified")
        caches_gib: float = arg("size limit of all compile caches together, GiB", default=defaults.MAX_CACHES_GIB)
        why: str = arg("reason for a restart without a recipe change, for the history", default="")

    def read(self, args: Args, context: Context) -> GrantRestartState:
        name, state = args.spec["name"], context.state
        current, previous = containers.inspect(context.docker(), name) or {}, replacement.find_kept(context, name)
        return GrantRestartState(
            current, previous, verified_states.load_last(state).container_id, stopped_server.load(state)
        )

    def differences(self, args: Args, observed: GrantRestartState) -> list[Change]:
        changes = []
        policy = observed.current["HostConfig"]["RestartPolicy"]["Name"] if observed.current else None
        if policy != args.spec["restart"]:
            changes.append(Change("restart", policy, args.spec["restart"], "verified"))
        if (container_id := observed.current.get("Id", "")) != observed.verified_id:
            row = (observed.verified_id[:12] or None, container_id[:12])
            changes.append(Change("last good state", *row, "once the tests have passed"))
        elif observed.current and observed.stop_record.get("id") == observed.current["Id"]:
            changes.append(Change("last verification", "before its restart", "now"))
        if observed.previous:
            changes.append(Change("previous container", containers.name_of(observed.previous), None))
        return changes

    def describe(self, args: Args, observed: GrantRestartState) -> dict[str, Any]:
        return {"container_id": observed.current.get("Id", "")}

    def run(self, args: Args, context: Context) -> Result:
        if not context.check:
            lifecycle.require_running(containers.inspect(context.docker(), args.spec["name"]), args.spec["name"])
        return super().run(args, context)

    def act(self, args: Args, observed: GrantRestartState, changes: list[Change], context: Context) -> dict[str, Any]:
        name = args.spec["name"]
        lowest_memory = context.guards.end_verified()
        engine_state = evidence.read_engine_state(context, name)
        stages_s = log_state.stage_durations(engine_state) if engine_state else {}
        measurements = {**args.measured, **({"load_s": stages_s} if stages_s else {})}
        engine_memory = args.serve.get("engine_memory") or {}
        measured_start = memory_fit.measure_verified_start(
            context,
            observed.current,
            engine_memory,
            engine_state,
            lowest_memory.lowest_bytes if lowest_memory else None,
        )
        verified_state = self._build_verified_state(args, observed, context, measurements)
        verified_states.save_verified(context.state, verified_state, rolled_back=args.what == history.ROLLED_BACK)
        service_guard.write_configuration(context)
        lifecycle.set_policy(context, observed.current, args.spec["restart"])
        if observed.previous:
            lifecycle.force_remove(context, observed.previous["Id"])
        stopped_server.remove(context.state)
        host_outage.clear_forbidden(context.state, args.spec)
        server_key.remove_unneeded(context, name)
        recipe_files.remove_unneeded(context)
        compile_caches.save_verified(context, observed.current, args.model)
        cache_removal.enforce_limit(context, args.caches_gib)
        for model in verified_states.models_of(verified_state.model):
            if model_dir := model.get("dir"):
                model_folders.forget_kept_with_manifest(context, context.machine.expand(model_dir))
        fields = {"image": args.spec["image"], "model": args.model.get("id"), "commit": args.model.get("commit")}
        fields |= {"arguments": fingerprint(args.spec), "container_id": observed.current["Id"]}
        fields |= {"changed": args.changed, "measured": measurements}
        fields |= {"why": args.why} if args.why else {}
        if measured_start is not None:
            start_memory.add(context.state, measured_start)
            fields["memory"] = measured_start.to_json()
        history.append(context, args.what, **fields)
        return {}

    @staticmethod
    def _build_verified_state(
        args: Args, observed: GrantRestartState, context: Context, measurements: Mapping[str, Any]
    ) -> VerifiedState:
        spec = server_key.resolve_key(ContainerSpec.from_json(args.spec), context)
        key_field = {"server_key": spec.server_key} if spec.server_key else {}
        return VerifiedState(
            spec=cast(SpecRecord, {**args.spec, **key_field}),
            model=cast(ModelRecord, args.model),
            serve=cast(ServeRecord, args.serve),
            measured=cast(Measured, measurements),
            container_id=observed.current["Id"],
            since=time.time(),
            run=context.run_id,
            restart_count=observed.current.get("RestartCount", 0),
            held_bytes=holders.measure_held_bytes(context) or holders.recorded_bytes(context, observed.current["Id"]),
            left_bytes=context.machine.meminfo()["MemAvailable"],
            guard_gib=context.guards.floor_gib or 0,
            generation=context.cluster.generation if context.cluster else "",
        )
