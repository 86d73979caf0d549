"""The runtime that is uploaded to hosts: complete, without the laptop's packages, and named by its content."""

import fcntl
import functools
import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from sparkwright import host_side
from sparkwright.health import schedule
from sparkwright.modules import registry
from sparkwright.remote import runtime
from tests.remote.conftest import MACHINE, PYTHON, command_task, mount_tmpfs, pack_runtime, run_request
from tests.waiting import wait_until


@pytest.fixture
def lib(tmp_path: Path) -> Path:
    with tarfile.open(runtime.ensure_archive(PYTHON, MACHINE)) as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path / "lib"


def test_every_module_imports_from_the_runtime_alone(lib: Path) -> None:
    heavy = "docker, hf_transfer, hf_xet, psutil, tenacity, jinja2, packaging, requests"
    names = ", ".join(registry.IMPORT_PATHS[name] for name in registry.NAMES)
    paths = "[p for p in sys.path if 'site-packages' not in p and 'src' not in p]"
    program = f"import sys; sys.path = [{str(lib)!r}] + {paths}; import {heavy}, sparkwright.runner.main, {names}; print('whole')"
    result = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False)
    assert result.stdout == "whole\n", result.stderr


def test_runtime_has_no_packages_of_the_laptop(lib: Path) -> None:
    names = {path.name for path in lib.iterdir()} | {path.stem for path in (lib / "sparkwright").iterdir()}
    assert names.isdisjoint(
        {"fabric", "invoke", "paramiko", "pydantic", "rich", "cli", "fleet", "sandbox", "remote", "console"}
    )


def test_archive_is_reproducible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = runtime.ensure_archive(PYTHON, MACHINE)
    cache = tmp_path / "sparkwright/runtime"
    cache.mkdir(parents=True)
    (cache / "wheels").symlink_to(first.parent / "wheels")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    second = runtime.ensure_archive(PYTHON, MACHINE)
    assert second.parent == cache
    assert (second.name, second.read_bytes()) == (first.name, first.read_bytes())


def test_laptop_keeps_the_archives_of_the_last_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "sparkwright/runtime"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(runtime, "_pack", lambda wheels, tag, archive: archive.write(tag.encode()))
    monkeypatch.setattr(runtime, "fetch_wheels", lambda *target: [])
    built = []
    for number in range(runtime.MAX_ARCHIVES + 2):
        monkeypatch.setattr(runtime, "content_hash", lambda name=f"{number:020}": name)
        built.append(runtime.ensure_archive(PYTHON, MACHINE))
        os.utime(built[-1], (number, number))  # the clock may be too coarse
    other_python = runtime.ensure_archive("3.14" if PYTHON != "3.14" else "3.13", MACHINE)
    kept = {other_python.name, *(path.name for path in built[-runtime.MAX_ARCHIVES :])}
    assert {path.name for path in cache.iterdir() if path.is_file()} == kept | {f"{name}.sha256" for name in kept}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The host's HOME, without a folder of runtimes; the laptop's cache stays where it is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(host_side.cache_folder().parent))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def runtime_folder(home: Path) -> Path:
    return home / runtime.BOOTSTRAP_FOLDER


@functools.cache
def small_archive() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "archive"
        pack_runtime(path)
        return path.read_bytes()


