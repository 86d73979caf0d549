"""Evaluating an observation: the worst answer to the questions decides the state. There is no I/O here."""

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
EXIT_CODES: dict[State, Exit] = {
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
class Evaluation:
    """The state of a server, with its reason."""

    #: state of the worst finding
    state: State
    #: message of that finding
    why: str
    #: the cure; "power" if nothing else helps
    cure: Cure
    evidence: tuple[Evidence, ...]


def evaluate_observation(observation: Observation, limits: Limits, names: Collection[str] = ()) -> Evaluation:
    """Return the state implied by a single observation. names: the questions to use; empty for all."""
    answers = [(name, ask(observation, limits)) for name, ask in QUESTIONS.items() if not names or name in names]
    findings = [found for name, answer in answers if (found := _build_finding(name, answer)) is not None]
    worst = max(findings, key=lambda finding: severity(finding.state))
    cure: Cure = "power" if any(finding.cure == "power" for finding in findings) else worst.cure
    is_ok = worst.state == "ok"
    why = _describe_healthy(observation) if is_ok else worst.evidence.message
    return Evaluation(worst.state, why, "" if is_ok else cure, tuple(finding.evidence for finding in findings))


def _build_finding(name: str, answer: Answer) -> Finding | None:
    if answer is None:
        return None
    level, message, *rest = answer
    return Finding(Evidence(name, level, message), *rest)


def _describe_healthy(observation: Observation) -> str:
    if observation.rank.rank:
        return ranks.describe_place(observation)
    server, working = observation.server, "it generates" if observation.gives == "token" else "it works"
    result = f"a {observation.gives} in {server.token_s:.2f} s" if server.token_s is not None else working
    speed = f", {observation.speed.tok_per_s:.1f} tok/s" if observation.speed.tok_per_s is not None else ""
    return f"{result}{speed}"


# Damping of the reported state: a single bad check may be chance, but a generated token is not.
#
# A server that generates is never reported as down, even if it is flapping. Only notifications wait until that settles.

#: number of consecutive checks that confirm a worse state, 1 by default. A stalled server was already frozen over two checks.
CONFIRMING_CHECKS: dict[State, int] = {"degraded": 2, "unknown": 2}
#: MIN_FLAP_CHANGES changes within FLAP_WINDOW_CHECKS checks count as flapping; a good state must then hold for HOLD_CHECKS checks
MIN_FLAP_CHANGES = 4
FLAP_WINDOW_CHECKS = 12
HOLD_CHECKS = 3
GOOD_STATES: tuple[State, ...] = ("ok", "asleep", "starting")
#: states of a server that generates, for which one check is enough
SERVING_STATES: tuple[State, ...] = ("ok", "degraded")


@dataclass(frozen=True, slots=True)
class DampedState:
    """The state to report after damping."""

    #: the reported state
    state: State
    #: True if the server alternates between good and bad
    flapping: bool = False


def damp_state(before: State | None, seen: Sequence[State]) -> DampedState:
    """Return the state to report.

    Args:
        before: the last reported state; None at the first check.
        seen: states of the checks including this one, oldest first.
    """
    now, is_unstable = seen[-1], is_flapping(seen)
    if before is None or now == before:
        return DampedState(now, is_unstable)
    is_worse = severity(now) > severity(before)
    needed = (
        CONFIRMING_CHECKS.get(now, 1) if is_worse else HOLD_CHECKS if is_unstable and now not in SERVING_STATES else 1
    )
    return DampedState(now if _count_held_checks(seen) >= needed else before, is_unstable)


def is_flapping(seen: Sequence[State]) -> bool:
    """Return True if the server has alternated between good and bad too often recently."""
    changes = sum(
        (value in GOOD_STATES) != (other in GOOD_STATES)
        for value, other in itertools.pairwise(seen[-FLAP_WINDOW_CHECKS:])
    )
    return changes >= MIN_FLAP_CHANGES


def is_notifiable(seen: Sequence[State]) -> bool:
    """Return True if the last state is worth a notification. A good state of a flapping server must have held for a while."""
    return not is_flapping(seen) or seen[-1] not in GOOD_STATES or _count_held_checks(seen) >= HOLD_CHECKS


def _count_held_checks(seen: Sequence[State]) -> int:
    """Return the number of consecutive checks with the last state."""
    recent = seen[-FLAP_WINDOW_CHECKS:]
    return next((n for n, value in enumerate(reversed(recent)) if value != recent[-1]), len(recent))
