"""Events of the guard service are read as untrusted data."""

from pathlib import Path

import pytest

from sparkwright.guard import service
from sparkwright.host.memory import service_guard, start_guard
from sparkwright.host.state import StateFolder
from sparkwright.protocol.memory_level import MemoryLevel
from sparkwright.units import GIB

ID = "ab" * 32
GOOD = f"1795705678.044 killed qwen35 {ID} falling {GIB} 1048576 {3 * GIB}"


@pytest.mark.parametrize(
    "line",
    [
        "", "1 killed", GOOD.replace("qwen35", "../x"), GOOD.replace("qwen35", "<b>"),
        GOOD.replace("killed", "$(reboot)"), GOOD.replace(str(GIB), "much", 1), GOOD + " more", "\x00\xff" * 40,
    ],
)  # fmt: skip
def test_damaged_event_lines_are_skipped(tmp_path: Path, line: str) -> None:
    state = StateFolder.in_home(tmp_path)
    events = state.folder(start_guard.FOLDER) / service.EVENTS_FILE
    events.write_text(f"{line}\n{GOOD}\n", errors="surrogateescape")
    (action,) = service_guard.list_actions(state)
    assert action.name == "qwen35"
    assert action.message.endswith("to save the host: 1.0 GiB available, falling 3.0 GiB/s")
    assert service_guard.stop_reason(state, ID, 0) == action.message
    assert service_guard.stop_reason(state, ID, action.time_s + 1) == ""
    assert service_guard.stop_reason(state, "cd" * 32, 0) == ""


def test_growth_is_reported_before_it_is_dangerous() -> None:
    total = int(121.7 * GIB)
    steady, growing, dangerous = (MemoryLevel(True, total, 12 * GIB, lowest * GIB) for lowest in (11, 9, 6))
    assert (steady.growth_message, steady.is_near_exhaustion) == ("", False)
    assert "3.0 GiB more are in use" in growing.growth_message
    assert not growing.is_near_exhaustion
    assert dangerous.is_near_exhaustion
    assert not MemoryLevel(True, total, int(1.9 * GIB), int(1.5 * GIB)).growth_message
