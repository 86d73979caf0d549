"""The systemd units, checked by systemd's own tools, and the crontab lines."""

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
SCHEDULES = {
    "user": Schedule(PROGRAM, 300, [HOME], {"DOCKER_HOST": "unix:///a b%n"}),
    "bare": Schedule(PROGRAM, 300, [HOME], confined=False),
    "system": Schedule(PROGRAM, 90, [HOME], user="root", may_restart=True),
}
needs_systemd_analyze = pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="systemd-analyze is in Debian's package systemd"
)


def write_units(clock: Schedule, folder: Path) -> Path:
    (folder / schedule.WAKE_UNIT).write_text(schedule.render_wake_unit(replace(clock, wake_command=(*PROGRAM, "wake"))))
    (folder / schedule.TIMER_UNIT).write_text(schedule.render_timer_unit(clock))
    (folder / schedule.SERVICE_UNIT).write_text(schedule.render_service_unit(clock))
    return folder / schedule.SERVICE_UNIT


@needs_systemd_analyze
@pytest.mark.parametrize("clock", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_systemd_accepts_the_units(clock: Schedule, tmp_path: Path) -> None:
    service = write_units(clock, tmp_path)
    units = [service, tmp_path / schedule.TIMER_UNIT, tmp_path / schedule.WAKE_UNIT]
    words = ["systemd-analyze", "verify", "--man=no", *map(str, units)]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


@needs_systemd_analyze
@pytest.mark.parametrize(("name", "max_level"), [("system", 3.0), ("user", 6.0)])
def test_the_exposure_level_of_the_units_is_low(name: str, max_level: float, tmp_path: Path) -> None:
    words = ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(write_units(SCHEDULES[name], tmp_path))]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    match = re.search(r"exposure level for \S+: ([\d.]+)", result.stdout)
    assert match is not None and float(match[1]) <= max_level, result.stdout[-300:]


@pytest.mark.parametrize(
    ("every_s", "when"),
    [(30, "*/1 * * * *"), (300, "*/5 * * * *"), (3600, "0 */1 * * *"), (5400, "0 */1 * * *"), (9e6, "0 */23 * * *")],
)
def test_cron_intervals_are_rounded_to_minutes_or_hours(every_s: float, when: str) -> None:
    assert schedule.render_cron_lines(Schedule(("p",), every_s, [])).startswith(f"{when} /bin/sh -c 'exec p >")


@pytest.mark.parametrize("others", ["", "# mine\n0 1 * * * backup\n", "# a\x0cb\u2028c\r\n0 1 * * * backup\n"])
def test_other_lines_of_a_crontab_are_unchanged(others: str) -> None:
    line = schedule.render_cron_lines(SCHEDULES["user"])
    assert "\\%" in line and "%" not in line.replace("\\%", "")
    installed = schedule.replace_cron_lines(others, line)
    assert installed == others + line + "\n"
    assert schedule.replace_cron_lines(installed, line) == installed
    assert schedule.replace_cron_lines(installed, "") == others
    assert schedule.replace_cron_lines(others.removesuffix("\n"), "") == others


#: words with every character that is special in systemd, cron or a shell
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
    """Return the unit as a user's systemd prints it after loading."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        (Path(folder) / "x.service").write_text(schedule.render_service_unit(clock))
        env = {"PATH": os.environ["PATH"], "HOME": folder, "XDG_RUNTIME_DIR": folder, "SYSTEMD_UNIT_PATH": f"{folder}:"}
        run_as = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
        words = [*run_as, "/usr/lib/systemd/systemd", "--user", "--test", "--unit=x.service"]
        result = subprocess.run(words, env=env, capture_output=True, check=False)
        return result.stdout.decode().partition("Unit x.service:")[2].partition("-> Unit ")[0]


def read_property(text: str, name: str) -> str:
    (line,) = [line for line in text.splitlines() if line.strip().startswith(f"{name}: ")]
    return line.strip().removeprefix(f"{name}: ")


@pytest.mark.skipif(
    not Path("/usr/lib/systemd/systemd").exists() or not shutil.which("setpriv"), reason="needs systemd and setpriv"
)
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_systemd_parses_every_word_correctly(odd: str) -> None:
    text = load_unit(Schedule(("/usr/bin/env", odd, f"--x={odd}"), 300, [Path(f"/srv/{odd}")], {"DOCKER_HOST": odd}))
    assert read_property(text, "Environment") == f"DOCKER_HOST={odd}"
    assert read_property(text, "ReadWritePaths") == str(Path(f"/srv/{odd}"))
    # shlex does not undo these two escapes
    line = read_property(text, "Command Line").replace("\\$", "$").replace("\\`", "`")
    command = [word.replace("$$", "$") for word in shlex.split(line)]  # as systemd does when it starts the program
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
def test_cron_and_its_shell_parse_every_word_correctly(odd: str) -> None:
    program = (sys.executable, "-c", "import os, sys; print([*sys.argv[1:], os.environ['DOCKER_HOST']])", odd)
    line = schedule.render_cron_lines(Schedule(program, 300, [], {"DOCKER_HOST": odd}))
    result = subprocess.run(
        ["sh", "-c", cron_command(line).replace(">/dev/null", "")], capture_output=True, text=True, check=False
    )
    assert result.stdout == f"{[odd, odd]}\n", result.stderr


@pytest.mark.skipif(not shutil.which("tcsh"), reason="needs tcsh")
def test_cron_line_also_runs_if_the_shell_of_the_crontab_is_csh(tmp_path: Path) -> None:
    program = (sys.executable, "-c", "import os, sys, pathlib; pathlib.Path(sys.argv[1]).touch(); print(1)")
    line = schedule.render_cron_lines(Schedule((*program, str(tmp_path / "it's run")), 300, []))
    result = subprocess.run(["tcsh", "-f", "-c", cron_command(line)], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert (tmp_path / "it's run").exists()


@pytest.mark.parametrize("odd", ["a\nExecStart=/bin/sh", "a\rb", "a\tb", "a\x00b", "a\x1b[2Jb", "\udcff", "a\u2028b"])
@pytest.mark.parametrize("where", ["environment", "program", "path"])
def test_control_characters_are_refused_with_a_hint(odd: str, where: str) -> None:
    program, path, docker_host = (odd if where == place else "x" for place in ("program", "path", "environment"))
    clock = Schedule(("/bin/true", program), 300, [Path("/srv", path)], {"DOCKER_HOST": docker_host})
    with pytest.raises(Refused, match="has a control character") as excinfo:
        schedule.render_service_unit(clock)
    assert not set(str(excinfo.value)) & set(odd) - set("aExecStart=/bin/shb[2Ju8")
    if where != "path":
        with pytest.raises(Refused, match="DOCKER_HOST"):
            schedule.render_cron_lines(clock)


def test_the_time_limit_of_a_healing_check_includes_the_vote_of_a_cluster() -> None:
    every_s = 3600.0
    unit = schedule.render_service_unit(Schedule(PROGRAM, every_s, [HOME], may_restart=True))
    limit = re.search(r"^TimeoutStartSec=(\d+)$", unit, re.M)
    assert limit is not None and float(limit[1]) == cluster_heal.MAX_WAIT_INTERVALS * every_s + schedule.HEAL_TIMEOUT_S
