"""The questions that a check answers from an observation, as a table of functions without side effects.

Each answer comes with evidence. A question that can't be answered is unknown, which never counts as good.
"""

from __future__ import annotations

from collections.abc import Callable

from sparkwright import units
from sparkwright.health.judging import ranks
from sparkwright.health.judging.observation import Limits, Observation
from sparkwright.health.record import Cure, Gpu, Level, State, format_drift
from sparkwright.host.containers.inspection import describe_status
from sparkwright.units import format_gib
from sparkwright.visible import format_count, join_first

#: policies with which Docker restarts every container that was not stopped manually, and the exit codes of a container that
#: was: it exited on request or was killed
RESTARTING_POLICIES, STOPPED_EXIT_CODES = ("always", "unless-stopped"), (0, 137, 143)
POWER_CYCLE_FIX = "cut the host's AC power for 60 s (USB-PD); a restart does not fix it"

Answer = tuple[Level, str] | tuple[Level, str, State] | tuple[Level, str, State, Cure] | None


def _check_run_in_progress(observed: Observation, limits: Limits) -> Answer:
    if observed.busy:
        return "unknown", f"in progress: {observed.busy}", "unknown"
    if not observed.known:
        return "unknown", "no server has been verified here", "unknown", "deploy"
    return None


def _check_container(observed: Observation, limits: Limits) -> Answer:
    container = observed.container
    if observed.busy or not observed.known:
        return None
    if observed.engine_error:
        return "unknown", observed.engine_error, "unknown", "person"
    if observed.asleep:
        return _check_asleep(observed)
    if observed.loop:
        return "bad", f"{container.name}: {observed.loop}", "crash-looping", "person"
    if observed.broken and container.status != "running":
        return "bad", f"{container.name} was stopped for a crash loop: {observed.broken}", "crash-looping", "person"
    if container.status == "absent":
        return "bad", f"there is no container {container.name}", "down", "deploy"
    if container.status == "paused":
        return "bad", f"{container.name} is paused", "down", "person"
    if container.status == "restarting" and not container.exit_code and not container.restarts:
        return "warn", f"{container.name} is being restarted", "starting"
    if container.status == "restarting":
        message = f"{ranks.describe_exit(container, observed.time_s)}; restart {container.restarts} in progress"
        return "bad", message, ranks.restarted_state(container, observed.time_s)
    if container.status != "running" and observed.saved:
        return "bad", observed.saved, "down", "restart"
    if container.status != "running" and observed.rank.cluster:
        return ranks.check_ended(observed)
    if container.status != "running":
        return "bad", _describe_stop(observed), "down", "person"
    age = f" for {(observed.time_s - container.started_s) / 3600:.1f} h" if container.started_s is not None else ""
    return "ok", f"{container.name} runs{age}, {container.restarts} restarts"


def _check_asleep(observed: Observation) -> Answer:
    container = observed.container
    if container.status == "absent":
        return "ok", f"it is the turn of {observed.asleep}; {container.name} is created at its own", "asleep"
    if container.status != "exited":
        message = f"{container.name} is {describe_status(container.status)}, but it is the turn of {observed.asleep}"
        return "bad", message, "degraded", "person"
    wake = f"; {observed.wake}" if observed.wake else ""
    return "ok", f"it is the turn of {observed.asleep}{wake}", "asleep"


def _describe_stop(observed: Observation) -> str:
    """Describe how a container was stopped, as far as that is known, because an engine may exit with code 0 by itself."""
    container = observed.container
    if container.status != "exited":
        return f"{container.name} {describe_status(container.status)} (exit code {container.exit_code})"
    when = (
        f" {units.format_rough_duration(observed.time_s - container.finished_s)} ago"
        if container.finished_s is not None
        else ""
    )
    exited = f"exited ({container.exit_code}){when}"
    if observed.stopped:
        return f"{container.name} {exited}, stopped by sparkwright (run {observed.stopped})"
    if container.policy in RESTARTING_POLICIES and container.exit_code in STOPPED_EXIT_CODES:
        return f"{container.name} was stopped by hand: {exited}, and Docker restarts containers that exit by themselves"
    return f"{container.name} {exited}, not stopped by sparkwright"


def _check_restart_policy(observed: Observation, limits: Limits) -> Answer:
    container = observed.container
    if observed.busy or not observed.policy or not container.policy or container.policy == observed.policy:
        return None
    consequence = "it would start without the others" if observed.policy == "no" else "it will not start after a reboot"
    message = f"its restart policy is {container.policy!r}, not {observed.policy!r}: {consequence}"
    return "warn", message, "degraded", "deploy"


