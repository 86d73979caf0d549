"""Modules that keep a server's records: its verified state, incidents, run script and restart policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwright import defaults, units
from sparkwright.errors import Refused
from sparkwright.host import files
from sparkwright.host.containers import (
    compile_caches,
    container_labels,
    containers,
    lifecycle,
    mount_sources,
    replacement,
)
from sparkwright.host.gateway import gateway_folders
from sparkwright.host.memory import host_outage, service_guard
from sparkwright.host.module import Context, Module, StateModule
from sparkwright.host.records import history, incidents, stopped_server, verified_states
from sparkwright.host.records.own_folders import OWN_FILE_MARK
from sparkwright.host.records.verified_states import VerifiedState
from sparkwright.host.state import StateFolder
from sparkwright.protocol.container import RESERVED_NAMES
from sparkwright.protocol.result import Change, Result, arg
from sparkwright.trust.container_option_rules import port_bindings

RUN_SCRIPT_FOLDER = ".local/share/sparkwright/run"
SCRIPT_MODE = "0755"


class LastGood(Module["LastGood.Args"]):
    """Find the target of a rollback: the last verified state or, if that server is in place, the state before it.

    A server is in place under its own name, running or not.

    If its container still exists, it is restored unchanged: NAME-previous, kept by an interrupted deploy or by a deploy with
    `--no-rollback`, or a server that an interrupted run stopped but did not rename. Otherwise it is created again from the
    recorded image digest, settings and model revision.

    Returns: kept, spec, model, serve, since, base_url, place (in a cluster, for messages), generation (equal on all members
    of a cluster that were deployed together). Refused if there is no earlier state, if a container that sparkwright did not
    create uses its name, or if the host went down during an earlier start of the kept container, unless `--anyway` is given.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        model_dir: str = arg("the model's folder, for a kept server that was never verified", default="")
        ready_s: float = arg(
            "time limit for its start, for a kept server that was never verified, seconds", default=1800
        )

    def run(self, args: Args, context: Context) -> Result:
        replacement.require_free_names(context, args.name)
        result = self._find_target(args, context)
        if result.data["kept"]:
            kept_container = replacement.find_kept(context, args.name) or replacement.find_current(context, args.name)
            host_outage.refuse_forbidden(
                context, host_outage.forbidden_reason(context.state, result.data["spec"], kept_container["Id"])
            )
        if (name := result.data["spec"]["name"]) != args.name:
            replacement.require_free_names(context, name)
        return result

    def _find_target(self, args: Args, context: Context) -> Result:
        current, previous = replacement.find_current(context, args.name), replacement.find_kept(context, args.name)
        verified_state = verified_states.load_last(context.state)
        # written by an interrupted run that removed the server's restart policy, and may have stopped it
        stop_record = stopped_server.load(context.state)
        if current and not previous and current["Id"] == stop_record.get("id") == verified_state.container_id:
            msg = f"{containers.name_of(current)}, which an interrupted run stopped"
            return Result(msg=msg, data=_result_data(verified_state, containers.url_of(current), kept=True))
        if verified_state and current and current["Id"] == verified_state.container_id:
            verified_state = next(iter(verified_states.load_earlier(context.state)), VerifiedState())
            if not verified_state:
                fix = "`invoke history` shows earlier states; `invoke deploy` deploys a recipe."
                raise Refused(
                    f"no verified state older than that of the current {containers.name_of(current)}.", fix=fix
                )
        elif previous and (not verified_state or previous["Id"] == verified_state.container_id):
            msg = f"the kept container {containers.name_of(previous)}"
            state = VerifiedState.from_json(_assumed_state(args, previous) | verified_state.to_json())
            return Result(msg=msg, data=_result_data(state, containers.url_of(previous), kept=True))
        if not verified_state:
            raise Refused(f"{args.name} was never verified here, and no previous container is kept.")
        if not verified_state.serve:
            raise Refused("the last verified state was recorded by an older sparkwright and cannot be recreated.")
        verified_at = units.format_time(verified_state.since, units.MINUTE_FORMAT)
        return Result(
            msg=f"verified {verified_at}: {verified_state.spec.get('image', '')}",
            data=_result_data(verified_state, "", kept=False),
        )


