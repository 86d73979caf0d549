"""`runtime.install` over a real sshd with the real sudo: the installed files are the laptop's and belong to root."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkwright.app.connect import select_hosts
from sparkwright.app.stores import runtimes as install
from sparkwright.errors import Exit
from sparkwright.host import root_runtime
from sparkwright.remote import runtime
from tests.remote.conftest import SshLab, mount_tmpfs

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("sudo"), reason="needs root and sudo"),
    pytest.mark.usefixtures("small_runtime"),
]


@pytest.fixture
def opt(lab: SshLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in place of /opt/sparkwright, which other tests must not find; a project is the current folder."""
    monkeypatch.chdir(lab.create_project(lab.folder / "project"))
    folder = Path(tempfile.mkdtemp(prefix="sparkwright-opt-", dir="/opt"))
    monkeypatch.setattr(install, "FOLDER", folder / "runtime")
    yield folder
    shutil.rmtree(folder)


def test_runtime_of_root_is_identical_and_only_writable_by_root(opt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert install.install(select_hosts("spark1")) == [Exit.OK]
    installed = opt / "runtime" / runtime.content_hash()
    assert f"spark1: {installed} is installed, and belongs to root." in capsys.readouterr().out
    package = Path(root_runtime.__file__).parents[1]
    assert (installed / "lib/sparkwright/__init__.py").read_bytes() == (package / "__init__.py").read_bytes()
    for path in (opt, *opt.rglob("*")):
        status = path.lstat()
        assert status.st_uid == 0 and not status.st_mode & 0o022 and status.st_mode & 0o004, path
    assert root_runtime.find_changeable(installed / "lib/sparkwright") is None
    assert install.install(select_hosts("spark1")) == [Exit.OK], "a second install"


@pytest.mark.parametrize(
    ("sudo", "message"),
    [
        ("echo 'Sorry, user ops may not run sudo on spark1.' >&2; exit 1", "may not run sudo on spark1."),
        ('[ "$1" = -n ] && echo "sudo: a password is required" >&2; exit 1', "a password is required"),  # none is known
        ("while :; do printf x; sleep 0.1; done", "sudo did not exit within 2 s"),
        ("exec >&- 2>&-; sleep 20", "sudo did not exit within 2 s"),  # its exit code is never known
        ("head -c 3000000 /dev/zero; exit 1", "sudo gave no reason"),
        ("printf '[%.0s' $(seq 5000); echo; exit 1", "sudo gave no reason"),
    ],
)
def test_failing_sudo_is_reported_and_installs_nothing(
    opt: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    sudo: str,
    message: str,
) -> None:
    program = tmp_path / "sudo"
    program.write_text(f"#!/bin/sh\n{sudo}\n")
    program.chmod(0o755)
    monkeypatch.setattr(install, "SUDO", str(program))
    monkeypatch.setattr(install, "INSTALL_TIMEOUT_S", 2.0)
    assert install.install(select_hosts("spark1")) == [Exit.FAILED]
    output = capsys.readouterr()
    assert message in output.err and "internal error" not in output.err
    assert not list(opt.iterdir())


def test_full_disk_is_the_reason_that_is_reported(opt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with mount_tmpfs(opt, "size=64k"):
        assert install.install(select_hosts("spark1")) == [Exit.FAILED]
    error = capsys.readouterr().err
    assert "not enough space" in error and f"df -h {opt}" in error and "sudo" not in error, error


def test_failure_while_the_runtime_is_being_sent_is_reported(opt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (opt / "runtime").write_text("a file in place of the folder")
    assert install.install(select_hosts("spark1")) == [Exit.FAILED]
    error = capsys.readouterr().err
    assert f"{opt}/runtime: File exists" in error and "sudo" not in error, error


def test_a_wrong_password_is_one_attempt(
    opt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program, attempts = tmp_path / "sudo", tmp_path / "attempts"
    program.write_text(f"""#!/bin/sh
for attempt in 1 2 3; do
  IFS= read -r password || {{ echo "sudo: no password was provided" >&2; exit 1; }}
  echo "$password" >> {attempts}
  echo "Sorry, try again." >&2
done
echo "sudo: 3 incorrect password attempts" >&2
exit 1
""")
    program.chmod(0o755)
    monkeypatch.setattr(install, "SUDO", str(program))
    monkeypatch.setenv("BECOME_PASSWORD", "not the password")
    Path("hosts/groups.yml").write_text("all: {secrets: {BECOME_PASSWORD: {env: BECOME_PASSWORD}}}\n")
    assert install.install(select_hosts("spark1")) == [Exit.FAILED]
    assert attempts.read_text() == "not the password\n"
    assert "the runtime was not installed: sudo: no password was provided." in capsys.readouterr().err
    assert not list(opt.iterdir())
