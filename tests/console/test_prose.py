"""Sentences on a terminal are wrapped at words; what is copied from them stays whole."""

from __future__ import annotations

import pytest

from sparkwright.console.out import hanging, say, say_prose


def test_a_finding_hangs_below_its_text_and_its_command_is_not_divided() -> None:
    line = "  info    recipes/a.yml:43: thinking is on. Why: `sparkwright explain reasoning-truncates-answers`."
    assert hanging(line, 60) == [
        "  info    recipes/a.yml:43: thinking is on. Why:",
        "          `sparkwright explain reasoning-truncates-answers`.",
    ]


def test_a_table_of_a_budget_hangs_below_its_last_column() -> None:
    line = "     69.1  KV cache and computation  gpu-memory-utilization 0.85 of 119.7 GiB, less the weights"
    first, *rest = hanging(line, 76)
    assert first.endswith("0.85 of 119.7") and rest == [" " * 37 + "GiB, less the weights"]


def test_a_digest_that_is_longer_than_the_line_is_left_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    image = f"    vllm/vllm-openai@sha256:{'ab' * 32}"
    say_prose(f"served\n{image}")
    assert capsys.readouterr().out == f"served\n{image}\n"


def test_text_to_copy_and_a_pipe_are_not_wrapped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = "word " * 30 + "end"
    say_prose(sentence)
    monkeypatch.setenv("COLUMNS", "40")
    say(sentence)
    assert capsys.readouterr().out == f"{sentence}\n{sentence}\n"
