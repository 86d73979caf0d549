"""The shipped runtime: complete by itself, without the laptop's side, and named by its content."""

import fcntl
import functools
import gzip
import io
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparkwright.health import schedule
from sparkwright.modules import registry
from sparkwright.protocol.plan import Plan, Task
from sparkwright.remote import runtime
from tests.remote.conftest import pack_runtime
from tests.waiting import wait_until


def unpack_archive(folder: Path) -> Path:
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    with tarfile.open(runtime.ensure_archive(python, platform.machine())) as tar:
        tar.extractall(folder, filter="data")
    return folder / "lib"


def test_every_module_imports_from_the_runtime_alone(tmp_path: Path) -> None:
    lib = unpack_archive(tmp_path)
    heavy = "docker, hf_transfer, hf_xet, psutil, tenacity, jinja2, packaging, requests"
    names = ", ".join(registry.IMPORT_PATHS[name] for name in registry.NAMES)
    paths = "[p for p in sys.path if 'site-packages' not in p and 'src' not in p]"
    program = f"import sys; sys.path = [{str(lib)!r}] + {paths}; import {heavy}, sparkwright.runner.main, {names}; print('whole')"
    result = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False)
    assert result.stdout == "whole\n", result.stderr


def test_runtime_has_no_packages_of_the_laptop(tmp_path: Path) -> None:
    lib = unpack_archive(tmp_path)
    names = {path.name for path in lib.iterdir()} | {path.stem for path in (lib / "sparkwright").iterdir()}
    assert names.isdisjoint(
        {"fabric", "invoke", "paramiko", "pydantic", "rich", "cli", "fleet", "sandbox", "remote", "console"}
    )


def test_archive_is_reproducible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    first = runtime.ensure_archive(python, platform.machine())
    again = tmp_path / "sparkwright/runtime"
    again.mkdir(parents=True)
    (again / "wheels").symlink_to(first.parent / "wheels")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    second = runtime.ensure_archive(python, platform.machine())
    assert second.parent == again
    assert (second.name, second.read_bytes()) == (first.name, first.read_bytes())


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home of its own, in which the folder of runtimes does not exist yet."""
    return tmp_path


def runtime_folder(home: Path) -> Path:
    return home / runtime.BOOTSTRAP_FOLDER


def full_archive() -> bytes:
    return runtime.ensure_archive(f"{sys.version_info[0]}.{sys.version_info[1]}", platform.machine()).read_bytes()


@functools.cache
def small_archive() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        pack_runtime(Path(folder) / "it")
        return (Path(folder) / "it").read_bytes()


def start_shipping(home: Path, name: str = "abc") -> subprocess.Popen[bytes]:
    """Start the unpacking on the host, as a laptop does; its standard input is the laptop's data."""
    env = {**os.environ, "HOME": str(home)}
    command = ["sh", "-c", runtime.unpack_command(name, sys.executable)]
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def ship_archive(home: Path, name: str = "abc", data: bytes | None = None) -> dict[str, str]:
    """Return the answer to a whole archive, or to this one."""
    result = start_shipping(home, name).communicate(
        runtime.unpacker_source() + (small_archive() if data is None else data)
    )
    answer = json.loads(result[0].splitlines()[-1])
    assert isinstance(answer, dict), result
    return answer


def start_answer(home: Path, name: str = "abc") -> bool:
    env = {**os.environ, "HOME": str(home)}
    command = ["sh", "-c", runtime.start_command(name, "engine")]
    result = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return b'{"event": "ready"}' in result.stdout.splitlines()