def _check_rank(observed: Observation, limits: Limits) -> Answer:
    return ranks.check_running(observed, limits, start_limit_s(observed.ready_s, limits))


def _check_health(observed: Observation, limits: Limits) -> Answer:
    """Evaluate /health. During a start it may not answer or report that it is loading; later that means the server failed."""
    status, container = observed.server.health_status, observed.container
    if status is None:
        return None
    if status == 200:
        return "ok", "/health answers 200"
    if status and not observed.loading:
        return "bad", f"/health answers {status}: the engine is dead", "down", "restart"
    if status and observed.answered:
        return "bad", f"/health answers {status}, but it was ready: it gives no {observed.gives}", "wedged", "restart"
    message = (
        f"/health answers {status}"
        if status
        else f"nothing answers at {observed.server.url}{f' ({observed.error})' if observed.error else ''}"
    )
    if container.status not in ("running", "restarting"):
        return ("bad" if container.status else "unknown"), message, "down"
    if container.started_s is None:
        return "unknown", f"{message}, and its start time is unknown", "unknown"
    age_s = max(0.0, observed.time_s - container.started_s)
    limit_s = start_limit_s(observed.ready_s, limits)
    last_start = f", the last start took {observed.ready_s:.0f} s" if observed.ready_s else ""
    if observed.answered:
        return "bad", f"{message} any more, but its process is running", "down", "restart"
    start = f"starting for {age_s:.0f} s (up to {limit_s:.0f} s{last_start})"
    if age_s <= limit_s and container.restarts:
        return (
            "bad",
            f"{ranks.describe_restarts(container, observed.time_s)}; {start}",
            ranks.restarted_state(container, observed.time_s),
        )
    if age_s <= limit_s:
        return "warn", start, "starting"
    return "bad", f"{message} after {age_s:.0f} s; a start may take {limit_s:.0f} s{last_start}", "down", "restart"


def start_limit_s(ready_s: float | None, limits: Limits) -> float:
    """Return how long a start may take, in seconds. ready_s: how long the last start took."""
    return max(limits.ready_floor_s, limits.ready_factor * ready_s) if ready_s is not None else limits.ready_s


def _check_token(observed: Observation, limits: Limits) -> Answer:
    server, suffix = observed.server, ranks.RANK_GONE if observed.rank.cluster else ""
    if observed.frozen_s is not None and observed.frozen_s >= limits.frozen_s:
        return None  # the stall explains more
    verb, working = ("generated", "generating") if observed.gives == "token" else ("returned", "working")
    answers: dict[str, Answer] = {
        "": None,
        "made": ("ok", f"{verb} a {observed.gives} in {server.token_s or 0:.2f} s"),
        "skipped": ("ok", f"{working} for {server.running or 0:.0f} requests: no test request sent"),
        "refused": ("unknown", "it requires an API key that is not known here", "unknown", "person"),
        "error": ("bad", f"the test request failed: {observed.error}{suffix}", "down", "restart"),
    }
    if server.token != "none":
        return answers[server.token]
    if server.running is None:
        return (
            "bad",
            f"/health answers 200, but no {observed.gives} within {limits.token_s:g} s{suffix}",
            "wedged",
            "restart",
        )
    if server.running:
        message = f"no {observed.gives} within {limits.token_s:g} s with {format_count(int(server.running), 'request')} running"
        return "warn", f"{message}: this may be a long prefill; not confirmed by one check", "unknown"
    message = f"/health answers 200 and the server is idle, but no {observed.gives} within {limits.token_s:g} s{suffix}"
    return "bad", message, "wedged", "restart"


def _check_stall(observed: Observation, limits: Limits) -> Answer:
    running = observed.server.running
    if running is None:
        return None if observed.server.health_status != 200 else ("unknown", "cannot read its metrics")
    if observed.frozen_s is None:
        return "ok", f"{format_count(int(running), 'request')} running, no sign of a stall"
    requests = f"{format_count(int(running), 'request')} {'is' if running == 1 else 'are'} running"
    message = f"no {observed.gives} for {observed.frozen_s:.0f} s while {requests}"
    if observed.frozen_s < limits.frozen_s:
        return "warn", message
    return "bad", f"{message}{ranks.RANK_GONE if observed.rank.cluster else ''}", "stalled", "restart"


