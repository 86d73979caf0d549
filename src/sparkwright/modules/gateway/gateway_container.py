"""Modules that run and restore a gateway, report its state, and return servers to it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from sparkwright.gateway import clients, listeners, render
from sparkwright.host.containers import container_options, containers, lifecycle, replacement
from sparkwright.host.gateway import container, drain_record, gateway_folders, haproxy_sockets, server_operations
from sparkwright.host.gateway.gateway_folders import VerifiedGateway
from sparkwright.host.gateway.server_operations import Gateway
from sparkwright.host.module import Context, Module, StateModule
from sparkwright.host.records import history, verified_states
from sparkwright.modules.gateway.gateway_files import GatewayArgs
from sparkwright.protocol.container import ContainerSpec
from sparkwright.protocol.result import Change, Result, arg

#: files with secrets; their contents are masked in a diff
SECRET_FILES = (render.CLIENT_KEYS_FILE, render.SERVER_KEYS_FILE, listeners.CERTIFICATE_FILE, clients.KEYS_FILE)

NO_GATEWAY = {"running": False, "verified": False, "changed": [], "certificate_error": "", "models": [], "clients": []}


@dataclass(frozen=True, slots=True)
class GatewayRunningState:
    """The gateway's container and files on the host, and what they should be."""

    #: the intended container
    spec: ContainerSpec
    #: Docker's inspection of the container; empty if there is none
    container: dict[str, Any]
    #: Docker's inspection of the container's image; empty if there is no container
    image: dict[str, Any]
    #: contents of the files on the host, by name
    files: dict[str, str]
    #: digest of the files that HAProxy has loaded; empty if it is not running
    digest: str
    #: intended contents of the files, by name
    intended_files: dict[str, str] = field(default_factory=dict)
    #: id of the last verified container; empty if there is none
    verified_id: str = ""

    @property
    def running(self) -> bool:
        return bool(self.container and self.container["State"]["Running"])

    @property
    def drift(self) -> list[Change]:
        """Differences between the container's options and the spec."""
        return container_options.differences(self.spec, self.container, self.image) if self.container else []


class GatewayRunning(StateModule["GatewayRunning.Args", GatewayRunningState]):
    """Run the gateway's container according to the spec, with the given files.

    If only files differ, they are reloaded without interrupting a stream. A container that differs is stopped, after its
    requests finish or after `stop_timeout_s`, and kept as NAME-previous until the new one is verified (`gateway_keep`) or
    `gateway_restore` restores it.

    Returns: differs, exists, verified, reloaded, digest. Fails with HAProxy's message; if a port is in use, with the program
    or container that uses it.
    """

    @dataclass(frozen=True, kw_only=True)
    class Args(GatewayArgs):
        name: str = arg("the gateway's name, which is also its group's name")
        stop_timeout_s: int = arg("how long requests may take to finish before it is replaced, seconds", default=30)

    def read(self, args: Args, context: Context) -> GatewayRunningState:
        spec = container.resolve_spec(args.spec, context)
        folders = gateway_folders.current_folders(gateway_folders.state_of(context))
        files = args.build_files(context)
        current = container.find_current(spec.name, context)
        image = containers.image_of(context.docker(), current) if current else {}
        digest = haproxy_sockets.running_digest(folders.sockets) if current and current["State"]["Running"] else ""
        verified_id = gateway_folders.load_last(context).container_id
        return GatewayRunningState(
            spec, current, image, gateway_folders.read_files(folders.files), digest, files, verified_id
        )

    def differences(self, args: Args, observed: GatewayRunningState) -> list[Change]:
        if not observed.container:
            return [Change("container", None, observed.spec.name, "no such container")]
        changes = [*observed.drift, *_file_changes(observed.files, observed.intended_files)]
        if not observed.running:
            return [*changes, Change("state", observed.container["State"]["Status"], "running", "it is stopped")]
        digest = gateway_folders.parse_digest(observed.intended_files[render.CONFIG_FILE], args.name)
        if not changes and observed.digest != digest:
            return [
                Change(
                    "configuration", observed.digest or "unknown", digest, "HAProxy has loaded another configuration"
                )
            ]
        return changes

    def describe(self, args: Args, observed: GatewayRunningState) -> dict[str, Any]:
        differs = bool(self.differences(args, observed))
        policy = observed.container["HostConfig"]["RestartPolicy"]["Name"] if observed.container else ""
        is_last_verified = bool(observed.container) and observed.container["Id"] == observed.verified_id
        return {
            "differs": differs,
            "exists": bool(observed.container),
            "verified": not differs and is_last_verified and policy == observed.spec.restart,
            "reloaded": False,
            "digest": gateway_folders.parse_digest(observed.intended_files[render.CONFIG_FILE], args.name),
            "msg": "matches" if not differs else "",
        }

    def act(self, args: Args, observed: GatewayRunningState, changes: list[Change], context: Context) -> dict[str, Any]:
        name = observed.spec.name
        folders = gateway_folders.current_folders(gateway_folders.state_of(context))
        files = gateway_folders.folder(context, gateway_folders.FILES_FOLDER)
        config = observed.intended_files[render.CONFIG_FILE]
        can_reload = observed.running and not observed.drift
        if can_reload:
            gateway_folders.write_files(files, observed.intended_files)
            container.reload(context)
        else:
            gateway_folders.folder(context, gateway_folders.SOCKETS_FOLDER)
            container.save_states(folders.sockets, files, config)
            if observed.container:
                _keep_previous(observed, args.stop_timeout_s, context)
            gateway_folders.write_files(files, observed.intended_files)
            container.start(container.create(observed.spec, context), observed.spec, context)
        container.wait_for_running(name, gateway_folders.parse_digest(config, args.name), context)
        started_container = containers.inspect(context.docker(), name) or {}
        msg = "reloaded without interrupting streams" if can_reload else "started"
        return {
            "reloaded": can_reload,
            "exists": True,
            "verified": False,
            "id": started_container.get("Id", ""),
            "msg": msg,
        }


