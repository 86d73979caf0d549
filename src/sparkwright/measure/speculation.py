"""Check speculative decoding: the acceptance by position, and the answers with several streams and temperatures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from sparkwright.engines import http as engine_http
from sparkwright.measure import reference
from sparkwright.measure.http_probe import Target
from sparkwright.measure.reference import Unanswered
from sparkwright.measure.server_counters import counter_increase

#: tested combinations, as (number of streams, temperature); the first, a single greedy stream, is the reference for the others
TESTED_COMBINATIONS = ((1, 0.0), (1, 0.7), (8, 0.0), (8, 0.7))
#: questions, one per stream
QUESTIONS = reference.QUESTIONS[:8]
#: minimum number of right answers to QUESTIONS for a comparison
MIN_CORRECT_ANSWERS = 4
#: minimum number of drafts for a comparison of acceptances
MIN_DRAFTS = 50
#: minimum acceptance at the first position, as a share of the baseline's. With the same prompts and decoding it hardly changes,
#: while a broken drafter loses most of it (0.15 instead of 0.5; NVFP4 drafters near 0).
MIN_ACCEPTANCE_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The acceptance of a server's drafts during a measurement, from its counters."""

    drafts: float
    #: mean number of accepted tokens per draft; None if the server does not count them
    per_draft: float | None
    #: share of drafts whose token was accepted, by position; empty if the server does not count them
    positions: tuple[float, ...]


def compute_acceptance(counters_before: Mapping[str, float], counters_after: Mapping[str, float]) -> Acceptance | None:
    """Return the acceptance between two readings of the counters by role, or None if nothing was drafted."""
    drafts = counter_increase(counters_before, counters_after, engine_http.DRAFTS)
    if not drafts or drafts < 0:
        return None
    accepted_tokens = counter_increase(counters_before, counters_after, engine_http.ACCEPTED_TOKENS)
    positions: list[float] = []
    while (name := f"{engine_http.ACCEPTED_AT_PREFIX}{len(positions)}") in counters_after:
        positions.append(round(max(0.0, counters_after[name] - counters_before.get(name, 0.0)) / drafts, 3))
    return Acceptance(
        drafts, round(accepted_tokens / drafts, 2) if accepted_tokens is not None else None, tuple(positions)
    )


def describe_acceptance_drop(current: Acceptance | None, earlier_shares: Sequence[float]) -> str:
    """Describe a drop of acceptance at the first position below MIN_ACCEPTANCE_SHARE; empty if there is none, or if unknown."""
    if (
        current is None
        or current.drafts < MIN_DRAFTS
        or not current.positions
        or not earlier_shares
        or not earlier_shares[0]
    ):
        return ""
    if current.positions[0] >= MIN_ACCEPTANCE_SHARE * earlier_shares[0]:
        return ""
    return (
        f"{current.positions[0]:.0%} of the drafts' first tokens are accepted, against {earlier_shares[0]:.0%} before"
    )


def format_positions(positions: Sequence[float]) -> str:
    """Return the acceptance by position as text: "0.91, 0.74"."""
    return ", ".join(f"{share:.2f}" for share in positions)


@dataclass(frozen=True, slots=True)
class Cell:
    """The evaluated answers for one combination of stream count and temperature."""

    streams: int
    temperature: float
    #: number of right answers
    right: int
    #: number of answers that `reference.describe_nonsense` rejects
    nonsense: int
    #: the server's error if an answer is missing; empty otherwise
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        streams = "1 stream" if self.streams == 1 else f"{self.streams} streams"
        return f"{streams} at temperature {self.temperature:g}"


def query_cells(target: Target, *, progress: Callable[[int, int], None] = lambda done, total: None) -> list[Cell]:
    """Ask the questions in each of TESTED_COMBINATIONS, but stop after the first cell with a missing answer.

    progress: called with the number of finished cells and the total.
    """
    cells: list[Cell] = []
    for streams, temperature in TESTED_COMBINATIONS:
        progress(len(cells), len(TESTED_COMBINATIONS))

        def query(question: reference.Question, temperature: float = temperature) -> str:
            return reference.query_answer(target, question.prompt, temperature=temperature)

        try:
            with ThreadPoolExecutor(streams) as pool:
                texts = list(pool.map(query, QUESTIONS))
        except Unanswered as error:
            return [*cells, Cell(streams, temperature, 0, 0, str(error))]
        cells.append(_evaluate_cell(streams, temperature, texts))
    return cells


def _evaluate_cell(streams: int, temperature: float, texts: Sequence[str]) -> Cell:
    right_count = sum(question.is_answered_by(text) for question, text in zip(QUESTIONS, texts, strict=True))
    return Cell(streams, temperature, right_count, sum(bool(reference.describe_nonsense(text)) for text in texts))


def describe_failure(cells: Sequence[Cell]) -> str:
    """Return the reason why speculation is broken, as a clause; empty if it works.

    The first cell is the reference. If it has few right answers, the other cells are judged only by nonsense and errors.
    """
    reference_cell = cells[0]
    for cell in cells:
        if cell.error:
            return f"with {cell} the server did not answer: {cell.error}"
    half_count = len(QUESTIONS) / 2
    for cell in cells[1:]:
        if cell.nonsense > half_count >= reference_cell.nonsense or (
            reference_cell.right >= MIN_CORRECT_ANSWERS and cell.right < reference_cell.right / 2
        ):
            score = f"{cell.right} of {len(QUESTIONS)} simple questions right"
            return f"with {cell} it gets {score}, against {reference_cell.right} with a single greedy stream"
    return ""
