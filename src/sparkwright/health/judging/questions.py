"""The questions of a health check: a table of pure functions, each of which evaluates one aspect of an observation.

Each answer carries evidence. An aspect that can't be evaluated is `unknown`, which never counts as good.
"""

from __future__ import annotations

from collections.abc import Callable

from sparkwright import units
from sparkwright.health.judging import ranks
from sparkwright.health.judging.observation import Limits, Observation
from sparkwright.health.judging.ranks import Answer
from sparkwright.health.record import Cure, Gpu, format_drift
from sparkwright.host.containers.inspection import describe_status
from sparkwright.units import format_gib
from sparkwright.visible import format_count, join_first

#: policies with which Docker restarts every container that was not stopped manually
RESTARTING_POLICIES = ("always", "unless-stopped")
#: exit codes of a container that was stopped manually: it handled SIGTERM (0 or 143) or was killed (137)
MANUAL_STOP_EXIT_CODES = (0, 137, 143)
POWER_CYCLE_FIX = "cut the host's AC power for 60 s (USB-PD); a restart does not fix it"
#: cure by verdict of `smoke_test`, for verdicts that mean a slow server
CURES_BY_SLOW_VERDICT: dict[str, Cure] = {"regression": "person", "misconfigured": "deploy", "host degraded": "power"}


def _check_run_in_progress(observed: Observation, limits: Limits) -> Answer:
    if observed.busy:
        return "unknown", f"in progress: {observed.busy}", "unknown"
    if not observed.has_verified_server:
        return "unknown", "no server has been verified on this host", "unknown", "deploy"
    return None


def _check_container(observed: Observation, limits: Limits) -> Answer:
    container = observed.container
    if observed.busy or not observed.has_verified_server:
        return None
    if observed.engine_error:
        return "unknown", observed.engine_error, "unknown", "person"
    if observed.awake_server:
        return _check_asleep(observed)
    if observed.crash_loop:
        return "bad", f"{container.name}: {observed.crash_loop}", "crash-looping", "person"
    if observed.stopped_loop and container.status != "running":
        return (
            "bad",
            f"{container.name} was stopped for a crash loop: {observed.stopped_loop}",
            "crash-looping",
            "person",
        )
    if container.status == "absent":
        return "bad", f"there is no container {container.name}", "down", "deploy"
    if container.status == "paused":
        return "bad", f"{container.name} is paused", "down", "person"
    if container.status == "restarting" and not container.exit_code and not container.restarts:
        return "warn", f"{container.name} is being restarted", "starting"
    if container.status == "restarting":
        message = f"{ranks.describe_exit(container, observed.time_s)}; restart {container.restarts} in progress"
        return "bad", message, ranks.restarted_state(container, observed.time_s)
    if container.status != "running" and observed.guard_stop:
        return "bad", observed.guard_stop, "down", "restart"
    if container.status != "running" and observed.rank.cluster:
        return ranks.check_ended(observed)
    if container.status != "running":
        return "bad", _describe_stop(observed), "down", "person"
    if container.started_s is None:
        return "ok", f"{container.name} is running, {container.restarts} restarts"
    hours = (observed.time_s - container.started_s) / 3600
    return "ok", f"{container.name} has been running for {hours:.1f} h, {container.restarts} restarts"


def _check_asleep(observed: Observation) -> Answer:
    container = observed.container
    if container.status == "absent":
        return (
            "ok",
            f"it is the turn of {observed.awake_server}; {container.name} will be created when its turn comes",
            "asleep",
        )
    if container.status != "exited":
        message = (
            f"{container.name} is {describe_status(container.status)}, but it is the turn of {observed.awake_server}"
        )
        return "bad", message, "degraded", "person"
    wake = f"; {observed.wake_message}" if observed.wake_message else ""
    return "ok", f"it is the turn of {observed.awake_server}{wake}", "asleep"


