from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from sparkwright import defaults
from sparkwright.engines.log import state as log_state
from sparkwright.engines.log.state import EngineState
from sparkwright.errors import Failed
from sparkwright.host import evidence
from sparkwright.host.containers import (
    cache_removal,
    compile_caches,
    containers,
    lifecycle,
    recipe_files,
    replacement,
    server_key,
)
from sparkwright.host.memory import footprint, host_lost, memory_fit, service_guard
from sparkwright.host.models import kept_files
from sparkwright.host.module import Context, StateModule
from sparkwright.host.records import good_states, history, start_memory
from sparkwright.protocol.container import ContainerSpec, fingerprint
from sparkwright.protocol.result import Change, arg


@dataclass(frozen=True, slots=True)
class Found:
    """The server's containers, the last verified state, and the record of the stopped server."""

    #: inspect of the container; empty when there is none
    current: dict[str, Any]
    #: inspect of the kept previous container; empty when there is none
    previous: dict[str, Any]
    #: the last verified state
    verified: dict[str, Any]
    #: record that a run wrote before it stopped the previous server
    stopped: dict[str, Any]


class GrantRestart(StateModule["GrantRestart.Args", Found]):
    """A server that was proved gets its restart policy; it becomes the last good state, and the older one goes.

    Call it only after verification: the last good state is what a roll back goes to. What it holds of the memory is written
    down with it, so that a later stop can be told to have given it back. So are the stages of its start, as its log tells them,
    and the memory figures of the start, which the next budget of the same start uses.

    Returns: container_id. Fails when the container is not there or does not run.
    """

    @dataclass(frozen=True)
    class Args:
        spec: dict[str, Any] = arg("the container, as `container` in scope holds it")
        model: dict[str, Any] = arg("id and commit of the model it serves", default_factory=dict)
        serve: dict[str, Any] = arg(
            "what else is needed to recreate it: served_name, utilization, ready_s, tok_per_s, stop_timeout_s",
            default_factory=dict,
        )
        measured: dict[str, Any] = arg("figures of the verification, with units in their names", default_factory=dict)
        changed: list[Any] = arg("what differed from the previous server, for the history", default_factory=list)
        what: str = arg("what the history calls it", default="verified")
        caches_gib: float = arg("what all compile caches together may hold, GiB", default=defaults.CACHES_GIB)
        why: str = arg("why it was restarted, for the history, if the recipe did not change", default="")

    def read(self, args: Args, context: Context) -> Found:
        name, state = args.spec["name"], context.state
        current, previous = containers.inspect(context.docker(), name) or {}, replacement.kept(context, name)
        return Found(current, previous, state.read("verified") or {}, state.read("previous") or {})

    def differences(self, args: Args, found: Found) -> list[Change]:
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

    def describe(self, args: Args, found: Found) -> dict[str, Any]:
        return {"container_id": found.current.get("Id", "")}

    def act(self, args: Args, found: Found, changes: list[Change], context: Context) -> dict[str, Any]:
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
                kept_files.forget_all(context, context.machine.expand(model["dir"]))
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
    def _good(args: Args, found: Found, context: Context) -> dict[str, Any]:
        held = footprint.held_now(context) or footprint.recorded(context, found.current["Id"])
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
