"""Judging an observation: the worst answer to the questions decides the state. There is no I/O here."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sparkwright.errors import Exit
from sparkwright.health.judging import ranks
from sparkwright.health.judging.observation import Limits, Observation
from sparkwright.health.judging.questions import QUESTIONS, Answer
from sparkwright.health.record import Cure, Evidence, State, severity

#: exit codes of `sparkwright health`. A slow start is not a failure; a server that has a problem but still serves is "changes
#: or drift"
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
    """The answer to a question: its evidence, the state that it implies on its own, and the cure."""

    evidence: Evidence
    state: State = "ok"
    cure: Cure = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The state of a server, with its reason."""

    #: state of the worst finding
    state: State
    #: message of that finding
    why: str
    #: the cure; "power" if nothing else helps
    cure: Cure
    evidence: tuple[Evidence, ...]


def judge(observed: Observation, limits: Limits, wanted: Collection[str] = ()) -> Judgement:
    """Return the state implied by a single observation. wanted: names of the questions to use; empty for all."""
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


# Damping of the reported state: a single bad check may be chance, but a generated token is not.
#
# A server that generates is never reported as down, even if it is flapping. Only notifications wait until that settles.

#: number of consecutive checks that confirm a worse state, 1 by default. A stalled server was already frozen over two checks.
CONFIRM: dict[State, int] = {"degraded": 2, "unknown": 2}
#: FLAPS changes within WINDOW checks count as flapping; a good state must then hold for HOLD checks
FLAPS = 4
WINDOW = 12
HOLD = 3
WELL: tuple[State, ...] = ("ok", "asleep", "starting")
#: states of a server that generates, for which one check is enough
SERVES: tuple[State, ...] = ("ok", "degraded")


@dataclass(frozen=True, slots=True)
class Damped:
    """The state to report after damping."""

    #: the reported state
    state: State
    #: True if the server alternates between good and bad
    flapping: bool = False


def damp(before: State | None, seen: Sequence[State]) -> Damped:
    """Return the state to report.

    Args:
        before: the last reported state; None at the first check.
        seen: states of the checks including this one, oldest first.
    """
    now, often = seen[-1], flapping(seen)
    if before is None or now == before:
        return Damped(now, often)
    worse = severity(now) > severity(before)
    needed = CONFIRM.get(now, 1) if worse else HOLD if often and now not in SERVES else 1
    return Damped(now if _held(seen) >= needed else before, often)


def flapping(seen: Sequence[State]) -> bool:
    """Return True if the server has alternated between good and bad too often recently."""
    changes = sum((value in WELL) != (other in WELL) for value, other in itertools.pairwise(seen[-WINDOW:]))
    return changes >= FLAPS


def is_news(seen: Sequence[State]) -> bool:
    """Return True if the last state is worth a notification. A good state of a flapping server must have held for a while."""
    return not flapping(seen) or seen[-1] not in WELL or _held(seen) >= HOLD


def _held(seen: Sequence[State]) -> int:
    """Return the number of consecutive checks with the last state."""
    recent = seen[-WINDOW:]
    return next((n for n, value in enumerate(reversed(recent)) if value != recent[-1]), len(recent))
