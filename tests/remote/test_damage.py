"""A damaged runtime on a host, over a real sshd: one that does not start is shipped again, once."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkwright.protocol.events import Event
from sparkwright.remote import runtime
from sparkwright.remote.ssh.ssh_link import SshLink
from tests.remote.conftest import SshLab

pytestmark = pytest.mark.ssh

RUNNER = "lib/sparkwright/runner"
DAMAGE: dict[str, Callable[[Path], object]] = {
    "no boot.py": lambda there: (there / RUNNER / "boot.py").unlink(),
    "an empty boot.py": lambda there: (there / RUNNER / "boot.py").write_bytes(b""),
    "half of boot.py": lambda there: (there / RUNNER / "boot.py").write_bytes(
        (there / RUNNER / "boot.py").read_bytes()[:700]
    ),
    "boot.py of zeros": lambda there: (there / RUNNER / "boot.py").write_bytes(bytes(2000)),
    "a module that is imported later is missing": lambda there: (
        there / "lib/sparkwright/modules/system/command.py"
    ).unlink(),
    "half of a module that is imported later": lambda there: (
        there / "lib/sparkwright/modules/system/command.py"
    ).write_bytes(b"import"),
    "another content of the same size": lambda there: fill_with_zeros(there / RUNNER / "status.py"),
    "a compiled file cut short": lambda there: truncate(next((there / RUNNER / "__pycache__").glob("status.*.pyc"))),
    "no manifest": lambda there: (there / "manifest.json").unlink(),
    "an empty manifest": lambda there: (there / "manifest.json").write_bytes(b""),
    "a manifest of another kind": lambda there: (there / "manifest.json").write_bytes(b"[[1]]"),
    "no lock": lambda there: (there / "lock").unlink(),
    "no tag": lambda there: (there / "tag").unlink(),
    "its Python is gone": lambda there: (there / "python").write_text("/usr/bin/python3.99"),
    "its Python is something else": lambda there: (there / "python").write_text("/bin/true"),
    "its Python is a folder": lambda there: (there / "python").write_text("/tmp"),
    "nobody knows its Python": lambda there: (there / "python").unlink(),
    "no libraries": lambda there: shutil.rmtree(there / "lib"),
    "a file in its place": lambda there: (shutil.rmtree(there), there.write_bytes(b"")),
}


def fill_with_zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def query_runs(lab: SshLab) -> list[Event]:
    link = SshLink(lab.host(), "light")
    try:
        return list(link.request({"verb": "runs"}, {}))
    finally:
        link.close()


@pytest.mark.usefixtures("small_runtime")
def test_damaged_runtime_is_uploaded_again_once(lab: SshLab) -> None:
    query_runs(lab)
    (installed,) = [path for path in (lab.sshd.home / runtime.BOOTSTRAP_FOLDER).iterdir() if path.name[0] != "."]
    for what, damage in reversed(DAMAGE.items()):
        damage(installed)
        result = [run["text"] for run in query_runs(lab) if run["event"] == "note"]
        assert [text for text in result if text.startswith("the runtime on the host does not start: ")], what
        assert [text for text in result if text.startswith("uploading the runtime for ")], what
        assert query_runs(lab) == [], what
    assert {path.name for path in installed.parent.iterdir()} == {installed.name, ".lock"}


@pytest.mark.usefixtures("small_runtime")
def test_damaged_file_is_named(lab: SshLab) -> None:
    query_runs(lab)
    (installed,) = [path for path in (lab.sshd.home / runtime.BOOTSTRAP_FOLDER).iterdir() if path.name[0] != "."]
    (installed / "lib/sparkwright/shell.py").write_bytes(b"")
    result = [run["text"] for run in query_runs(lab) if run["event"] == "note"]
    assert result[0] == (
        f"the runtime on the host does not start: cannot use the runtime {installed}: lib/sparkwright/shell.py is damaged"
    )