def _assumed_state(args: LastGood.Args, kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state to assume for a kept server that was never verified."""
    memory = container_labels.engine_of_container(kept).advice.memory({}, {})
    serve = {"utilization": memory.share, "ready_s": args.ready_s, "stop_timeout_s": defaults.STOP_TIMEOUT_S}
    return {"spec": {"name": args.name}, "model": {"dir": args.model_dir}, "serve": serve, "since": 0}


def _result_data(verified_state: VerifiedState, url: str, *, kept: bool) -> dict[str, Any]:
    """Return the data of `last_good`.

    Args:
        url: URL of a kept server; empty to derive it from the spec.
    """
    bindings = port_bindings(tuple(verified_state.spec.get("ports") or ()))
    return {
        "kept": kept,
        "spec": verified_state.spec,
        "model": verified_state.model,
        "serve": verified_state.serve,
        "since": verified_state.since,
        "place": str(container_labels.membership_of_labels(verified_state.spec.get("labels"))),
        "generation": verified_state.generation,
        "base_url": url or containers.url_of({"HostConfig": {"PortBindings": bindings}}),
    }


class Incident(Module["Incident.Args"]):
    """Collect the diagnostics of a failed server on the host before it is removed.

    They contain its log and Docker's inspection of it, meminfo, the memory use of each owner, kernel messages, the list of
    containers, nvidia-smi's output, the plan and the events. `invoke incident --host H` downloads them. Secrets are masked.

    Returns: incident (its id), folder.
    """

    valid_in_check_mode = False

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        why: str = arg("what failed, in one sentence", default="")

    def run(self, args: Args, context: Context) -> Result:
        if context.check:
            return Result(msg="would collect diagnostics")
        folder = incidents.save(context, args.name, args.why)
        data = {"incident": folder.name, "folder": str(folder)}
        return Result(msg=f"fetch with `invoke incident`: {folder.name}", data=data)


class RunScript(StateModule["RunScript.Args", files.FileState]):
    """Write the docker run command of the verified server to the host, as ~/.local/share/sparkwright/run/NAME.sh.

    `src` in a playbook names a file in templates/; its rendered text is passed as `content` and saved with the last verified
    state. Without content, the script that was saved with the container's verified state is written again; if there is none,
    the file is removed, because it belongs to another server. The script of a replaced server of another recipe is removed
    too, if sparkwright wrote it and neither a container nor a verified server has its name.

    Returns: path.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        content: str = arg("the rendered template (in a playbook: `src`)", default="")

    def read(self, args: Args, context: Context) -> files.FileState:
        return files.FileState.read(context.machine.home / RUN_SCRIPT_FOLDER / f"{args.name}.sh")

    def differences(self, args: Args, observed: files.FileState) -> list[Change]:
        return files.differences(_intended_file(args.content), observed)

    def describe(self, args: Args, observed: files.FileState) -> dict[str, Any]:
        return {"path": str(observed.path)}

    def run(self, args: Args, context: Context) -> Result:
        state = _find_verified_folder(args.name, context)
        verified_state = verified_states.load_last(state) if state else VerifiedState()
        saved_script = verified_state.script
        result = super().run(dataclasses.replace(args, content=args.content or saved_script), context)
        if state and args.content not in ("", saved_script) and not context.check:
            state.write("verified", dataclasses.replace(verified_state, script=args.content).to_json())
        if not (orphaned_scripts := _find_orphaned_scripts(args.name, context)):
            return result
        for path in orphaned_scripts if not context.check else ():
            path.unlink(missing_ok=True)
        diff = [*result.diff, *(Change(f"script of {path.stem}", "file", "absent") for path in orphaned_scripts)]
        return dataclasses.replace(result, changed=True, diff=diff)

    def act(self, args: Args, observed: files.FileState, changes: list[Change], context: Context) -> dict[str, Any]:
        files.apply(_intended_file(args.content), observed)
        return {}


def _intended_file(text: str) -> files.IntendedState:
    return files.IntendedState("file", SCRIPT_MODE, content=text) if text else files.IntendedState("absent")


def _find_orphaned_scripts(name: str, context: Context) -> list[Path]:
    """Return the scripts written by sparkwright for servers that have no container and no verified state.

    In check mode this includes the script of the server that is replaced.
    """
    replaces_server = context.check and name not in RESERVED_NAMES  # a gateway replaces no server
    replaced_container = replacement.find_current(context, name) if replaces_server else {}
    replaced_name = containers.name_of(replaced_container) if replaced_container else name
    states = [gateway_folders.state_of(context), *context.state.servers()]
    verified_names = {str(verified_states.load_last(state).spec.get("name")) for state in states}
    return [
        path
        for path in sorted((context.machine.home / RUN_SCRIPT_FOLDER).glob("*.sh"))
        if path.stem not in verified_names - {replaced_name} | {name}
        and OWN_FILE_MARK in (files.FileState.read(path).content or "")
        and (path.stem == replaced_name or containers.inspect(context.docker(), path.stem) is None)
    ]


def _find_verified_folder(name: str, context: Context) -> StateFolder | None:
    """Return the state folder, of the server or the gateway, whose last verified container is the current one."""
    container = containers.inspect(context.docker(), name)
    if container is None:
        return None
    for state in (context.state, gateway_folders.state_of(context)):
        if verified_states.load_last(state).container_id == container["Id"]:
            return state
    return None


class GrantRestartPrevious(StateModule["GrantRestartPrevious.Args", dict[str, Any]]):
    """Set the restart policy that the previous server had, after the server was restored and verified again.

    Returns: container_id. Fails if the container is not running.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        restart: str = arg("the policy that `restore_previous` returned", default="no")
        why: str = arg("why the server was restored, for the history", default="")
        what: str = arg("the action to record in the history", default="restored")

    def read(self, args: Args, context: Context) -> dict[str, Any]:
        return replacement.find_current(context, args.name)

    def differences(self, args: Args, observed: dict[str, Any]) -> list[Change]:
        policy = observed["HostConfig"]["RestartPolicy"]["Name"] if observed else None
        intended_policy = mount_sources.restart_policy(observed, args.restart)
        nested_mounts_reason = (
            "its mounts are nested, so Docker must not restart it; `invoke deploy` replaces the container"
        )
        reason = "verified again" if intended_policy == args.restart else nested_mounts_reason
        return [Change("restart", policy, intended_policy, reason)] if policy != intended_policy else []

    def describe(self, args: Args, observed: dict[str, Any]) -> dict[str, Any]:
        return {"container_id": observed.get("Id", "")}

    def run(self, args: Args, context: Context) -> Result:
        if not context.check:
            lifecycle.require_running(self.read(args, context), args.name)
        result = super().run(args, context)
        if not context.check:
            context.guards.end_verified()
            compile_caches.save_verified(context, self.read(args, context))
            service_guard.write_configuration(context)
            host_outage.clear_forbidden(
                context.state, verified_states.find_spec(context.state, result.data["container_id"])
            )
            stopped_server.remove(context.state)
            history.append(context, args.what, **_history_fields(result.data["container_id"], context), why=args.why)
        return result

    def act(self, args: Args, observed: dict[str, Any], changes: list[Change], context: Context) -> dict[str, Any]:
        lifecycle.set_policy(context, observed, changes[0].after)
        return {}


def _history_fields(container_id: str, context: Context) -> dict[str, Any]:
    """Return the history fields of the restored server: its container, and its image and model if it was verified."""
    verified_state = verified_states.load_last(context.state)
    if verified_state.container_id != container_id:
        return {"container_id": container_id}
    model = verified_state.model
    fields = {"image": verified_state.spec.get("image"), "model": model.get("id"), "commit": model.get("commit")}
    return {"container_id": container_id, **fields}
