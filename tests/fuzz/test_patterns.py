"""No regular expression of the tree takes more than a moment for 64 kB, whatever they hold."""

import functools
import time

import pytest

from tests.fuzz import patterns

#: processor seconds; a linear search of 64 kB takes a hundredth of it, a quadratic one ten times as long
MAX_S = 0.5
#: texts that are asked at their full length: what is quadratic takes a hundred times as long as the others in 4 kB already
LONG = 6
#: the longest has four times the characters: what takes so much less than the limit stays below it, twice over, though it be cubic
CUBIC = 2 * 4**3
MODULES = patterns.list_modules()


@functools.cache  # a module also holds what it imports
def measure_slowest(pattern: str, method: str) -> tuple[float, str]:
    """Processor seconds, and the text that took them: the long forms of the texts whose short form took longest."""
    short, longer, longest = patterns.SIZES
    shapes = list(patterns.find_slow_shapes(pattern))
    took = {shape: cpu_seconds(pattern, method, shape.text(short)) for shape in shapes}
    slow = sorted(took, key=took.__getitem__, reverse=True)[:LONG]
    worst = (took[slow[0]], slow[0].text(short))
    for size in (longer, longest):
        for shape in slow:
            if worst[0] < MAX_S and (size < longest or took[shape] * CUBIC >= MAX_S):
                took[shape] = cpu_seconds(pattern, method, shape.text(size))
                worst = max(worst, (took[shape], shape.text(size)))
    return worst


def cpu_seconds(pattern: str, method: str, text: str) -> float:
    began = time.process_time()
    patterns.apply_pattern(pattern, method, text)
    return time.process_time() - began


@pytest.mark.parametrize("package", MODULES)
def test_the_patterns_of_a_package_are_linear(package: str) -> None:
    slow = [
        f"{module}, {name}: {took:.1f} s for {len(text)} characters: {text[:100]!r}..., by {pattern!r}"
        for module in MODULES[package]
        for (pattern, how), name in patterns.find_patterns(module).items()
        for took, text in [measure_slowest(pattern, how)]
        if took >= MAX_S
    ]
    assert not slow, "\n".join(slow)


@pytest.mark.parametrize("quadratic", [r"(\S+) is not a local folder", r"\[.*\]x", r"x=([^,\s]+),"])
def test_a_quadratic_one_would_be_seen(quadratic: str) -> None:
    assert measure_slowest(quadratic, "search")[0] >= MAX_S
