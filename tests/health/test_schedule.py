"""The systemd units and the line of cron, judged by systemd's own tools."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from sparkwright.errors import Refused
from sparkwright.health import cluster_heal, schedule
from sparkwright.health.schedule import Schedule

HOME = Path("/home/o p%s")
PROGRAM = ("/usr/bin/python3", "-I", f"{HOME}/x $HOME.py", "tag")
CLOCKS = {
    "user": Schedule(PROGRAM, 300, [HOME], {"DOCKER_HOST": "unix:///a b%n"}),
    "bare": Schedule(PROGRAM, 300, [HOME], confined=False),
    "system": Schedule(PROGRAM, 90, [HOME], user="root", heals=True),
}
tools = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is in Debian's package systemd")


def write_units(clock: Schedule, folder: Path) -> Path:
    (folder / schedule.WAKE_UNIT).write_text(schedule.render_wake_unit(replace(clock, wake=(*PROGRAM, "wake"))))
    (folder / schedule.TIMER_UNIT).write_text(schedule.render_timer_unit(clock))
    (folder / schedule.SERVICE_UNIT).write_text(schedule.render_service_unit(clock))
    return folder / schedule.SERVICE_UNIT


@tools
@pytest.mark.parametrize("clock", CLOCKS.values(), ids=CLOCKS.keys())
def test_systemd_finds_nothing_wrong(clock: Schedule, tmp_path: Path) -> None:
    service = write_units(clock, tmp_path)
    words = [
        "systemd-analyze",
        "verify",
        "--man=no",
        str(service),
        str(tmp_path / schedule.TIMER_UNIT),
        str(tmp_path / schedule.WAKE_UNIT),
    ]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


@tools
@pytest.mark.parametrize(("name", "most"), [("system", 3.0), ("user", 6.0)])
def test_systemd_calls_it_little_exposed(name: str, most: float, tmp_path: Path) -> None:
    words = ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(write_units(CLOCKS[name], tmp_path))]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    match = re.search(r"exposure level for \S+: ([\d.]+)", result.stdout)
    assert match is not None and float(match[1]) <= most, result.stdout[-300:]


@pytest.mark.parametrize(
    ("every_s", "when"),
    [(30, "*/1 * * * *"), (300, "*/5 * * * *"), (3600, "0 */1 * * *"), (5400, "0 */1 * * *"), (9e6, "0 */23 * * *")],
)
def test_cron_counts_in_minutes_and_hours(every_s: float, when: str) -> None:
    assert schedule.render_cron_lines(Schedule(("p",), every_s, [])).startswith(f"{when} p >/dev/null")


def test_the_crontab_of_others_is_left_alone() -> None:
    mine = "# mine\n0 1 * * * backup\n"
    line = schedule.render_cron_lines(CLOCKS["user"])
    assert "\\%" in line and "%" not in line.replace("\\%", "")
    with_it = schedule.replace_cron_lines(mine, line)
    assert with_it == mine + line + "\n"
    assert schedule.replace_cron_lines(with_it, line) == with_it
    assert schedule.replace_cron_lines(with_it, "") == mine


#: every character that systemd, cron or a shell gives a meaning to
ODD = {
    "space": "unix:///a b",
    "specifier": "unix:///%n%%h%",
    "variable": "unix:///$HOME${HOME}$$",
    "quotes": """unix:///it's"it"' '""",
    "backslashes": "unix:///a\\b\\\\c\\",
    "backslash before percent": "unix:///a\\%b\\\\%c\\\\\\%d",
    "semicolon": ";",
    "comment": "# a; b # c",
    "substitution": "$(touch /tmp/x)`id`",
    "letters": "unix:///süß/日本/💥",
    "nothing": "",
}


