"""The health timer of a host without systemd, run by Debian's cron."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sparkwright.health.store import load_latest
from sparkwright.host.records import turns
from sparkwright.modules.system.health_timer import HealthTimer
from tests.modules.context import RecordingContext
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("cron") or Path("/run/systemd/system").is_dir(),
    reason="needs root, Debian's cron and no systemd",
)
#: cron reads its tables once per minute
FIRES_S = 90


@contextmanager
def running_cron() -> Iterator[None]:
    """Run cron, which detects changed tables by their time in seconds: start it after the table was written."""
    daemon = subprocess.Popen(["cron", "-f"], stderr=subprocess.DEVNULL)  # ends if another cron is running
    try:
        yield
    finally:
        daemon.terminate()
        daemon.wait()


def read_crontab() -> str:
    return subprocess.run(["crontab", "-l"], capture_output=True, text=True, check=False).stdout


@pytest.fixture
def host(tmp_path: Path) -> Iterator[RecordingContext]:
    """Yield a host whose user is that of this machine, with a crontab that only sets HOME."""
    home = tmp_path / "home"
    home.mkdir()
    before = read_crontab()
    subprocess.run(["crontab", "-"], input=f"HOME={home}\n", text=True, check=True)
    try:
        yield RecordingContext(home, root=str(tmp_path / "root"), env={"PATH": os.environ["PATH"], "HOME": str(home)})
    finally:
        subprocess.run(["crontab", "-"] if before else ["crontab", "-r"], input=before, text=True, check=True)


def test_cron_runs_the_check_and_an_uninstall_leaves_nothing(host: RecordingContext) -> None:
    table = read_crontab()
    result = HealthTimer().run(HealthTimer.Args(host="spark1", every_s=60), host)
    assert result.changed and result.data["scope"] == "cron"
    first = load_latest(host.state.path)
    with running_cron():
        wait_until(lambda: load_latest(host.state.path) != first, "a check by cron", FIRES_S)
    latest = load_latest(host.state.path)
    assert latest is not None and first is not None and latest.time_s > first.time_s
    assert HealthTimer().run(HealthTimer.Args(state="absent"), host).changed
    assert read_crontab() == table


def test_cron_keeps_the_wake_service_running_until_the_uninstall(host: RecordingContext) -> None:
    args = HealthTimer.Args(host="spark1", every_s=3600, wake=True)
    assert HealthTimer().run(args, host).changed
    assert not HealthTimer().run(args, host).changed and not turns.is_service_running(host.state)
    with running_cron():
        wait_until(lambda: turns.is_service_running(host.state), "the wake service", FIRES_S)
    assert HealthTimer().run(HealthTimer.Args(host="spark1", every_s=3600), host).changed, "without the wake service"
    assert "sparkwright wake" not in read_crontab() and "sparkwright health" in read_crontab()
    wait_until(lambda: not turns.is_service_running(host.state), "the end of the wake service")
    assert HealthTimer().run(HealthTimer.Args(state="absent"), host).changed
    assert not list(host.state.path.glob("wake*"))
