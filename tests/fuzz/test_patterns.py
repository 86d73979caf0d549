"""No regular expression of the tree takes more than a moment for 64 kB, whatever they hold."""

from __future__ import annotations

import time

import pytest

from tests.fuzz import patterns

#: processor seconds; a linear search of 64 kB takes a hundredth of it, a quadratic one ten times as long
MOST_S = 0.5
#: texts that are asked at their full length: what is quadratic takes a hundred times as long as the others in 4 kB already
LONG = 6
ALL = patterns.of_the_tree()


def slowest(pattern: str, how: str) -> tuple[float, str]:
    """Processor seconds, and the text that took them: the long forms of the texts whose short form took longest."""
    first, *longer = (list(patterns.texts(pattern, size)) for size in patterns.SIZES)
    took = [seconds(pattern, how, text) for text in first]
    slow = sorted(range(len(first)), key=took.__getitem__, reverse=True)[:LONG]
    worst = (took[slow[0]], first[slow[0]])
    for text in (size[index] for size in longer for index in slow):
        if worst[0] >= MOST_S:
            break
        worst = max(worst, (seconds(pattern, how, text), text))
    return worst


def seconds(pattern: str, how: str, text: str) -> float:
    began = time.process_time()
    patterns.asked(pattern, how, text)
    return time.process_time() - began


@pytest.mark.parametrize("where", sorted(ALL))
def test_a_pattern_is_linear(where: str) -> None:
    took, text = slowest(*ALL[where])
    assert took < MOST_S, f"{took:.1f} s for {len(text)} characters: {text[:100]!r}..."


@pytest.mark.parametrize("quadratic", [r"(\S+) is not a local folder", r"\[.*\]x", r"x=([^,\s]+),"])
def test_a_quadratic_one_would_be_seen(quadratic: str) -> None:
    assert slowest(quadratic, "search")[0] >= MOST_S