def _describe_stop(observed: Observation) -> str:
    """Describe how a container stopped. Exit code 0 alone does not prove a manual stop, because an engine may exit with it."""
    container = observed.container
    if container.status != "exited":
        return f"{container.name} {describe_status(container.status)} (exit code {container.exit_code})"
    exited = f"exited ({container.exit_code}){ranks.format_exit_age(container, observed.time_s)}"
    if observed.stopping_run:
        return f"{container.name} {exited}, stopped by sparkwright (run {observed.stopping_run})"
    if container.policy in RESTARTING_POLICIES and container.exit_code in MANUAL_STOP_EXIT_CODES:
        return f"{container.name} was stopped by hand: {exited}, and Docker restarts containers that exit by themselves"
    return f"{container.name} {exited}, not stopped by sparkwright"


def _check_restart_policy(observed: Observation, limits: Limits) -> Answer:
    container = observed.container
    if (
        observed.busy
        or not observed.restart_policy
        or not container.policy
        or container.policy == observed.restart_policy
    ):
        return None
    is_member = observed.restart_policy == "no"
    consequence = "it would start without the other ranks" if is_member else "it will not start after a reboot"
    message = f"the container's restart policy is {container.policy!r}, not {observed.restart_policy!r}: {consequence}"
    return "warn", message, "degraded", "deploy"


def _check_rank(observed: Observation, limits: Limits) -> Answer:
    return ranks.check_running(observed, limits, start_limit_s(observed.ready_s, limits))


def _check_health(observed: Observation, limits: Limits) -> Answer:
    """Evaluate /health. No answer, or "loading", is normal during a start but a failure once the server has been ready."""
    status, container = observed.server.health_status, observed.container
    if status is None:
        return None
    if status == 200:
        return "ok", "/health returns 200"
    if status and not observed.loading:
        return "bad", f"/health returns {status}: the engine is dead", "down", "restart"
    if status and observed.has_answered:
        message = f"/health returns {status}, but the server was ready before: no {observed.answer_noun}"
        return "bad", message, "wedged", "restart"
    error = f" ({observed.error})" if observed.error else ""
    message = f"/health returns {status}" if status else f"nothing answers at {observed.server.url}{error}"
    if container.status not in ("running", "restarting"):
        return ("bad" if container.status else "unknown"), message, "down"
    if container.started_s is None:
        return "unknown", f"{message}, and its start time is unknown", "unknown"
    age_s = max(0.0, observed.time_s - container.started_s)
    limit_s = start_limit_s(observed.ready_s, limits)
    last_start = f", the last start took {observed.ready_s:.0f} s" if observed.ready_s else ""
    if observed.has_answered:
        return "bad", f"{message} any more, but the server's process is running", "down", "restart"
    start = f"starting for {age_s:.0f} s (up to {limit_s:.0f} s{last_start})"
    if age_s <= limit_s and container.restarts:
        restarts = ranks.describe_restarts(container, observed.time_s)
        return "bad", f"{restarts}; {start}", ranks.restarted_state(container, observed.time_s)
    if age_s <= limit_s:
        return "warn", start, "starting"
    return "bad", f"{message} after {age_s:.0f} s; a start may take {limit_s:.0f} s{last_start}", "down", "restart"


def start_limit_s(ready_s: float | None, limits: Limits) -> float:
    """Return how long a start may take, in seconds. ready_s: duration of the last start; None if it was not measured."""
    return max(limits.ready_floor_s, limits.ready_factor * ready_s) if ready_s is not None else limits.ready_s


def _check_token(observed: Observation, limits: Limits) -> Answer:
    server, suffix = observed.server, ranks.LOST_RANK_HINT if observed.rank.cluster else ""
    if observed.frozen_s is not None and observed.frozen_s >= limits.frozen_s:
        return None  # `stall` reports the more specific cause
    generates = observed.answer_noun == "token"
    verb, activity = ("generated", "generating tokens") if generates else ("returned", "working")
    running = int(server.running or 0)
    answers: dict[str, Answer] = {
        "": None,
        "made": ("ok", f"{verb} a {observed.answer_noun} in {server.token_s or 0:.2f} s"),
        "skipped": ("ok", f"{activity} for {format_count(running, 'request')}; no test request sent"),
        "refused": ("unknown", "the server requires an API key that is not stored on this host", "unknown", "person"),
        "error": ("bad", f"the test request failed: {observed.error}{suffix}", "down", "restart"),
    }
    if server.token != "none":
        return answers[server.token]
    missing = f"no {observed.answer_noun} within {limits.token_s:g} s"
    if server.running is None:
        return "bad", f"/health returns 200, but {missing}{suffix}", "wedged", "restart"
    if server.running:
        message = f"{missing} with {format_count(running, 'request')} running"
        return "warn", f"{message}: possibly a long prefill; one check can't confirm a stall", "unknown"
    return "bad", f"/health returns 200 and the server is idle, but {missing}{suffix}", "wedged", "restart"


