"""A unit's name is one step of a path, and no option."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkwright.errors import Refused
from sparkwright.modules.system.services import UNIT, SystemdUnit
from tests.modules.context import RecordingContext


@pytest.mark.parametrize(
    "name", ["../../cron.d/x.service", "/etc/x.service", "a\nb.service", "ollama", "a b.service", ""]
)
def test_what_is_no_unit_is_refused_before_systemd_is_asked(tmp_path: Path, name: str) -> None:
    with pytest.raises(Refused, match="is not a unit name"):
        SystemdUnit().run(SystemdUnit.Args(name=name, content="[Unit]\n"), RecordingContext(tmp_path))


@pytest.mark.parametrize(
    "name", ["ollama.service", "user@1000.service", "dev-sda1.swap", r"a\x2db.mount", "x:y_z.timer"]
)
def test_the_names_of_systemd_are_taken(name: str) -> None:
    assert UNIT.fullmatch(name)
