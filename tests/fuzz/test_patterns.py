"""No regular expression of the tree takes more than a moment for 64 kB, whatever they hold."""

from __future__ import annotations

import time

import pytest

from tests.fuzz import patterns

#: processor seconds; a linear search of 64 kB takes a hundredth of it, a quadratic one ten times as long
MOST_S = 0.5
ALL = patterns.of_the_tree()


def slowest(pattern: str, how: str) -> tuple[float, str]:
    """Processor seconds, and the text that took them; ends at the first that takes too long."""
    worst = (0.0, "")
    for size in patterns.SIZES:
        for text in patterns.texts(pattern, size):
            began = time.process_time()
            patterns.asked(pattern, how, text)
            worst = max(worst, (time.process_time() - began, text))
            if worst[0] >= MOST_S:
                return worst
    return worst


@pytest.mark.parametrize("where", sorted(ALL))
def test_a_pattern_is_linear(where: str) -> None:
    took, text = slowest(*ALL[where])
    assert took < MOST_S, f"{took:.1f} s for {len(text)} characters: {text[:100]!r}..."


@pytest.mark.parametrize("quadratic", [r"(\S+) is not a local folder", r"\[.*\]x", r"x=([^,\s]+),"])
def test_a_quadratic_one_would_be_seen(quadratic: str) -> None:
    assert slowest(quadratic, "search")[0] >= MOST_S
