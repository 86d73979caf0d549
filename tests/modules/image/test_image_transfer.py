"""The connection of `send_image` to another host, and the temporary key in authorized_keys."""

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkwright.errors import Failed, Refused
from sparkwright.modules.image import image_transfer as transfer
from sparkwright.modules.image.image_transfer import KEY_LIFETIME_S, CopyKey
from tests.modules.context import RecordingContext

ARGS = transfer.SendImage.Args("sha256:1", "a/b:incoming")


def send_image(monkeypatch: pytest.MonkeyPatch, home: Path, script: str) -> Any:
    """Return the outcome of sending 4 MiB to a shell script instead of ssh."""
    outcomes: list[Any] = []

    def export_image(*args: Any) -> Iterator[bytes]:
        yield from (os.urandom(2**20) for _ in range(4))

    def run() -> None:
        try:
            outcomes.append(transfer._stream_image(ARGS, ["sh", "-c", script], RecordingContext(home)))
        except Failed as error:
            outcomes.append(error)

    monkeypatch.setattr(transfer, "_export_image", export_image)
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(30)
    assert outcomes, "the transfer hangs"
    return outcomes[0]


def test_image_is_sent_to_a_host_that_prints_continuously(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "head -c 8000000 /dev/zero; head -c 8000000 /dev/zero >&2; cat >/dev/null"
    assert send_image(monkeypatch, tmp_path, script) == (4 * 2**20, "")


def test_refusal_is_shown_without_control_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = r"cat >/dev/null; head -c 1000000 /dev/zero; printf '\nno room \033[2J\n' >&2; exit 3"
    error = send_image(monkeypatch, tmp_path, script)
    assert isinstance(error, Failed) and "bytes: no room" in error.message and "\x1b" not in error.message


@pytest.mark.parametrize(
    ("script", "limit", "message"),
    [
        ("exec sleep 60", "SILENCE_TIMEOUT_S", "no progress for 0.5 s"),
        ("cat >/dev/null; exec sleep 60", "FINISH_TIMEOUT_S", "not finished 0.5 s after the last byte"),
    ],
    ids=["never reads", "never ends"],
)
def test_inactive_host_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, limit: str, message: str
) -> None:
    monkeypatch.setattr(transfer, limit, 0.5)
    error = send_image(monkeypatch, tmp_path, script)
    assert isinstance(error, Failed) and message in error.message


OWN_KEY_LINE = b'from="10.0.0.0/8",command="echo \\"hi\\"" ssh-ed25519 AAAAmine me@sparkwright-copy.lab'


def ssh_key(n: int) -> str:
    return f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{n:04d}"


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / ".ssh/authorized_keys"
    path.parent.mkdir()
    return path


def add_key(home: Path, public_key: str, command: str = "true") -> bool:
    return CopyKey().run(CopyKey.Args(public_key, command), RecordingContext(home)).changed


def remove_key(home: Path, public_key: str) -> None:
    CopyKey().run(CopyKey.Args(public_key, state="absent"), RecordingContext(home))


def transfer_key_repeatedly(home: Path, n: int, gate: str) -> None:
    """Add a key that stays, then add and remove another one many times."""
    add_key(home, ssh_key(1000 + n))
    os.open(gate, os.O_RDONLY)  # until all processes have started
    for _ in range(20):
        add_key(home, ssh_key(n))
        remove_key(home, ssh_key(n))


