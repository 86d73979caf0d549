"""The runtime's wheels: pinned by hash, verified at every use, and downloaded in advance for a laptop without internet."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sparkwright import host_side
from sparkwright.errors import Failed
from sparkwright.remote import runtime
from tests.remote.conftest import MACHINE, PYTHON, SshLab
from tests.remote.ssh.test_ssh_link import send_request

COMMAND: list[str | Path] = [
    Path(sys.executable).with_name("sparkwright"),
    "runtime.fetch",
    "--machine",
    MACHINE,
    "--python",
    PYTHON,
]
REMEDY = f"Run `sparkwright runtime.fetch --machine {MACHINE} --python {PYTHON}` once with internet access."


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache of wheels, and a pip without an index or its user's settings."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")


@pytest.fixture
def index(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the pinned wheels, from which alone pip installs."""
    folder = tmp_path / "index"
    folder.mkdir()
    for path in runtime.fetch_wheels(PYTHON, MACHINE):
        shutil.copy(path, folder)
    request.getfixturevalue("empty_cache")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def use_unreachable_index(patch: pytest.MonkeyPatch) -> None:
    """Point pip at an index on a port where nothing listens."""
    patch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    patch.delenv("PIP_NO_INDEX")
    patch.setenv("PIP_FIND_LINKS", "")


def wheel_folder() -> Path:
    return host_side.cache_folder() / "runtime" / "wheels" / f"{PYTHON}-{MACHINE}"


def test_requirements_are_pinned_by_hash() -> None:
    assert all(pin.version and pin.hashes for pin in runtime.pinned_requirements().values())
    per_platform = len(runtime.MACHINES) * len(runtime.PYTHON_VERSIONS)
    assert len(runtime.pinned_requirements()["markupsafe"].hashes) == per_platform
    assert len(runtime.pinned_requirements()["idna"].hashes) == 1


def test_content_hash_covers_the_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = runtime.content_hash()
    other = tmp_path / "requirements.txt"
    digest = next(iter(runtime.pinned_requirements()["idna"].hashes))
    other.write_text(runtime.REQUIREMENTS_FILE.read_text().replace(digest, "0" * 64))
    monkeypatch.setattr(runtime, "REQUIREMENTS_FILE", other)
    assert runtime.content_hash.__wrapped__() != before


def test_wheels_are_downloaded_once(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = subprocess.run(COMMAND, capture_output=True, text=True, check=True)
    assert "downloaded in" in first.stdout
    use_unreachable_index(monkeypatch)
    second_run = subprocess.run(COMMAND, capture_output=True, text=True, check=True)
    assert f"{len(runtime.pinned_requirements())} wheels" in second_run.stdout
    assert "already cached; hashes verified." in second_run.stdout


def test_fetch_without_internet_names_the_remedy(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_unreachable_index(monkeypatch)
    result = subprocess.run(COMMAND, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    message = f"the runtime for {MACHINE}, Python {PYTHON} is not in this laptop's cache, and no package index can be reached."
    assert result.stderr == f"{message} {REMEDY}\n"


def test_first_connection_without_internet_names_the_remedy(
    lab: SshLab, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_unreachable_index(monkeypatch)
    with pytest.raises(Failed, match="no package index can be reached") as refused:
        send_request(lab, {"verb": "runs"})
    assert REMEDY in str(refused.value)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    subprocess.run(COMMAND, check=True, stdout=subprocess.DEVNULL)
    use_unreachable_index(monkeypatch)
    assert any("uploading" in item.get("text", "") for item in send_request(lab, {"verb": "runs"}))


@pytest.mark.parametrize("changed_byte", [False, True], ids=["cut in half", "changed byte"])
def test_damaged_wheel_in_the_cache_is_downloaded_again(index: Path, changed_byte: bool) -> None:
    runtime.fetch_wheels(PYTHON, MACHINE)
    wheel = next(wheel_folder().glob("idna-*.whl"))
    intact = wheel.read_bytes()
    wheel.write_bytes(intact[:-9] + b"\0" + intact[-8:] if changed_byte else intact[: len(intact) // 2])
    downloaded: list[str] = []
    assert wheel in runtime.fetch_wheels(PYTHON, MACHINE, lambda done, total, name: downloaded.append(name))
    assert wheel.read_bytes() == intact
    assert [name[:5] for name in downloaded if name] == ["idna-"]


def test_damaged_wheel_is_not_used_offline(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime.fetch_wheels(PYTHON, MACHINE)
    wheel = next(wheel_folder().glob("idna-*.whl"))
    wheel.write_bytes(wheel.read_bytes()[:100])
    use_unreachable_index(monkeypatch)
    with pytest.raises(Failed, match="no package index can be reached"):
        runtime.ensure_archive(PYTHON, MACHINE)


def test_wheel_with_another_hash_is_refused(index: Path) -> None:
    with zipfile.ZipFile(next(index.glob("idna-*.whl")), "a") as wheel:
        wheel.writestr("idna/evil.py", "raise SystemExit\n")
    with pytest.raises(Failed, match="the package index offers a wheel that differs from the pinned one"):
        runtime.ensure_archive(PYTHON, MACHINE)
    assert list(wheel_folder().glob("*")) == []


def test_damaged_archive_is_built_again(index: Path) -> None:
    path = runtime.ensure_archive(PYTHON, MACHINE)
    intact = path.read_bytes()
    path.write_bytes(intact[:5000])
    assert runtime.ensure_archive(PYTHON, MACHINE).read_bytes() == intact


@pytest.mark.parametrize(
    ("option", "value"), [("--machine", "riscv64"), ("--python", "3.10"), ("--machine", "../x86_64")]
)
def test_unsupported_platform_is_refused(option: str, value: str) -> None:
    result = subprocess.run([*COMMAND[:2], option, value], capture_output=True, text=True, check=False)
    assert result.returncode == 5
    assert f"{option} must be one of" in result.stderr
    with pytest.raises(Failed, match="there is no runtime for"):
        runtime.fetch_wheels("3.10", MACHINE)


@pytest.mark.usefixtures("empty_cache")
def test_pip_is_not_imported_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder may be an untrusted project."""
    (tmp_path / "pip.py").write_text(f"open({str(tmp_path / 'owned')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Failed, match="the runtime for"):
        runtime.fetch_wheels(PYTHON, MACHINE)
    assert not (tmp_path / "owned").exists()
