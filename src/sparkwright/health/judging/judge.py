"""Evaluate an observation: the worst answer to any question determines the state, which is damped before it is reported."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sparkwright.errors import Exit
from sparkwright.health.judging import ranks
from sparkwright.health.judging.observation import Limits, Observation
from sparkwright.health.judging.questions import QUESTIONS
from sparkwright.health.judging.ranks import DefiniteAnswer
from sparkwright.health.record import Cure, Evidence, State, severity

#: exit codes of `sparkwright health`. A slow start is not a failure, and a degraded server still serves ("changes or drift")
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
#: number of consecutive checks that confirm a worse state. The default is 1: a stall, for example, already spans two checks
CONFIRMING_CHECKS: dict[State, int] = {"degraded": 2, "unknown": 2}
#: number of changes within FLAP_WINDOW_CHECKS checks that count as flapping
MIN_FLAP_CHANGES = 4
#: number of recent checks in which changes are counted
FLAP_WINDOW_CHECKS = 12
#: number of checks for which a good state of a flapping server must hold
MIN_STABLE_CHECKS = 3
GOOD_STATES: tuple[State, ...] = ("ok", "asleep", "starting")
#: states of a server that generated a token; a single check proves them
SERVING_STATES: tuple[State, ...] = ("ok", "degraded")


@dataclass(frozen=True, slots=True)
class Finding:
    """The evidence of an answer, with the state that it implies and the cure."""

    evidence: Evidence
    state: State = "ok"
    cure: Cure = ""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The state of a server, with its reason."""

    #: state of the worst finding
    state: State
    #: message of the worst finding
    why: str
    #: cure of the worst finding; "power" if any finding requires it, because nothing else helps then
    cure: Cure
    evidence: tuple[Evidence, ...]


def evaluate_observation(observation: Observation, limits: Limits, questions: Collection[str] = ()) -> Evaluation:
    """Return the state implied by a single observation. questions: names of the questions to use; empty for all."""
    answers = {
        name: check(observation, limits) for name, check in QUESTIONS.items() if not questions or name in questions
    }
    findings = [_build_finding(name, answer) for name, answer in answers.items() if answer is not None]
    worst_finding = max(findings, key=lambda finding: severity(finding.state))
    cure: Cure = "power" if any(finding.cure == "power" for finding in findings) else worst_finding.cure
    is_ok = worst_finding.state == "ok"
    reason = _describe_healthy(observation) if is_ok else worst_finding.evidence.message
    return Evaluation(
        worst_finding.state, reason, "" if is_ok else cure, tuple(finding.evidence for finding in findings)
    )


def _build_finding(name: str, answer: DefiniteAnswer) -> Finding:
    level, message, *state_and_cure = answer
    return Finding(Evidence(name, level, message), *state_and_cure)


def _describe_healthy(observation: Observation) -> str:
    if observation.rank.rank:
        return ranks.describe_joined_rank(observation)
    token_s, tok_per_s = observation.server.token_s, observation.speed.tok_per_s
    if token_s is not None:
        message = f"a {observation.answer_noun} in {token_s:.2f} s"
    else:
        message = "it generates" if observation.answer_noun == "token" else "it works"
    return f"{message}, {tok_per_s:.1f} tok/s" if tok_per_s is not None else message


@dataclass(frozen=True, slots=True)
class DampedState:
    """The state to report after damping."""

    state: State
    #: True if the server alternates between good and bad
    flapping: bool = False


def damp_state(previous_state: State | None, states: Sequence[State]) -> DampedState:
    """Return the state to report: a single bad check may be a fluke, but a generated token is not.

    A server that generates is never reported as down, even if it is flapping. Only notifications wait until it has settled.

    Args:
        previous_state: the last reported state; None at the first check.
        states: states of the checks including this one, oldest first.
    """
    latest_state, flapping = states[-1], is_flapping(states)
    if previous_state is None or latest_state == previous_state:
        return DampedState(latest_state, flapping)
    if severity(latest_state) > severity(previous_state):
        required_count = CONFIRMING_CHECKS.get(latest_state, 1)
    else:
        required_count = MIN_STABLE_CHECKS if flapping and latest_state not in SERVING_STATES else 1
    return DampedState(latest_state if _count_stable_checks(states) >= required_count else previous_state, flapping)


def is_flapping(states: Sequence[State]) -> bool:
    """Return True if the server has alternated between good and bad too often recently."""
    changes = sum(
        (state in GOOD_STATES) != (next_state in GOOD_STATES)
        for state, next_state in itertools.pairwise(states[-FLAP_WINDOW_CHECKS:])
    )
    return changes >= MIN_FLAP_CHANGES


def is_notifiable(states: Sequence[State]) -> bool:
    """Return True if the last state merits a notification. A flapping server's good state must have held for a while."""
    return not is_flapping(states) or states[-1] not in GOOD_STATES or _count_stable_checks(states) >= MIN_STABLE_CHECKS


def _count_stable_checks(states: Sequence[State]) -> int:
    """Return the number of consecutive checks with the last state."""
    recent_states = states[-FLAP_WINDOW_CHECKS:]
    return next(
        (count for count, state in enumerate(reversed(recent_states)) if state != recent_states[-1]), len(recent_states)
    )