def test_concurrent_transfers_keep_the_keys_of_each_other(tmp_path: Path, keys_file: Path) -> None:
    keys_file.write_bytes(OWN_KEY_LINE + b"\n")
    gate = str(tmp_path / "gate")
    os.mkfifo(gate)
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=transfer_key_repeatedly, args=(tmp_path, n, gate)) for n in range(6)]
    for process in processes:
        process.start()
    os.close(os.open(gate, os.O_WRONLY))
    for process in processes:
        while process.is_alive():
            try:
                os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))  # for processes that reach the gate late
            except OSError:
                process.join(0.05)
    assert [process.exitcode for process in processes] == [0] * 6
    lines = keys_file.read_bytes().splitlines()
    assert lines[0] == OWN_KEY_LINE
    assert {line.split()[-2].decode() for line in lines[1:]} == {ssh_key(1000 + n).split()[1] for n in range(6)}


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_other_lines_of_authorized_keys_are_unchanged(tmp_path: Path, keys_file: Path, end: bytes) -> None:
    other_lines = OWN_KEY_LINE + b"\n\n# a\x0cb \xff\xfe\x85 \xe2\x80\xa8\r\nssh-rsa AAAAB3 the last"
    keys_file.write_bytes(other_lines + end)
    assert add_key(tmp_path, ssh_key(1), 'sh -c "x"')
    content = keys_file.read_bytes()
    assert content.startswith(other_lines + b"\n")
    assert b'command="sh -c \\"x\\"" ' in content.removeprefix(other_lines)
    remove_key(tmp_path, ssh_key(1))
    assert keys_file.read_bytes() == other_lines + b"\n"


def test_expired_key_is_removed_and_valid_keys_stay(tmp_path: Path, keys_file: Path) -> None:
    def format_line(n: int, lifetime_s: float) -> str:
        expiry = time.strftime("%Y%m%d%H%M", time.localtime(time.time() + lifetime_s))
        return f'restrict,expiry-time="{expiry}",command="true" {ssh_key(n)} sparkwright-copy'

    keys_file.write_text(f"{format_line(1, -3600)}\n{format_line(2, KEY_LIFETIME_S)}\n")
    add_key(tmp_path, ssh_key(3))
    assert [line.split()[-2][-4:] for line in keys_file.read_text().splitlines()] == ["0002", "0003"]


def test_mode_owner_and_symbolic_link_are_kept(tmp_path: Path, keys_file: Path) -> None:
    target = tmp_path / "dotfiles" / "keys"
    target.parent.mkdir()
    target.write_bytes(OWN_KEY_LINE)
    target.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(target, 12345, 54321)
    before = target.stat()
    keys_file.symlink_to("../dotfiles/keys")
    add_key(tmp_path, ssh_key(1))
    assert keys_file.is_symlink()
    after = target.stat()
    assert ssh_key(1) in target.read_text()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


def test_new_authorized_keys_file_is_private(tmp_path: Path) -> None:
    add_key(tmp_path, ssh_key(1))
    file = tmp_path / ".ssh/authorized_keys"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize(
    "public_key",
    [
        f"{ssh_key(1)}\n{ssh_key(2)}", f"{ssh_key(1)} comment", f'command="x" {ssh_key(1)}', f"{ssh_key(1)}\r",
        "ssh-ed25519", "# x", "",
    ],
)  # fmt: skip
def test_invalid_public_keys_are_refused(tmp_path: Path, public_key: str) -> None:
    with pytest.raises(Refused, match="not a public key"):
        add_key(tmp_path, public_key)
    assert not (tmp_path / ".ssh").exists()


def test_command_with_a_line_break_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="must be one line"):
        add_key(tmp_path, ssh_key(1), f'true" {ssh_key(2)}\nx')


def test_folder_instead_of_authorized_keys_is_reported(tmp_path: Path, keys_file: Path) -> None:
    keys_file.mkdir()
    with pytest.raises(Failed, match=r"cannot read .*authorized_keys: Is a directory"):
        add_key(tmp_path, ssh_key(1))


def test_lock_of_the_keys_is_private(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        add_key(tmp_path, ssh_key(1))
    finally:
        os.umask(umask)
    lock = next(tmp_path.rglob("authorized_keys.lock"))
    assert (lock.parent.stat().st_mode & 0o777, lock.stat().st_mode & 0o777) == (0o700, 0o600)
