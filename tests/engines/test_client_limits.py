"""The limits for clients never exceed the server's."""

from __future__ import annotations

import pytest

from sparkwright.engines import openai_api


@pytest.mark.parametrize(("context", "answer"), [(None, None), (2, 1), (4096, 2048), (131072, 8192)])
def test_prompt_and_answer_share_the_context(context: int | None, answer: int | None) -> None:
    assert openai_api.answer_tokens(context) == answer
