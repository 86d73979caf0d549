"""Find the causes of a server's outage, and faults of its host or settings. Nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from sparkwright import units
from sparkwright.doctor.diagnosis.server_state import DiagnosisInput, is_slow_start
from sparkwright.engines import tasks
from sparkwright.engines.log.reader import strip_prefix
from sparkwright.engines.log.state import UNKNOWN_READING, Reading
from sparkwright.engines.options import concept_flags
from sparkwright.engines.slowness import Cause, Verdict
from sparkwright.health.judging.observation import Limits, Observation
from sparkwright.health.judging.questions import QUESTIONS
from sparkwright.health.probe import read_machine
from sparkwright.health.record import Gpu
from sparkwright.host.containers import containers
from sparkwright.host.module import Context
from sparkwright.visible import format_count

#: exit codes of a process that was killed (128 + SIGKILL), and of one that exited on request (128 + SIGTERM)
SIGKILL_EXIT_CODE, SIGTERM_EXIT_CODE = 137, 143
#: exit code that Docker sets for a container that was running before the Docker Engine started and no longer is
DAEMON_RESTART_EXIT_CODE = 255
#: longest time from a boot until the Docker Engine detects this, in seconds
MAX_BOOT_DETECTION_S = 600.0
MEMORY_FIX = "stop other processes (`invoke plan` lists what holds memory)"
#: name and fix of the cause that a bad answer reveals, by question in health/judging/questions.py
HOST_CAUSES = {
    "temperature": ("the GPU is too hot", "check fans and airflow; the GPU throttles when it gets hotter"),
    "memory": ("the host is low on memory", MEMORY_FIX),
    "swap": ("the host is out of swap", MEMORY_FIX),
    "disk": ("the disk is full", "`invoke models.prune` and `invoke images.prune` remove unused files"),
    "restart policy": ("its restart policy differs", "`invoke deploy` sets it"),
    "drift": (
        "it differs from the verified state",
        "`invoke plan --diff` shows what differs, `invoke deploy` fixes it",
    ),
}
#: questions that can reveal a cause of slow tokens
SLOWING_QUESTIONS = frozenset(("temperature", "memory", "swap", "drift"))
HOST_CAUSE_WEIGHT = 70


def find_causes(server: DiagnosisInput, limits: Limits) -> list[Cause]:
    """Return all causes that have evidence."""
    return [*(cause for find_cause in CAUSE_RULES for cause in find_cause(server)), *_slow_start(server, limits)]


def has_failed(server: DiagnosisInput) -> bool:
    """Return True if the engine exited because of its own failure, according to Docker and its log."""
    exited_with_error = server.container.status in ("exited", "dead", "restarting") and server.last_exit.code not in (
        None,
        0,
        SIGTERM_EXIT_CODE,
        DAEMON_RESTART_EXIT_CODE,
    )
    return (
        exited_with_error
        or bool(failure_reason(server).value)
        or bool(server.container.restarts and server.probe.health != 200)
    )


def restart_causes(server: DiagnosisInput) -> list[Cause]:
    """Return causes for an interrupted run and for restarts of a serving server. Restarts short of a crash loop are noted."""
    verdict: Verdict = "found" if server.crash_loop_reason else "noted"
    restarts = (replace(restart, verdict=verdict) for restart in _restarts(server))
    return [replace(cause, lowers_rate=False) for cause in (*_interrupted_run(server), *restarts)]


def failure_reason(server: DiagnosisInput) -> Reading:
    """Return the reason why the engine failed, from the log of its current start or, if nothing answers, of the previous one."""
    if server.log is not None and server.log.failure.value:
        return server.log.failure
    return server.failure if server.probe.health != 200 else UNKNOWN_READING


def _engine_failure(server: DiagnosisInput) -> Iterator[Cause]:
    failure = failure_reason(server)
    if failure.value:
        fix = "`invoke logs` shows the context; `invoke lint` checks the recipe"
        yield Cause(
            str(failure.value).rstrip("."), "found", strip_prefix(failure.evidence, server.engine.log), fix, 200
        )


def _out_of_memory(server: DiagnosisInput) -> Iterator[Cause]:
    if server.last_exit.out_of_memory:
        evidence = f"Docker reports OOMKilled, exit code {server.last_exit.code}"
        lower_share_clause = "".join(
            f"lower {flag}, or " for flag in concept_flags(server.engine.name, "the share of memory")
        )
        fix = f"{lower_share_clause}stop other processes"
        yield Cause("it was OOM-killed", "found", evidence, fix, 190)


def _refused_start(server: DiagnosisInput) -> Iterator[Cause]:
    if server.last_exit.error and server.container.status != "running":
        yield Cause(
            "Docker could not start it", "found", server.last_exit.error, "fix that, then `invoke restart`", 180
        )


def _port_conflict(server: DiagnosisInput) -> Iterator[Cause]:
    if server.listener and server.listener != f"{containers.CONTAINER_PREFIX}{server.container.name}":
        fix = "stop that, or set another `serve_port:` in the host's file"
        yield Cause("its port is in use", "found", f"port {server.port} is held by {server.listener}", fix, 170)


def _manual_stop(server: DiagnosisInput) -> Iterator[Cause]:
    """Yield a cause if the server may have been stopped manually: Docker restarts only a container that exited by itself."""
    if (
        server.container.status != "exited"
        or server.last_exit.out_of_memory
        or server.loop_stop_reason
        or server.awake_server
    ):
        return
    if server.last_exit.code == DAEMON_RESTART_EXIT_CODE:
        return
    cause_name, fix = "it was stopped manually (docker stop, docker kill)", "`invoke restart` starts it again"
    if server.container.policy in ("always", "unless-stopped"):
        evidence = f"its restart policy is {server.container.policy}, so Docker restarts it unless it was stopped"
        yield Cause(cause_name, "possible", evidence, fix, 60)
    elif server.last_exit.code in (SIGKILL_EXIT_CODE, SIGTERM_EXIT_CODE):
        yield Cause(cause_name, "possible", f"exit code {server.last_exit.code}: it received a signal", fix, 40)


def _host_outage(server: DiagnosisInput) -> Iterator[Cause]:
    """Yield a cause if the host or the Docker Engine stopped while the server was running."""
    if server.container.status != "exited" or server.last_exit.code != DAEMON_RESTART_EXIT_CODE:
        return
    exit_evidence = f"exit code {DAEMON_RESTART_EXIT_CODE}: Docker found it dead when the engine started"
    after_boot_s = (
        server.last_exit.at_s - server.booted_s
        if server.last_exit.at_s is not None and server.booted_s is not None
        else None
    )
    if after_boot_s is not None and 0 <= after_boot_s <= MAX_BOOT_DETECTION_S:
        evidence = (
            f"{exit_evidence}; the host had booted {units.format_rough_duration(after_boot_s)} "
            f"earlier{f': {server.host_outage}' if server.host_outage else ''}"
        )
        fix = "`journalctl -b -1 -k` shows the kernel's log of the previous boot; `invoke restart` starts the server again"
        yield Cause("the host went down while it was running", "found", evidence, fix, 175)
        return
    fix = "`journalctl -u docker` shows when the engine stopped; `invoke restart` starts the server again"
    yield Cause("the host or the Docker Engine stopped while it was running", "possible", exit_evidence, fix, 70)


def _stopped_crash_loop(server: DiagnosisInput) -> Iterator[Cause]:
    if server.loop_stop_reason:
        evidence = f"a health check stopped it and disabled its restart policy: {server.loop_stop_reason}"
        yield Cause("a crash loop was stopped", "found", evidence, "`invoke incident` fetches its diagnostics", 150)


def _interrupted_run(server: DiagnosisInput) -> Iterator[Cause]:
    if server.interrupted_run:
        fix = "run it again; it resumes"
        yield Cause("an earlier run was interrupted", "found", server.interrupted_run, fix, 140)


def _hung_engine(server: DiagnosisInput) -> Iterator[Cause]:
    probe = server.probe
    if probe.token == "none" and not probe.running:
        timeout_clause = f"no {tasks.result_noun(server.engine.http)} within {probe.waited_s:g} s"
        evidence = f"{timeout_clause} with no other requests running; /health returns 200"
        fix = "save `invoke logs` first if you want to report it, then `invoke restart`"
        yield Cause("the engine is hung", "found", evidence, fix, 160)
    elif probe.stalled_s is not None:
        evidence = (
            f"{format_count(int(probe.running or 0), 'request')} running, token counter unchanged for "
            f"{probe.stalled_s:.0f} s"
        )
        yield Cause("the engine is hung", "possible", evidence, "`invoke restart`", 60)
        yield Cause("a prefill of a very long prompt", "possible", "128K tokens take about 52 s on a GB10", "wait", 50)


def _failing_requests(server: DiagnosisInput) -> Iterator[Cause]:
    if server.probe.token == "error":
        yield Cause("its requests fail", "found", server.probe.error, "`invoke logs` shows why", 130)


def _slow_start(server: DiagnosisInput, limits: Limits) -> Iterator[Cause]:
    is_ready = server.log is not None and server.log.ready
    if is_ready or server.probe.health == 200 or not server.age_s or not is_slow_start(server, limits):
        return
    stage_clause = f", current stage: {server.log.stage}" if server.log is not None and server.log.stage else ""
    last_start_clause = f", the last start took {server.ready_s:.0f} s" if server.ready_s else ""
    fix = "`invoke logs` shows the stage; usual causes: cold page cache, slow disk, compilation without cache"
    yield Cause(
        "a slow start",
        "found",
        f"it has been loading for {server.age_s:.0f} s{last_start_clause}{stage_clause}",
        fix,
        120,
    )


def _restarts(server: DiagnosisInput) -> Iterator[Cause]:
    """Yield a cause if Docker restarted the server after it exited; manual restarts are not counted."""
    if server.container.restarts and server.container.status != "exited" and not failure_reason(server).value:
        age_clause = (
            f", the last one {units.format_rough_duration(server.now_s - server.last_exit.at_s)} ago"
            if server.last_exit.at_s is not None
            else ""
        )
        restarts_text = f"{server.container.restarts} restarts{age_clause} with exit code {server.last_exit.code}"
        evidence = f"{restarts_text}; its last log line: {server.last_line}"
        yield Cause("it exits on its own", "found", evidence, "`invoke logs` shows why", 110)


CAUSE_RULES: tuple[Callable[[DiagnosisInput], Iterator[Cause]], ...] = (
    _engine_failure,
    _out_of_memory,
    _refused_start,
    _port_conflict,
    _hung_engine,
    _failing_requests,
    _stopped_crash_loop,
    _interrupted_run,
    _restarts,
    _manual_stop,
    _host_outage,
)


def host_causes(context: Context, server: DiagnosisInput, gpu: Gpu, policy: str, limits: Limits) -> list[Cause]:
    """Return the causes that lie in the host, found or unknown, with evidence. policy: the verified restart policy."""
    observation = Observation(
        server.now_s,
        container=server.container,
        restart_policy=policy,
        machine=read_machine(context),
        gpus=(gpu,),
        drift=server.drift,
        drift_error=server.drift_error,
    )
    causes_found = []
    for question, (name, fix) in HOST_CAUSES.items():
        answer = QUESTIONS[question](observation, limits)
        if answer is not None and answer[0] == "unknown":
            causes_found.append(Cause(name, "unknown", answer[1]))
        elif answer is not None and "degraded" in answer[2:]:
            causes_found.append(
                Cause(name, "found", answer[1], fix, HOST_CAUSE_WEIGHT, lowers_rate=question in SLOWING_QUESTIONS)
            )
    return causes_found