@pytest.fixture
def runner(home: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Start the runner of a runtime, which then waits for its request and locks its runtime."""
    pending: list[subprocess.Popen[bytes]] = []

    def start_runner(name: str) -> subprocess.Popen[bytes]:
        command = ["sh", "-c", runtime.start_command(name, "light")]
        env = {**os.environ, "HOME": str(home)}
        process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        pending.append(process)
        assert process.stdout is not None
        assert b'{"event": "ready"}\n' in (process.stdout.readline(), process.stdout.readline())
        return process

    yield start_runner
    for process in pending:
        process.communicate()


def test_installed_runtime_is_kept_unless_for_another_python(
    home: Path,
) -> None:
    installed = runtime_folder(home) / "abc"
    assert ship_archive(home, data=full_archive())["event"] == "shipped"
    assert start_answer(home)
    (installed / "in-use").touch()
    was = installed.stat().st_ino
    assert ship_archive(home, data=full_archive())["event"] == "shipped"
    assert installed.stat().st_ino == was, "a run reads from it"
    assert {path.name for path in installed.parent.iterdir()} == {"abc", ".lock"}
    (installed / "tag").write_text("3.9-x86_64\n")
    assert not start_answer(home)
    assert ship_archive(home, data=full_archive())["event"] == "shipped"
    assert installed.stat().st_ino != was
    assert start_answer(home)
    assert (installed / "in-use").exists(), "the timer's unit names this folder"


def test_changed_file_of_the_same_size_is_replaced(home: Path) -> None:
    ship_archive(home)
    damaged = runtime_folder(home) / "abc/lib/sparkwright/modules/system/command.py"
    original = damaged.read_bytes()
    damaged.write_bytes(b"#" * len(original))
    ship_archive(home)
    assert damaged.read_bytes() == original


@pytest.mark.parametrize("left", [0.0, 0.1, 0.5, 0.999])
def test_incomplete_archive_leaves_nothing(home: Path, left: float) -> None:
    data = small_archive()
    result = ship_archive(home, data=data[: int(len(data) * left)])
    assert result["event"] == "not_shipped"
    assert "did not arrive complete" in result["why"]
    assert [path.name for path in runtime_folder(home).iterdir()] == [".lock"]


def test_flipped_byte_is_detected(home: Path) -> None:
    tar = gzip.decompress(small_archive())
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        at = next(member.offset_data for member in archive if member.name.endswith("/status.py"))
    result = ship_archive(home, data=gzip.compress(tar[:at] + b"X" + tar[at + 1 :], 1))
    assert (result["event"], "status.py is damaged" in result["why"]) == ("not_shipped", True)


def test_upload_removes_leftovers_but_not_a_parallel_upload(home: Path) -> None:
    killed, working = start_shipping(home), start_shipping(home)
    for item in (killed, working):
        assert item.stdin is not None
        item.stdin.write(runtime.unpacker_source() + small_archive()[:50_000])
        item.stdin.flush()
    wait_until(lambda: len(list(runtime_folder(home).glob(".new.*/manifest.json"))) == 2)
    killed.kill()
    killed.communicate()
    assert ship_archive(home, "other")["event"] == "shipped"
    assert len(list(runtime_folder(home).glob(".new.*"))) == 1
    result, _ = working.communicate(small_archive()[50_000:])
    assert json.loads(result.splitlines()[-1])["event"] == "shipped"
    assert {path.name for path in runtime_folder(home).iterdir()} == {"abc", "other", ".lock"}


def test_old_runtimes_are_removed_unless_in_use(home: Path, runner: Callable[[str], subprocess.Popen[bytes]]) -> None:
    ship_archive(home, "run")
    for n, name in enumerate(("run", "timer", "idle", "b1", "b2", "b3")):
        if name != "run":
            shutil.copytree(runtime_folder(home) / "run", runtime_folder(home) / name)
        os.utime(runtime_folder(home) / name, (n, n))
    (runtime_folder(home) / "timer/in-use").touch()
    os.utime(runtime_folder(home) / "timer", (1, 1))
    process = runner("run")
    ship_archive(home, "new")
    assert {path.name for path in runtime_folder(home).glob("[a-z]*")} == {"new", "b1", "b2", "b3", "run", "timer"}
    process.communicate()
    ship_archive(home, "newer")
    assert {path.name for path in runtime_folder(home).glob("[a-z]*")} == {"newer", "new", "b2", "b3", "timer"}


def test_detached_run_locks_its_runtime(home: Path, runner: Callable[[str], subprocess.Popen[bytes]]) -> None:
    ship_archive(home, "run")
    go = home / "go"
    command = ["sh", "-c", f"while [ ! -e {go} ]; do sleep 0.05; done"]
    task = Task(id="t1", name="wait", module="command", args={"argv": command}, register="")
    plan = Plan(run_id="run-1", host="spark1", play="Test", steps=(task,))
    process = runner("run")
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps({"verb": "run", "plan": plan.to_json()}).encode() + b"\n")
    process.stdin.flush()
    assert b"run_started" in process.stdout.readline()
    os.kill(
        int(_output_of("pgrep", "-P", str(process.pid))), signal.SIGKILL
    )  # the runner that follows it; the run goes on
    lock = (runtime_folder(home) / "run/lock").open("rb+")
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        go.touch()
    fcntl.flock(lock, fcntl.LOCK_EX)  # free as soon as the run has ended
    lock.close()


def _output_of(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a file system")
@pytest.mark.parametrize(
    ("options", "why"), [("size=400k", r"not enough space: needs \d+ MB, 0 MB free"), ("ro", "Read-only")]
)
def test_full_or_read_only_home_is_reported(home: Path, options: str, why: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(home)], check=True)
    try:
        result = ship_archive(home)
        assert result["event"] == "not_shipped"
        assert re.search(why, result["why"]) and runtime.BOOTSTRAP_FOLDER.split("/")[0] in result["why"]
        assert not list(home.glob("**/.new.*"))
    finally:
        subprocess.run(["umount", str(home)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a file system")
def test_full_disk_during_the_upload_leaves_nothing(home: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,nr_inodes=100", "tmpfs", str(home)], check=True)
    try:
        result = ship_archive(home)
        assert result["event"] == "not_shipped"
        assert re.search(r"No space left on device \(\d+ MB free\)", result["why"])
        assert [path.name for path in runtime_folder(home).iterdir()] == [".lock"]
    finally:
        subprocess.run(["umount", str(home)], check=True)


@pytest.mark.parametrize(
    "damage", ["lib/sparkwright/health/judging/judge.py", "lib/sparkwright/errors.py", "manifest.json", "lock"]
)
def test_scheduled_check_with_a_damaged_runtime_names_the_remedy(home: Path, damage: str) -> None:
    ship_archive(home)
    installed = runtime_folder(home) / "abc"
    if damage == "lock":
        (installed / damage).unlink()
    else:
        (installed / damage).write_bytes(b"")
    command = [
        sys.executable,
        "-I",
        str(installed / "lib/sparkwright/runner/scheduled_checks.py"),
        str(installed / "tag"),
    ]
    env = {**os.environ, "HOME": str(home)}
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (75, "")
    assert result.stdout.endswith("`sparkwright health.install` again\n")
    assert not (home / ".local/state").exists()


def test_previous_runtime_of_a_timer_is_kept_until_the_switch(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
    schedule.mark_in_use(old)
    schedule.mark_in_use(new)
    assert (old / schedule.IN_USE_MARK).exists(), "an install that fails leaves the old clock with its runtime"
    schedule.release_runtimes(new, keep="new")
    assert [folder.name for folder in (old, new) if (folder / schedule.IN_USE_MARK).exists()] == ["new"]
    schedule.release_runtimes(new)
    assert not (new / schedule.IN_USE_MARK).exists()
