"""Modules that copy an image or a model from one host to another."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import subprocess
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from sparkwright.errors import Failed, Refused, Unreachable
from sparkwright.host.images import image_archive, image_copy, image_names
from sparkwright.host.images.image_names import digests_of, machine_platform
from sparkwright.host.module import Context, Module, StateModule
from sparkwright.host.runs.context import Engine
from sparkwright.host.state import write_atomically
from sparkwright.protocol.result import Change, Result, arg
from sparkwright.secret import Secret
from sparkwright.transport.connection import dial
from sparkwright.trust import private
from sparkwright.trust.image_name import Name
from sparkwright.visible import one_line

LIVES_S = 900
MARK = b" sparkwright-copy"
#: one key and nothing else: it comes from another host
KEY = re.compile(r"(?:ssh|ecdsa|sk)-[a-z0-9@.-]{1,64} [A-Za-z0-9+/]{1,16384}={0,3}")
EXPIRY = re.compile(rb'expiry-time="(\d{12})"')


class CopyKey(StateModule["CopyKey.Args", bytes]):
    """Allow another host to log in here for one transfer, with a temporary key that is restricted to one command.

    The line in ~/.ssh/authorized_keys allows one command without terminal or forwarding, and expires after 15 minutes in
    case it is ever left behind. Expired lines of earlier transfers are removed; those of other running transfers, and all
    other lines, are kept unchanged.

    Returns: nothing. Refuses a key or a command of more than one line. Fails if the file cannot be written.
    """

    @dataclass(frozen=True)
    class Args:
        public_key: str = arg("the public key, such as ssh-ed25519 AAAA...")
        command: str = arg("the only command that the key may run", default="")
        state: Literal["present", "absent"] = arg("present or absent", default="present")

    def read(self, args: Args, context: Context) -> bytes:
        if not KEY.fullmatch(args.public_key):
            raise Refused(f"not a public key: '{one_line(args.public_key, at_most=80)}'.")
        if args.command != one_line(args.command):
            raise Refused(f"the command of a key must be one line: '{one_line(args.command, at_most=80)}'.")
        try:
            return _file(context).read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise Failed(f"cannot read {_file(context)}: {error.strerror}.") from None

    def differences(self, args: Args, found: bytes) -> list[Change]:
        there = any(_is_of(line, args.public_key) for line in found.split(b"\n"))
        if there == (args.state == "present"):
            return []
        return [Change("key", "present" if there else None, None if there else args.command, "for one transfer")]

    def act(self, args: Args, found: bytes, changes: list[Change], context: Context) -> dict[str, Any]:
        path = _file(context)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with _alone(context):
                _replace(path.resolve(), _text(args, self.read(args, context)))  # another transfer may have changed it
        except OSError as error:
            raise Failed(f"cannot write {path}: {error.strerror}.") from None
        return {}


def lines_left(context: Context) -> int:
    """Return the number of transfer lines in ~/.ssh/authorized_keys, in use or left behind."""
    try:
        return sum(row.endswith(MARK) for row in _file(context).read_bytes().split(b"\n"))
    except OSError:
        return 0


def remove_lines(context: Context) -> None:
    """Remove every line of a transfer; all others stay as they are."""
    if lines_left(context):
        with _alone(context):
            path = _file(context).resolve()
            rows = path.read_bytes().split(b"\n")
            _replace(path, b"\n".join(row for row in rows if not row.endswith(MARK)))


def _text(args: CopyKey.Args, found: bytes) -> bytes:
    """Return the content that the file should have."""
    now = time.strftime("%Y%m%d%H%M").encode()
    rows = found.removesuffix(b"\n").split(b"\n") if found else []
    rows = [row for row in rows if not _is_of(row, args.public_key) and not _expired(row, now)]
    if args.state == "present":
        until = time.strftime("%Y%m%d%H%M", time.localtime(time.time() + LIVES_S))
        quoted = args.command.replace('"', '\\"')
        rows.append(f'restrict,expiry-time="{until}",command="{quoted}" {args.public_key}'.encode() + MARK)
    return b"".join(row + b"\n" for row in rows)


def _is_of(row: bytes, public_key: str) -> bool:
    return row.endswith(f" {public_key}".encode() + MARK)


def _expired(row: bytes, now: bytes) -> bool:
    """Return True if a transfer left this line behind."""
    until = EXPIRY.search(row)
    return row.startswith(b"restrict") and row.endswith(MARK) and (until is None or until[1] < now)


@contextmanager
def _alone(context: Context) -> Iterator[None]:
    """Lock the file: of two transfers that start at once, each would overwrite what the other wrote."""
    with open(context.state.folder() / "authorized_keys.lock", "a", opener=private.opener) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _replace(path: Path, content: bytes) -> None:
    """Replace the file atomically, with its owner and mode."""
    was: os.stat_result | None = None
    with contextlib.suppress(FileNotFoundError):
        was = path.stat()
    mode = stat.S_IMODE(was.st_mode) if was else private.FILE
    write_atomically(path, content, mode=mode, owner=(was.st_uid, was.st_gid) if was else None)


def _file(context: Context) -> Path:
    return context.machine.home / ".ssh/authorized_keys"


NOT_OURS = ("lo", "docker", "br-", "veth", "virbr")


class InspectImage(Module["InspectImage.Args"]):
    """Report what a host knows about an image, and how other hosts can reach it. Changes nothing and contacts no registry.

    Returns: present, id, digests, layers (hashes of their content), platform (the image's), size_bytes, host_platform,
    free_bytes (where the engine stores images; null if it cannot be read), tools, addresses (the fastest network first),
    impostor (the Id of an image that has the name but is not verified), names (of all images here), intake (the shell
    command that loads an archive of limited size here).
    """

    @dataclass(frozen=True)
    class Args:
        ref: str = arg("repository:tag[@sha256:digest]")
        ids: list[str] = arg("the Ids that the lock allows for the digest", default_factory=list)
        most_bytes: int = arg("size limit of the unpacked archive, bytes, for `intake`", default=0)

    def run(self, args: Args, context: Context) -> Result:
        api: Any = context.docker().api
        name = Name.given(args.ref)
        image = image_names.find(api, args.ref, args.ids)
        tagged = "" if image else image_names.inspect(api, name.proved if name.digest else name.asked).get("Id", "")
        data = {
            "present": bool(image),
            "impostor": tagged,
            "id": image.get("Id", ""),
            "digests": digests_of(image),
            "layers": (image.get("RootFS") or {}).get("Layers") or [],
            "platform": image_names.platform_of(image) if image else "",
            "size_bytes": image.get("Size", 0),
            "host_platform": machine_platform(context.machine),
            "free_bytes": image_copy.free_bytes(context.machine, api.info()),
            "tools": image_archive.tools(),
            "addresses": _addresses(),
            "names": asdict(image_copy.names(api)),
            "intake": image_archive.command(args.most_bytes),
        }
        return Result(msg="present" if image else "not on the host", data=data)


def _addresses() -> list[str]:
    """Return the host's IPv4 addresses on its own networks, the fastest first: two Sparks' ConnectX before the office's."""
    import psutil

    up = {name: stat for name, stat in psutil.net_if_stats().items() if stat.isup and not name.startswith(NOT_OURS)}
    rows = [(name, row) for name, rows in psutil.net_if_addrs().items() if name in up for row in rows]
    found = [(-up[name].speed, row.address) for name, row in rows if row.family.name == "AF_INET"]
    return [address for _, address in sorted(found)]


CONNECT_S = 3
SAVE_S = 3600  # an engine with overlay2 lays the whole image out before its first byte
CHUNK_BYTES = 2**20
SSH_FAILED = 255
SILENCE_S = 600.0  # the other engine may stop reading while it unpacks a layer
ENDED_S = 1800.0  # from the last byte until the other side has the image
LAST_BYTES, LAST_CHARACTERS = 64 * 2**10, 400
PIPE_S = 5.0  # a child of ssh's may keep its pipe
ALIAS = "sparkwright-copy"


class SendImage(Module["SendImage.Args"]):
    """Stream an image to another host's engine: `docker save`, compressed, through one ssh connection.

    Nothing is stored in between. The other host must present the key that the laptop knows, whatever the address; the login
    uses a key created for this transfer, which is never written to disk.

    Returns: address, sent_bytes (before compression), seconds.

    Unreachable if no address leads to that host, or the connection breaks: its engine keeps nothing of a partial stream.
    Fails if the engine there refuses it.
    """

    @dataclass(frozen=True)
    class Args:
        image: str = arg("the Id of the image on this host")
        incoming: str = arg("repository:tag under which it arrives")
        size_bytes: int = arg("its size, for the progress", default=0)
        addresses: list[str] = arg("HOST:PORT of the other host's sshd, best first", default_factory=list)
        user: str = arg("user for the login there", default="")
        host_key: str = arg("that host's public key, such as ssh-ed25519 AAAA...", default="")
        packer: str = arg("zstd, pigz or gzip", default="gzip")
        key_secret: str = arg("the secret that holds the private key", default="SPARKWRIGHT_COPY_KEY")

    def run(self, args: Args, context: Context) -> Result:
        key = context.secrets.get(args.key_secret)
        if key is None:
            raise Failed(f"the secret {args.key_secret} was not given.")
        refused = ["no address given"] if not args.addresses else []
        for address in args.addresses:
            host, _, port = address.rpartition(":")
            why, started_s = _closed(host, int(port)), time.monotonic()
            if not why:
                with _key_file(key) as path:
                    sent, why = _send(args, _ssh(args, host, port, path), context)
            if not why:
                seconds = round(time.monotonic() - started_s, 3)
                data = {"address": address, "sent_bytes": sent, "seconds": seconds}
                return Result(msg=f"sent to {address}", changed=True, data=data)
            refused.append(f"{address}: {why}")
        raise Unreachable(f"cannot reach the other host from here ({'; '.join(refused)}).")


def _closed(host: str, port: int) -> str:
    try:
        dial(host, port, CONNECT_S).close()
        return ""
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__


@contextmanager
def _key_file(key: Secret) -> Iterator[str]:
    """Yield a path from which ssh reads the key: in memory, on no disk, gone with this process."""
    handle = os.memfd_create("key")
    try:
        os.fchmod(handle, 0o600)
        os.write(handle, key.reveal().encode())
        yield f"/proc/{os.getpid()}/fd/{handle}"
    finally:
        os.close(handle)


def _ssh(args: SendImage.Args, host: str, port: str, key: str) -> list[str]:
    kind = args.host_key.split()[0]
    kinds = "rsa-sha2-512,rsa-sha2-256" if kind == "ssh-rsa" else kind
    options = {
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": "/dev/null",
        "GlobalKnownHostsFile": "/dev/null",
        "HostKeyAlias": ALIAS,
        "HostKeyAlgorithms": kinds,
        "KnownHostsCommand": f"/bin/echo {ALIAS} {args.host_key}",
        "Ciphers": "^aes128-gcm@openssh.com",  # packed already and on a short way: the processor is the limit
        "ConnectTimeout": "10",
        "ServerAliveInterval": "5",
        "LogLevel": "ERROR",
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return ["ssh", "-F", "none", "-T", "-i", key, "-p", port, *words, "-l", args.user, "--", host, "load"]


def _send(args: SendImage.Args, ssh: list[str], context: Context) -> tuple[int, str]:
    """Send the image. Returns the bytes sent, and why ssh itself failed; empty if it did not.

    Raises Failed if the other side refused the stream.
    """
    pipe, together = subprocess.PIPE, subprocess.STDOUT
    pack = list(image_archive.PACKERS[args.packer][0])
    try:
        packing = subprocess.Popen(pack, stdin=pipe, stdout=pipe)
        sending = subprocess.Popen(ssh, stdin=packing.stdout, stdout=pipe, stderr=together)
    except FileNotFoundError as error:
        return 0, f"{error.filename} is not on this host"
    assert packing.stdin is not None and packing.stdout is not None
    packing.stdout.close()  # only ssh keeps it open: packing fails when ssh ends
    sent, listener = 0, _Listener(sending)
    try:
        with closing(_saved(args, context)) as pieces:
            for chunk in pieces:
                with listener.waits():
                    packing.stdin.write(chunk)
                sent += len(chunk)
                context.progress(sent, max(args.size_bytes, sent), unit="bytes", text="copying")
        with listener.waits():
            packing.stdin.close()
            packing.wait()
    except BrokenPipeError:
        pass  # the other side went away: its exit code says why
    except BaseException:
        sending.kill()  # before the end of the stream is taken for the end of the image
        raise
    finally:
        packing.kill() if sending.poll() is not None else None
    answer = listener.end()
    packing.wait()
    if sending.returncode == SSH_FAILED:
        return sent, answer
    if sending.returncode:
        raise Failed(f"the copy stopped after {sent} bytes: {answer}", fix="Run the command again.")
    return sent, ""


class _Listener:
    """Reads the output of ssh and of the other side, keeps its end, and ends ssh if the other side stops reading."""

    def __init__(self, sending: subprocess.Popen[bytes]) -> None:
        self._sending = sending
        self._message = bytearray()
        self._gave_up = ""
        self._hearing = threading.Thread(target=self._hear, daemon=True)
        self._hearing.start()

    @contextmanager
    def waits(self) -> Iterator[None]:
        """End ssh if a write makes no progress within the time limit."""
        timer = threading.Timer(SILENCE_S, self._give_up, (f"no progress for {SILENCE_S:g} s",))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def end(self) -> str:
        """Wait for the end and return the last line."""
        try:
            self._sending.wait(ENDED_S)
        except subprocess.TimeoutExpired:
            self._give_up(f"not finished {ENDED_S:g} s after the last byte")
            self._sending.wait()
        self._hearing.join(PIPE_S)
        lines = self._message.decode(errors="replace").strip().splitlines()
        return self._gave_up or (one_line(lines[-1], at_most=LAST_CHARACTERS) if lines else "no output")

    def _hear(self) -> None:
        assert self._sending.stdout is not None
        with self._sending.stdout as pipe:
            while piece := os.read(pipe.fileno(), LAST_BYTES):
                self._message = (self._message + piece)[-LAST_BYTES:]

    def _give_up(self, why: str) -> None:
        self._gave_up = why
        self._sending.kill()


def _saved(args: SendImage.Args, context: Context) -> Generator[bytes]:
    from docker.errors import APIError

    api: Any = Engine(context.machine, SAVE_S).client().api
    repository, _, tag = args.incoming.rpartition(":")
    try:
        api.tag(args.image, repository, tag, force=True)
        yield from api.get_image(args.incoming, chunk_size=CHUNK_BYTES)
    except APIError as error:
        raise Failed(f"Docker cannot export {args.image}: {error.explanation or error}") from None
    finally:
        api.remove_image(args.incoming, noprune=True)
