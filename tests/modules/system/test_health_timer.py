"""The health timer of a host without systemd is a line in the user's crontab, which is removed without traces."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from sparkwright.errors import Failed, Refused
from sparkwright.health import schedule
from sparkwright.health.settings import Settings
from sparkwright.health.store import load_latest
from sparkwright.modules.system import health_timer
from sparkwright.modules.system.health_timer import HealthTimer
from tests.modules.context import RecordingContext

#: a crontab program that stores its table in the file $TABLE
CRONTAB = """#!/bin/sh
case "$1" in
  -l) cat "$TABLE" 2>/dev/null || { echo "no crontab" >&2; exit 1; } ;;
  -r) rm -f "$TABLE" ;;
  -) cat > "$TABLE" ;;
esac
"""
OWN_LINES = "# mine\n0 1 * * * backup\n"


@pytest.fixture
def host(tmp_path: Path) -> RecordingContext:
    """Return a host without systemd, Docker Engine and server."""
    program = tmp_path / "bin/crontab"
    program.parent.mkdir()
    program.write_text(CRONTAB)
    program.chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "table").write_text(OWN_LINES)
    env = {"PATH": f"{program.parent}:{os.environ['PATH']}", "TABLE": str(tmp_path / "table"), "HOME": str(home)}
    return RecordingContext(home, root=str(tmp_path / "root"), env=env)


def test_crontab_line_is_added_and_removed_without_traces(host: RecordingContext, tmp_path: Path) -> None:
    textfile = tmp_path / "textfile"
    textfile.mkdir()
    args = HealthTimer.Args(host="spark1", every_s=600, textfile=str(textfile))
    first = HealthTimer().run(args, host)
    assert first.changed and first.data["scope"] == "cron"
    assert (tmp_path / "table").read_text().startswith(OWN_LINES + "*/10 * * * * ")
    record = load_latest(host.state.path)
    assert record is not None and (record.state, record.every_s) == ("unknown", 600), "the first check has run"
    assert (textfile / "sparkwright.prom").exists()
    assert not HealthTimer().run(args, host).changed
    assert HealthTimer().run(HealthTimer.Args(every_s=300), host).changed
    assert not (textfile / "sparkwright.prom").exists(), "node_exporter would keep reading it"

    HealthTimer().run(args, host)
    assert HealthTimer().run(HealthTimer.Args(state="absent"), host).changed
    assert (tmp_path / "table").read_text() == OWN_LINES
    assert [path for path in (*host.state.path.rglob("*"), *textfile.iterdir()) if path.is_file()] == []
    assert not HealthTimer().run(HealthTimer.Args(state="absent"), host).changed


def test_check_mode_changes_nothing(host: RecordingContext, tmp_path: Path) -> None:
    host.check = True
    assert HealthTimer().run(HealthTimer.Args(), host).changed
    assert (tmp_path / "table").read_text() == OWN_LINES and not host.state.path.exists()


def test_system_timer_is_refused_without_systemd(host: RecordingContext) -> None:
    with pytest.raises(Refused, match="systemd is not running"):
        HealthTimer().run(HealthTimer.Args(system=True), host)


def test_missing_textfile_folder_is_refused(host: RecordingContext, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no such directory"):
        HealthTimer().run(HealthTimer.Args(textfile=str(tmp_path / "none")), host)
    assert (tmp_path / "table").read_text() == OWN_LINES


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"command": ["/no/such/page", "me"]}, "/no/such/page is not an executable program"),
        ({"webhook_file": "/no/such/url"}, "/no/such/url: No such file or directory"),
        ({"webhook_file": "/dev/null"}, "/dev/null"),
    ],
)
def test_notifications_that_could_not_be_sent_are_refused(
    host: RecordingContext, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(Refused, match=message):
        HealthTimer().run(HealthTimer.Args(**settings), host)
    assert (tmp_path / "table").read_text() == OWN_LINES


def test_textfile_folder_is_changed_and_other_settings_stay(host: RecordingContext, tmp_path: Path) -> None:
    textfile_only = HealthTimer.Args(textfile=str(tmp_path), keep=True)
    with pytest.raises(Refused, match="no health timer is installed"):
        HealthTimer().run(textfile_only, host)
    args = HealthTimer.Args(host="spark1", every_s=120, heal="restart", webhook="http://127.0.0.1:9/x")
    HealthTimer().run(args, host)
    before = Settings.load(host.state)
    assert HealthTimer().run(textfile_only, host).changed
    assert Settings.load(host.state) == dataclasses.replace(before, textfile=str(tmp_path))
    assert not HealthTimer().run(textfile_only, host).changed


def test_an_installation_names_the_settings_that_it_replaces(host: RecordingContext) -> None:
    """The settings may be those of another project, which calls the host otherwise."""
    first = HealthTimer.Args(host="spark1", every_s=120, heal="restart", webhook="http://127.0.0.1:9/x")
    assert "replaced settings" not in HealthTimer().run(first, host).msg
    second = HealthTimer().run(HealthTimer.Args(host="gb10"), host)
    assert second.msg.endswith(
        "; replaced settings: host spark1, every 120 s, heal restart, webhook http://127.0.0.1:9/x"
    )
    assert {change.field: (change.before, change.after) for change in second.diff}["heal"] == ("restart", "none")


DENIED = "#!/bin/sh\necho 'You (ops) are not allowed to use this program (crontab)' >&2\nexit 1\n"


def test_user_who_may_not_use_cron_is_refused(host: RecordingContext, tmp_path: Path) -> None:
    program = tmp_path / "bin/crontab"
    program.write_text(DENIED)
    with pytest.raises(Refused, match=r"^cannot read the crontab: You \(ops\) are not allowed") as refusal:
        HealthTimer().run(HealthTimer.Args(), host)
    assert "/etc/cron.deny" in refusal.value.fix
    assert not host.state.path.exists()
    assert not HealthTimer().run(HealthTimer.Args(state="absent"), host).changed, "nothing was installed"

    program.write_text(CRONTAB)
    HealthTimer().run(HealthTimer.Args(), host)
    program.write_text(DENIED)
    with pytest.raises(Refused, match="cannot read the crontab"):
        HealthTimer().run(HealthTimer.Args(state="absent"), host)
    assert Settings.load(host.state).every_s, "the line in the crontab remains"
    program.unlink()
    HealthTimer().run(HealthTimer.Args(state="absent"), host)
    assert not Settings.load(host.state).every_s, "without cron, no line is run"


def test_message_names_the_interval_of_cron_and_a_daemon_that_is_not_running(
    host: RecordingContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "CRON_DAEMONS", (Path("/proc/self/comm").read_text().strip(),))
    assert HealthTimer().run(HealthTimer.Args(every_s=5400), host).msg.startswith("every 3600 s by cron, first check")
    monkeypatch.setattr(schedule, "CRON_DAEMONS", ("no-such-daemon",))
    assert "by cron, which is not running: start it" in HealthTimer().run(HealthTimer.Args(every_s=60), host).msg


def test_an_install_leaves_nothing_if_the_systemd_user_instance_does_not_start(
    host: RecordingContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.machine.path("/run/systemd/system").mkdir(parents=True)
    for name, script in (("systemctl", "exit 1"), ("loginctl", f'echo "$1" >> {tmp_path}/calls')):
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    monkeypatch.setattr(health_timer, "LINGER_TIMEOUT_S", 0.0)
    monkeypatch.setattr(schedule, "find_runtime", lambda: tmp_path)
    with pytest.raises(Failed, match="the systemd user instance did not start"):
        HealthTimer().run(HealthTimer.Args(), host)
    assert not (tmp_path / schedule.IN_USE_MARK).exists(), "no unit uses this runtime"
    assert (tmp_path / "calls").read_text().split() == ["enable-linger", "disable-linger"]


def test_sandbox_has_no_scheduler(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="has no scheduler"):
        HealthTimer().run(HealthTimer.Args(), RecordingContext(tmp_path, root=str(tmp_path), sandbox=True))