def _check_stall(observed: Observation, limits: Limits) -> Answer:
    running = observed.server.running
    if running is None:
        return None if observed.server.health_status != 200 else ("unknown", "cannot read the server's metrics")
    requests = f"{format_count(int(running), 'request')} running"
    if observed.frozen_s is None:
        return "ok", f"{requests}, no sign of a stall"
    message = f"no {observed.answer_noun} for {observed.frozen_s:.0f} s with {requests}"
    if observed.frozen_s < limits.frozen_s:
        return "warn", message
    return "bad", f"{message}{ranks.LOST_RANK_HINT if observed.rank.cluster else ''}", "stalled", "restart"


def _check_power(observed: Observation, limits: Limits) -> Answer:
    """Evaluate the power supply: if every sample shows a busy GPU with low power and clock, it negotiated too little power."""
    if not observed.gpus:
        return None if observed.busy else ("unknown", "nvidia-smi returned no data")
    if all(is_power_starved(gpu, limits) for gpu in observed.gpus):
        gpu = observed.gpus[-1]
        message = f"the GPU is {gpu.utilization_percent:.0f} % busy at {gpu.clock_mhz:.0f} MHz and {gpu.power_w:.0f} W"
        return "bad", f"{message}: {POWER_CYCLE_FIX}", "degraded", "power"
    return "ok", _describe_gpu(observed.gpus[-1])


def _check_temperature(observed: Observation, limits: Limits) -> Answer:
    temperature_c = observed.gpus[-1].temperature_c if observed.gpus else None
    if temperature_c is None:
        return None
    if temperature_c >= limits.temperature_c:
        return "bad", f"GPU temperature {temperature_c:.0f} °C (limit {limits.temperature_c:.0f})", "degraded", "person"
    return "ok", f"GPU temperature {temperature_c:.0f} °C"


def _check_speed(observed: Observation, limits: Limits) -> Answer:
    speed = observed.speed
    if speed.tok_per_s is None:
        return None if not speed.verdict else ("unknown", f"throughput unknown: {speed.verdict}")
    baseline = f", baseline {speed.baseline_tok_per_s:.1f}" if speed.baseline_tok_per_s else ""
    message = f"{speed.tok_per_s:.1f} tok/s{baseline}"
    if cure := CURES_BY_SLOW_VERDICT.get(speed.verdict):
        return "bad", f"{speed.verdict}: {message}; run `sparkwright diagnose`", "degraded", cure
    return "ok", message


def _check_memory(observed: Observation, limits: Limits) -> Answer:
    available, total = observed.machine.mem_available_bytes, observed.machine.mem_total_bytes
    if available is None or total is None:
        return None if observed.busy else ("unknown", "cannot read /proc/meminfo")
    message = f"{format_gib(available)} of {format_gib(total)} GiB available"
    min_bytes = _min_available_bytes(observed, limits)
    if available < min_bytes:
        message = f"{message}: below {format_gib(min_bytes)} GiB the host may run out of memory"
        return "bad", message, "degraded", "person"
    return "ok", message


