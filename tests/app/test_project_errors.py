"""Checks of playbooks and parts without a host."""

from pathlib import Path

import pytest

from sparkwright.app.project_errors import check_playbook
from sparkwright.project import shipped_files

SHIPPED = shipped_files.shipped_folder()


@pytest.mark.parametrize(
    "path", sorted(SHIPPED.glob("playbooks/**/*.yml")), ids=lambda path: str(path.relative_to(SHIPPED))
)
def test_shipped_playbooks_and_parts_pass(path: Path) -> None:
    check_playbook(path, SHIPPED)
