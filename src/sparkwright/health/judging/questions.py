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


def _check_run_in_progress(observation: Observation, limits: Limits) -> Answer:
    if observation.active_run:
        return "unknown", f"in progress: {observation.active_run}", "unknown"
    if not observation.has_verified_server and observation.awake_server:
        return "ok", f"it is the turn of {observation.awake_server}; this server has not been verified yet", "asleep"
    if not observation.has_verified_server:
        return "unknown", "no server has been verified on this host", "unknown", "deploy"
    return None


def _check_container(observation: Observation, limits: Limits) -> Answer:
    container = observation.container
    if observation.active_run or not observation.has_verified_server:
        return None
    if observation.engine_error:
        return "unknown", observation.engine_error, "unknown", "person"
    if observation.awake_server:
        return _check_asleep(observation)
    if observation.crash_loop_reason:
        return "bad", f"{container.name}: {observation.crash_loop_reason}", "crash-looping", "person"
    if observation.loop_stop_reason and container.status != "running":
        return (
            "bad",
            f"{container.name} was stopped for a crash loop: {observation.loop_stop_reason}",
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
        message = f"{ranks.describe_exit(container, observation.time_s)}; restart {container.restarts} in progress"
        return "bad", message, ranks.restarted_state(container, observation.time_s)
    if container.status != "running" and observation.guard_stop_reason:
        return "bad", observation.guard_stop_reason, "down", "restart"
    if container.status != "running" and observation.rank.cluster:
        return ranks.check_stopped_rank(observation)
    if container.status != "running":
        return "bad", _describe_stop(observation), "down", "person"
    if container.started_s is None or container.started_s > observation.time_s:  # the clock was set back
        return "ok", f"{container.name} is running, {container.restarts} restarts"
    hours = (observation.time_s - container.started_s) / 3600
    return "ok", f"{container.name} has been running for {hours:.1f} h, {container.restarts} restarts"


def _check_asleep(observation: Observation) -> Answer:
    container = observation.container
    if container.status == "absent":
        return (
            "ok",
            f"it is the turn of {observation.awake_server}; {container.name} will be created when its turn comes",
            "asleep",
        )
    if container.status != "exited":
        message = (
            f"{container.name} is {describe_status(container.status)}, but it is the turn of {observation.awake_server}"
        )
        return "bad", message, "degraded", "person"
    return "ok", describe_sleep(observation.awake_server, observation.wake_message), "asleep"


def describe_sleep(awake_server: str, wake_message: str) -> str:
    """Return why a verified server is asleep. wake_message: see `Observation`."""
    return f"it is the turn of {awake_server}" + (f"; {wake_message}" if wake_message else "")


def _describe_stop(observation: Observation) -> str:
    """Describe how a container stopped. Exit code 0 alone does not prove a manual stop, because an engine may exit with it."""
    container = observation.container
    if container.status != "exited":
        return f"{container.name} {describe_status(container.status)} (exit code {container.exit_code})"
    exit_text = f"exited ({container.exit_code}){ranks.format_exit_age(container, observation.time_s)}"
    if observation.stopping_run:
        return f"{container.name} {exit_text}, stopped by sparkwright (run {observation.stopping_run})"
    if container.policy in RESTARTING_POLICIES and container.exit_code in MANUAL_STOP_EXIT_CODES:
        return (
            f"{container.name} was stopped by hand: {exit_text}, and Docker restarts containers that exit by themselves"
        )
    return f"{container.name} {exit_text}, not stopped by sparkwright"


def _check_restart_policy(observation: Observation, limits: Limits) -> Answer:
    container = observation.container
    if (
        observation.active_run
        or not observation.restart_policy
        or not container.policy
        or container.policy == observation.restart_policy
    ):
        return None
    is_member = observation.restart_policy == "no"
    consequence = "it would start without the other ranks" if is_member else "it will not start after a reboot"
    message = (
        f"the container's restart policy is {container.policy!r}, not {observation.restart_policy!r}: {consequence}"
    )
    return "warn", message, "degraded", "deploy"


def _check_rank(observation: Observation, limits: Limits) -> Answer:
    return ranks.check_running_rank(observation, start_limit_s(observation.ready_s, limits))


def _check_health(observation: Observation, limits: Limits) -> Answer:
    """Evaluate /health. No answer, or "loading", is normal during a start but a failure once the server has been ready."""
    status, container = observation.server.health_status, observation.container
    if status is None:
        return None
    if status == 200:
        return "ok", "/health returns 200"
    if status and not observation.loading:
        return "bad", f"/health returns {status}: the engine is dead", "down", "restart"
    if status and observation.has_answered:
        message = f"/health returns {status}, but the server was ready before: no {observation.answer_noun}"
        return "bad", message, "wedged", "restart"
    error_clause = f" ({observation.error})" if observation.error else ""
    message = f"/health returns {status}" if status else f"nothing answers at {observation.server.url}{error_clause}"
    if container.status not in ("running", "restarting"):
        return ("bad" if container.status else "unknown"), message, "down"
    if container.started_s is None:
        return "unknown", f"{message}, and its start time is unknown", "unknown"
    age_s = max(0.0, observation.time_s - container.started_s)
    limit_s = start_limit_s(observation.ready_s, limits)
    last_start_clause = f", the last start took {observation.ready_s:.0f} s" if observation.ready_s else ""
    if observation.has_answered:
        return "bad", f"{message} any more, but the server's process is running", "down", "restart"
    start_progress = f"starting for {age_s:.0f} s (up to {limit_s:.0f} s{last_start_clause})"
    if age_s <= limit_s and container.restarts:
        restarts_text = ranks.describe_restarts(container, observation.time_s)
        return "bad", f"{restarts_text}; {start_progress}", ranks.restarted_state(container, observation.time_s)
    if age_s <= limit_s:
        return "warn", start_progress, "starting"
    return (
        "bad",
        f"{message} after {age_s:.0f} s; a start may take {limit_s:.0f} s{last_start_clause}",
        "down",
        "restart",
    )


def start_limit_s(ready_s: float | None, limits: Limits) -> float:
    """Return how long a start may take, in seconds. ready_s: duration of the last start; None if it was not measured."""
    return max(limits.ready_floor_s, limits.ready_factor * ready_s) if ready_s is not None else limits.ready_s


def _check_token(observation: Observation, limits: Limits) -> Answer:
    server, suffix = observation.server, ranks.LOST_RANK_HINT if observation.rank.cluster else ""
    if observation.frozen_s is not None and observation.frozen_s >= limits.frozen_s:
        return None  # `stall` reports the more specific cause
    generates = observation.answer_noun == "token"
    verb, activity = ("generated", "generating tokens") if generates else ("returned", "working")
    running_count = int(server.running or 0)
    answers: dict[str, Answer] = {
        "": None,
        "made": ("ok", f"{verb} a {observation.answer_noun} in {server.token_s or 0:.2f} s"),
        "skipped": ("ok", f"{activity} for {format_count(running_count, 'request')}; no test request sent"),
        "refused": ("unknown", "the server requires an API key that is not stored on this host", "unknown", "person"),
        "error": ("bad", f"the test request failed: {observation.error.rstrip('.')}{suffix}", "down", "restart"),
    }
    if server.token != "none":
        return answers[server.token]
    timeout_message = f"no {observation.answer_noun} within {limits.token_s:g} s"
    if server.running is None:
        return "bad", f"/health returns 200, but {timeout_message}{suffix}", "wedged", "restart"
    if server.running:
        message = f"{timeout_message} with {format_count(running_count, 'request')} running"
        return "warn", f"{message}: possibly a long prefill; one check can't confirm a stall", "unknown"
    return "bad", f"/health returns 200 and the server is idle, but {timeout_message}{suffix}", "wedged", "restart"


def _check_stall(observation: Observation, limits: Limits) -> Answer:
    running = observation.server.running
    if running is None:
        return None if observation.server.health_status != 200 else ("unknown", "cannot read the server's metrics")
    requests_text = f"{format_count(int(running), 'request')} running"
    if observation.frozen_s is None:
        return "ok", f"{requests_text}, no sign of a stall"
    message = f"no {observation.answer_noun} for {observation.frozen_s:.0f} s with {requests_text}"
    if observation.frozen_s < limits.frozen_s:
        return "warn", message
    return "bad", f"{message}{ranks.LOST_RANK_HINT if observation.rank.cluster else ''}", "stalled", "restart"


def _check_power(observation: Observation, limits: Limits) -> Answer:
    """Evaluate the power supply: if every sample shows a busy GPU with low power and clock, it negotiated too little power."""
    if not observation.gpus:
        return None if observation.active_run else ("unknown", "nvidia-smi returned no data")
    if all(is_power_starved(gpu, limits) for gpu in observation.gpus):
        gpu = observation.gpus[-1]
        message = f"the GPU is {gpu.utilization_percent:.0f} % busy at {gpu.clock_mhz:.0f} MHz and {gpu.power_w:.0f} W"
        return "bad", f"{message}: {POWER_CYCLE_FIX}", "degraded", "power"
    return "ok", _describe_gpu(observation.gpus[-1])


def _check_temperature(observation: Observation, limits: Limits) -> Answer:
    temperature_c = observation.gpus[-1].temperature_c if observation.gpus else None
    if temperature_c is None:
        return None
    if temperature_c >= limits.temperature_c:
        return "bad", f"GPU temperature {temperature_c:.0f} °C (limit {limits.temperature_c:.0f})", "degraded", "person"
    return "ok", f"GPU temperature {temperature_c:.0f} °C"


def _check_speed(observation: Observation, limits: Limits) -> Answer:
    speed = observation.speed
    if speed.tok_per_s is None:
        return None if not speed.verdict else ("unknown", f"throughput unknown: {speed.verdict}")
    baseline_clause = f", baseline {speed.baseline_tok_per_s:.1f}" if speed.baseline_tok_per_s else ""
    message = f"{speed.tok_per_s:.1f} tok/s{baseline_clause}"
    if cure := CURES_BY_SLOW_VERDICT.get(speed.verdict):
        return "bad", f"{speed.verdict}: {message}; run `sparkwright diagnose`", "degraded", cure
    return "ok", message


def _check_memory(observation: Observation, limits: Limits) -> Answer:
    available_bytes, total_bytes = observation.machine.mem_available_bytes, observation.machine.mem_total_bytes
    if available_bytes is None or total_bytes is None:
        return None if observation.active_run else ("unknown", "cannot read /proc/meminfo")
    message = f"{format_gib(available_bytes)} of {format_gib(total_bytes)} GiB available"
    min_bytes = _min_available_bytes(observation, limits)
    if available_bytes < min_bytes:
        message = f"{message}: below {format_gib(min_bytes)} GiB the host may run out of memory"
        return "bad", message, "degraded", "person"
    return "ok", message


def _min_available_bytes(observation: Observation, limits: Limits) -> int:
    """Return the minimum healthy available memory: the limit or, if lower, half of the amount at the verification."""
    verified_bytes = observation.memory_level.left_bytes
    return limits.available_bytes if verified_bytes is None else min(limits.available_bytes, verified_bytes // 2)


def _check_swap(observation: Observation, limits: Limits) -> Answer:
    used_bytes, total_bytes = observation.machine.swap_used_bytes, observation.machine.swap_total_bytes
    if used_bytes is None or not total_bytes:
        return None
    message = f"{format_gib(used_bytes)} of {format_gib(total_bytes)} GiB of swap used"
    return ("bad", message, "degraded", "person") if used_bytes > limits.swap_used * total_bytes else ("ok", message)


def _check_disk(observation: Observation, limits: Limits) -> Answer:
    free_bytes = observation.machine.disk_free_bytes
    if free_bytes is None:
        return None
    message = f"{format_gib(free_bytes)} GiB of disk space free"
    return ("bad", message, "degraded", "person") if free_bytes < limits.disk_free_bytes else ("ok", message)


def _check_drift(observation: Observation, limits: Limits) -> Answer:
    if observation.drift_error:
        return "unknown", observation.drift_error
    if observation.container.status in ("", "absent"):
        return None
    if observation.drift:
        return "bad", f"differs from the last good state: {format_drift(observation.drift)}", "degraded", "deploy"
    return "ok", "container, image and model match the verified state"


def _check_model_files(observation: Observation, limits: Limits) -> Answer:
    model_files = observation.model_files
    if model_files is None or observation.active_run:
        return None
    if not model_files.file_count:
        return "unknown", "there is no record of the model's files; `deploy` records them"
    if model_files.changed_paths:
        files = join_first(model_files.changed_paths, 3)
        message = f"a full hash found changed content: {files}; `deploy` downloads it again"
        return "bad", message, "degraded", "deploy"
    outcome = "not hashed yet"
    if model_files.age_s is not None:
        outcome = f"verified by a full hash {units.format_rough_duration(model_files.age_s)} ago"
    progress_clause = (
        f"; {model_files.hashed_count} of {model_files.file_count} hashed again" if model_files.hashed_count else ""
    )
    pause_clause = f"; paused: {model_files.pause_reason}" if model_files.pause_reason else ""
    message = f"{format_count(model_files.file_count, 'file')} {outcome}{progress_clause}{pause_clause}"
    return "warn" if model_files.is_late else "ok", message


def _check_gateway(observation: Observation, limits: Limits) -> Answer:
    if observation.active_run or observation.gateway_problem is None:
        return None
    if observation.gateway_problem:
        return "bad", observation.gateway_problem, "degraded", "gateway"
    return "ok", "the gateway is running as verified"


def _check_growth(observation: Observation, limits: Limits) -> Answer:
    """Evaluate the growth of memory use. A server that grew once may grow again with the next longer prompt."""
    memory_level = observation.memory_level
    if not memory_level.growth_message or observation.active_run:
        return None
    if not memory_level.is_near_exhaustion:
        return "ok", memory_level.growth_message
    message = f"{memory_level.growth_message}: the same growth again would take the host down"
    return "bad", message, "degraded", "person"


def _check_guard(observation: Observation, limits: Limits) -> Answer:
    if observation.memory_level.left_bytes is None:
        return None
    if observation.memory_level.running:
        return "ok", "the memory guard is running"
    return "warn", "the memory guard is not running; `health.install` starts it"


def _check_host(observation: Observation, limits: Limits) -> Answer:
    return ("warn", observation.host_outage) if observation.host_outage else None


def is_power_starved(gpu: Gpu, limits: Limits) -> bool:
    """Return True if a GPU is busy with low power and a low clock."""
    utilization, power, clock = gpu.utilization_percent, gpu.power_w, gpu.clock_mhz
    if utilization is None or power is None or clock is None:
        return False
    return utilization > limits.busy_percent and power < limits.low_w and clock < limits.low_mhz


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
