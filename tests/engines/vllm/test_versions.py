"""Versions compare as releases do, and a nightly is unknown where it may be either."""

import pytest

from sparkwright.engines.vllm.versions import at_least, parse, within


@pytest.mark.parametrize(
    ("version", "since", "answer"),
    [
        ("0.17.0", "0.17.0", True),
        ("0.16.9", "0.17.0", False),
        ("0.29.0+nv26.09", "0.28.0", True),
        ("0.29.0+nv26.09", "0.29.1", False),
        ("0.10.1.1", "0.10.1", True),
        ("0.33.0rc1", "0.33.0", True),
        ("0.16.1rc1.dev42+g1234", "0.16.0", True),
        ("0.16.1rc1.dev42+g1234", "0.17.0", None),
        ("0.16.1rc1.dev42+g1234", "0.18.0", False),
        ("0.17.0rc2.dev7", "0.16.0", True),
        ("0.17.0rc2.dev7", "0.17.0", None),
        ("0.17.0rc2.dev7", "0.18.0", False),
        ("0.3.1.dev3+g1234567", "0.17.0", None),
        ("0.1.dev16260+g1234567", "0.17.0", None),
        (None, "0.17.0", None),
        ("cu130-nightly", "0.17.0", None),
    ],
)
def test_at_least(version: str | None, since: str, answer: bool | None) -> None:
    assert at_least(parse(version), since) is answer


def test_within_is_unknown_only_if_the_version_decides() -> None:
    assert within(parse("0.20.0"), "0.17.0", "0.27.0") is True
    assert within(parse("0.27.0"), "0.17.0", "0.27.0") is False
    assert within(None, "0.17.0") is None
    assert within(None) is True
    assert within(parse("0.26.1rc0.dev3"), "0.17.0", "0.27.0") is None
