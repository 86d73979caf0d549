"""Every regular expression of the tree is fast on 64 kB of any text."""

import functools
import time

import pytest

from tests.fuzz import patterns

#: limit of CPU time; a linear search of 64 kB takes a hundredth of it, a quadratic search ten times as long
MAX_S = 0.5
#: number of texts that are tested at full length: a quadratic search takes a hundred times as long as others already on 4 kB
LONG = 6
#: factor by which a cubic search takes longer on the longest text, which has four times the characters, with a margin of two
CUBIC = 2 * 4**3
MODULES = patterns.list_modules()


@functools.cache  # patterns are also found in the modules that import them
def measure_slowest(pattern: str, method: str) -> tuple[float, str]:
    """Return the longest CPU time, and its text: a long form of the shapes whose short form took longest."""
    short, longer, longest = patterns.SIZES
    shapes = list(patterns.find_slow_shapes(pattern))
    took = {shape: measure_cpu_seconds(pattern, method, shape.text(short)) for shape in shapes}
    slow = sorted(took, key=took.__getitem__, reverse=True)[:LONG]
    worst = (took[slow[0]], slow[0].text(short))
    for size in (longer, longest):
        for shape in slow:
            if worst[0] < MAX_S and (size < longest or took[shape] * CUBIC >= MAX_S):
                took[shape] = measure_cpu_seconds(pattern, method, shape.text(size))
                worst = max(worst, (took[shape], shape.text(size)))
    return worst


def measure_cpu_seconds(pattern: str, method: str, text: str) -> float:
    began = time.process_time()
    patterns.apply_pattern(pattern, method, text)
    return time.process_time() - began


@pytest.mark.parametrize("package", MODULES)
def test_patterns_of_a_package_are_linear(package: str) -> None:
    slow = [
        f"{module}, {name}: {took:.1f} s for {len(text)} characters: {text[:100]!r}..., by {pattern!r}"
        for module in MODULES[package]
        for (pattern, method), name in patterns.find_patterns(module).items()
        for took, text in [measure_slowest(pattern, method)]
        if took >= MAX_S
    ]
    assert not slow, "\n".join(slow)


@pytest.mark.parametrize("quadratic", [r"(\S+) is not a local folder", r"\[.*\]x", r"x=([^,\s]+),"])
def test_a_quadratic_pattern_is_detected(quadratic: str) -> None:
    assert measure_slowest(quadratic, "search")[0] >= MAX_S
