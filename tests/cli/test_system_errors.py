"""Errors of the operating system are reported in a sentence: a full disk, a read-only folder, a closed pipe, Ctrl-C."""

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
from tests import commands


def run_command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return commands.run_process(commands.PROGRAM, *words, cwd=folder)


def run_shell(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    return commands.run_process("bash", "-c", line, cwd=folder)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a small disk with a new user's folder."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if commands.run_process("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk, cwd=tmp_path).returncode:
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


def test_full_disk_is_named_by_each_command(small_disk: Path) -> None:
    fill_disk(small_disk)
    for command in ("lock", "deploy", "status", "health"):
        result = run_command(small_disk, command, "--host", "sandbox")
        output = result.stdout + result.stderr
        assert result.returncode == 1, (command, output)
        assert f"the disk of {small_disk}/.sandbox is full. Free some space." in output
        assert "internal error" not in output
    assert str(bounds.find_full_disk([small_disk / "not/there"])) == str(small_disk)
    with pytest.raises(OSError, match="No space left on device") as excinfo:
        write_atomically(small_disk / "spark.lock", b"x" * 8192)
    assert bounds.describe_os_error(excinfo.value) == f"{small_disk}/spark.lock: No space left on device."


def test_init_on_a_full_disk_leaves_no_files_and_can_be_repeated(small_disk: Path) -> None:
    fill_disk(small_disk)
    result = run_command(small_disk, "init", "new")
    assert (result.returncode, result.stdout) == (1, "")
    assert "No space left on device. Nothing was created." in result.stderr
    (small_disk / "fill").unlink()
    assert run_command(small_disk, "init", "new").returncode == 0


def test_read_only_folder_is_named(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    init = run_command(small_disk, "init", "new")
    assert init.returncode == 1 and "Read-only file system" in init.stderr
    for command in ("lock", "plan", "bench.smoke"):
        result = run_command(small_disk, command, "--host", "sandbox")
        output = result.stdout + result.stderr
        assert result.returncode in (1, 5), (command, output)
        assert f"{small_disk}/" in output and "Read-only file system" in output
        assert "internal error" not in output and "Traceback" not in output


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("hosts", 0),
        ("lint", 0),
        ("schema recipe", 0),
        ("--help", 0),
        ("--list", 0),
        ("deploy --list-tasks", 0),
        ("status --host away", 3),
        ("plan --host away", 3),
        ("plan --host broken", 5),
    ],
)
def test_closed_pipe_is_quiet_and_keeps_the_exit_code(tmp_path: Path, line: str, code: int) -> None:
    starter.write_starter(tmp_path)
    (tmp_path / "hosts/away.yml").write_text("address: 127.0.0.1\nport: 1\nrecipe: qwen3.5-35b\n")
    (tmp_path / "hosts/broken.yml").write_text("address: 127.0.0.1\n")
    for reader in ("true", "head -1"):
        result = run_shell(tmp_path, f"{commands.PROGRAM} {line} | {reader}; exit ${{PIPESTATUS[0]}}")
        assert (result.returncode, result.stderr) == (code, "")


@pytest.mark.parametrize(("line", "code"), [("hosts", 0), ("deploy --host nobody", 5)])
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_do_not_change_the_exit_code(tmp_path: Path, line: str, code: int, closed: str) -> None:
    starter.write_starter(tmp_path)
    result = run_shell(tmp_path, f"{commands.PROGRAM} {line} {closed}")
    assert result.returncode == code, result.stderr
    assert "error" not in result.stderr
    assert ("sandbox" in result.stdout) == (line == "hosts" and closed == "2>&-")


def test_a_terminal_of_unknown_size_shows_tables(tmp_path: Path) -> None:
    starter.write_starter(tmp_path)
    (tmp_path / "hosts/away.yml").write_text("address: 127.0.0.1\nport: 1\nrecipe: qwen3.5-35b\n")
    result = run_shell(tmp_path, f"COLUMNS=0 LINES=0 {commands.PROGRAM} status --host away")
    assert "away  unreachable" in result.stdout


@pytest.mark.parametrize("library", sorted({"_json", "_yaml"}.difference(sys.builtin_module_names)))
def test_ctrl_c_during_an_import_is_reported(tmp_path: Path, library: str) -> None:
    """Ctrl-C is sent when this library is mapped into the process."""
    starter.write_starter(tmp_path)
    for _ in range(10):  # on a busy machine the command may have ended before this process runs again
        process = subprocess.Popen(
            [commands.PROGRAM, "lint"], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
        )  # fmt: skip
        maps = Path(f"/proc/{process.pid}/maps")
        while process.poll() is None and library not in maps.read_text():
            pass
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        if process.returncode != 0:
            break
    assert (process.returncode, errors) == (4, "interrupted by Ctrl-C.\n")


def test_new_project_over_a_file_creates_nothing(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a file")
    with pytest.raises(Failed, match="Nothing was created"):
        starter.write_starter(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["hosts"]


@pytest.mark.parametrize("line", ["--help", "deploy --help", "lint --help", "explain", "schema recipe"])
def test_output_on_a_full_disk_is_an_error(tmp_path: Path, line: str) -> None:
    result = run_shell(tmp_path, f"{commands.PROGRAM} {line} > /dev/full")
    assert result.returncode == 1 and result.stderr == "standard output: No space left on device.\n"
