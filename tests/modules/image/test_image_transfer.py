"""The end of `send_image` that talks to another host: whatever that one does, the transfer ends."""

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
    """Return the outcome of sending 4 MiB to a program in the place of ssh."""
    outcomes: list[Any] = []

    def saved(*given: Any) -> Iterator[bytes]:
        yield from (os.urandom(2**20) for _ in range(4))

    def run() -> None:
        try:
            outcomes.append(transfer._stream_image(ARGS, ["sh", "-c", script], RecordingContext(home)))
        except Failed as error:
            outcomes.append(error)

    monkeypatch.setattr(transfer, "_export_image", saved)
    work = threading.Thread(target=run, daemon=True)
    work.start()
    work.join(30)
    assert outcomes, "it hangs"
    return outcomes[0]


def test_image_is_sent_to_a_host_that_prints_continuously(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "head -c 8000000 /dev/zero; head -c 8000000 /dev/zero >&2; cat >/dev/null"
    assert send_image(monkeypatch, tmp_path, script) == (4 * 2**20, "")


def test_last_line_of_a_refusal_is_shown_without_control_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = r"cat >/dev/null; head -c 1000000 /dev/zero; printf '\nno room \033[2J\n' >&2; exit 3"
    error = send_image(monkeypatch, tmp_path, script)
    assert isinstance(error, Failed) and "bytes: no room" in error.message and "\x1b" not in error.message


@pytest.mark.parametrize(
    ("script", "limit", "result"),
    [
        ("exec sleep 60", "SILENCE_TIMEOUT_S", "no progress for 0.5 s"),
        ("cat >/dev/null; exec sleep 60", "FINISH_TIMEOUT_S", "not finished 0.5 s after the last byte"),
    ],
    ids=["takes-nothing", "never-ends"],
)
def test_inactive_host_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, limit: str, result: str
) -> None:
    monkeypatch.setattr(transfer, limit, 0.5)
    error = send_image(monkeypatch, tmp_path, script)
    assert isinstance(error, Failed) and result in error.message


# The key of a transfer in authorized_keys: two at once, everybody else's lines, and what a stranger's key may hold.


OWN_KEY_LINE = b'from="10.0.0.0/8",command="echo \\"hi\\"" ssh-ed25519 AAAAmine me@sparkwright-copy.lab'


def ssh_key(n: int) -> str:
    return f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{n:04d}"


def authorized_keys_file(home: Path) -> Path:
    file = home / ".ssh/authorized_keys"
    file.parent.mkdir(exist_ok=True)
    return file


def transfer_key_repeatedly(home: Path, n: int, gate: str) -> None:
    """A key comes and goes many times; another that came before it stays."""
    context = RecordingContext(home)
    CopyKey().run(CopyKey.Args(ssh_key(1000 + n), "true"), context)
    os.open(gate, os.O_RDONLY)  # until all have begun
    for _ in range(20):
        CopyKey().run(CopyKey.Args(ssh_key(n), "true"), context)
        CopyKey().run(CopyKey.Args(ssh_key(n), state="absent"), context)


def test_concurrent_transfers_keep_the_keys_of_each_other(tmp_path: Path) -> None:
    authorized_keys_file(tmp_path).write_bytes(OWN_KEY_LINE + b"\n")
    gate = str(tmp_path / "gate")
    os.mkfifo(gate)
    fork = multiprocessing.get_context("fork")
    pending = [fork.Process(target=transfer_key_repeatedly, args=(tmp_path, n, gate)) for n in range(6)]
    for process in pending:
        process.start()
    os.close(os.open(gate, os.O_WRONLY))
    for process in pending:
        while process.is_alive():
            try:
                os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))  # who came late to the gate
            except OSError:
                process.join(0.05)
    assert [process.exitcode for process in pending] == [0] * 6
    lines = authorized_keys_file(tmp_path).read_bytes().splitlines()
    assert lines[0] == OWN_KEY_LINE
    assert {line.split()[-2].decode() for line in lines[1:]} == {ssh_key(1000 + n).split()[1] for n in range(6)}


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_other_lines_of_authorized_keys_are_unchanged(tmp_path: Path, end: bytes) -> None:
    others = OWN_KEY_LINE + b"\n\n# a\x0cb \xff\xfe\x85 \xe2\x80\xa8\r\nssh-rsa AAAAB3 the last"
    authorized_keys_file(tmp_path).write_bytes(others + end)
    context = RecordingContext(tmp_path)
    assert CopyKey().run(CopyKey.Args(ssh_key(1), 'sh -c "x"'), context).changed
    content = authorized_keys_file(tmp_path).read_bytes()
    assert content.startswith(others + b"\n")
    assert b'command="sh -c \\"x\\"" ' in content.removeprefix(others)
    CopyKey().run(CopyKey.Args(ssh_key(1), state="absent"), context)
    assert authorized_keys_file(tmp_path).read_bytes() == others + b"\n"


