"""The clock of a host without systemd, by Debian's own cron: it really fires, and nothing of it is left."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sparkwright.health.store import load_latest
from sparkwright.host.records import turns
from sparkwright.modules.system.health_timer import HealthTimer
from tests.modules.context import RecordingContext

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("cron") or Path("/run/systemd/system").is_dir(),
    reason="needs root, Debian's cron and no systemd",
)
#: cron looks once a minute
FIRES_S = 90


@contextmanager
def installed_crontab(text: str) -> Iterator[None]:
    """The user's table holds this meanwhile."""
    before = subprocess.run(["crontab", "-l"], capture_output=True, check=False)
    subprocess.run(["crontab", "-"], input=text.encode(), check=True)
    try:
        yield
    finally:
        subprocess.run(["crontab", "-"] if before.stdout else ["crontab", "-r"], input=before.stdout, check=True)


@contextmanager
def running_cron() -> Iterator[None]:
    """Debian's daemon. It detects a changed table by its time in seconds, so it starts after the table was written."""
    daemon = subprocess.Popen(["cron", "-f"], stderr=subprocess.DEVNULL)  # it ends when another one is at work already
    try:
        yield
    finally:
        daemon.terminate()
        daemon.wait()


def test_cron_runs_the_check_and_an_uninstall_leaves_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    host = RecordingContext(home, root=str(tmp_path / "root"), env={"PATH": os.environ["PATH"], "HOME": str(home)})
    mine = f"HOME={home}\n"
    with installed_crontab(mine):
        first = HealthTimer().run(HealthTimer.Args(host="spark1", every_s=60), host)
        assert first.changed and first.data["scope"] == "cron"
        began = load_latest(host.state.path)
        deadline_s = time.monotonic() + FIRES_S
        with running_cron():
            while (now := load_latest(host.state.path)) == began:
                assert time.monotonic() < deadline_s, "cron never started it"
                time.sleep(0.2)
        assert now is not None and began is not None and now.time_s > began.time_s
        assert HealthTimer().run(HealthTimer.Args(state="absent"), host).changed
        assert subprocess.run(["crontab", "-l"], capture_output=True, text=True, check=True).stdout == mine


def test_cron_keeps_the_wake_service_running_until_the_uninstall(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    host = RecordingContext(home, root=str(tmp_path / "root"), env={"PATH": os.environ["PATH"], "HOME": str(home)})
    deadline_s = time.monotonic() + FIRES_S
    with installed_crontab(f"HOME={home}\n"):
        assert HealthTimer().run(HealthTimer.Args(host="spark1", every_s=3600, wake=True), host).changed
        again = HealthTimer().run(HealthTimer.Args(host="spark1", every_s=3600, wake=True), host)
        assert not again.changed and not turns.is_service_running(host.state)
        with running_cron():
            while not turns.is_service_running(host.state):
                assert time.monotonic() < deadline_s, "cron never started it"
                time.sleep(0.2)
        assert HealthTimer().run(HealthTimer.Args(host="spark1", every_s=3600), host).changed, (
            "no request wakes any more"
        )
        table = subprocess.run(["crontab", "-l"], capture_output=True, text=True, check=True).stdout
        assert "sparkwright wake" not in table and "sparkwright health" in table
        while turns.is_service_running(host.state):
            assert time.monotonic() < deadline_s + 10, "it was not told to end"
            time.sleep(0.05)
        assert HealthTimer().run(HealthTimer.Args(state="absent"), host).changed
    assert not list(host.state.path.glob("wake*"))
