"""The table of earlier copies matches the history of this checkout."""

import subprocess

import pytest

from tools import earlier_copies


def test_table_matches_the_history() -> None:
    try:
        versions = earlier_copies.versions()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this checkout has no history")
    assert earlier_copies.text(versions) == earlier_copies.TABLE.read_text()
