"""Inspecting a server's container, with its state, exit and log, and the facts that explain a rate, without any changes."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparkwright.doctor.diagnosis.server_probe import Measured
from sparkwright.doctor.diagnosis.server_state import LINE_CHARS, DiagnosisInput, End, RecipeFacts
from sparkwright.engines import advice, slowness
from sparkwright.engines import http as roles
from sparkwright.engines.log.reader import Reader
from sparkwright.engines.log.text import plain
from sparkwright.errors import SparkwrightError
from sparkwright.health import current_state, snapshot
from sparkwright.health.judging.observation import Limits
from sparkwright.health.probe import url_of_spec
from sparkwright.health.record import Container
from sparkwright.health.store import CheckHistory
from sparkwright.host import evidence, gpu_processes
from sparkwright.host.containers import container_labels, containers, crash_loop, engine_socket, log_reader
from sparkwright.host.memory import host_lost
from sparkwright.host.module import Context
from sparkwright.host.records import turns
from sparkwright.host.runs import journal, lock
from sparkwright.host.runs.context import SocketDenied
from sparkwright.measure import http_probe
from sparkwright.measure.http_probe import risen
from sparkwright.visible import one_line

#: number of lines read from the end of a log
LINES = 2000
#: number of characters kept from the end of Docker's error for a failed start, where the reason is
ERROR_CHARS = 500
#: how long Docker waits at least before it restarts a container, in seconds
RESTARTS_S = 0.1


def inspect_server(
    context: Context, good: Mapping[str, Any], name: str, limits: Limits, now_s: float
) -> DiagnosisInput:
    """Inspect the server.

    Args:
        good: the last verified state.
        name: the recipe's container, used if nothing was verified.
    """
    verified = str((good.get("spec") or {}).get("name", ""))
    found = DiagnosisInput(
        now_s,
        engine=container_labels.engine_of_spec(good.get("spec")),
        name=verified or name,
        known=bool(good),
        allowed_s=current_state.allowed_s(good, limits),
        ready_s=snapshot.ready_s(good),
        box=Container(verified or name),
        booted_s=_booted_s(context, now_s),
        lost=str(host_lost.remembered(context.state).get("why", "")),
    )
    found = _with_runs(found, context)
    for item in dict.fromkeys((verified, name)):
        if item and found.box.status in ("", "absent") and not found.engine_error:
            found = _with_container(found, context, good, item)
    return found


def _booted_s(context: Context, now_s: float) -> float | None:
    """Return the time of the host's last boot, or None if its uptime can't be read."""
    try:
        return now_s - float(context.machine.path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def url_of(seen: DiagnosisInput, good: Mapping[str, Any]) -> str:
    """Return the URL that the server's container publishes, or else the verified server's; empty if neither is known."""
    if seen.inspected:
        return containers.url_of(dict(seen.inspected))
    return url_of_spec(good["spec"]) if good else ""


def again(seen: DiagnosisInput, context: Context, good: Mapping[str, Any]) -> DiagnosisInput:
    """Inspect the same container a moment later."""
    return _with_container(replace(seen, log=None), context, good, seen.box.name)


def _with_runs(seen: DiagnosisInput, context: Context) -> DiagnosisInput:
    """Add the run that is in progress on the host, or the one that was interrupted."""
    owner, alive = lock.inspect(context.state)
    if owner is None or owner.run == context.run_id:
        return seen
    if alive:
        return replace(seen, busy=str(owner))
    return replace(seen, cut_off=str(owner)) if journal.unfinished(context.state, owner) else seen


def _with_container(seen: DiagnosisInput, context: Context, good: Mapping[str, Any], name: str) -> DiagnosisInput:
    seen = replace(seen, asleep=turns.in_place_of(context.state))
    try:
        inspected = containers.inspect(context.docker(), name)
        if inspected is None:
            return replace(seen, box=Container(name, status="absent"))
        box = snapshot.container_of(inspected, str(good.get("container_id", "")))
    except SparkwrightError as error:
        return replace(seen, engine_error=_engine_error(context, error), engine_fix=error.fix)
    except Exception as error:  # exceptions of docker and requests, for an engine that hangs or sends an invalid answer
        return replace(seen, engine_error=engine_socket.silent(error))
    broken = CheckHistory.of(context.state).stopped_for(box.id, good)
    loops = box.exit_code or box.status != "exited"
    loop = crash_loop.verdict_now(inspected, context) if loops else ""
    found = replace(
        seen,
        engine=container_labels.engine_of_container(inspected),
        box=box,
        inspected=inspected,
        end=end_of(inspected),
        loop=loop,
        broken=broken,
    )
    return _with_drift(_with_log(found, context), context, good)


def _engine_error(context: Context, error: SparkwrightError) -> str:
    message = error.message.rstrip(".")
    if not isinstance(error, SocketDenied) and shutil.which("docker", path=context.machine.env.get("PATH")) is None:
        return f"{message} (docker is not installed)"
    return message


def end_of(inspected: Mapping[str, Any]) -> End:
    """Return the last exit of the container, as recorded by Docker; empty if it has never exited."""
    state = inspected["State"]
    at_s = containers.moment(str(state.get("FinishedAt") or ""))
    known = (
        at_s is not None and state.get("Status") != "running"
    )  # Docker discards it when it starts the container again
    code = state.get("ExitCode") if known and isinstance(state.get("ExitCode"), int) else None
    why = one_line(str(state.get("Error") or ""), at_most=ERROR_CHARS)
    return End(code, at_s, out_of_memory=state.get("OOMKilled") is True, error=why)


# -- its log -----------------------------------------------------------------------------------------------------------


def _with_log(seen: DiagnosisInput, context: Context) -> DiagnosisInput:
    """Add the log of the current start, and the failure of the last start that exited."""
    box = seen.box
    try:
        now = evidence.log(context, box.name) if box.status != "created" else None
        before = _before(seen, context)
    except Exception:  # a log driver without logs, or an engine that goes away; the rest is still reported
        return seen
    reader = Reader(seen.engine.log)
    reader.push("\n".join(before).encode())
    failure = reader.finish().failure
    answer = [line for line in before if line.strip()]
    last = one_line(answer[-1].strip(), at_most=LINE_CHARS) if answer else ""
    return replace(seen, log=now, failure=failure, last_line=last)


def _before(seen: DiagnosisInput, context: Context) -> list[str]:
    """Return the last lines of the start that exited last, without those of the current start."""
    if seen.box.status == "running" and not seen.box.restarts:
        return []
    raw = log_reader.end(context.docker(), seen.box.name, LINES, until_s=_until_s(seen))
    return plain(raw.decode(errors="replace")).splitlines()


def _until_s(seen: DiagnosisInput) -> float | None:
    """Return the time at which the last exited start ended, if another start may have followed; otherwise None."""
    if seen.box.status == "running":
        return containers.moment(str(seen.inspected["State"].get("StartedAt") or ""))
    if seen.box.status == "restarting" and seen.end.at_s is not None:
        return seen.end.at_s + RESTARTS_S
    return None


def _with_drift(seen: DiagnosisInput, context: Context, good: Mapping[str, Any]) -> DiagnosisInput:
    if seen.busy or not good or good["spec"].get("name") != seen.box.name:
        return seen
    try:
        return replace(seen, drift=snapshot.drift_found(context, good, dict(seen.inspected)))
    except Exception as error:
        return replace(seen, drift_error=f"cannot compare with the verified state: {type(error).__name__}")


def seen(
    context: Context,
    facts: RecipeFacts,
    good: Mapping[str, Any],
    server: DiagnosisInput,
    found: Measured | None,
    url: str,
) -> slowness.Seen:
    """Return the facts about an inspected server. found, url: the measurement and URL, if it was measured."""
    config = server.inspected.get("Config") or {}
    words = [*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())]
    command, advises = server.engine.command([str(word) for word in words]), server.engine.advice
    env = dict(str(item).partition("=")[::2] for item in config.get("Env") or ())
    folder = _model_folder(context, good, server, command.model)
    model = evidence.model_config(folder) if folder and folder.is_dir() else {}
    version = advises.version(_version(server, url))
    file = {"model": command.model} if server.engine.files else {}
    box = {"network": str((server.inspected.get("HostConfig") or {}).get("NetworkMode") or "")}
    flags = {**command.flags, **file}
    reported = advice.ServerRequest(flags, str(config.get("Image") or ""), facts.platform, env, container=box)
    measured = found or Measured()
    on_gpu, on_gpu_why = _on_gpu(context, server)
    return slowness.Seen(
        engine=server.engine,
        on_gpu=on_gpu,
        on_gpu_why=on_gpu_why,
        gpu=measured.gpu.sentence,
        gpu_degraded=measured.gpu_degraded,
        log=server.log.to_json() if server.log is not None else None,
        ollama=evidence.ollama(context),
        memory=evidence.memory(context),
        busy=http_probe.busy_requests(measured.before),
        kv_used=measured.after.get(roles.KV_CACHE_USED),
        preempted=risen(measured.before, measured.after, roles.PREEMPTIONS),
        acceptance=measured.acceptance,
        findings=advises.check(reported, model, version) if server.inspected else (),
        flags=command.flags,
        model=str((good.get("model") or {}).get("id", "")) or facts.model_id or command.model,
        thought=measured.thought,
        answered=measured.answered,
        budget=advises.effective(reported, model, version).budget if server.inspected else None,
    )


def _on_gpu(context: Context, server: DiagnosisInput) -> tuple[bool | None, str]:
    """Return whether a running container computes on the GPU that it requests, and the evidence.

    The first value is None if that is unknown, or if it requests no GPU.
    """
    asks = (server.inspected.get("HostConfig") or {}).get("DeviceRequests")
    if not asks or server.box.status != "running":
        return None, ""
    use = gpu_processes.inspect(server.box.name, context)
    return {"gpu": True, "no gpu": False}.get(use.verdict), use.why


def _version(server: DiagnosisInput, url: str) -> str | None:
    """Return the engine's version from the log, or else from the server."""
    answer = server.log.value("version") if server.log is not None else None
    found = answer or (http_probe.version(server.engine.http, url) if url else None)
    return str(found) if found else None


def _model_folder(context: Context, good: Mapping[str, Any], server: DiagnosisInput, model: str) -> Path | None:
    """Return the model's folder on the host, which is the source of the mount at the engine's model path."""
    for bind in (server.inspected.get("HostConfig") or {}).get("Binds") or ():
        source, _, target = str(bind).partition(":")
        inside = target.partition(":")[0]
        if inside and (model == inside or model.startswith(f"{inside}/")):
            return Path(source) / model[len(inside) :].lstrip("/")
    folder = (good.get("model") or {}).get("dir") if server.box.verified else None
    return context.machine.expand(str(folder)) if folder else None
