"""The judgement of an observation: the worst answer to the questions decides the state. No I/O here."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sparkwright.errors import Exit
from sparkwright.health.judging import ranks
from sparkwright.health.judging.observation import Limits, Observation
from sparkwright.health.judging.questions import QUESTIONS, Answer
from sparkwright.health.record import Cure, Evidence, State, severity

#: exit codes of `sparkwright health`. A slow start is no failure; a server with a problem that still serves is "changes or drift"
EXITS: dict[State, Exit] = {
    "ok": Exit.OK,
    "asleep": Exit.OK,
    "starting": Exit.OK,
    "degraded": Exit.CHANGES,
    "unknown": Exit.INCONCLUSIVE,
    "stalled": Exit.FAILED,
    "wedged": Exit.FAILED,
    "crash-looping": Exit.FAILED,
    "down": Exit.FAILED,
}


@dataclass(frozen=True, slots=True)
class Finding:
    """An answer to a question: its evidence, the state it means by itself, and what helps."""

    evidence: Evidence
    state: State = "ok"
    cure: Cure = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The state of a server, with its reason."""

    #: the worst finding's
    state: State
    #: the sentence of that finding
    why: str
    #: what helps; "power" if nothing else does
    cure: Cure
    evidence: tuple[Evidence, ...]


def judge(observed: Observation, limits: Limits, wanted: Collection[str] = ()) -> Judgement:
    """Return the state that one observation means by itself. wanted: only these questions; all if not given."""
    answers = [(name, ask(observed, limits)) for name, ask in QUESTIONS.items() if not wanted or name in wanted]
    findings = [found for name, answer in answers if (found := _finding(name, answer)) is not None]
    worst = max(findings, key=lambda finding: severity(finding.state))
    cure: Cure = "power" if any(finding.cure == "power" for finding in findings) else worst.cure
    good = worst.state == "ok"
    why = _fine(observed) if good else worst.evidence.message
    return Judgement(worst.state, why, "" if good else cure, tuple(finding.evidence for finding in findings))


def _finding(name: str, answer: Answer) -> Finding | None:
    if answer is None:
        return None
    level, message, *rest = answer
    return Finding(Evidence(name, level, message), *rest)


def _fine(observed: Observation) -> str:
    if observed.rank.rank:
        return ranks.place(observed)
    server, working = observed.server, "it generates" if observed.gives == "token" else "it works"
    made = f"a {observed.gives} in {server.token_s:.2f} s" if server.token_s is not None else working
    speed = f", {observed.speed.tok_per_s:.1f} tok/s" if observed.speed.tok_per_s is not None else ""
    return f"{made}{speed}"
