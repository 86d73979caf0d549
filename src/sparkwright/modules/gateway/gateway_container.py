"""Modules about a gateway's container: running, restored after a failure, and returned to its servers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from sparkwright.gateway import clients, listeners, render
from sparkwright.host.containers import container_options, containers, lifecycle, replacement
from sparkwright.host.gateway import container, drain_record, haproxy_sockets, place, server_operations
from sparkwright.host.module import Context, Module, StateModule
from sparkwright.host.records import good_states, history
from sparkwright.modules.gateway.gateway_files import GatewayArgs
from sparkwright.protocol.container import ContainerSpec
from sparkwright.protocol.result import Change, Result, arg

#: files whose content is not shown
SECRET = (render.CLIENT_KEYS, render.SERVER_KEYS, listeners.CERTIFICATE, clients.KEYS)


@dataclass(frozen=True, slots=True)
class GatewayRunningFound:
    """The gateway's container and files on the host, compared with what they should be."""

    #: the container as it should be
    spec: ContainerSpec
    #: its inspect; empty when there is none
    container: dict[str, Any]
    image: dict[str, Any]
    #: contents of the files on the host, by name
    files: dict[str, str]
    #: digest of the files that HAProxy has loaded; empty when it is not running
    digest: str
    #: contents that the files should have, by name
    wanted: dict[str, str] = field(default_factory=dict)
    #: Id of the verified container; empty when there is none
    verified_id: str = ""

    @property
    def running(self) -> bool:
        return bool(self.container and self.container["State"]["Running"])

    @property
    def drift(self) -> list[Change]:
        """The container's options that differ from the spec."""
        return container_options.differences(self.spec, self.container, self.image) if self.container else []


class GatewayRunning(StateModule["GatewayRunning.Args", GatewayRunningFound]):
    """Run the gateway's container as the spec describes it, with these files.

    If only files differ, they are reloaded without interrupting a stream. A container that differs is stopped with its
    requests and kept as NAME-previous until the new one is verified (`gateway_keep`); otherwise `gateway_restore` restores
    it.

    Returns: differs, exists, verified, reloaded, digest. Fails with HAProxy's own message, and names what uses its port.
    """

    @dataclass(frozen=True, kw_only=True)
    class Args(GatewayArgs):
        name: str = arg("the gateway's name: its group's")
        stop_timeout_s: int = arg("how long requests may take to finish before it is replaced, seconds", default=30)

    def read(self, args: Args, context: Context) -> GatewayRunningFound:
        spec, at = container.resolved(args.spec, context), place.current(place.state_of(context))
        wanted = args.composed(context)
        found = container.current(spec.name, context)
        image = containers.image_of(context.docker(), found) if found else {}
        digest = haproxy_sockets.running_digest(at.sockets) if found and found["State"]["Running"] else ""
        verified = str((place.state_of(context).read("verified") or {}).get("container_id", ""))
        return GatewayRunningFound(spec, found, image, place.read(at.files), digest, wanted, verified)

    def differences(self, args: Args, found: GatewayRunningFound) -> list[Change]:
        if not found.container:
            return [Change("container", None, found.spec.name, "no such container")]
        changes = [*found.drift, *_changed(found.files, found.wanted)]
        if not found.running:
            return [*changes, Change("state", found.container["State"]["Status"], "running", "it is stopped")]
        wanted = place.digest_in(found.wanted[render.CONFIG], args.name)
        if not changes and found.digest != wanted:
            return [Change("configuration", found.digest or "unknown", wanted, "HAProxy reads another one")]
        return changes

    def describe(self, args: Args, found: GatewayRunningFound) -> dict[str, Any]:
        differs = bool(self.differences(args, found))
        policy = found.container["HostConfig"]["RestartPolicy"]["Name"] if found.container else ""
        known = bool(found.container) and found.container["Id"] == found.verified_id
        return {
            "differs": differs,
            "exists": bool(found.container),
            "verified": not differs and known and policy == found.spec.restart,
            "reloaded": False,
            "digest": place.digest_in(found.wanted[render.CONFIG], args.name),
            "msg": "matches" if not differs else "",
        }

    def act(self, args: Args, found: GatewayRunningFound, changes: list[Change], context: Context) -> dict[str, Any]:
        name = found.spec.name
        at = place.current(place.state_of(context))
        files, config = place.folder(context, place.FILES), found.wanted[render.CONFIG]
        reloads = found.running and not found.drift
        if reloads:
            place.write(files, found.wanted)
            container.reload(context)
        else:
            place.folder(context, place.SOCKETS)
            container.keep_states(at.sockets, files, config)
            if found.container:
                _keep(found, args.stop_timeout_s, context)
            place.write(files, found.wanted)
            container.start(container.create(found.spec, context), found.spec, context)
        container.wait_running(name, place.digest_in(config, args.name), context)
        now = containers.inspect(context.docker(), name) or {}
        msg = "reloaded; no stream was cut" if reloads else "started"
        return {"reloaded": reloads, "exists": True, "verified": False, "id": now.get("Id", ""), "msg": msg}


