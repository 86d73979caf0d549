"""Errors of the operating system are sentences: a full disk, a read-only folder, a closed pipe, Ctrl-C at any moment."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkwright.errors import Failed
from sparkwright.host.state import write_atomically
from sparkwright.project import starter
from sparkwright.trust import bounds

BIN = Path(sys.executable).parent / "sparkwright"


def run_command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BIN, *words], cwd=folder, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk with a new user's folder."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, check=False
    ).returncode:
        pytest.skip("only root may mount a disk")
    try:
        starter.write_starter(disk)
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def fill_disk(disk: Path) -> None:
    with (disk / "fill").open("wb", buffering=0) as file:
        try:
            while file.write(b"0" * 4096):
                pass
        except OSError:
            return


def test_on_a_full_disk_each_command_says_which(small_disk: Path) -> None:
    fill_disk(small_disk)
    for words in (("lock",), ("deploy",), ("status",), ("health",)):
        result = run_command(small_disk, *words, "--host", "sandbox")
        assert result.returncode == 1, (words, result.stdout, result.stderr)
        assert f"the disk of {small_disk}/.sandbox is full. Free some space." in result.stdout + result.stderr
        assert "internal error" not in result.stdout + result.stderr
    assert str(bounds.find_full_disk([small_disk / "not/there"])) == str(small_disk)
    with pytest.raises(OSError, match="No space left on device") as excinfo:
        write_atomically(small_disk / "spark.lock", b"x" * 8192)
    assert bounds.describe_os_error(excinfo.value) == f"{small_disk}/spark.lock: No space left on device."


def test_init_on_a_full_disk_leaves_nothing_and_can_be_given_again(small_disk: Path) -> None:
    fill_disk(small_disk)
    result = run_command(small_disk, "init", "new")
    assert (result.returncode, result.stdout) == (1, "")
    assert "No space left on device. Nothing was created." in result.stderr
    (small_disk / "fill").unlink()
    assert run_command(small_disk, "init", "new").returncode == 0


def test_a_read_only_folder_is_named(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    completed = run_command(small_disk, "init", "new")
    assert completed.returncode == 1 and "Read-only file system" in completed.stderr
    for words in (("lock",), ("plan",), ("bench.smoke",)):
        completed = run_command(small_disk, *words, "--host", "sandbox")
        result = completed.stdout + completed.stderr
        assert completed.returncode in (1, 5), (words, result)
        assert f"{small_disk}/" in result and "Read-only file system" in result
        assert "internal error" not in result and "Traceback" not in result


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("hosts", 0),
        ("lint", 0),
        ("schema recipe", 0),
        ("--list", 0),
        ("deploy --list-tasks", 0),
        ("status --host away", 3),
        ("plan --host away", 3),
        ("plan --host broken", 5),
    ],
)
def test_a_pipe_that_nobody_reads_ends_quietly_and_with_the_commands_own_code(
    tmp_path: Path, line: str, code: int
) -> None:
    starter.write_starter(tmp_path)
    (tmp_path / "hosts/away.yml").write_text("address: 127.0.0.1\nport: 1\nrecipe: qwen3.5-35b\n")
    (tmp_path / "hosts/broken.yml").write_text("address: 127.0.0.1\n")
    for reader in ("true", "head -1"):
        words = f"{BIN} {line} | {reader}; exit ${{PIPESTATUS[0]}}"
        result = subprocess.run(
            ["bash", "-c", words], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert (result.returncode, result.stderr) == (code, "")


@pytest.mark.parametrize("library", sorted({"_json", "_yaml"}.difference(sys.builtin_module_names)))
def test_ctrl_c_while_it_starts_is_a_sentence(tmp_path: Path, library: str) -> None:
    """Ctrl-C is sent when a library that is imported on the way appears in the process."""
    starter.write_starter(tmp_path)
    for _ in range(10):  # on a busy machine the command may have ended before this process has its turn
        process = subprocess.Popen(
            [BIN, "lint"], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
        )  # fmt: skip
        maps = Path(f"/proc/{process.pid}/maps")
        while process.poll() is None and library not in maps.read_text():
            pass
        process.send_signal(signal.SIGINT)
        _, result = process.communicate(timeout=60)
        if process.returncode != 0:
            break
    assert (process.returncode, result) == (4, "interrupted by Ctrl-C.\n")


def test_what_can_not_be_laid_down_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a file")
    with pytest.raises(Failed, match="Nothing was created"):
        starter.write_starter(tmp_path)
    assert os.listdir(tmp_path) == ["hosts"]  # noqa: PTH208


@pytest.mark.parametrize("line", ["--help", "deploy --help", "lint --help"])
def test_help_on_a_full_disk_is_a_sentence(tmp_path: Path, line: str) -> None:
    starter.write_starter(tmp_path)
    result = subprocess.run(
        ["bash", "-c", f"{BIN} {line} > /dev/full"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 1 and result.stderr == "standard output: No space left on device.\n"
