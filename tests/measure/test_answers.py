"""Answers judged without a reference: sensible texts in any language, and nonsense."""

import pytest

from sparkwright.measure import reference

RIGHT = ("42", "54", "Paris", "Tokyo", "15", "Tuesday", "8", "cold", "quixotry", "LAMP", "1, 2, 3, 4, 5", "marigold")
LOOP = "the the the the the the the the the the the the"
EXCLAMATIONS = "!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!"


@pytest.mark.parametrize(
    "text",
    [
        "'s't's't's's's't's's't's's't's's", LOOP, EXCLAMATIONS, "哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈", "", "  \n ",
        "Paris<|im_end|>", "<turn|>\nParis", "<pad><pad>", "caf\ufffd\ufffd\ufffd",
    ],
)  # fmt: skip
def test_nonsense_texts_are_detected(text: str) -> None:
    assert reference.describe_nonsense(text)


@pytest.mark.parametrize(
    "text",
    [
        "The sky is blue because air scatters short wavelengths of sunlight more than long ones, and our eyes see it.",
        "| Planet | Sentence |\n|---|---|\n| Mercury | The smallest planet, and the closest to the sun. |",
        'def fib(n):\n    """Return the n-th Fibonacci number."""\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b',
        "天空之所以是蓝色的，是因为大气中的气体分子散射了太阳光中的短波长光线，而人眼对蓝色更敏感。",
        "Небо голубое, потому что воздух рассеивает короткие волны солнечного света сильнее длинных.",
        "空が青いのは、太陽の光が大気中の分子によって散乱されるためです。波長の短い青い光ほど強く散乱されます。",
        "42",
        "x < y and y > z",
    ],
)
def test_sensible_texts_in_any_language_pass(text: str) -> None:
    assert reference.describe_nonsense(text) == ""


def test_same_answer_to_all_questions_is_garbage() -> None:
    evaluation = reference.evaluate_answers(["The lamp turned above the dark water."] * 12)
    assert (evaluation.verdict, evaluation.right) == ("garbage", 0)
    assert "the same answer to all" in evaluation.sentence


@pytest.mark.parametrize(
    ("texts", "verdict"),
    [
        ([LOOP] * 3, "garbage"),
        (["A fine sentence.", EXCLAMATIONS, "Another."], "doubtful"),
        (["A fine sentence.", "Another.", "A third."], "sane"),
    ],
)
def test_looping_reference_texts_outweigh_right_answers(texts: list[str], verdict: str) -> None:
    assert reference.evaluate_answers(RIGHT, texts).verdict == verdict


def test_no_answer_is_right_for_two_questions() -> None:
    for own, answer in enumerate(RIGHT):
        others = [answer if n != own else "" for n in range(len(RIGHT))]
        assert reference.evaluate_answers(others).right == 0


def test_wrong_answer_from_the_prefix_cache_is_doubtful() -> None:
    sane = reference.evaluate_answers(RIGHT)
    assert reference.evaluate_cached_answer(sane, "marigold", "Marigold.").verdict == "sane"
    assert reference.evaluate_cached_answer(sane, "marigold", "lighthouse").verdict == "doubtful"
