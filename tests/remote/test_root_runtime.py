"""`runtime.install` over a real sshd and the real sudo: root's programs then belong to root, and came from the laptop."""

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
from tests.remote.conftest import SshLab

pytestmark = [
    pytest.mark.ssh,
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("sudo"), reason="needs root and sudo"),
]


@pytest.fixture
def opt(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in place of /opt/sparkwright, which other tests must not find."""
    folder = Path(tempfile.mkdtemp(prefix="sparkwright-opt-", dir="/opt"))
    monkeypatch.setattr(install, "FOLDER", folder / "runtime")
    yield folder
    shutil.rmtree(folder)


@pytest.mark.usefixtures("small_runtime")
def test_runtime_of_root_is_identical_and_only_writable_by_root(
    lab: SshLab, opt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = tmp_path / "project"
    (project / "hosts").mkdir(parents=True)
    (project / "playbooks").mkdir()
    (project / "hosts/spark1.yml").write_text(f"address: 127.0.0.1\nport: {lab.sshd.port}\n")
    monkeypatch.chdir(project)
    assert install.install(select_hosts("spark1")) == [Exit.OK]
    place = opt / "runtime" / runtime.content_hash()
    assert f"spark1: {place} is installed, and belongs to root." in capsys.readouterr().out
    assert (place / "lib/sparkwright/__init__.py").read_bytes() == Path(root_runtime.__file__).parents[1].joinpath(
        "__init__.py"
    ).read_bytes()
    for path in (opt, *opt.rglob("*")):
        status = path.lstat()
        assert status.st_uid == 0 and not status.st_mode & 0o022 and status.st_mode & 0o004, path
    assert root_runtime.find_changeable(place / "lib/sparkwright") is None
    assert install.install(select_hosts("spark1")) == [Exit.OK], "once more changes nothing"


@pytest.mark.usefixtures("small_runtime")
def test_refusal_by_sudo_is_reported_and_installs_nothing(
    lab: SshLab, opt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "sudo").write_text("#!/bin/sh\necho 'Sorry, user ops may not run sudo on spark1.' >&2; exit 1\n")
    (programs / "sudo").chmod(0o755)
    project = tmp_path / "project"
    (project / "hosts").mkdir(parents=True)
    (project / "playbooks").mkdir()
    (project / "hosts/spark1.yml").write_text(f"address: 127.0.0.1\nport: {lab.sshd.port}\n")
    monkeypatch.chdir(project)
    monkeypatch.setattr(install, "SUDO", str(programs / "sudo"))
    assert install.install(select_hosts("spark1")) == [Exit.FAILED]
    assert "may not run sudo on spark1." in capsys.readouterr().err
    assert not list(opt.iterdir())


@pytest.mark.usefixtures("small_runtime")
@pytest.mark.parametrize(
    ("sudo", "message"),
    [
        ("while :; do printf x; sleep 0.1; done", "sudo did not exit within 2 s"),
        ("exec >&- 2>&-; sleep 20", "sudo did not exit within 2 s"),  # it never tells how it ended
        ("head -c 3000000 /dev/zero; exit 1", "sudo gave no reason"),
        ("printf '[%.0s' $(seq 5000); echo; exit 1", "sudo gave no reason"),
    ],
)
def test_endless_or_meaningless_output_of_sudo(
    lab: SshLab,
    opt: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    sudo: str,
    message: str,
) -> None:
    (tmp_path / "sudo").write_text(f"#!/bin/sh\n{sudo}\n")
    (tmp_path / "sudo").chmod(0o755)
    project = tmp_path / "project"
    (project / "hosts").mkdir(parents=True)
    (project / "playbooks").mkdir()
    (project / "hosts/spark1.yml").write_text(f"address: 127.0.0.1\nport: {lab.sshd.port}\n")
    monkeypatch.chdir(project)
    monkeypatch.setattr(install, "SUDO", str(tmp_path / "sudo"))
    monkeypatch.setattr(install, "INSTALL_TIMEOUT_S", 2.0)
    assert install.install(select_hosts("spark1")) == [Exit.FAILED]
    output = capsys.readouterr()
    assert message in output.err and "internal error" not in output.err
