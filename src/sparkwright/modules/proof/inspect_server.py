"""Module that compares the running container with the recipe before it is tested."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkwright import defaults
from sparkwright.engines import openai_api
from sparkwright.engines.log.reader import LogReader, read_log
from sparkwright.errors import Exit
from sparkwright.host.containers import (
    container_labels,
    container_options,
    containers,
    log_reader,
    server_key,
)
from sparkwright.host.containers.inspection import describe_status
from sparkwright.host.containers.running_server import RunningContainer, describe_exit_age, start_identity
from sparkwright.host.module import Context, Module
from sparkwright.host.records import turns, verified_states
from sparkwright.host.records.verified_states import VerifiedState
from sparkwright.measure import http_probe
from sparkwright.modules.server.container import ContainerState, find_drift, verified_spec
from sparkwright.protocol.container import FINGERPRINT_PREFIX, SECRET_PREFIX, ContainerSpec
from sparkwright.protocol.result import Change, Result, arg
from sparkwright.trust import container_option_rules
from sparkwright.trust.image_name import digest_of, with_digest, without_digest
from sparkwright.visible import format_count

MAX_EVIDENCE_LINES = 8
#: expectations for a server without a verified state
NO_EXPECTATIONS: dict[str, Any] = {
    "served_name": "",
    "tok_per_s": None,
    "baseline_key": {},
    "probes": [],
    "depths": [],
    "adapters": [],
    "log": {"chunked_prefill": "any", "note": "", "expect": [], "forbid": [], "unknown": "fail"},
}


class InspectServer(Module["InspectServer.Args"]):
    """Report the running container's configuration and its differences from the recipe. Generates nothing, changes nothing.

    Image, flags, address and model folder are the container's own. The expected values are the recipe's if the container
    matches it, otherwise those of its verified state; a container that was never verified has none, and its throughput is
    not compared. If the run does not have the server's key, only whether there is one is compared. A worker of a cluster
    has no API and is not queried.

    Returns: name, id, start (for `same_server`), image, flags, base_url, port, loopback (reachable from the host only),
    model_dir, models (context length of each name, null if unknown), server_key (whether clients need one), verified,
    expected (served_name, tok_per_s, baseline_key, probes, depths, adapters, log), drift (fields), checks (for `verdict`).

    Fails if there is no such container, or, with the end of its log, if it has exited, keeps exiting or does not answer.
    Inconclusive, with duration and stage, if its log shows that it is still starting, or shows no stage yet within the
    recipe's `ready_s`.
    """

    valid_in_check_mode = False

    @dataclass(frozen=True)
    class Args:
        spec: dict[str, Any] = arg("the container, in the format of the variable `container`")
        model: dict[str, Any] = arg("its model, with commit and files", default_factory=dict)
        serve: dict[str, Any] = arg(
            "the recipe's expectations, in the format of the variable `serve`", default_factory=dict
        )
        base_url: str = arg("the server's URL, for a container that publishes no port", default="")
        recipe: str = arg("the recipe's name, for messages", default="")
        host: str = arg("the host's name, for messages", default="")

    def run(self, args: Args, context: Context) -> Result:
        client, verified_state = context.docker(), verified_states.load_last(context.state)
        name = str(args.spec["name"])
        container = containers.inspect(client, name)
        if container is None and verified_state:
            name = verified_state.spec["name"]
            container = containers.inspect(client, name)
        if container is None or container["State"]["Status"] != "running":
            turns.require_awake(context.state)
        if container is None:
            return _absent_result(args, context)
        if container["State"]["Status"] != "running":
            return _exited_result(name, container, context)
        server = RunningContainer(container, containers.image_of(client, container))
        is_worker = container_labels.membership_of_labels(args.spec.get("labels")).rank > 0
        url = "" if is_worker else server.url or args.base_url
        http = container_labels.engine_of_container(container).http
        health = None if is_worker else http_probe.send_request(url, http.health_path, timeout_s=http.health_timeout_s)
        if health is not None and (health.status == 0 or health.status in http.loading_statuses):
            return _silent_result(args, server, url, health.error or f"HTTP {health.status}", context)
        is_verified = server.id == verified_state.container_id
        changes = _find_drift(args, server, verified_state, context)
        is_pinned = "@" in str(args.spec["image"])
        key = server_key.read_container_key(context.state, container)
        answer = None if is_worker else http_probe.send_request(url, http.models_path, api_key=key)
        models = openai_api.parse_models(http, answer.json()) if answer is not None and answer.status == 200 else {}
        expectations = _build_expectations(
            args, verified_state if is_verified else VerifiedState(), changes, is_pinned=is_pinned
        )
        served_name = expectations["served_name"] or next(iter(models), "")
        property_names = ("name", "id", "image", "flags", "model_dir", "loopback")
        data = {
            **{name: getattr(server, name) for name in property_names},
            "start": start_identity(container),
            "base_url": url,
            "models": models,
            "port": server.port or int(url.rpartition(":")[2] or 0),
            "verified": is_verified,
            "server_key": bool(key or container_options.key_fingerprint(container)),
            "expected": {**expectations, "served_name": served_name},
            "drift": [dataclasses.asdict(change) for change in changes],
            "checks": _drift_rows(args, changes, server, is_pinned=is_pinned),
        }
        return Result(msg=_describe_server(args, server, changes), data=data)


def _find_drift(
    args: InspectServer.Args, server: RunningContainer, verified_state: VerifiedState, context: Context
) -> list[Change]:
    spec = ContainerSpec.from_json(args.spec)
    is_secret, secret_name = spec.server_key.startswith(SECRET_PREFIX), spec.server_key.removeprefix(SECRET_PREFIX)
    if is_secret and not context.secrets.get(secret_name):  # without the secret, assume that the key is right
        fingerprint = container_options.key_fingerprint(server.container) or "unknown"
        spec = dataclasses.replace(spec, server_key=FINGERPRINT_PREFIX + fingerprint)
    spec = server_key.resolve_key(spec, context)
    verified_id, model = verified_state.container_id, verified_state.model
    state = ContainerState(
        spec, server.container, server.image_inspect, verified_id, model, verified_spec(verified_state)
    )
    changes = find_drift(args.model, state)
    if not digest_of(spec.image) and without_digest(server.image) != spec.image:
        changes.insert(0, Change("image", server.image, spec.image, "spark.lock has no digest for it"))
    return changes


def _build_expectations(
    args: InspectServer.Args, verified_state: VerifiedState, changes: list[Change], *, is_pinned: bool
) -> dict[str, Any]:
    """Return the expectations for the running server.

    Args:
        verified_state: empty if it was never verified.
        is_pinned: whether the recipe's image has a digest.
    """
    serve: Mapping[str, Any] = {} if changes else {**args.serve, "baseline_key": {}}
    if not changes and is_pinned and args.serve:
        serve = args.serve
    elif verified_state.serve.get("baseline_key"):
        serve = verified_state.serve
    expectations = {name: serve.get(name, default) for name, default in NO_EXPECTATIONS.items()}
    return {**expectations, "log": {**NO_EXPECTATIONS["log"], **(expectations["log"] or {})}}


def _drift_rows(
    args: InspectServer.Args, changes: list[Change], server: RunningContainer, *, is_pinned: bool
) -> list[dict[str, str]]:
    """Return the differences as rows for `verdict`, with the command that applies them in the last row."""
    recipe_name = f"recipe {args.recipe}" if args.recipe else "the recipe"
    rows = []
    for change in changes:
        evidence = f"runs {_format_value(change.before)}; {recipe_name}: {_format_value(change.after)}"
        rows.append({"check": change.field, "verdict": "differs", "evidence": evidence})
    if rows:
        # a member of a cluster cannot be deployed alone
        cluster = container_labels.membership_of_labels(args.spec.get("labels")).cluster
        deploy_command = f"`invoke deploy --host {cluster or args.host or 'HOST'}`"
        rows[-1]["fix"] = f"apply with {deploy_command}; `invoke plan` shows the changes first"
        return rows
    if not is_pinned:
        message = f"runs {server.image}; spark.lock has no digest to compare it with"
        return [{"check": "image", "verdict": "not found", "evidence": message}]
    message = f"container {server.name}: image and arguments match {recipe_name}"
    return [{"check": "recipe", "verdict": "proved", "evidence": message}]


def _format_value(value: Any) -> str:
    return "none" if value is None else "on" if value == "" else str(value)


def _describe_server(args: InspectServer.Args, server: RunningContainer, changes: list[Change]) -> str:
    server_and_image = f"{server.name}: {with_digest(without_digest(server.image), digest_of(server.image)[:19])}"
    if not changes:
        return f"{server_and_image}, matches the recipe"
    return f"{server_and_image}; differs from recipe {args.recipe}: {', '.join(change.field for change in changes)}"


# -- no server -------------------------------------------------------------------------------------------------------


def _absent_result(args: InspectServer.Args, context: Context) -> Result:
    bindings = container_option_rules.port_bindings(tuple(args.spec.get("ports") or ()))
    port = next((int(row["HostPort"]) for rows in bindings.values() for row in rows), 0)
    holder = containers.describe_port_holder(context.docker(), port) if port else ""
    conflict = f" Port {port} is in use by {holder}." if holder else ""
    cluster = container_labels.membership_of_labels(args.spec.get("labels")).cluster
    fix = f"`invoke deploy --host {cluster or args.host or 'HOST'}` starts it."
    return Result(failed=True, msg=f"no server: there is no container {args.spec['name']}.{conflict}", fix=fix)


def _exited_result(name: str, container: dict[str, Any], context: Context) -> Result:
    state, restart_count = container["State"], int(container.get("RestartCount") or 0)
    exit_reason = f"exit code {state.get('ExitCode')}" + (", OOM-killed" if state.get("OOMKilled") else "")
    if state["Status"] == "paused":
        message = f"{name} is paused"
    elif state["Status"] == "restarting":
        message = f"{name} keeps exiting ({exit_reason}), restart {restart_count} in progress"
    else:
        message = f"{name} {describe_status(state['Status'])} ({exit_reason}, {describe_exit_age(container)})"
    return _no_server_result(message, container, context)


def _silent_result(
    args: InspectServer.Args, server: RunningContainer, url: str, error: str, context: Context
) -> Result:
    """Return the result for a running container that does not answer: inconclusive if it is starting, otherwise failed."""
    restart_count = int(server.container.get("RestartCount") or 0)
    stage = "" if restart_count else _start_stage(args, server, context)
    if stage:
        message = f"{server.name} has been starting for {server.age_s:.0f} s ({stage}); nothing answers at {url} yet."
        return Result(
            failed=True, exit=Exit.INCONCLUSIVE, msg=message, fix="Check again once `invoke status` reports ok."
        )
    restart_note = f", after {format_count(restart_count, 'restart')}" if restart_count else ""
    message = (
        f"{server.name} has been running for {server.age_s:.0f} s{restart_note}; nothing answers at {url} ({error})"
    )
    return _no_server_result(message, server.container, context)


def _start_stage(args: InspectServer.Args, server: RunningContainer, context: Context) -> str:
    """Return the stage of the start in the engine's log; empty if the server was ready, has failed or exceeds its limit.

    The limit, `expect.ready_s` of the recipe, is used if the log has no stage.
    """
    reader = LogReader(container_labels.engine_of_container(server.container).log)
    for chunk in log_reader.StartLog(context.docker(), server.name):
        reader.push(chunk)
    state = reader.finish()
    if state.ready or state.failure.value or state.reading("stopped").value:
        return ""
    done, total = state.shards
    shard_note = f", {done} of {total} shards" if total and done < total else ""
    if state.stage:
        return f"{state.stage}{shard_note}"
    return "no stage in its log yet" if server.age_s <= args.serve.get("ready_s", defaults.READY_TIMEOUT_S) else ""


def _no_server_result(message: str, container: Mapping[str, Any], context: Context) -> Result:
    """Return the failure, with the reason and the last lines of the engine's log."""
    name = containers.name_of(container)
    lines = [line.rstrip() for line in log_reader.read_last_lines(context.docker(), name, 200) if line.strip()]
    failure = read_log("\n".join(lines), container_labels.engine_of_container(container).log).failure.value
    reason = f": {failure}" if failure else ""
    data = {"evidence": lines[-MAX_EVIDENCE_LINES:]}
    return Result(
        failed=True, msg=f"no server: {message}{reason.rstrip('.')}.", fix="Run `invoke diagnose`.", data=data
    )
