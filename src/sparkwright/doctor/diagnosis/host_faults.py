"""What is wrong with a server's host or settings although it may be fast: by the rules of the health checks."""

from __future__ import annotations

from sparkwright.doctor.diagnosis.sight import Sight
from sparkwright.engines.vllm.failures.cause import Cause
from sparkwright.health.judging.observation import Limits, Observation
from sparkwright.health.judging.questions import QUESTIONS
from sparkwright.health.record import Gpu, Machine
from sparkwright.host import evidence
from sparkwright.host.module import Context

#: of health/judging/judge.py: the question, and the cause that a bad answer is
ASKED = {
    "temperature": "the GPU is too hot",
    "memory": "the host is low on memory",
    "swap": "the host is out of swap",
    "disk": "the disk is full",
    "restart policy": "its restart policy differs",
    "drift": "it differs from the verified state",
}
FIXES = {
    "temperature": "check fans and airflow; the GPU throttles when it gets hotter",
    "memory": "stop other processes (`invoke plan` lists what holds memory)",
    "swap": "stop other processes (`invoke plan` lists what holds memory)",
    "disk": "`invoke models.prune` and `invoke images.prune` remove unused files",
    "restart policy": "`invoke deploy` sets it",
    "drift": "`invoke plan --diff` shows what differs, `invoke deploy` fixes it",
}
#: what of them can make tokens slow
OF_RATE = frozenset(("temperature", "memory", "swap", "drift"))
WEIGHT = 70


def causes(context: Context, seen: Sight, gpu: Gpu, policy: str, limits: Limits) -> list[Cause]:
    """What is bad of them, and what could not be told, each with its evidence. policy: the one that was verified."""
    observed = Observation(
        seen.now_s,
        container=seen.box,
        policy=policy,
        machine=_machine(context),
        gpus=(gpu,),
        drift=seen.drift,
        drift_error=seen.drift_error,
    )
    found = []
    for question, name in ASKED.items():
        answer = QUESTIONS[question](observed, limits)
        if answer is not None and answer[0] == "unknown":
            found.append(Cause(name, "unknown", answer[1]))
        elif answer is not None and "degraded" in answer[2:]:
            found.append(Cause(name, "found", answer[1], FIXES[question], WEIGHT, of_rate=question in OF_RATE))
    return found


def _machine(context: Context) -> Machine:
    memory = evidence.memory(context) or {}
    total, free = memory.get("SwapTotal"), memory.get("SwapFree")
    try:
        disk = context.machine.free_bytes(context.machine.home)
    except OSError:
        disk = None
    used = total - free if total is not None and free is not None else None
    return Machine(memory.get("MemTotal"), memory.get("MemAvailable"), total, used, disk)
