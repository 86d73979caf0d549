"""The totals of `host.clean`."""

import pytest

from sparkwright.app import clean_host


@pytest.mark.parametrize(
    ("sizes_bytes", "total"),
    [([], "0 B"), ([2_000_000_000, 500], "2.0 GB"), ([2_000_000_000, None], "at least 2.0 GB")],
)
def test_a_total_with_an_unknown_size_is_a_minimum(sizes_bytes: list[int | None], total: str) -> None:
    assert clean_host.format_total([{"size_bytes": size_bytes} for size_bytes in sizes_bytes]) == total
