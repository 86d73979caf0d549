"""Faults of a server's host or settings, even if the server is fast: by the rules of the health checks."""

from __future__ import annotations

from sparkwright.doctor.diagnosis.diagnosis_input import DiagnosisInput
from sparkwright.engines.slowness.cause import Cause
from sparkwright.health.judging.observation import Limits, Observation
from sparkwright.health.judging.questions import QUESTIONS
from sparkwright.health.probe import machine_of
from sparkwright.health.record import Gpu
from sparkwright.host.module import Context

#: the question of health/judging/questions.py, the cause for a bad answer, and the fix
MEMORY = "stop other processes (`invoke plan` lists what holds memory)"
ASKED = {
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
#: those that can make tokens slow
OF_RATE = frozenset(("temperature", "memory", "swap", "drift"))
WEIGHT = 70


def causes(context: Context, seen: DiagnosisInput, gpu: Gpu, policy: str, limits: Limits) -> list[Cause]:
    """Return what is bad or unknown of the host, each with its evidence. policy: the verified restart policy."""
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
    for question, (name, fix) in ASKED.items():
        answer = QUESTIONS[question](observed, limits)
        if answer is not None and answer[0] == "unknown":
            found.append(Cause(name, "unknown", answer[1]))
        elif answer is not None and "degraded" in answer[2:]:
            found.append(Cause(name, "found", answer[1], fix, WEIGHT, of_rate=question in OF_RATE))
    return found
