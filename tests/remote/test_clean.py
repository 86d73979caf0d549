"""`host.clean` over a real sshd removes all that a deploy and scheduled checks left on a host."""

import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkwright.sandbox import control
from tests import commands
from tests.modules.system.test_health_timer import CRONTAB, OWN_LINES
from tests.remote.conftest import SshLab

pytestmark = pytest.mark.skipif(
    Path("/run/systemd/system").is_dir(), reason="the timer would be a unit of this machine's systemd"
)


@pytest.fixture
def project(lab: SshLab, tmp_path: Path) -> Iterator[Path]:
    """A project with a host over ssh. Its Docker Engine is a sandbox's, its crontab a file."""
    program = tmp_path / "host-bin/crontab"
    program.parent.mkdir()
    program.write_text(CRONTAB)
    program.chmod(0o755)
    (tmp_path / "table").write_text(OWN_LINES)
    folder = lab.create_project(tmp_path / "project")
    with tempfile.TemporaryDirectory(prefix="clean-") as engine:  # short: a unix socket's path has a limit
        env = {
            "DOCKER_HOST": control.up(Path(engine))["DOCKER_HOST"],
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "TABLE": str(tmp_path / "table"),
        }
        host_file = {"address": "127.0.0.1", "port": lab.sshd.port, "env": env}
        (folder / "hosts/spark1.yml").write_text(json.dumps(host_file))
        try:
            yield folder
        finally:
            control.down(Path(engine))


def test_clean_removes_everything_from_a_host_with_checks(lab: SshLab, project: Path, tmp_path: Path) -> None:
    home = lab.sshd.home
    (home / ".ssh").mkdir()
    keys = home / ".ssh/authorized_keys"
    keys.write_text("ssh-ed25519 AAAA me@desk\n")
    before = {path: path.is_file() and path.read_bytes() for path in home.rglob("*")}
    installed = commands.run("health.install", "--host", "spark1", cwd=project)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    assert "sparkwright" in (tmp_path / "table").read_text()
    keys.write_text(f'{keys.read_text()}restrict,command="x" ssh-ed25519 BBBB sparkwright-copy\n')

    listed = commands.run("host.clean", "--check", "--json", "--host", "spark1", cwd=project)
    assert listed.returncode == 2, listed.stdout + listed.stderr
    names = [row["name"] for row in json.loads(listed.stdout)["items"]]
    for part in ("crontab: ", "authorized_keys", "share/sparkwright/runtime", "state/sparkwright"):
        assert any(part in name for name in names), names

    cleaned = commands.run("host.clean", "--yes", "--host", "spark1", cwd=project)
    assert cleaned.returncode == 0, cleaned.stdout + cleaned.stderr
    assert {path: path.is_file() and path.read_bytes() for path in home.rglob("*")} == before
    assert (tmp_path / "table").read_text() == OWN_LINES


def test_an_uninstall_without_a_timer_says_what_it_removed(project: Path) -> None:
    commands.run("health", "--host", "spark1", cwd=project)
    removed = commands.run("health.uninstall", "--host", "spark1", cwd=project).stdout
    assert re.search(
        "changed +Remove the health timer .*no timer was installed; removed the records of checks", removed
    )
    assert re.search("skipped +Remove root's health timer", removed), removed
