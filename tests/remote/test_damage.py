"""A damaged runtime on a host, over a real sshd: if it does not start, it is uploaded again, once."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkwright.remote import runtime
from sparkwright.remote.ssh.ssh_link import SshLink
from tests.remote.conftest import SshLab

RUNNER = "lib/sparkwright/runner"
LATER_IMPORT = "lib/sparkwright/modules/system/command.py"


def remove(name: str) -> Callable[[Path], object]:
    return lambda installed: (installed / name).unlink()


def write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda installed: (installed / name).write_bytes(content)


def truncate(pattern: str, size: int) -> Callable[[Path], object]:
    def damage(installed: Path) -> None:
        path = next(installed.glob(pattern))
        path.write_bytes(path.read_bytes()[:size])

    return damage


def fill_with_zeros(name: str) -> Callable[[Path], object]:
    return lambda installed: (installed / name).write_bytes(bytes((installed / name).stat().st_size))


def replace_with_file(installed: Path) -> None:
    shutil.rmtree(installed)
    installed.write_bytes(b"")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing boot.py": remove(f"{RUNNER}/boot.py"),
    "empty boot.py": write(f"{RUNNER}/boot.py", b""),
    "half of boot.py": truncate(f"{RUNNER}/boot.py", 700),
    "zeros in boot.py": write(f"{RUNNER}/boot.py", bytes(2000)),
    "missing module that is imported later": remove(LATER_IMPORT),
    "half of a module that is imported later": write(LATER_IMPORT, b"import"),
    "other content of the same size": fill_with_zeros(f"{RUNNER}/status.py"),
    "half of a compiled file": truncate(f"{RUNNER}/__pycache__/status.*.pyc", 100),
    "missing manifest": remove("manifest.json"),
    "empty manifest": write("manifest.json", b""),
    "manifest of another type": write("manifest.json", b"[[1]]"),
    "missing lock": remove("lock"),
    "missing tag": remove("tag"),
    "missing Python": write("python", b"/usr/bin/python3.99"),
    "another program as Python": write("python", b"/bin/true"),
    "folder as Python": write("python", b"/tmp"),
    "unknown Python": remove("python"),
    "missing libraries": lambda installed: shutil.rmtree(installed / "lib"),
    "file in place of the runtime": replace_with_file,
}


def query_history(lab: SshLab) -> list[str]:
    """Send a request to which a host without history answers nothing, and return the laptop's notes."""
    link = SshLink(lab.host(), "light")
    try:
        return [event["text"] for event in link.request({"verb": "history"}, {}) if event["event"] == "note"]
    finally:
        link.close()


@pytest.fixture
def installed(lab: SshLab, small_runtime: Path) -> Path:
    query_history(lab)
    (folder,) = [path for path in (lab.sshd.home / runtime.BOOTSTRAP_FOLDER).iterdir() if path.name[0] != "."]
    return folder


def test_damaged_runtime_is_uploaded_again_once(lab: SshLab, installed: Path) -> None:
    for name, damage in reversed(DAMAGE.items()):
        damage(installed)
        notes = "\n".join(query_history(lab))
        assert re.search("(?m)^the runtime on the host does not start: ", notes), name
        assert re.search("(?m)^uploading the runtime for ", notes), name
        assert query_history(lab) == [], name
    assert {path.name for path in installed.parent.iterdir()} == {installed.name, ".lock"}


def test_damaged_file_is_named(lab: SshLab, installed: Path) -> None:
    (installed / "lib/sparkwright/shell.py").write_bytes(b"")
    assert query_history(lab)[0].endswith(f"cannot use the runtime {installed}: lib/sparkwright/shell.py is damaged")