def _check_power(observed: Observation, limits: Limits) -> Answer:
    """Evaluate the power supply, which negotiated too little if every sample shows a busy GPU with low power and a low clock."""
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
    if speed.verdict in SLOW_VERDICTS:
        return (
            "bad",
            f"{speed.verdict}: {message}; run `sparkwright diagnose`",
            "degraded",
            SLOW_VERDICTS[speed.verdict],
        )
    return "ok", message


#: verdicts of `smoke_test` that mean too slow, with the cure
SLOW_VERDICTS: dict[str, Cure] = {"regression": "person", "misconfigured": "deploy", "host degraded": "power"}


def _check_memory(observed: Observation, limits: Limits) -> Answer:
    left, total = observed.machine.mem_available_bytes, observed.machine.mem_total_bytes
    if left is None or total is None:
        return None if observed.busy else ("unknown", "cannot read /proc/meminfo")
    message = f"{format_gib(left)} of {format_gib(total)} GiB available"
    min_bytes = _min_available_bytes(observed, limits)
    if left < min_bytes:
        message = f"{message}: below {format_gib(min_bytes)} GiB the host may run out of memory"
        return "bad", message, "degraded", "person"
    return "ok", message


def _min_available_bytes(observed: Observation, limits: Limits) -> int:
    """Return the minimum of available memory. A server that was verified with less may run with that for weeks."""
    verified = observed.level.left_bytes
    return limits.available_bytes if verified is None else min(limits.available_bytes, verified // 2)


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
    message = f"{format_gib(free)} GiB free on the disk"
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
    """Evaluate the periodic hash of the model's files, if the install enabled it."""
    model_files = observed.model_files
    if model_files is None or observed.busy:
        return None
    if not model_files.files:
        return "unknown", "there is no record of the model's files; `deploy` records them"
    if model_files.wrong:
        files = join_first(model_files.wrong, 3)
        message = f"content differs from the verified files, by a full hash: {files}; `deploy` fetches them again"
        return "bad", message, "degraded", "deploy"
    hashed = (
        f"as verified, by a full hash {units.format_rough_duration(model_files.age_s)} ago"
        if model_files.age_s is not None
        else "not hashed yet"
    )
    reading = f"; {model_files.read} of {model_files.files} read again" if model_files.read else ""
    paused = f"; paused: {model_files.paused}" if model_files.paused else ""
    return "warn" if model_files.late else "ok", f"{format_count(model_files.files, 'file')} {hashed}{reading}{paused}"


def _check_gateway(observed: Observation, limits: Limits) -> Answer:
    if observed.busy or observed.gateway is None:
        return None
    if observed.gateway:
        return "bad", f"{observed.gateway}; `gateway.deploy` brings it back", "degraded", "deploy"
    return "ok", "the gateway runs as it was verified"


def _check_growth(observed: Observation, limits: Limits) -> Answer:
    """Evaluate the growth of memory use, because a server that grew once will grow again with the next longer prompt."""
    level = observed.level
    if not level.growth or observed.busy:
        return None
    if not level.near_exhaustion:
        return "ok", level.growth
    message = f"{level.growth}: the same growth again would take the host down"
    return "bad", message, "degraded", "person"


def _check_guard(observed: Observation, limits: Limits) -> Answer:
    """Evaluate the memory guard, if one is installed."""
    if observed.level.left_bytes is None:
        return None
    if observed.level.running:
        return "ok", "the memory guard is running"
    return "warn", "the memory guard is not running; `health.install` starts it"


def _check_host(observed: Observation, limits: Limits) -> Answer:
    return ("warn", observed.lost) if observed.lost else None


def is_power_starved(gpu: Gpu, limits: Limits) -> bool:
    """Return True if a GPU is busy with low power and a low clock."""
    busy, power, clock = gpu.utilization_percent, gpu.power_w, gpu.clock_mhz
    if busy is None or power is None or clock is None:
        return False
    return busy > limits.busy_percent and power < limits.low_w and clock < limits.low_mhz


def _describe_gpu(gpu: Gpu) -> str:
    reported = ((gpu.utilization_percent, "{:.0f} % busy"), (gpu.clock_mhz, "{:.0f} MHz"), (gpu.power_w, "{:.0f} W"))
    return "the GPU is " + (", ".join(form.format(value) for value, form in reported if value is not None) or "there")


#: questions by the name of their evidence, in the order of the report
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
