"""Causes for a server that does not serve, and faults of its host or settings. The functions have no side effects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from sparkwright import units
from sparkwright.doctor.diagnosis.server_state import DiagnosisInput, is_slow
from sparkwright.engines import tasks
from sparkwright.engines.log.reader import message
from sparkwright.engines.log.state import UNKNOWN, Reading
from sparkwright.engines.options import of_concept
from sparkwright.engines.slowness import Cause, Verdict
from sparkwright.health.judging.observation import Limits, Observation
from sparkwright.health.judging.questions import QUESTIONS
from sparkwright.health.probe import machine_of
from sparkwright.health.record import Gpu
from sparkwright.host.module import Context
from sparkwright.visible import count

#: exit codes of a process that was killed (128 + SIGKILL), and of one that exited on request (128 + SIGTERM)
KILLED, TERMINATED = 137, 143
#: exit code that Docker sets for a container that was running before the Docker Engine started and no longer is
FOUND_DEAD = 255
#: how soon after a boot the Docker Engine detects this, in seconds
BOOT_S = 600.0


def causes(seen: DiagnosisInput) -> list[Cause]:
    """Return all causes that have evidence."""
    return [cause for ask in ASKED for cause in ask(seen)]


def failed(seen: DiagnosisInput) -> bool:
    """Return True if the engine exited because of its own failure, as far as Docker and the log show."""
    ended = seen.box.status in ("exited", "dead", "restarting") and seen.end.code not in (
        None,
        0,
        TERMINATED,
        FOUND_DEAD,
    )
    return ended or bool(last_words(seen).value) or bool(seen.box.restarts and seen.probe.health != 200)


def before_now(seen: DiagnosisInput) -> list[Cause]:
    """Return the restarts of a serving server, as a cause if they are a loop and otherwise as a note."""
    verdict: Verdict = "found" if seen.loop else "noted"
    restarts = (replace(restart, verdict=verdict) for restart in _restarts(seen))
    return [replace(restart, of_rate=False) for restart in (*_cut_off(seen), *restarts)]


def last_words(seen: DiagnosisInput) -> Reading:
    """Return the reason why the engine failed, from the log of its current start or, if nothing answers, of the previous one."""
    if seen.log is not None and seen.log.failure.value:
        return seen.log.failure
    return seen.failure if seen.probe.health != 200 else UNKNOWN


def _last_words(seen: DiagnosisInput) -> Iterator[Cause]:
    failure = last_words(seen)
    if failure.value:
        fix = "`invoke logs` shows the context; `invoke lint` checks the recipe"
        yield Cause(str(failure.value).rstrip("."), "found", message(failure.evidence, seen.engine.log), fix, 200)


def _out_of_memory(seen: DiagnosisInput) -> Iterator[Cause]:
    if seen.end.out_of_memory:
        sentence = f"Docker reports OOMKilled, exit code {seen.end.code}"
        share = "".join(f"lower {flag}, or " for flag in of_concept(seen.engine.name, "the share of memory"))
        fix = f"{share}stop other processes"
        yield Cause("it was OOM-killed", "found", sentence, fix, 190)


def _docker_refused(seen: DiagnosisInput) -> Iterator[Cause]:
    if seen.end.error and seen.box.status != "running":
        yield Cause("Docker could not start it", "found", seen.end.error, "fix that, then `invoke restart`", 180)


def _port(seen: DiagnosisInput) -> Iterator[Cause]:
    if seen.listener and seen.listener != f"container {seen.box.name}":
        fix = "stop that, or set another `serve_port:` in the host's file"
        yield Cause("its port is in use", "found", f"port {seen.port} is held by {seen.listener}", fix, 170)


def _stopped(seen: DiagnosisInput) -> Iterator[Cause]:
    """Yield a manual stop, which the policy shows: Docker restarts containers that exit by themselves, but not stopped ones."""
    if seen.box.status != "exited" or seen.end.out_of_memory or seen.broken or seen.asleep:
        return
    if seen.end.code == FOUND_DEAD:
        return
    name, fix = "it was stopped manually (docker stop, docker kill)", "`invoke restart` starts it again"
    if seen.box.policy in ("always", "unless-stopped"):
        sentence = f"its restart policy is {seen.box.policy}, so Docker restarts it unless it was stopped"
        yield Cause(name, "possible", sentence, fix, 60)
    elif seen.end.code in (KILLED, TERMINATED):
        yield Cause(name, "possible", f"exit code {seen.end.code}: it was sent a signal", fix, 40)


def _host_went_down(seen: DiagnosisInput) -> Iterator[Cause]:
    """Yield the end of the host or the Docker Engine while the server was running."""
    if seen.box.status != "exited" or seen.end.code != FOUND_DEAD:
        return
    says = f"exit code {FOUND_DEAD}: Docker found it dead when the engine started"
    since_s = seen.end.at_s - seen.booted_s if seen.end.at_s is not None and seen.booted_s is not None else None
    if since_s is not None and 0 <= since_s <= BOOT_S:
        evidence = f"{says}; the host had booted {units.about(since_s)} before{f': {seen.lost}' if seen.lost else ''}"
        fix = "`journalctl -b -1 -k` shows the kernel's log of the previous boot; `invoke restart` starts the server again"
        yield Cause("the host went down under it", "found", evidence, fix, 175)
        return
    fix = "`journalctl -u docker` shows when the engine ended; `invoke restart` starts the server again"
    yield Cause("the host or the Docker Engine ended under it", "possible", says, fix, 70)


def _broken(seen: DiagnosisInput) -> Iterator[Cause]:
    if seen.broken:
        sentence = f"a health check stopped it and disabled its restart policy: {seen.broken}"
        yield Cause("a crash loop was stopped", "found", sentence, "`invoke incident` fetches its diagnostics", 150)


def _cut_off(seen: DiagnosisInput) -> Iterator[Cause]:
    if seen.cut_off:
        fix = "run it again; it resumes"
        yield Cause("an earlier run was interrupted", "found", seen.cut_off, fix, 140)


def _hangs(seen: DiagnosisInput) -> Iterator[Cause]:
    probe = seen.probe
    if probe.token == "none" and not probe.running:
        waited = f"no {tasks.noun(seen.engine.http)} within {probe.waited_s:g} s"
        sentence = f"{waited} with no other requests running; /health answers 200"
        fix = "`invoke incident` first if you want to report it, then `invoke restart`"
        yield Cause("the engine is hung", "found", sentence, fix, 160)
    elif probe.still_s is not None:
        sentence = (
            f"{count(int(probe.running or 0), 'request')} running, token counter unchanged for {probe.still_s:.0f} s"
        )
        yield Cause("the engine is hung", "possible", sentence, "`invoke restart`", 60)
        yield Cause("a prefill of a very long prompt", "possible", "128K tokens take about 52 s on a GB10", "wait", 50)


def _fails(seen: DiagnosisInput) -> Iterator[Cause]:
    if seen.probe.token == "error":
        yield Cause("its requests fail", "found", seen.probe.error, "`invoke logs` shows why", 130)


def _slow_start(seen: DiagnosisInput) -> Iterator[Cause]:
    ready = seen.log is not None and seen.log.ready
    if ready or seen.probe.health == 200 or not seen.age_s or not is_slow(seen, Limits()):
        return
    stage = f", current stage: {seen.log.stage}" if seen.log is not None and seen.log.stage else ""
    last = f", the last start took {seen.ready_s:.0f} s" if seen.ready_s else ""
    fix = "`invoke logs` shows the stage; usual causes: cold page cache, slow disk, compilation without cache"
    yield Cause("a slow start", "found", f"it has been loading for {seen.age_s:.0f} s{last}{stage}", fix, 120)


def _restarts(seen: DiagnosisInput) -> Iterator[Cause]:
    """Yield the server's own exits, which Docker counts without manual restarts."""
    if seen.box.restarts and seen.box.status != "exited" and not last_words(seen).value:
        when = f", the last one {units.about(seen.now_s - seen.end.at_s)} ago" if seen.end.at_s is not None else ""
        sentence = f"{seen.box.restarts} restarts{when} with exit code {seen.end.code}; its last line: {seen.last_line}"
        yield Cause("it exits by itself", "found", sentence, "`invoke logs` shows why", 110)


