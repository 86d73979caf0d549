"""The questions that a check answers from an observation, as a table of functions without side effects.

Each answer comes with evidence. A question that can't be answered is unknown, which never counts as good.
"""

from __future__ import annotations

from collections.abc import Callable

from sparkwright import units
from sparkwright.health.judging import ranks
from sparkwright.health.judging.observation import Limits, Observation
from sparkwright.health.record import Cure, Gpu, Level, State, differs
from sparkwright.host.containers.inspection import status_of
from sparkwright.units import gib
from sparkwright.visible import count, first

#: policies with which Docker restarts every container that was not stopped manually, and the exit codes of a container that
#: was: it exited on request or was killed
RESTARTING, STOPPED = ("always", "unless-stopped"), (0, 137, 143)
POWER = "cut the host's AC power for 60 s (USB-PD); a restart does not fix it"

Answer = tuple[Level, str] | tuple[Level, str, State] | tuple[Level, str, State, Cure] | None


def _somebody_works(observed: Observation, limits: Limits) -> Answer:
    if observed.busy:
        return "unknown", f"in progress: {observed.busy}", "unknown"
    if not observed.known:
        return "unknown", "no server has been verified here", "unknown", "deploy"
    return None


def _container(observed: Observation, limits: Limits) -> Answer:
    box = observed.container
    if observed.busy or not observed.known:
        return None
    if observed.engine_error:
        return "unknown", observed.engine_error, "unknown", "person"
    if observed.asleep:
        return _asleep(observed)
    if observed.loop:
        return "bad", f"{box.name}: {observed.loop}", "crash-looping", "person"
    if observed.broken and box.status != "running":
        return "bad", f"{box.name} was stopped for a crash loop: {observed.broken}", "crash-looping", "person"
    if box.status == "absent":
        return "bad", f"there is no container {box.name}", "down", "deploy"
    if box.status == "paused":
        return "bad", f"{box.name} is paused", "down", "person"
    if box.status == "restarting" and not box.exit_code and not box.restarts:
        return "warn", f"{box.name} is being restarted", "starting"
    if box.status == "restarting":
        message = f"{ranks.exited(box, observed.time_s)}; restart {box.restarts} in progress"
        return "bad", message, ranks.state(box, observed.time_s)
    if box.status != "running" and observed.saved:
        return "bad", observed.saved, "down", "restart"
    if box.status != "running" and observed.rank.cluster:
        return ranks.ended(observed)
    if box.status != "running":
        return "bad", _stopped(observed), "down", "person"
    age = f" for {(observed.time_s - box.started_s) / 3600:.1f} h" if box.started_s is not None else ""
    return "ok", f"{box.name} runs{age}, {box.restarts} restarts"


def _asleep(observed: Observation) -> Answer:
    box = observed.container
    if box.status == "absent":
        return "ok", f"it is the turn of {observed.asleep}; {box.name} is created at its own", "asleep"
    if box.status != "exited":
        message = f"{box.name} is {status_of(box.status)}, but it is the turn of {observed.asleep}"
        return "bad", message, "degraded", "person"
    wake = f"; {observed.wake}" if observed.wake else ""
    return "ok", f"it is the turn of {observed.asleep}{wake}", "asleep"


def _stopped(observed: Observation) -> str:
    """Describe how a container was stopped, as far as that is known, because an engine may exit with code 0 by itself."""
    box = observed.container
    if box.status != "exited":
        return f"{box.name} {status_of(box.status)} (exit code {box.exit_code})"
    when = f" {units.about(observed.time_s - box.finished_s)} ago" if box.finished_s is not None else ""
    exited = f"exited ({box.exit_code}){when}"
    if observed.stopped:
        return f"{box.name} {exited}, stopped by sparkwright (run {observed.stopped})"
    if box.policy in RESTARTING and box.exit_code in STOPPED:
        return f"{box.name} was stopped by hand: {exited}, and Docker restarts containers that exit by themselves"
    return f"{box.name} {exited}, not stopped by sparkwright"


def _policy(observed: Observation, limits: Limits) -> Answer:
    box = observed.container
    if observed.busy or not observed.policy or not box.policy or box.policy == observed.policy:
        return None
    so = "it would start without the others" if observed.policy == "no" else "it will not start after a reboot"
    message = f"its restart policy is {box.policy!r}, not {observed.policy!r}: {so}"
    return "warn", message, "degraded", "deploy"


def _rank(observed: Observation, limits: Limits) -> Answer:
    return ranks.asked(observed, limits, allowed_s(observed.ready_s, limits))


