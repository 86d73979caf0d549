from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkwright import defaults, units
from sparkwright.errors import Refused
from sparkwright.host.containers import container_labels, containers, replacement
from sparkwright.host.containers.engine_words import port_bindings
from sparkwright.host.memory import host_lost
from sparkwright.host.module import Context, Module
from sparkwright.host.records import good_states
from sparkwright.protocol.result import Result, arg


class LastGood(Module["LastGood.Args"]):
    """Find what a roll back goes to: the last verified state; when that is what serves now, the one before it.

    When its container was kept (NAME-previous, after a deploy with `--no-rollback` or one that was cut off) it is restored as
    it is; so is one that a run had stopped, and not yet renamed or started again, when it was cut off. Else it is made again
    from what was written down, image digest, settings and model revision.

    Returns: kept, spec, model, serve, since, base_url, place (in a cluster, in words), generation (the same on all members of a
    cluster that were deployed together). Refuses when there is nothing to go back to, when its name is taken by a container of
    somebody else, or when the host went down with the kept container before and nobody said `--anyway`.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        model_dir: str = arg("the model's folder, when the kept server was never verified", default="")
        ready_s: float = arg("how long it may take to be ready, when the kept server was never verified", default=1800)

    def run(self, args: Args, context: Context) -> Result:
        replacement.refuse_others(context, args.name)
        result = self._found(args, context)
        if result.data["kept"]:
            kept = replacement.kept(context, args.name) or replacement.current(context, args.name)
            host_lost.refuse(context, host_lost.forbids(context.state, result.data["spec"], kept["Id"]))
        if (name := result.data["spec"]["name"]) != args.name:
            replacement.refuse_others(context, name)
        return result

    def _found(self, args: Args, context: Context) -> Result:
        current, previous = replacement.current(context, args.name), replacement.kept(context, args.name)
        good = good_states.last(context.state)
        stopped = (
            context.state.read("previous") or {}
        )  # by an interrupted run: the server has lost its policy, or is stopped
        if current and not previous and current["Id"] == stopped.get("id") == good.get("container_id"):
            msg = f"{replacement.name_of(current)} itself, stopped by an interrupted run"
            return Result(msg=msg, data=_data(good, containers.url_of(current), kept=True))
        if good and current and current["Id"] == good.get("container_id"):
            good = next(iter(good_states.before(context.state)), {})
            if not good:
                fix = "`invoke history` shows earlier states; `invoke deploy` deploys a recipe."
                raise Refused(f"no verified state older than the running {replacement.name_of(current)}.", fix=fix)
        elif previous and (not good or previous["Id"] == good.get("container_id")):
            msg = f"the kept container {replacement.name_of(previous)}"
            return Result(msg=msg, data=_data(_assumed(args, previous) | good, containers.url_of(previous), kept=True))
        if not good:
            raise Refused(f"{args.name} was never verified here, and no previous container is kept.")
        if not good.get("serve"):
            raise Refused("the last verified state was recorded by an older sparkwright and cannot be recreated.")
        when = units.moment(good.get("since", 0), units.MINUTE)
        return Result(msg=f"verified {when}: {good['spec'].get('image', '')}", data=_data(good, "", kept=False))


def _assumed(args: LastGood.Args, kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state to assume for a kept server that was never recorded."""
    takes = container_labels.engine_of_container(kept).advice.memory({}, {})
    serve = {"utilization": takes.share, "ready_s": args.ready_s, "stop_timeout_s": defaults.STOP_S}
    return {"spec": {"name": args.name}, "model": {"dir": args.model_dir}, "serve": serve, "since": 0}


def _data(good: dict[str, Any], url: str, *, kept: bool) -> dict[str, Any]:
    """Return the data to register.

    url: the address of a kept server; empty for a server that is created again, whose address follows from its spec.
    """
    bindings = port_bindings(tuple(good["spec"].get("ports") or ()))
    url = url or containers.url_of({"HostConfig": {"PortBindings": bindings}})
    about = {key: good.get(key) or {} for key in ("model", "serve")}
    about |= {
        "place": str(container_labels.membership_of_labels(good["spec"].get("labels"))),
        "generation": good.get("generation", ""),
    }
    return {"kept": kept, "spec": good["spec"], "since": good.get("since", 0), **about, "base_url": url}