def load_unit(clock: Schedule) -> str:
    """Return the unit as a user's systemd loads it: Environment, ReadWritePaths and command line as it understands them."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        (Path(folder) / "x.service").write_text(schedule.render_service_unit(clock))
        env = {
            "PATH": os.environ["PATH"],
            "HOME": folder,
            "XDG_RUNTIME_DIR": folder,
            "SYSTEMD_UNIT_PATH": f"{folder}:",
        }
        run_as = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
        words = [*run_as, "/usr/lib/systemd/systemd", "--user", "--test", "--unit=x.service"]
        result = subprocess.run(words, env=env, capture_output=True, check=False)
        return result.stdout.decode().partition("Unit x.service:")[2].partition("-> Unit ")[0]


def read_property(text: str, name: str) -> str:
    (line,) = [line for line in text.splitlines() if line.strip().startswith(f"{name}: ")]
    return line.strip().removeprefix(f"{name}: ")


@pytest.mark.skipif(
    not Path("/usr/lib/systemd/systemd").exists() or not shutil.which("setpriv"), reason="no systemd to ask"
)
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_systemd_reads_every_word_as_it_was_meant(odd: str) -> None:
    text = load_unit(Schedule(("/usr/bin/env", odd, f"--x={odd}"), 300, [Path(f"/srv/{odd}")], {"DOCKER_HOST": odd}))
    assert read_property(text, "Environment") == f"DOCKER_HOST={odd}"
    assert read_property(text, "ReadWritePaths") == str(Path(f"/srv/{odd}"))
    shown = read_property(text, "Command Line").replace("\\$", "$").replace("\\`", "`")  # more than shlex takes back
    command = [word.replace("$$", "$") for word in shlex.split(shown)]  # as systemd does when it starts it
    assert command == ["/usr/bin/env", odd, f"--x={odd}"]


def cron_command(line: str) -> str:
    r"""Return the command that cron passes to sh, by crontab(5): `\%` is %, and a bare % ends the command."""
    command, escaped, out = line.split(" ", 5)[5], False, ""
    for item in command:
        if escaped and item == "%":
            out = out[:-1]
        elif item == "%":
            return out
        out += item
        escaped = item == "\\" and not escaped
    return out


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_cron_and_its_shell_read_every_word_as_it_was_meant(odd: str) -> None:
    program = (sys.executable, "-c", "import os, sys; print([*sys.argv[1:], os.environ['DOCKER_HOST']])", odd)
    line = schedule.render_cron_lines(Schedule(program, 300, [], {"DOCKER_HOST": odd}))
    result = subprocess.run(
        ["sh", "-c", cron_command(line).replace(">/dev/null", "")], capture_output=True, text=True, check=False
    )
    assert result.stdout == f"{[odd, odd]}\n", result.stderr


@pytest.mark.parametrize("odd", ["a\nExecStart=/bin/sh", "a\rb", "a\tb", "a\x00b", "a\x1b[2Jb", "\udcff", "a\u2028b"])
@pytest.mark.parametrize("where", ["environment", "program", "path"])
def test_what_could_end_a_line_is_refused_with_where_to_look(odd: str, where: str) -> None:
    clock = Schedule(
        ("/bin/true", odd if where == "program" else "x"),
        300,
        [Path("/srv", odd if where == "path" else "x")],
        {"DOCKER_HOST": odd if where == "environment" else "x"},
    )
    with pytest.raises(Refused, match="has a control character") as excinfo:
        schedule.render_service_unit(clock)
    assert not set(str(excinfo.value)) & set(odd) - set("aExecStart=/bin/shb[2Ju8")
    if where != "path":
        with pytest.raises(Refused, match="DOCKER_HOST"):
            schedule.render_cron_lines(clock)


def test_a_crontab_with_odd_lines_of_others_is_left_alone() -> None:
    mine = "# a\x0cb\u2028c\r\n0 1 * * * backup"
    assert schedule.replace_cron_lines(f"{mine}\n", "") == f"{mine}\n"
    assert schedule.replace_cron_lines(mine, "") == f"{mine}\n"
    assert schedule.replace_cron_lines("", "") == ""


def test_a_check_that_heals_may_wait_for_the_other_members_of_a_cluster_first() -> None:
    every_s = 3600.0
    limit = re.search(
        r"^TimeoutStartSec=(\d+)$", schedule.render_service_unit(Schedule(PROGRAM, every_s, [HOME], heals=True)), re.M
    )
    assert limit is not None and float(limit[1]) == cluster_heal.WAIT_INTERVALS * every_s + schedule.HEAL_TIMEOUT_S