def _min_available_bytes(observed: Observation, limits: Limits) -> int:
    """Return the minimum healthy available memory: the limit or, if lower, half of the amount at the verification."""
    verified_bytes = observed.memory_level.left_bytes
    return limits.available_bytes if verified_bytes is None else min(limits.available_bytes, verified_bytes // 2)


def _check_swap(observed: Observation, limits: Limits) -> Answer:
    used, total = observed.machine.swap_used_bytes, observed.machine.swap_total_bytes
    if used is None or not total:
        return None
    message = f"{format_gib(used)} of {format_gib(total)} GiB of swap used"
    return ("bad", message, "degraded", "person") if used > limits.swap_used * total else ("ok", message)


def _check_disk(observed: Observation, limits: Limits) -> Answer:
    free = observed.machine.disk_free_bytes
    if free is None:
        return None
    message = f"{format_gib(free)} GiB of disk space free"
    return ("bad", message, "degraded", "person") if free < limits.disk_free_bytes else ("ok", message)


def _check_drift(observed: Observation, limits: Limits) -> Answer:
    if observed.drift_error:
        return "unknown", observed.drift_error
    if observed.container.status in ("", "absent"):
        return None
    if observed.drift:
        return "bad", f"differs from the last good state: {format_drift(observed.drift)}", "degraded", "deploy"
    return "ok", "container, image and model match the verified state"


def _check_model_files(observed: Observation, limits: Limits) -> Answer:
    model_files = observed.model_files
    if model_files is None or observed.busy:
        return None
    if not model_files.total:
        return "unknown", "there is no record of the model's files; `deploy` records them"
    if model_files.changed_paths:
        files = join_first(model_files.changed_paths, 3)
        message = f"a full hash found changed content: {files}; `deploy` downloads it again"
        return "bad", message, "degraded", "deploy"
    outcome = "not hashed yet"
    if model_files.age_s is not None:
        outcome = f"verified by a full hash {units.format_rough_duration(model_files.age_s)} ago"
    progress = f"; {model_files.hashed} of {model_files.total} hashed again" if model_files.hashed else ""
    paused = f"; paused: {model_files.pause_reason}" if model_files.pause_reason else ""
    message = f"{format_count(model_files.total, 'file')} {outcome}{progress}{paused}"
    return "warn" if model_files.is_late else "ok", message


def _check_gateway(observed: Observation, limits: Limits) -> Answer:
    if observed.busy or observed.gateway_problem is None:
        return None
    if observed.gateway_problem:
        return "bad", f"{observed.gateway_problem}; `gateway.deploy` restores it", "degraded", "deploy"
    return "ok", "the gateway is running as verified"


def _check_growth(observed: Observation, limits: Limits) -> Answer:
    """Evaluate the growth of memory use. A server that grew once may grow again with the next longer prompt."""
    level = observed.memory_level
    if not level.growth_message or observed.busy:
        return None
    if not level.is_near_exhaustion:
        return "ok", level.growth_message
    message = f"{level.growth_message}: the same growth again would take the host down"
    return "bad", message, "degraded", "person"


def _check_guard(observed: Observation, limits: Limits) -> Answer:
    if observed.memory_level.left_bytes is None:
        return None
    if observed.memory_level.running:
        return "ok", "the memory guard is running"
    return "warn", "the memory guard is not running; `health.install` starts it"


def _check_host(observed: Observation, limits: Limits) -> Answer:
    return ("warn", observed.host_outage) if observed.host_outage else None


def is_power_starved(gpu: Gpu, limits: Limits) -> bool:
    """Return True if a GPU is busy with low power and a low clock."""
    busy, power, clock = gpu.utilization_percent, gpu.power_w, gpu.clock_mhz
    if busy is None or power is None or clock is None:
        return False
    return busy > limits.busy_percent and power < limits.low_w and clock < limits.low_mhz


def _describe_gpu(gpu: Gpu) -> str:
    figures = ((gpu.utilization_percent, "{:.0f} % busy"), (gpu.clock_mhz, "{:.0f} MHz"), (gpu.power_w, "{:.0f} W"))
    return "the GPU is " + (
        ", ".join(template.format(value) for value, template in figures if value is not None) or "present"
    )


#: functions by name of the question, in the order of the report
QUESTIONS: dict[str, Callable[[Observation, Limits], Answer]] = {
    "deploy": _check_run_in_progress,
    "container": _check_container,
    "restart policy": _check_restart_policy,
    "rank": _check_rank,
    "/health": _check_health,
    "token": _check_token,
    "stall": _check_stall,
    "power": _check_power,
    "temperature": _check_temperature,
    "speed": _check_speed,
    "memory": _check_memory,
    "swap": _check_swap,
    "disk": _check_disk,
    "drift": _check_drift,
    "model files": _check_model_files,
    "gateway": _check_gateway,
    "host": _check_host,
    "growth": _check_growth,
    "guard": _check_guard,
}
