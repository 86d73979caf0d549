"""The port, key and speculation in a server's own command, and the token counts in its answers."""

from __future__ import annotations

from typing import Any

import pytest

from sparkwright.engines import openai_api
from sparkwright.engines.vllm.http import HTTP


@pytest.mark.parametrize(
    ("command", "env", "key"),
    [
        ([], [], ""),
        (["/model", "--api-key", "k1"], [], "k1"),
        (["--api-key=k1", "--port", "8000"], [], "k1"),
        (["--api_key", "k1"], ["VLLM_API_KEY=k2"], "k1"),
        (["/model"], ["PATH=/bin", "VLLM_API_KEY=k=2"], "k=2"),
        (["--api-key"], [], ""),
    ],
)
def test_the_key_is_the_one_that_the_server_was_started_with(command: list[str], env: list[str], key: str) -> None:
    assert HTTP.api_key(command, env) == key


@pytest.mark.parametrize(
    ("command", "priority"),
    [([], False), (["--scheduling-policy", "fcfs"], False), (["--scheduling-policy=priority"], True)],
)
def test_only_an_engine_that_schedules_by_priority_is_given_one(command: list[str], priority: bool) -> None:
    body = openai_api.generated(HTTP, "m", "hello", 1, priority=HTTP.low_priority(command))
    assert ("priority" in body) == priority


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        ({"choices": [{"message": {"content": None}}], "usage": {"completion_tokens": 1}}, 1),  # half a character
        ({"choices": [{"message": {"content": "ok"}}]}, 1),
        ({"choices": [{"message": {"content": ""}}], "usage": {"completion_tokens": 0}}, 0),
        ({"error": {"message": "no"}}, 0),
        (None, 0),
        ([], 0),
    ],
)
def test_a_token_counts_whether_it_has_a_text_or_not(answer: Any, tokens: int) -> None:
    assert openai_api.tokens_of(answer) == tokens
