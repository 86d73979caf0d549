"""The validity of a gateway's certificate, read without a library."""

from pathlib import Path

import pytest

from sparkwright.gateway.certificate import describe_dates_problem
from tests.certificate import write_self_signed


@pytest.mark.parametrize(
    ("begin_days", "end_days", "problem"),
    [(-2, -1, "expired on 20"), (1, 2, "is not valid before 20"), (-1, 1, ""), (-1, 20_000, "")],
)
def test_dates_that_clients_reject_are_described(
    tmp_path: Path, begin_days: float, end_days: float, problem: str
) -> None:
    certificate, key = write_self_signed(tmp_path, begin_days=begin_days, end_days=end_days)
    text = describe_dates_problem(key.read_text() + certificate.read_text())
    assert text.startswith(problem) and bool(text) == bool(problem)


def test_damaged_certificates_are_not_described(tmp_path: Path) -> None:
    pem = write_self_signed(tmp_path, begin_days=-2, end_days=-1)[0].read_text()
    lines = pem.splitlines(keepends=True)
    for text in ("", "x", *("".join([lines[0], *lines[1:n], lines[-1]]) for n in range(1, 4))):
        assert describe_dates_problem(text) in ("", describe_dates_problem(pem))
