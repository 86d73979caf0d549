"""The verdict on two texts: same, different at a near-tie, or from another model."""

import json
from typing import Any

import pytest

from sparkwright.engines.vllm.http import HTTP
from sparkwright.measure import reference
from sparkwright.measure.http_probe import Target
from sparkwright.measure.reference import GeneratedText
from tests.measure.json_server import json_server

LARGE_LEAD = 3.0


def make_text(
    words: str, *, others: dict[int, tuple[str, float]] | None = None, with_logprobs: bool = True
) -> GeneratedText:
    """Return a text whose words have a large lead, except `others`: the second candidate and the lead, by index of the word."""
    steps = []
    for n, word in enumerate(words.split()):
        other, gap = (others or {}).get(n, ("never", LARGE_LEAD))
        steps.append(((word, -0.1), (other, -0.1 - gap)))
    return GeneratedText(words, tuple(steps) if with_logprobs else ())


ONE = make_text("one two three four five six seven eight")


def test_same_texts_are_the_same() -> None:
    assert reference.compare_texts([ONE] * 3, [ONE] * 3) == ("same", [])


def test_texts_that_differ_at_a_near_tie_of_both_runs_are_the_same() -> None:
    before = make_text("one two three four", others={2: ("drei", 0.04)})
    now = make_text("one two drei vier", others={2: ("three", 0.02)})
    verdict, (parting,) = reference.compare_texts([before, ONE, ONE], [now, ONE, ONE])
    assert (verdict, parting.token, parting.tied) == ("same", 3, True)
    assert parting.sentence.endswith(
        "differs at token 3, 0.04 nats apart: 'one two three four' is now 'one two drei vier'"
    )


def test_near_tie_of_one_run_is_doubtful() -> None:
    before = make_text("one two three four", others={2: ("drei", 4.0)})
    now = make_text("one two drei vier", others={2: ("three", 0.02)})
    assert reference.compare_texts([before, ONE, ONE], [now, ONE, ONE])[0] == "doubtful"


@pytest.mark.parametrize(("common_words", "verdict"), [(1, "another"), (12, "doubtful")])
def test_near_ties_do_not_excuse_differences_at_the_start_of_every_text(common_words: int, verdict: str) -> None:
    start = "one " * common_words
    before = make_text(f"{start}two", others={common_words: ("zwei", 0.04)})
    now = make_text(f"{start}zwei", others={common_words: ("two", 0.02)})
    assert reference.compare_texts([before] * 3, [now] * 3)[0] == verdict
    assert reference.compare_texts([before, ONE, ONE], [now, ONE, ONE])[0] == "same"


def test_differences_in_every_text_mean_another_model() -> None:
    verdict, partings = reference.compare_texts([ONE] * 3, [make_text("one zwei drei vier")] * 3)
    assert verdict == "another"
    assert "differs at token 2, not a near-tie: 'one two three four five si" in partings[0].sentence
    assert partings[0].sentence.endswith("is now 'one zwei drei vier'")


def test_text_that_ends_early_differs_at_its_end() -> None:
    verdict, (parting,) = reference.compare_texts([ONE, ONE, ONE], [make_text("one two"), ONE, ONE])
    assert (verdict, parting.token, parting.tied) == ("doubtful", 3, False)


@pytest.mark.parametrize(("now", "verdict"), [("zwei", "another"), ("one two three four five six sieben", "doubtful")])
def test_only_early_differences_are_certain_without_log_probabilities(now: str, verdict: str) -> None:
    bare = GeneratedText(ONE.text)
    assert reference.compare_texts([bare] * 3, [GeneratedText(now)] * 3)[0] == verdict


def test_text_survives_json() -> None:
    assert GeneratedText.from_json(json.loads(json.dumps(ONE.to_json()))) == ONE


TOP_LOGPROBS = [
    {"token": "\ufffd", "bytes": [226], "logprob": -0.1},
    {"token": "\ufffd", "bytes": [227], "logprob": -9999.0},
]


@pytest.mark.parametrize("strict", [False, True], ids=["accepts all keys", "refuses optional keys"])
def test_request_is_reduced_to_the_accepted_keys_and_partial_characters_are_named(strict: bool) -> None:
    def answer(path: str, body: Any) -> tuple[int, Any]:
        if strict and ("logprobs" in body or "chat_template_kwargs" in body):
            return 400, {"error": {"message": "unknown"}}
        rows = [{"token": "\ufffd", "logprob": -0.1, "top_logprobs": TOP_LOGPROBS}] if body.get("logprobs") else []
        return 200, {"choices": [{"message": {"content": "one"}, "logprobs": {"content": rows} if rows else None}]}

    with json_server(answer) as url:
        texts = reference.query_texts(Target(HTTP, url, "m", timeout_s=5))
    assert [text.text for text in texts] == ["one"] * len(reference.PROMPTS)
    assert texts[0].steps == (() if strict else ((("\\xe2", -0.1), ("\\xe3", -9999.0)),))


def test_unreachable_server_raises_unanswered() -> None:
    with pytest.raises(reference.Unanswered, match="refused"):
        reference.query_texts(Target(HTTP, "http://127.0.0.1:1", "m", timeout_s=1))
