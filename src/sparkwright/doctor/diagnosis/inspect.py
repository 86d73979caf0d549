"""Inspect a server's container (state, last exit, log) and gather facts that explain its rate, without changing anything."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparkwright.doctor.diagnosis.server_probe import Measurement
from sparkwright.doctor.diagnosis.server_state import MAX_LINE_CHARS, ContainerExit, DiagnosisInput, RecipeFacts
from sparkwright.engines import advice, slowness
from sparkwright.engines import http as engine_http
from sparkwright.engines.log.reader import LogReader
from sparkwright.engines.log.text import strip_terminal_codes
from sparkwright.errors import SparkwrightError
from sparkwright.health import current_state, snapshot
from sparkwright.health.judging.observation import Limits
from sparkwright.health.probe import server_url
from sparkwright.health.record import Container
from sparkwright.health.store import CheckHistory
from sparkwright.host import evidence, gpu_processes
from sparkwright.host.containers import container_labels, containers, crash_loop, engine_socket, log_reader
from sparkwright.host.memory import host_outage
from sparkwright.host.module import Context
from sparkwright.host.records import turns
from sparkwright.host.records.verified_states import VerifiedState
from sparkwright.host.runs import journal, lock
from sparkwright.host.runs.context import SocketDenied
from sparkwright.measure import http_probe, server_counters
from sparkwright.measure.server_counters import counter_increase
from sparkwright.visible import one_line

#: number of lines read from the end of a log
MAX_LOG_LINES = 2000
#: number of characters kept from the end of Docker's error for a failed start, which states the reason
MAX_ERROR_CHARS = 500
#: minimum time that Docker waits before it restarts a container, in seconds
MIN_RESTART_DELAY_S = 0.1


def inspect_server(
    context: Context, verified_state: VerifiedState, name: str, limits: Limits, now_s: float
) -> DiagnosisInput:
    """Inspect the server.

    Args:
        verified_state: the last verified state.
        name: name of the recipe's container, used if nothing has been verified.
    """
    verified_name = verified_state.spec.get("name", "")
    server = DiagnosisInput(
        now_s,
        engine=container_labels.engine_of_spec(verified_state.spec),
        name=verified_name or name,
        was_verified=bool(verified_state),
        max_start_s=current_state.start_limit_s(verified_state, limits),
        ready_s=snapshot.ready_s(verified_state),
        container=Container(verified_name or name),
        booted_s=_booted_s(context, now_s),
        host_outage=str(host_outage.read_last_outage(context.state).get("why", "")),
    )
    server = _with_runs(server, context)
    for container_name in dict.fromkeys((verified_name, name)):
        if container_name and server.container.status in ("", "absent") and not server.engine_error:
            server = _with_container(server, context, verified_state, container_name)
    return server


def _booted_s(context: Context, now_s: float) -> float | None:
    """Return the time of the host's last boot, or None if its uptime can't be read."""
    try:
        return now_s - float(context.machine.path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def diagnosed_url(server: DiagnosisInput, verified_state: VerifiedState) -> str:
    """Return the URL that the server's container publishes, or else the verified server's; empty if neither is known."""
    if server.inspected:
        return containers.url_of(dict(server.inspected))
    return server_url(verified_state.spec) if verified_state else ""


def inspect_again(server: DiagnosisInput, context: Context, verified_state: VerifiedState) -> DiagnosisInput:
    """Inspect the same container a moment later."""
    return _with_container(replace(server, log=None), context, verified_state, server.container.name)


def _with_runs(server: DiagnosisInput, context: Context) -> DiagnosisInput:
    """Add the run that is in progress on the host, or else an interrupted one."""
    owner, is_alive = lock.inspect(context.state)
    if owner is None or owner.run == context.run_id:
        return server
    if is_alive:
        return replace(server, active_run=str(owner))
    return replace(server, interrupted_run=str(owner)) if journal.is_unfinished(context.state, owner) else server


def _with_container(
    server: DiagnosisInput, context: Context, verified_state: VerifiedState, name: str
) -> DiagnosisInput:
    server = replace(server, awake_server=turns.other_awake_server(context.state))
    try:
        inspected = containers.inspect(context.docker(), name)
        if inspected is None:
            return replace(server, container=Container(name, status="absent"))
        container = snapshot.parse_container(inspected, verified_state.container_id)
    except SparkwrightError as error:
        return replace(server, engine_error=_engine_error(context, error), engine_fix=error.fix)
    except Exception as error:  # raised by docker or requests: the engine hangs or its answer is invalid
        return replace(server, engine_error=engine_socket.no_answer_message(error))
    loop_stop_reason = CheckHistory.load(context.state).loop_stop_reason(container.id, verified_state)
    may_loop = container.exit_code or container.status != "exited"
    crash_loop_reason = crash_loop.find_stop_reason(inspected, context) if may_loop else ""
    observed = replace(
        server,
        engine=container_labels.engine_of_container(inspected),
        container=container,
        inspected=inspected,
        last_exit=last_exit(inspected),
        crash_loop_reason=crash_loop_reason,
        loop_stop_reason=loop_stop_reason,
    )
    return _with_drift(_with_log(observed, context), context, verified_state)


def _engine_error(context: Context, error: SparkwrightError) -> str:
    message = error.message.rstrip(".")
    if not isinstance(error, SocketDenied) and shutil.which("docker", path=context.machine.env.get("PATH")) is None:
        return f"{message} (docker is not installed)"
    return message


def last_exit(inspected: Mapping[str, Any]) -> ContainerExit:
    """Return the last exit of the container, as recorded by Docker; empty if it has never exited."""
    state = inspected["State"]
    at_s = containers.parse_time(str(state.get("FinishedAt") or ""))
    # Docker discards the exit code when it starts the container again
    is_known = at_s is not None and state.get("Status") != "running"
    code = state.get("ExitCode") if is_known and isinstance(state.get("ExitCode"), int) else None
    error = one_line(str(state.get("Error") or ""), max_chars=MAX_ERROR_CHARS)
    return ContainerExit(code, at_s, out_of_memory=state.get("OOMKilled") is True, error=error)


# -- the container's log -----------------------------------------------------------------------------------------------


def _with_log(server: DiagnosisInput, context: Context) -> DiagnosisInput:
    """Add the log of the current start, and the failure of the last start that has ended."""
    container = server.container
    try:
        current_log = evidence.read_engine_state(context, container.name) if container.status != "created" else None
        previous_lines = _previous_log_lines(server, context)
    except Exception:  # the log driver keeps no logs, or the engine went away; the rest is still reported
        return server
    reader = LogReader(server.engine.log)
    reader.push("\n".join(previous_lines).encode())
    failure = reader.finish().failure
    nonempty_lines = [line for line in previous_lines if line.strip()]
    last_line = one_line(nonempty_lines[-1].strip(), max_chars=MAX_LINE_CHARS) if nonempty_lines else ""
    return replace(server, log=current_log, failure=failure, last_line=last_line)


def _previous_log_lines(server: DiagnosisInput, context: Context) -> list[str]:
    """Return the last log lines of the most recent start that has ended, without those of the current start."""
    if server.container.status == "running" and not server.container.restarts:
        return []
    log_bytes = log_reader.read_tail(
        context.docker(), server.container.name, MAX_LOG_LINES, until_s=_previous_exit_s(server)
    )
    return strip_terminal_codes(log_bytes.decode(errors="replace")).splitlines()


def _previous_exit_s(server: DiagnosisInput) -> float | None:
    """Return a time between the last exit and the start that may have followed it; None if none can have followed."""
    if server.container.status == "running":
        return containers.parse_time(str(server.inspected["State"].get("StartedAt") or ""))
    if server.container.status == "restarting" and server.last_exit.at_s is not None:
        return server.last_exit.at_s + MIN_RESTART_DELAY_S
    return None


def _with_drift(server: DiagnosisInput, context: Context, verified_state: VerifiedState) -> DiagnosisInput:
    if server.active_run or not verified_state or verified_state.spec.get("name") != server.container.name:
        return server
    try:
        return replace(server, drift=snapshot.find_drift(context, verified_state, dict(server.inspected)))
    except Exception as error:
        return replace(server, drift_error=f"cannot compare with the verified state: {type(error).__name__}")


def build_rate_facts(
    context: Context,
    recipe_facts: RecipeFacts,
    verified_state: VerifiedState,
    server: DiagnosisInput,
    measurement: Measurement | None,
    url: str,
) -> slowness.SlownessEvidence:
    """Return the facts that can explain the rate of an inspected server.

    Args:
        measurement: the measurement; None if the server was not measured.
        url: the server's URL; empty if the server was not measured.
    """
    config = server.inspected.get("Config") or {}
    words = [*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())]
    command, advisor = server.engine.parse_command([str(word) for word in words]), server.engine.advice
    env = dict(str(item).partition("=")[::2] for item in config.get("Env") or ())
    folder = _model_folder(context, verified_state, server, command.model)
    model = evidence.read_model_config(folder) if folder and folder.is_dir() else {}
    version = advisor.version(_engine_version(server, url))
    model_flag = {"model": command.model} if server.engine.files else {}
    container_settings = {"network": str((server.inspected.get("HostConfig") or {}).get("NetworkMode") or "")}
    flags = {**command.flags, **model_flag}
    request = advice.ServerRequest(
        flags, str(config.get("Image") or ""), recipe_facts.platform, env, container=container_settings
    )
    measured = measurement or Measurement()
    on_gpu, on_gpu_evidence = _runs_on_gpu(context, server)
    return slowness.SlownessEvidence(
        engine=server.engine,
        on_gpu=on_gpu,
        on_gpu_evidence=on_gpu_evidence,
        gpu_state=measured.gpu.sentence,
        gpu_degraded=measured.gpu_degraded,
        log=server.log.to_json() if server.log is not None else None,
        ollama_models=evidence.list_ollama_models(context),
        meminfo=evidence.read_meminfo(context),
        active_requests=server_counters.count_active_requests(measured.counters_before),
        kv_cache_share=measured.counters_after.get(engine_http.KV_CACHE_USED),
        preemptions=counter_increase(measured.counters_before, measured.counters_after, engine_http.PREEMPTIONS),
        accepted_per_draft=measured.acceptance,
        findings=advisor.check(request, model, version) if server.inspected else (),
        flags=command.flags,
        model=verified_state.model.get("id") or recipe_facts.model_id or command.model,
        thinking_tokens=measured.reasoning_tokens,
        answer_tokens=measured.response_tokens,
        budget=advisor.effective_settings(request, model, version).budget if server.inspected else None,
    )


def _runs_on_gpu(context: Context, server: DiagnosisInput) -> tuple[bool | None, str]:
    """Return whether a running container computes on the GPU that it requests, and the evidence.

    The first value is None if that is unknown, or if it requests no GPU.
    """
    device_requests = (server.inspected.get("HostConfig") or {}).get("DeviceRequests")
    if not device_requests or server.container.status != "running":
        return None, ""
    gpu_use = gpu_processes.inspect(server.container.name, context)
    return {"gpu": True, "no gpu": False}.get(gpu_use.verdict), gpu_use.reason


def _engine_version(server: DiagnosisInput, url: str) -> str | None:
    """Return the engine's version from the log, or else from the server."""
    logged_version = server.log.value("version") if server.log is not None else None
    engine_version = logged_version or (
        http_probe.query_version(http_probe.Target(server.engine.http, url)) if url else None
    )
    return str(engine_version) if engine_version else None


def _model_folder(context: Context, verified_state: VerifiedState, server: DiagnosisInput, model: str) -> Path | None:
    """Return the model's folder on the host, which is the source of the mount at the engine's model path."""
    for bind in (server.inspected.get("HostConfig") or {}).get("Binds") or ():
        source, _, target = str(bind).partition(":")
        container_path = target.partition(":")[0]
        if container_path and (model == container_path or model.startswith(f"{container_path}/")):
            return Path(source) / model[len(container_path) :].lstrip("/")
    folder = verified_state.model.get("dir") if server.container.verified else None
    return context.machine.expand(str(folder)) if folder else None
