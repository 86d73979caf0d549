"""The predicted rate of a cluster, compared with other people's measurements: advice, so near is enough."""

from __future__ import annotations

import pytest

from sparkwright.engines.model import roofline
from sparkwright.engines.parallel import Split


@pytest.mark.parametrize(
    ("alone", "layers", "measured"),
    [
        (57.5, 36, 69.0),  # gpt-oss-120b, the report that the rule was fitted to
        (16.3, 88, 23.0),  # Nemotron-3-Super-120B NVFP4, one that it was not
    ],
)
def test_two_hosts_of_tensor_parallelism(alone: float, layers: int, measured: float) -> None:
    assert roofline.split_rate(alone, Split(tensor=2), layers) == pytest.approx(measured, rel=0.1)


def test_pipeline_parallelism_does_not_speed_up_one_stream() -> None:
    assert roofline.split_rate(57.5, Split(pipeline=2), 36) == 57.5
    assert roofline.split_rate(57.5, Split(2, 2), 36) == roofline.split_rate(57.5, Split(2), 36)


def test_it_never_reaches_the_number_of_hosts() -> None:
    for hosts in (2, 4, 8):
        rate = roofline.split_rate(57.5, Split(tensor=hosts), 36)
        assert rate is not None and rate < 57.5 * hosts


@pytest.mark.parametrize(("alone", "layers"), [(None, 36), (57.5, None), (0.0, 36)])
def test_what_is_not_known_stays_unknown(alone: float | None, layers: int | None) -> None:
    assert roofline.split_rate(alone, Split(tensor=2), layers) is None


def test_its_source_is_said() -> None:
    assert "rule of thumb" in roofline.SPLIT_SOURCE