def _keep(found: GatewayRunningFound, stop_timeout_s: int, context: Context) -> None:
    """Stop the container, which will not start by itself, and keep it under NAME-previous."""
    name = found.spec.name
    if previous := container.previous(name, context):
        lifecycle.discard(context, previous["Id"])
    lifecycle.set_policy(context, found.container, "no")
    lifecycle.stop(context, found.container, stop_timeout_s)
    lifecycle.rename(context, found.container, name + containers.PREVIOUS)


def _changed(before: dict[str, str], after: dict[str, str]) -> list[Change]:
    """Return the files that differ; for those with secrets, without their content."""
    return [
        Change(f"file {name}", *_shown(name, before.get(name), after.get(name)))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def _shown(name: str, before: str | None, after: str | None) -> tuple[str | None, str | None]:
    if name not in SECRET:
        return before, after
    return "present" if before else None, "another one" if before and after else "present" if after else None


@dataclass(frozen=True, slots=True)
class GatewayRestoreFound:
    """The gateway's containers, and the last verified state with its files."""

    #: inspect of the container; empty when there is none
    current: dict[str, Any]
    #: inspect of the previous container; empty when there is none
    previous: dict[str, Any]
    #: the last verified state
    verified: dict[str, Any]
    #: the files of that state
    files: dict[str, str] = field(default_factory=dict)


class GatewayRestore(StateModule["GatewayRestore.Args", GatewayRestoreFound]):
    """Restore the last verified gateway after a failure: its container, with its files. If there is none, remove the gateway.

    If only the files differ, they are reloaded without interrupting a stream.

    Returns: restored (whether a gateway is running again), why.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        why: str = arg("reason, for the history")

    def read(self, args: Args, context: Context) -> GatewayRestoreFound:
        current, previous = container.current(args.name, context), container.previous(args.name, context)
        verified = place.last(context)
        return GatewayRestoreFound(
            current, previous, verified, place.files(context, verified["digest"]) if verified else {}
        )

    def differences(self, args: Args, found: GatewayRestoreFound) -> list[Change]:
        wanted = found.verified.get("digest") if found.files else None
        return [Change("gateway", "the failed one", wanted)] if found.current or found.previous else []

    def describe(self, args: Args, found: GatewayRestoreFound) -> dict[str, Any]:
        return {"why": args.why}

    def act(self, args: Args, found: GatewayRestoreFound, changes: list[Change], context: Context) -> dict[str, Any]:
        ours = found.previous or found.current
        if found.previous and found.current:
            lifecycle.discard(context, found.current["Id"])
        if found.previous:
            lifecycle.rename(context, found.previous, args.name)
        if not found.files or ours["Id"] != found.verified.get("container_id"):
            return _removed(ours, context)
        _bring_back(found, context)
        if found.previous or not found.current["State"]["Running"]:
            lifecycle.start(context, ours["Id"])
        else:
            container.reload(context)
        container.wait_running(args.name, found.verified["digest"], context)
        lifecycle.set_policy(context, ours, found.verified["spec"].get("restart", "no"))
        history.append(context, "gateway restored", container_id=ours["Id"], why=args.why)
        return {"restored": True, "msg": "The last verified gateway is restored."}


def _bring_back(found: GatewayRestoreFound, context: Context) -> None:
    """Write the verified files to where their container reads them."""
    if place.is_earlier(found.verified["spec"]):
        place.drop(place.state_of(context).path / place.FILES)  # those of the failed gateway
        place.write(place.folder(context, place.EARLIER), found.files)
    else:
        place.write(place.folder(context, place.FILES), found.files)


def _removed(failed: dict[str, Any], context: Context) -> dict[str, Any]:
    """Remove a failed gateway that no verified one preceded."""
    lifecycle.discard(context, failed["Id"])
    return {"restored": False, "msg": "There was none before; it is removed."}


@dataclass(frozen=True, slots=True)
class GatewayReturnFound:
    """The server, and the gateways at which it is drained."""

    #: names of the gateways at which the server is drained
    gateways: list[str] = field(default_factory=list)
    #: whether the server's container runs
    running: bool = False
    #: whether it is the last verified server
    verified: bool = False


class GatewayReturn(StateModule["GatewayReturn.Args", GatewayReturnFound]):
    """Let the gateways send requests to a drained server again, once it is verified.

    Waits until they report it as up, for at most 30 s. A gateway that does not answer is reported and is not a failure: the
    next run or health check that finds the server healthy returns it there. A server that is not running, or was never
    verified, stays drained.

    Returns: returned (names of gateways).
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        proved: bool = arg(
            "whether this run has just checked it; otherwise only the last verified server is returned", default=False
        )

    def run(self, args: Args, context: Context) -> Result:
        result = super().run(args, context)
        nowhere = result.changed and not context.check and not result.data["returned"]
        return replace(result, changed=False, diff=[]) if nowhere else result

    def read(self, args: Args, context: Context) -> GatewayReturnFound:
        names = [gateway.name for gateway in drain_record.of(context.state)]
        container = replacement.current(context, args.name) if names else {}
        good = good_states.last(context.state).get("container_id")
        running = bool(container) and bool(container["State"]["Running"])
        return GatewayReturnFound(names, running, bool(container) and container["Id"] == good)

    def differences(self, args: Args, found: GatewayReturnFound) -> list[Change]:
        if not found.running or not (args.proved or found.verified):
            return []
        return [Change(f"gateway {name}", "draining", "ready") for name in found.gateways]

    def describe(self, args: Args, found: GatewayReturnFound) -> dict[str, Any]:
        stays = bool(found.gateways) and not self.differences(args, found)
        message = (
            f"stays drained at {', '.join(found.gateways)}: it is not a verified server that runs" if stays else ""
        )
        return {"returned": [], "msg": message}

    def act(self, args: Args, found: GatewayReturnFound, changes: list[Change], context: Context) -> dict[str, Any]:
        returned, problems = drain_record.give_back(context.state)
        for problem in problems:
            context.note(f"{problem}.")
        message = f"gets requests again from {', '.join(returned)}" if returned else "not returned yet"
        return {"returned": returned, "msg": message}


class GatewayOwnKey(Module["GatewayOwnKey.Args"]):
    """Return the SHA-256 of the key with which this host drains its own servers at gateways. A missing key is created.

    The key itself is sent only to the host's gateways; it is random and long enough that its hash reveals nothing about it.

    Returns: sha256 (empty in check mode if there is no key yet).
    """

    @dataclass(frozen=True)
    class Args:
        pass

    def run(self, args: Args, context: Context) -> Result:
        key = server_operations.kept(context.state) if context.check else server_operations.made(context.state)
        return Result(data={"sha256": server_operations.hashed(key)})


NONE = {"running": False, "verified": False, "changed": [], "models": [], "clients": []}


class GatewayState(Module["GatewayState.Args"]):
    """Report the current state of this host's gateway: requests, queue and errors of each model, and the state of each server.

    Returns: running, models (see gateway/statistics.py), verified (whether HAProxy uses the last verified files), changed
    (files that differ from the verified ones), clients (what clients with their own keys used today, see gateway/usage.py).
    """

    @dataclass(frozen=True)
    class Args:
        """None."""

    def run(self, args: Args, context: Context) -> Result:
        found = haproxy_sockets.inspect(context.state) or NONE
        return Result(msg="" if found["running"] else "no gateway is running", data=found)