def _health(observed: Observation, limits: Limits) -> Answer:
    """Judge /health. During a start it may not answer or report that it is loading; later that means that the server failed."""
    status, box = observed.server.health_status, observed.container
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
    if box.status not in ("running", "restarting"):
        return ("bad" if box.status else "unknown"), message, "down"
    if box.started_s is None:
        return "unknown", f"{message}, and its start time is unknown", "unknown"
    age_s = max(0.0, observed.time_s - box.started_s)
    most_s = allowed_s(observed.ready_s, limits)
    measured = f", the last start took {observed.ready_s:.0f} s" if observed.ready_s else ""
    if observed.answered:
        return "bad", f"{message} any more, but its process is running", "down", "restart"
    start = f"starting for {age_s:.0f} s (up to {most_s:.0f} s{measured})"
    if age_s <= most_s and box.restarts:
        return "bad", f"{ranks.again(box, observed.time_s)}; {start}", ranks.state(box, observed.time_s)
    if age_s <= most_s:
        return "warn", start, "starting"
    return "bad", f"{message} after {age_s:.0f} s; a start may take {most_s:.0f} s{measured}", "down", "restart"


def allowed_s(ready_s: float | None, limits: Limits) -> float:
    """Return how long a start may take, in seconds. ready_s: how long the last start took."""
    return max(limits.ready_floor_s, limits.ready_factor * ready_s) if ready_s is not None else limits.ready_s


def _token(observed: Observation, limits: Limits) -> Answer:
    server, gone = observed.server, ranks.GONE if observed.rank.cluster else ""
    if observed.frozen_s is not None and observed.frozen_s >= limits.frozen_s:
        return None  # the stall explains more
    made, working = ("generated", "generating") if observed.gives == "token" else ("returned", "working")
    reported: dict[str, Answer] = {
        "": None,
        "made": ("ok", f"{made} a {observed.gives} in {server.token_s or 0:.2f} s"),
        "skipped": ("ok", f"{working} for {server.running or 0:.0f} requests: no test request sent"),
        "refused": ("unknown", "it requires an API key that is not known here", "unknown", "person"),
        "error": ("bad", f"the test request failed: {observed.error}{gone}", "down", "restart"),
    }
    if server.token != "none":
        return reported[server.token]
    if server.running is None:
        return (
            "bad",
            f"/health answers 200, but no {observed.gives} within {limits.token_s:g} s{gone}",
            "wedged",
            "restart",
        )
    if server.running:
        message = (
            f"no {observed.gives} within {limits.token_s:g} s with {count(int(server.running), 'request')} running"
        )
        return "warn", f"{message}: this may be a long prefill; not confirmed by one check", "unknown"
    message = f"/health answers 200 and the server is idle, but no {observed.gives} within {limits.token_s:g} s{gone}"
    return "bad", message, "wedged", "restart"


def _frozen(observed: Observation, limits: Limits) -> Answer:
    running = observed.server.running
    if running is None:
        return None if observed.server.health_status != 200 else ("unknown", "cannot read its metrics")
    if observed.frozen_s is None:
        return "ok", f"{count(int(running), 'request')} running, no sign of a stall"
    requests = f"{count(int(running), 'request')} {'is' if running == 1 else 'are'} running"
    message = f"no {observed.gives} for {observed.frozen_s:.0f} s while {requests}"
    if observed.frozen_s < limits.frozen_s:
        return "warn", message
    return "bad", f"{message}{ranks.GONE if observed.rank.cluster else ''}", "stalled", "restart"


def _power(observed: Observation, limits: Limits) -> Answer:
    """Judge the power supply, which negotiated too little if every sample shows a busy GPU with low power and a low clock."""
    if not observed.gpus:
        return None if observed.busy else ("unknown", "nvidia-smi returned no data")
    if all(starved(gpu, limits) for gpu in observed.gpus):
        gpu = observed.gpus[-1]
        message = f"the GPU is {gpu.utilization_percent:.0f} % busy at {gpu.clock_mhz:.0f} MHz and {gpu.power_w:.0f} W"
        return "bad", f"{message}: {POWER}", "degraded", "power"
    return "ok", _gpu_words(observed.gpus[-1])


def _temperature(observed: Observation, limits: Limits) -> Answer:
    found = observed.gpus[-1].temperature_c if observed.gpus else None
    if found is None:
        return None
    if found >= limits.temperature_c:
        return "bad", f"GPU temperature {found:.0f} °C (limit {limits.temperature_c:.0f})", "degraded", "person"
    return "ok", f"GPU temperature {found:.0f} °C"


def _speed(observed: Observation, limits: Limits) -> Answer:
    speed = observed.speed
    if speed.tok_per_s is None:
        return None if not speed.verdict else ("unknown", f"throughput unknown: {speed.verdict}")
    base = f", baseline {speed.baseline_tok_per_s:.1f}" if speed.baseline_tok_per_s else ""
    message = f"{speed.tok_per_s:.1f} tok/s{base}"
    if speed.verdict in SLOW:
        return "bad", f"{speed.verdict}: {message}; run `sparkwright diagnose`", "degraded", SLOW[speed.verdict]
    return "ok", message


#: verdicts of `smoke_test` that mean too slow, with the cure
SLOW: dict[str, Cure] = {"regression": "person", "misconfigured": "deploy", "host degraded": "power"}


