"""The units and the line of cron, judged by systemd's own tools."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sparkwright.health import units
from sparkwright.health.units import Clock

HOME = Path("/home/o p%s")
PROGRAM = ("/usr/bin/python3", "-I", f"{HOME}/x $HOME.py", "tag")
CLOCKS = {
    "user": Clock(PROGRAM, 300, [HOME], {"DOCKER_HOST": "unix:///a b%n"}),
    "bare": Clock(PROGRAM, 300, [HOME], confined=False),
    "system": Clock(PROGRAM, 90, [HOME], user="root", heals=True),
}
tools = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is in Debian's package systemd")


def laid(clock: Clock, folder: Path) -> Path:
    (folder / units.TIMER).write_text(units.timer(clock))
    (folder / units.SERVICE).write_text(units.service(clock))
    return folder / units.SERVICE


@tools
@pytest.mark.parametrize("clock", CLOCKS.values(), ids=CLOCKS.keys())
def test_systemd_finds_nothing_wrong(clock: Clock, tmp_path: Path) -> None:
    service = laid(clock, tmp_path)
    words = ["systemd-analyze", "verify", "--man=no", str(service), str(tmp_path / units.TIMER)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@tools
@pytest.mark.parametrize(("name", "most"), [("system", 3.0), ("user", 6.0)])
def test_systemd_calls_it_little_exposed(name: str, most: float, tmp_path: Path) -> None:
    words = ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(laid(CLOCKS[name], tmp_path))]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    found = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert found is not None and float(found[1]) <= most, done.stdout[-300:]


@pytest.mark.parametrize(
    ("every_s", "when"),
    [(30, "*/1 * * * *"), (300, "*/5 * * * *"), (3600, "0 */1 * * *"), (5400, "0 */1 * * *"), (9e6, "0 */23 * * *")],
)
def test_cron_counts_in_minutes_and_hours(every_s: float, when: str) -> None:
    assert units.cron_line(Clock(("p",), every_s, [])).startswith(f"{when} p >/dev/null")


def test_the_crontab_of_others_is_left_alone() -> None:
    mine = "# mine\n0 1 * * * backup\n"
    line = units.cron_line(CLOCKS["user"])
    assert "\\%" in line and "%" not in line.replace("\\%", "")
    with_it = units.with_cron(mine, line)
    assert with_it == mine + line + "\n"
    assert units.with_cron(with_it, line) == with_it
    assert units.with_cron(with_it, "") == mine