def test_expired_key_is_removed_and_valid_keys_stay(tmp_path: Path) -> None:
    def line(n: int, in_s: float) -> str:
        until = time.strftime("%Y%m%d%H%M", time.localtime(time.time() + in_s))
        return f'restrict,expiry-time="{until}",command="true" {ssh_key(n)} sparkwright-copy'

    authorized_keys_file(tmp_path).write_text(f"{line(1, -3600)}\n{line(2, KEY_LIFETIME_S)}\n")
    CopyKey().run(CopyKey.Args(ssh_key(3), "true"), RecordingContext(tmp_path))
    assert [text.split()[-2][-4:] for text in authorized_keys_file(tmp_path).read_text().splitlines()] == [
        "0002",
        "0003",
    ]


def test_mode_owner_and_symbolic_link_are_kept(tmp_path: Path) -> None:
    real = tmp_path / "dotfiles" / "keys"
    real.parent.mkdir()
    real.write_bytes(OWN_KEY_LINE)
    real.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(real, 12345, 54321)
    was = real.stat()
    authorized_keys_file(tmp_path).symlink_to("../dotfiles/keys")
    CopyKey().run(CopyKey.Args(ssh_key(1), "true"), RecordingContext(tmp_path))
    assert authorized_keys_file(tmp_path).is_symlink()
    now = real.stat()
    assert ssh_key(1) in real.read_text()
    assert (now.st_mode, now.st_uid, now.st_gid) == (was.st_mode, was.st_uid, was.st_gid)


def test_new_authorized_keys_file_is_private(tmp_path: Path) -> None:
    CopyKey().run(CopyKey.Args(ssh_key(1), "true"), RecordingContext(tmp_path))
    file = tmp_path / ".ssh/authorized_keys"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize(
    "public_key",
    [
        f"{ssh_key(1)}\n{ssh_key(2)}",
        f"{ssh_key(1)} comment",
        f'command="x" {ssh_key(1)}',
        "",
        "ssh-ed25519",
        f"{ssh_key(1)}\r",
        "# x",
    ],
)
def test_invalid_public_keys_are_refused(tmp_path: Path, public_key: str) -> None:
    with pytest.raises(Refused, match="not a public key"):
        CopyKey().run(CopyKey.Args(public_key, "true"), RecordingContext(tmp_path))
    assert not (tmp_path / ".ssh").exists()


def test_command_with_a_line_break_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="must be one line"):
        CopyKey().run(CopyKey.Args(ssh_key(1), f'true" {ssh_key(2)}\nx'), RecordingContext(tmp_path))


def test_folder_instead_of_authorized_keys_is_reported(tmp_path: Path) -> None:
    authorized_keys_file(tmp_path).mkdir()
    with pytest.raises(Failed, match=r"cannot read .*authorized_keys: Is a directory"):
        CopyKey().run(CopyKey.Args(ssh_key(1), "true"), RecordingContext(tmp_path))


def test_lock_of_the_keys_is_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        CopyKey().run(CopyKey.Args(ssh_key(1), "true"), RecordingContext(tmp_path))
    finally:
        os.umask(before)
    lock = next(tmp_path.rglob("authorized_keys.lock"))
    assert (lock.parent.stat().st_mode & 0o777, lock.stat().st_mode & 0o777) == (0o700, 0o600)
