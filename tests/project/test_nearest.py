"""The right name that is suggested for an unknown one."""

from __future__ import annotations

import pytest

from sparkwright.project.documents.validation import nearest


@pytest.mark.parametrize(
    ("word", "known", "answer"),
    [
        ("pair", ["spark1", "sandbox-pair", "sandbox"], "Did you mean `sandbox-pair`?"),
        ("sparc1", ["spark1", "spark2"], "Did you mean `spark1`?"),
        ("qwen", ["qwen3.5-35b-200k", "qwen3.5-35b", "glm"], "Did you mean `qwen3.5-35b`?"),
        ("ab", ["big-lab-of-many"], "Available: big-lab-of-many."),
        ("xyz", [], ""),
    ],
)
def test_a_part_of_a_name_is_that_name_and_else_the_nearest_spelling(word: str, known: list[str], answer: str) -> None:
    assert nearest(word, known) == answer