def start_shell(command: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(["sh", "-c", command], stdin=pipe, stdout=pipe, stderr=pipe)


def start_upload(name: str = "abc") -> subprocess.Popen[bytes]:
    """Start the unpacking on the host as a laptop does; it reads the archive from its standard input."""
    return start_shell(runtime.unpack_command(name, sys.executable))


def upload_archive(name: str = "abc", data: bytes | None = None) -> dict[str, str]:
    """Return the answer to an archive; by default to the small one."""
    archive = small_archive() if data is None else data
    output, _ = start_upload(name).communicate(runtime.unpacker_source() + archive)
    answer = json.loads(output.splitlines()[-1])
    assert isinstance(answer, dict), output
    return answer


def starts(name: str = "abc") -> bool:
    output, _ = start_shell(runtime.start_command(name, "engine")).communicate()
    return b'{"event": "ready"}' in output.splitlines()


@pytest.fixture
def runner(home: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """A function that starts the runner of a runtime, which locks the runtime and waits for its request."""
    pending: list[subprocess.Popen[bytes]] = []

    def start_runner(name: str) -> subprocess.Popen[bytes]:
        process = start_shell(runtime.start_command(name, "light"))
        pending.append(process)
        assert process.stdout is not None
        assert b'{"event": "ready"}\n' in (process.stdout.readline(), process.stdout.readline())
        return process

    yield start_runner
    for process in pending:
        process.communicate()


def test_installed_runtime_is_kept_unless_for_another_python(home: Path) -> None:
    installed = runtime_folder(home) / "abc"
    archive = runtime.ensure_archive(PYTHON, MACHINE).read_bytes()
    assert upload_archive(data=archive)["event"] == "shipped"
    assert starts()
    (installed / "in-use").touch()
    first_inode = installed.stat().st_ino
    assert upload_archive(data=archive)["event"] == "shipped"
    assert installed.stat().st_ino == first_inode, "a run may read from it"
    assert {path.name for path in installed.parent.iterdir()} == {"abc", ".lock"}
    (installed / "tag").write_text("3.9-x86_64\n")
    assert not starts()
    assert upload_archive(data=archive)["event"] == "shipped"
    assert installed.stat().st_ino != first_inode
    assert starts()
    assert (installed / "in-use").exists(), "the timer's unit names this folder"


def test_changed_file_of_the_same_size_is_replaced(home: Path) -> None:
    upload_archive()
    damaged = runtime_folder(home) / "abc/lib/sparkwright/modules/system/command.py"
    original = damaged.read_bytes()
    damaged.write_bytes(b"#" * len(original))
    upload_archive()
    assert damaged.read_bytes() == original


@pytest.mark.parametrize("left", [0.0, 0.1, 0.5, 0.999])
def test_incomplete_archive_leaves_nothing(home: Path, left: float) -> None:
    data = small_archive()
    result = upload_archive(data=data[: int(len(data) * left)])
    assert result["event"] == "not_shipped"
    assert "did not arrive complete" in result["why"]
    assert [path.name for path in runtime_folder(home).iterdir()] == [".lock"]


def test_flipped_byte_is_detected(home: Path) -> None:
    tar = gzip.decompress(small_archive())
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        at = next(member.offset_data for member in archive if member.name.endswith("/status.py"))
    result = upload_archive(data=gzip.compress(tar[:at] + b"X" + tar[at + 1 :], 1))
    assert (result["event"], "status.py is damaged" in result["why"]) == ("not_shipped", True)


def test_upload_removes_leftovers_but_not_a_parallel_upload(home: Path) -> None:
    killed, working = start_upload(), start_upload()
    for process in (killed, working):
        assert process.stdin is not None
        process.stdin.write(runtime.unpacker_source() + small_archive()[:50_000])
        process.stdin.flush()
    wait_until(lambda: len(list(runtime_folder(home).glob(".new.*/manifest.json"))) == 2)
    killed.kill()
    killed.communicate()
    assert upload_archive("other")["event"] == "shipped"
    assert len(list(runtime_folder(home).glob(".new.*"))) == 1
    result, _ = working.communicate(small_archive()[50_000:])
    assert json.loads(result.splitlines()[-1])["event"] == "shipped"
    assert {path.name for path in runtime_folder(home).iterdir()} == {"abc", "other", ".lock"}


def test_old_runtimes_are_removed_unless_in_use(home: Path, runner: Callable[[str], subprocess.Popen[bytes]]) -> None:
    upload_archive("run")
    for n, name in enumerate(("run", "timer", "idle", "b1", "b2", "b3")):
        if name != "run":
            shutil.copytree(runtime_folder(home) / "run", runtime_folder(home) / name)
        os.utime(runtime_folder(home) / name, (n, n))
    (runtime_folder(home) / "timer/in-use").touch()
    os.utime(runtime_folder(home) / "timer", (1, 1))
    process = runner("run")
    upload_archive("new")
    assert {path.name for path in runtime_folder(home).glob("[a-z]*")} == {"new", "b1", "b2", "b3", "run", "timer"}
    process.communicate()
    upload_archive("newer")
    assert {path.name for path in runtime_folder(home).glob("[a-z]*")} == {"newer", "new", "b2", "b3", "timer"}


def test_detached_run_locks_its_runtime(home: Path, runner: Callable[[str], subprocess.Popen[bytes]]) -> None:
    upload_archive("run")
    go = home / "go"
    request = run_request(command_task("sh", "-c", f"while [ ! -e {go} ]; do sleep 0.05; done"))
    process = runner("run")
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    assert b"run_started" in process.stdout.readline()
    (follower,) = psutil.Process(process.pid).children()
    follower.kill()  # the run continues
    lock = (runtime_folder(home) / "run/lock").open("rb+")
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        go.touch()
    fcntl.flock(lock, fcntl.LOCK_EX)  # free as soon as the run has ended
    lock.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a file system")
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("size=400k", r"\.local.*: not enough space: needs \d+ MB, 0 MB free"),
        ("ro", r"\.local.*Read-only|Read-only.*\.local"),
        ("size=64m,nr_inodes=100", r"No space left on device \(\d+ MB free\)"),
    ],
    ids=["full", "read-only", "full during the upload"],
)
def test_unwritable_home_is_reported_and_left_empty(home: Path, options: str, reason: str) -> None:
    with mount_tmpfs(home, options):
        answer = upload_archive()
        assert (answer["event"], bool(re.search(reason, answer["why"]))) == ("not_shipped", True), answer
        assert {path.name for path in home.glob(f"{runtime.BOOTSTRAP_FOLDER}/*")} <= {".lock"}


@pytest.mark.parametrize(
    "damage", ["lib/sparkwright/health/judging/judge.py", "lib/sparkwright/errors.py", "manifest.json", "lock"]
)
def test_scheduled_check_with_a_damaged_runtime_names_the_remedy(home: Path, damage: str) -> None:
    upload_archive()
    installed = runtime_folder(home) / "abc"
    if damage == "lock":
        (installed / damage).unlink()
    else:
        (installed / damage).write_bytes(b"")
    script = installed / "lib/sparkwright/runner/scheduled_checks.py"
    command: list[str | Path] = [sys.executable, "-I", script, installed / "tag"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (75, "")
    assert result.stdout.endswith("`sparkwright health.install` again\n")
    assert not (home / ".local/state").exists()


def test_previous_runtime_of_a_timer_is_kept_until_the_switch(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
    schedule.mark_in_use(old)
    schedule.mark_in_use(new)
    assert (old / schedule.IN_USE_MARK).exists(), "a failed install keeps the timer and its runtime"
    schedule.release_runtimes(new, keep="new")
    assert [folder.name for folder in (old, new) if (folder / schedule.IN_USE_MARK).exists()] == ["new"]
    schedule.release_runtimes(new)
    assert not (new / schedule.IN_USE_MARK).exists()
