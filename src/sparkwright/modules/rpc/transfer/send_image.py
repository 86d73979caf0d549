from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from sparkwright.errors import Failed, Unreachable
from sparkwright.host.images import image_stream
from sparkwright.host.module import Context, Module
from sparkwright.host.runs.context import Engine
from sparkwright.protocol.result import Result, arg
from sparkwright.secret import Secret
from sparkwright.transport.connection import dial
from sparkwright.visible import one_line

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
    """Stream an image to another host's engine: `docker save`, packed, through one ssh connection. Nothing is stored on the way.

    The other host's key is the one the laptop knows it by, whatever the address; the login is a key made for this transfer,
    which never touches a disk.

    Returns: address, sent_bytes (before packing), seconds.

    Unreachable when no address leads to that host, or the connection breaks: its engine keeps nothing of half a stream. Fails
    when the engine there refuses it.
    """

    @dataclass(frozen=True)
    class Args:
        image: str = arg("the Id of the image on this host")
        incoming: str = arg("repository:tag under which it arrives")
        size_bytes: int = arg("its size, for the progress", default=0)
        addresses: list[str] = arg("HOST:PORT of the other host's sshd, best first", default_factory=list)
        user: str = arg("who logs in there", default="")
        host_key: str = arg("that host's public key, as ssh-ed25519 AAAA...", default="")
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
    pack = list(image_stream.PACKERS[args.packer][0])
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