def _memory(observed: Observation, limits: Limits) -> Answer:
    left, total = observed.machine.mem_available_bytes, observed.machine.mem_total_bytes
    if left is None or total is None:
        return None if observed.busy else ("unknown", "cannot read /proc/meminfo")
    message = f"{gib(left)} of {gib(total)} GiB available"
    least = _least_bytes(observed, limits)
    if left < least:
        message = f"{message}: below {gib(least)} GiB the host may run out of memory"
        return "bad", message, "degraded", "person"
    return "ok", message


def _least_bytes(observed: Observation, limits: Limits) -> int:
    """Return the minimum of available memory. A server that was verified with less may run with that for weeks."""
    verified = observed.level.left_bytes
    return limits.available_bytes if verified is None else min(limits.available_bytes, verified // 2)


def _swap(observed: Observation, limits: Limits) -> Answer:
    used, total = observed.machine.swap_used_bytes, observed.machine.swap_total_bytes
    if used is None or not total:
        return None
    message = f"{gib(used)} of {gib(total)} GiB of swap used"
    return ("bad", message, "degraded", "person") if used > limits.swap_used * total else ("ok", message)


def _disk(observed: Observation, limits: Limits) -> Answer:
    free = observed.machine.disk_free_bytes
    if free is None:
        return None
    message = f"{gib(free)} GiB free on the disk"
    return ("bad", message, "degraded", "person") if free < limits.disk_free_bytes else ("ok", message)


def _drift(observed: Observation, limits: Limits) -> Answer:
    if observed.drift_error:
        return "unknown", observed.drift_error
    if observed.container.status in ("", "absent"):
        return None
    if observed.drift:
        return "bad", f"differs from the last good state: {differs(observed.drift)}", "degraded", "deploy"
    return "ok", "container, image and model match the verified state"


def _model_files(observed: Observation, limits: Limits) -> Answer:
    """Judge the periodic hash of the model's files, if the install enabled it."""
    found = observed.model_files
    if found is None or observed.busy:
        return None
    if not found.files:
        return "unknown", "there is no record of the model's files; `deploy` records them"
    if found.wrong:
        files = first(found.wrong, 3)
        message = f"content differs from the verified files, by a full hash: {files}; `deploy` fetches them again"
        return "bad", message, "degraded", "deploy"
    hashed = (
        f"as verified, by a full hash {units.about(found.age_s)} ago" if found.age_s is not None else "not hashed yet"
    )
    reading = f"; {found.read} of {found.files} read again" if found.read else ""
    paused = f"; paused: {found.paused}" if found.paused else ""
    return "warn" if found.late else "ok", f"{count(found.files, 'file')} {hashed}{reading}{paused}"


def _gateway(observed: Observation, limits: Limits) -> Answer:
    if observed.busy or observed.gateway is None:
        return None
    if observed.gateway:
        return "bad", f"{observed.gateway}; `gateway.deploy` brings it back", "degraded", "deploy"
    return "ok", "the gateway runs as it was verified"


def _growth(observed: Observation, limits: Limits) -> Answer:
    """Judge the growth of memory use, because a server that grew once will grow again with the next longer prompt."""
    level = observed.level
    if not level.growth or observed.busy:
        return None
    if not level.grows_on:
        return "ok", level.growth
    message = f"{level.growth}: the same growth again would take the host down"
    return "bad", message, "degraded", "person"


def _guard(observed: Observation, limits: Limits) -> Answer:
    """Judge the memory guard, if one is installed."""
    if observed.level.left_bytes is None:
        return None
    if observed.level.running:
        return "ok", "the memory guard is running"
    return "warn", "the memory guard is not running; `health.install` starts it"


def _host(observed: Observation, limits: Limits) -> Answer:
    return ("warn", observed.lost) if observed.lost else None


def starved(gpu: Gpu, limits: Limits) -> bool:
    """Return True if a GPU is busy with low power and a low clock."""
    busy, power, clock = gpu.utilization_percent, gpu.power_w, gpu.clock_mhz
    if busy is None or power is None or clock is None:
        return False
    return busy > limits.busy_percent and power < limits.low_w and clock < limits.low_mhz


def _gpu_words(gpu: Gpu) -> str:
    reported = ((gpu.utilization_percent, "{:.0f} % busy"), (gpu.clock_mhz, "{:.0f} MHz"), (gpu.power_w, "{:.0f} W"))
    return "the GPU is " + (", ".join(form.format(value) for value, form in reported if value is not None) or "there")


#: questions by the name of their evidence, in the order of the report
QUESTIONS: dict[str, Callable[[Observation, Limits], Answer]] = {
    "deploy": _somebody_works,
    "container": _container,
    "restart policy": _policy,
    "rank": _rank,
    "/health": _health,
    "token": _token,
    "stall": _frozen,
    "power": _power,
    "temperature": _temperature,
    "speed": _speed,
    "memory": _memory,
    "swap": _swap,
    "disk": _disk,
    "drift": _drift,
    "model files": _model_files,
    "gateway": _gateway,
    "host": _host,
    "growth": _growth,
    "guard": _guard,
}