ASKED: tuple[Callable[[DiagnosisInput], Iterator[Cause]], ...] = (
    *(_last_words, _out_of_memory, _docker_refused, _port, _hangs, _fails, _broken, _cut_off, _slow_start, _restarts),
    *(_stopped, _host_went_down),
)


#: name and fix of the cause for a bad answer, by question of health/judging/questions.py
MEMORY = "stop other processes (`invoke plan` lists what holds memory)"
ASKED_OF_HOST = {
    "temperature": ("the GPU is too hot", "check fans and airflow; the GPU throttles when it gets hotter"),
    "memory": ("the host is low on memory", MEMORY),
    "swap": ("the host is out of swap", MEMORY),
    "disk": ("the disk is full", "`invoke models.prune` and `invoke images.prune` remove unused files"),
    "restart policy": ("its restart policy differs", "`invoke deploy` sets it"),
    "drift": (
        "it differs from the verified state",
        "`invoke plan --diff` shows what differs, `invoke deploy` fixes it",
    ),
}
#: questions whose bad answers can slow tokens down
OF_RATE = frozenset(("temperature", "memory", "swap", "drift"))
WEIGHT = 70


def host_causes(context: Context, seen: DiagnosisInput, gpu: Gpu, policy: str, limits: Limits) -> list[Cause]:
    """Return the bad and unknown findings about the host, with evidence. policy: the verified restart policy."""
    observed = Observation(
        seen.now_s,
        container=seen.box,
        policy=policy,
        machine=machine_of(context),
        gpus=(gpu,),
        drift=seen.drift,
        drift_error=seen.drift_error,
    )
    found = []
    for question, (name, fix) in ASKED_OF_HOST.items():
        answer = QUESTIONS[question](observed, limits)
        if answer is not None and answer[0] == "unknown":
            found.append(Cause(name, "unknown", answer[1]))
        elif answer is not None and "degraded" in answer[2:]:
            found.append(Cause(name, "found", answer[1], fix, WEIGHT, of_rate=question in OF_RATE))
    return found
