"""Compare two results, or the two arms of one result, load by load and figure by figure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sparkwright.bench.results_file import Figures, Results, Row, build_rows, load_key, shown_figures

#: compared figures, as (title, name in `Figures` or `derived`, decimal places, whether more is better)
COMPARED_FIGURES: tuple[tuple[str, str, int, bool], ...] = (
    ("output tok/s", "output_tok_per_s", 1, True),
    ("tok/s per stream", "stream_tok_per_s", 1, True),
    ("prefill tok/s", "prefill_tok_per_s", 0, True),
    ("TTFT p50 ms", "ttft_p50_ms", 0, False),
    ("TTFT p99 ms", "ttft_p99_ms", 0, False),
    ("TPOT p50 ms", "tpot_p50_ms", 1, False),
    ("ITL p50 ms", "itl_p50_ms", 1, False),
    ("ITL p99 ms", "itl_p99_ms", 1, False),
    ("largest gap ms", "largest_gap_ms", 0, False),
    ("stalled ms", "stall_ms", 0, False),
    ("long prompt's TTFT ms", "long_ttft_ms", 0, False),
    ("short prompts behind the long one, mean TTFT ms", "short_ttft_mean_ms", 0, False),
)
#: difference below which two runs are equal within the noise on a Spark (docs/measuring.md)
NOISE_SHARE = 0.02
#: meaningful figures by kind of load; for other kinds, all fields of `Figures`
FIGURES_BY_KIND: dict[str, tuple[str, ...]] = {
    "smoke": ("prefill_tok_per_s", "stream_tok_per_s", "ttft_p50_ms", "itl_p99_ms"),
    "hol1": ("largest_gap_ms", "stall_ms", "itl_p50_ms", "itl_p99_ms", "long_ttft_ms"),
    "itl": ("largest_gap_ms", "stall_ms", "itl_p50_ms", "itl_p99_ms", "long_ttft_ms"),
    "hol2": ("short_ttft_mean_ms", "long_ttft_ms"),
}


@dataclass(frozen=True)
class Difference:
    """The comparison of one figure of one load between two arms. `ratio` is second / first."""

    load: str
    figure: str
    first: float
    second: float
    digits: int
    more_is_better: bool
    #: True if the repetitions of the two sides do not overlap; None if a side has a single run
    is_significant: bool | None
    #: True for a percentile that hides the stalls of a side, because they are too few
    misses_stalls: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the fields of `bench.compare --json`."""
        return {
            "load": self.load,
            "figure": self.figure,
            "first": self.first,
            "second": self.second,
            "digits": self.digits,
            "more_is_better": self.more_is_better,
            "sure": self.is_significant,
            "blind": self.misses_stalls,
            "ratio": self.ratio,
            "verdict": self.verdict,
        }

    @property
    def ratio(self) -> float | None:
        return self.second / self.first if self.first else None

    @property
    def is_better(self) -> bool | None:
        """True if the second is better; None if they are equal."""
        if self.first == self.second:
            return None
        return (self.second > self.first) == self.more_is_better

    @property
    def verdict(self) -> str:
        """Better, worse, equal, within noise or misses stalls; with a question mark if a side has a single run."""
        if self.misses_stalls:
            return "misses stalls"
        if self.is_better is None:
            return "equal"
        if self.ratio is not None and abs(self.ratio - 1) < NOISE_SHARE:
            return "within noise"
        word = "better" if self.is_better else "worse"
        if self.is_significant is None:
            return f"{word}?"
        return word if self.is_significant else "within noise"


def compare_arms(results: Results) -> list[Difference]:
    """Return the differences between the two arms of an experiment; empty unless there are two."""
    if len(results.measured_arms) != 2:
        return []
    first, second = (select_arm(build_rows(results), name) for name in results.measured_arms)
    return _compare_rows(first, second)


def select_arm(rows: Sequence[Row], name: str) -> list[Row]:
    return [row for row in rows if row.arm == name]


def compare_results(results: Results, other: Results) -> list[Difference]:
    """Return the differences between two results, arm by arm if they share arms."""
    first, second = build_rows(results), build_rows(other)
    first_arms, second_arms = ({row.arm for row in rows} for rows in (first, second))
    names_arms = len(first_arms) > 1 or len(second_arms) > 1
    if not first_arms & second_arms:
        return _compare_rows(first, second, names_arms=names_arms)
    return [
        difference
        for name in sorted(first_arms & second_arms)
        for difference in _compare_rows(select_arm(first, name), select_arm(second, name), names_arms=names_arms)
    ]


def _compare_rows(first: Sequence[Row], second: Sequence[Row], *, names_arms: bool = False) -> list[Difference]:
    differences = []
    for row, other in _match_rows(first, second):
        arm_names = filter(None, dict.fromkeys((row.arm, other.arm)))
        prefix = f"{' and '.join(arm_names)}: " if names_arms else ""
        description, hides_stalls = f"{prefix}{row.description}", _has_hidden_stalls(row, other)
        differences += [
            Difference(
                description,
                title,
                a,
                b,
                digits,
                higher_is_better,
                is_significant,
                hides_stalls and name == "itl_p99_ms",
            )
            for title, name, digits, higher_is_better in COMPARED_FIGURES
            if name in FIGURES_BY_KIND.get(str(row.load.get("kind")), Figures.model_fields)
            for a, b, is_significant in _compare_values(row, other, name)
        ]
    return differences


def _match_rows(first: Sequence[Row], second: Sequence[Row]) -> Iterable[tuple[Row, Row]]:
    """Yield pairs of rows with the same load.

    Rows left over match if their loads are similar: an imported load states fewer values.
    """
    unmatched_first, unmatched_second = list(first), list(second)
    for agree in (_have_same_load, _have_similar_load):
        for row in list(unmatched_first):
            other = next((item for item in unmatched_second if agree(row.load, item.load)), None)
            if other is not None:
                unmatched_first.remove(row)
                unmatched_second.remove(other)
                yield row, other


def _have_same_load(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return load_key(first) == load_key(second)


def _have_similar_load(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Return True if kind, concurrency and rate are the same, and no length differs that both loads state."""
    stated = {name for name in first.keys() & second.keys() if first[name] and second[name]} - {"prompts", "requests"}
    return all((first.get(name) or 0) == (second.get(name) or 0) for name in {*stated, "kind", "concurrency", "rate"})


def _compare_values(row: Row, other: Row, name: str) -> Iterable[tuple[float, float, bool | None]]:
    first_values, second_values = row.values(name), other.values(name)
    first, second = row.figure(name), other.figure(name)
    if first is not None and second is not None:
        has_repetitions = len(first_values) > 1 and len(second_values) > 1
        yield (
            first,
            second,
            (max(first_values) < min(second_values) or max(second_values) < min(first_values))
            if has_repetitions
            else None,
        )


def _has_hidden_stalls(*sides: Row) -> bool:
    """Return True if a side has stalls, but they are less than one percent of its gaps."""
    all_figures = [shown_figures(cell) for row in sides for cell in row.cells]
    return any(
        figures.stalls and figures.itl_count and figures.stalls < figures.itl_count / 100 for figures in all_figures
    )


def list_unmatched(results: Results, other: Results) -> list[str]:
    """Return the loads that are in only one of two results."""
    first, second = ({row.description for row in build_rows(side)} for side in (results, other))
    return sorted(first ^ second)