def _keep_previous(observed: GatewayRunningState, stop_timeout_s: int, context: Context) -> None:
    """Stop the container, disable its restart policy, and rename it to NAME-previous."""
    name = observed.spec.name
    if previous := container.find_previous(name, context):
        lifecycle.force_remove(context, previous["Id"])
    lifecycle.set_policy(context, observed.container, "no")
    lifecycle.stop(context, observed.container, stop_timeout_s)
    lifecycle.rename(context, observed.container, name + containers.PREVIOUS_SUFFIX)


def _file_changes(before: dict[str, str], after: dict[str, str]) -> list[Change]:
    """Return the changes to the files, with the contents of secret files masked."""
    return [
        Change(f"file {name}", *_mask_contents(name, before.get(name), after.get(name)))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def _mask_contents(name: str, before: str | None, after: str | None) -> tuple[str | None, str | None]:
    if name not in SECRET_FILES:
        return before, after
    return "present" if before else None, "changed" if before and after else "present" if after else None


@dataclass(frozen=True, slots=True)
class GatewayRestoreState:
    """The gateway's containers, and the last verified state with its files."""

    #: Docker's inspection of the container; empty if there is none
    current: dict[str, Any]
    #: Docker's inspection of the replaced container; empty if there is none
    previous: dict[str, Any]
    #: the last verified state; empty if there is none
    verified_state: VerifiedGateway
    #: the files of the last verified state, by name; empty if they are missing or were changed
    files: dict[str, str] = field(default_factory=dict)
    #: True if the last verified gateway still runs with its files
    unchanged: bool = False


class GatewayRestore(StateModule["GatewayRestore.Args", GatewayRestoreState]):
    """Restore the last verified gateway, container and files, after a failure. Without one, remove the failed gateway.

    If only the files differ, they are reloaded without interrupting a stream. If the last verified gateway still runs with its
    files, nothing changes.

    Returns: restored (whether the last verified gateway is running again), why.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        why: str = arg("the reason, for the history")

    def read(self, args: Args, context: Context) -> GatewayRestoreState:
        current, previous = container.find_current(args.name, context), container.find_previous(args.name, context)
        verified_state = gateway_folders.load_last(context)
        files = gateway_folders.state_files(context, verified_state.digest) if verified_state else {}
        report = {} if previous else haproxy_sockets.inspect(context.state)
        unchanged = (
            bool(report)
            and report["verified"]
            and not report["changed"]
            and report["restarted_s"] is None
            and current.get("Id") == verified_state.container_id
        )
        return GatewayRestoreState(current, previous, verified_state, files, unchanged)

    def differences(self, args: Args, observed: GatewayRestoreState) -> list[Change]:
        if observed.unchanged:
            return []
        digest = observed.verified_state.digest if observed.files else None
        return [Change("gateway", "failed", digest)] if observed.current or observed.previous else []

    def describe(self, args: Args, observed: GatewayRestoreState) -> dict[str, Any]:
        unchanged_data = {"restored": True, "msg": "The gateway was not changed."} if observed.unchanged else {}
        return {"why": args.why, **unchanged_data}

    def act(self, args: Args, observed: GatewayRestoreState, changes: list[Change], context: Context) -> dict[str, Any]:
        candidate = observed.previous or observed.current
        if observed.previous and observed.current:
            lifecycle.force_remove(context, observed.current["Id"])
        if observed.previous:
            lifecycle.rename(context, observed.previous, args.name)
        if not observed.files or candidate["Id"] != observed.verified_state.container_id:
            lifecycle.force_remove(context, candidate["Id"])
            return {"restored": False, "msg": "No verified gateway to restore; the failed one was removed."}
        _restore_files(observed, context)
        if observed.previous or not observed.current["State"]["Running"]:
            lifecycle.start(context, candidate["Id"])
        else:
            container.reload(context)
        container.wait_for_running(args.name, observed.verified_state.digest, context)
        gateway_folders.record_restore(context, observed.verified_state)
        lifecycle.set_policy(context, candidate, observed.verified_state.spec.get("restart", "no"))
        history.append(context, "gateway restored", container_id=candidate["Id"], why=args.why)
        return {"restored": True, "msg": "The last verified gateway is restored."}


def _restore_files(observed: GatewayRestoreState, context: Context) -> None:
    """Write the verified files to the folder that the container mounts."""
    folder = gateway_folders.FILES_FOLDER
    if gateway_folders.is_legacy(observed.verified_state.spec):
        folder = gateway_folders.LEGACY_FOLDER
        # remove the failed gateway's files: LEGACY_FOLDER is ignored while FILES_FOLDER exists
        gateway_folders.remove_folder(gateway_folders.state_of(context).path / gateway_folders.FILES_FOLDER)
    gateway_folders.write_files(gateway_folders.folder(context, folder), observed.files)


@dataclass(frozen=True, slots=True)
class GatewayReturnState:
    """The server, and the gateways at which it is drained."""

    #: names of the gateways at which the server is drained
    gateways: list[str] = field(default_factory=list)
    #: True if the server's container is running
    running: bool = False
    #: True if the server's container is the last verified one
    verified: bool = False


class GatewayReturn(StateModule["GatewayReturn.Args", GatewayReturnState]):
    """Return a drained server to its gateways, which then send it requests again.

    Waits up to 30 s until the gateways report it as up. A gateway that does not answer is reported but is not a failure:
    the next run or health check that finds the server healthy returns it to that gateway. A server that is not running or
    not verified stays drained.

    Returns: returned (names of gateways).
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        proved: bool = arg(
            "true if this run has verified the server; otherwise only the last verified server is returned",
            default=False,
        )
        gateways: list[dict[str, Any]] = arg(
            "the gateways as configured now, because a port or a certificate may have been changed since the drain",
            default_factory=list,
        )

        def list_gateways(self) -> list[Gateway]:
            return [Gateway.from_json(gateway) for gateway in self.gateways]

    def run(self, args: Args, context: Context) -> Result:
        result = super().run(args, context)
        not_returned = result.changed and not context.check and not result.data["returned"]
        return replace(result, changed=False, diff=[]) if not_returned else result

    def read(self, args: Args, context: Context) -> GatewayReturnState:
        names = [gateway.name for gateway in drain_record.find_draining(context.state, args.list_gateways())]
        container = replacement.find_current(context, args.name) if names else {}
        verified_id = verified_states.load_last(context.state).container_id
        running = bool(container) and bool(container["State"]["Running"])
        return GatewayReturnState(names, running, bool(container) and container["Id"] == verified_id)

    def differences(self, args: Args, observed: GatewayReturnState) -> list[Change]:
        if not observed.running or not (args.proved or observed.verified):
            return []
        return [Change(f"gateway {name}", "draining", "ready") for name in observed.gateways]

    def describe(self, args: Args, observed: GatewayReturnState) -> dict[str, Any]:
        stays_drained = bool(observed.gateways) and not self.differences(args, observed)
        message = (
            f"stays drained at {', '.join(observed.gateways)}: not running or not verified" if stays_drained else ""
        )
        return {"returned": [], "msg": message}

    def act(self, args: Args, observed: GatewayReturnState, changes: list[Change], context: Context) -> dict[str, Any]:
        returned_gateways, problems = drain_record.return_server(context.state, args.list_gateways())
        for problem in problems:
            context.note(f"{problem}.")
        message = (
            f"receives requests again from {', '.join(returned_gateways)}" if returned_gateways else "not returned yet"
        )
        return {"returned": returned_gateways, "msg": message}


class GatewayOwnKey(Module["GatewayOwnKey.Args"]):
    """Return the SHA-256 of the key that this host uses to drain its own servers at gateways. A missing key is created.

    The key itself is sent only to the host's gateways. It is random, and too long to be recovered from its hash.

    Returns: sha256 (empty in check mode if there is no key yet).
    """

    @dataclass(frozen=True)
    class Args:
        pass

    def run(self, args: Args, context: Context) -> Result:
        get_key = server_operations.load_key if context.check else server_operations.ensure_key
        return Result(data={"sha256": server_operations.hash_key(get_key(context.state))})


class GatewayState(Module["GatewayState.Args"]):
    """Report the current state of this host's gateway: requests, queue and errors of each model, and the state of each server.

    Returns: running, models (see gateway/statistics.py), verified (whether HAProxy uses the last verified files), changed
    (files that differ from the verified ones), certificate_error (such as `expired on 2026-11-29`, or empty), clients (today's
    usage of clients with their own keys, see gateway/usage.py).
    """

    @dataclass(frozen=True)
    class Args:
        pass

    def run(self, args: Args, context: Context) -> Result:
        state = haproxy_sockets.inspect(context.state) or NO_GATEWAY
        return Result(msg="" if state["running"] else "no gateway is running", data=state)
