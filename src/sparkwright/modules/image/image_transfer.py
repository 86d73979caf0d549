"""Modules that copy an image between two hosts over ssh, with a temporary key."""

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
from sparkwright.host.runs.context import DockerEngine
from sparkwright.host.state import write_atomically
from sparkwright.protocol.result import Change, Result, arg
from sparkwright.secret import Secret
from sparkwright.transport.connection import dial
from sparkwright.trust import private
from sparkwright.trust.image_name import ImageReference
from sparkwright.visible import one_line

KEY_LIFETIME_S = 900
KEY_MARK = b" sparkwright-copy"
#: one key without options or comment, because it comes from another host
PUBLIC_KEY_PATTERN = re.compile(r"(?:ssh|ecdsa|sk)-[a-z0-9@.-]{1,64} [A-Za-z0-9+/]{1,16384}={0,3}")
EXPIRY_PATTERN = re.compile(rb'expiry-time="(\d{12})"')

#: name prefixes of virtual interfaces
VIRTUAL_INTERFACE_PREFIXES = ("lo", "docker", "br-", "veth", "virbr")

CONNECT_TIMEOUT_S = 3
EXPORT_TIMEOUT_S = 3600  # an engine with overlay2 exports the whole image before it sends the first byte
CHUNK_BYTES = 2**20
SSH_FAILED_EXIT_CODE = 255
SILENCE_TIMEOUT_S = 600.0  # the receiving engine may stop reading while it unpacks a layer
FINISH_TIMEOUT_S = 1800.0  # from the last byte until the receiving engine has the image
MAX_OUTPUT_BYTES, MAX_MESSAGE_CHARACTERS = 64 * 2**10, 400
PIPE_TIMEOUT_S = 5.0  # a child process of ssh may keep its pipe open
HOST_KEY_ALIAS = "sparkwright-copy"


class CopyKey(StateModule["CopyKey.Args", bytes]):
    """Allow another host to log in here for one transfer, with a temporary key that is restricted to one command.

    The line in ~/.ssh/authorized_keys allows one command without terminal or forwarding, and expires after 15 minutes in
    case it is not removed. Expired lines of earlier transfers are removed. All other lines are kept.

    Returns: nothing. Refuses a key or a command of more than one line. Fails if the file cannot be written.
    """

    @dataclass(frozen=True)
    class Args:
        public_key: str = arg("the public key, such as ssh-ed25519 AAAA...")
        command: str = arg("the only command that the key may run", default="")
        state: Literal["present", "absent"] = arg("present or absent", default="present")

    def read(self, args: Args, context: Context) -> bytes:
        if not PUBLIC_KEY_PATTERN.fullmatch(args.public_key):
            raise Refused(f"not a public key: '{one_line(args.public_key, max_chars=80)}'.")
        if args.command != one_line(args.command):
            raise Refused(f"the command of a key must be one line: '{one_line(args.command, max_chars=80)}'.")
        try:
            return _authorized_keys_file(context).read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise Failed(f"cannot read {_authorized_keys_file(context)}: {error.strerror}.") from None

    def differences(self, args: Args, observed: bytes) -> list[Change]:
        is_present = any(_is_line_of_key(line, args.public_key) for line in observed.split(b"\n"))
        if is_present == (args.state == "present"):
            return []
        before, after = ("present", None) if is_present else (None, args.command)
        return [Change("key", before, after, "for one transfer")]

    def act(self, args: Args, observed: bytes, changes: list[Change], context: Context) -> dict[str, Any]:
        path = _authorized_keys_file(context)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with _lock_key_file(context):
                content = self.read(args, context)  # read it again: another transfer may have changed it
                _replace_file(path.resolve(), _build_content(args, content))
        except OSError as error:
            raise Failed(f"cannot write {path}: {error.strerror}.") from None
        return {}


def count_key_lines(context: Context) -> int:
    """Return the number of lines in ~/.ssh/authorized_keys that belong to running or interrupted transfers."""
    try:
        return sum(line.endswith(KEY_MARK) for line in _authorized_keys_file(context).read_bytes().split(b"\n"))
    except OSError:
        return 0


def remove_key_lines(context: Context) -> None:
    """Remove the lines of all transfers from ~/.ssh/authorized_keys."""
    if count_key_lines(context):
        with _lock_key_file(context):
            path = _authorized_keys_file(context).resolve()
            lines = path.read_bytes().split(b"\n")
            _replace_file(path, b"\n".join(line for line in lines if not line.endswith(KEY_MARK)))


def _build_content(args: CopyKey.Args, observed: bytes) -> bytes:
    now = time.strftime("%Y%m%d%H%M").encode()
    lines = observed.removesuffix(b"\n").split(b"\n") if observed else []
    lines = [line for line in lines if not _is_line_of_key(line, args.public_key) and not _is_expired(line, now)]
    if args.state == "present":
        expiry = time.strftime("%Y%m%d%H%M", time.localtime(time.time() + KEY_LIFETIME_S))
        quoted_command = args.command.replace('"', '\\"')
        lines.append(
            f'restrict,expiry-time="{expiry}",command="{quoted_command}" {args.public_key}'.encode() + KEY_MARK
        )
    return b"".join(line + b"\n" for line in lines)


def _is_line_of_key(line: bytes, public_key: str) -> bool:
    return line.endswith(f" {public_key}".encode() + KEY_MARK)


def _is_expired(line: bytes, now: bytes) -> bool:
    """Return True for a transfer's line that has expired or has no expiry time."""
    expiry = EXPIRY_PATTERN.search(line)
    return line.startswith(b"restrict") and line.endswith(KEY_MARK) and (expiry is None or expiry[1] < now)


@contextmanager
def _lock_key_file(context: Context) -> Iterator[None]:
    """Lock ~/.ssh/authorized_keys against other transfers."""
    with open(context.state.folder() / "authorized_keys.lock", "a", opener=private.opener) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically, keeping its owner and mode."""
    status: os.stat_result | None = None
    with contextlib.suppress(FileNotFoundError):
        status = path.stat()
    mode = stat.S_IMODE(status.st_mode) if status else private.FILE_MODE
    write_atomically(path, content, mode=mode, owner=(status.st_uid, status.st_gid) if status else None)


def _authorized_keys_file(context: Context) -> Path:
    return context.machine.home / ".ssh/authorized_keys"


class InspectImage(Module["InspectImage.Args"]):
    """Report the state of an image on a host, and how other hosts can reach the host. Contacts no registry.

    Returns: present, id, digests, layers (hashes of their content), platform (the image's), size_bytes, host_platform,
    free_bytes (where Docker stores images; null if unknown), tools (installed programs that a copy can use), addresses (the
    fastest network first), impostor (the Id of an image that has the name but is not verified), names (of all images on the
    host), intake (the shell command that loads an archive of limited size on the host).
    """

    @dataclass(frozen=True)
    class Args:
        ref: str = arg("repository:tag[@sha256:digest]")
        ids: list[str] = arg("the Ids that the lock allows for the digest", default_factory=list)
        most_bytes: int = arg("size limit of the unpacked archive for `intake`, in bytes", default=0)

    def run(self, args: Args, context: Context) -> Result:
        api: Any = context.docker().api
        name = ImageReference.parse_checked(args.ref)
        image = image_names.find(api, args.ref, args.ids)
        tag = name.verified_tag if name.digest else name.pull_reference
        data = {
            "present": bool(image),
            "impostor": "" if image else image_names.inspect(api, tag).get("Id", ""),
            "id": image.get("Id", ""),
            "digests": digests_of(image),
            "layers": (image.get("RootFS") or {}).get("Layers") or [],
            "platform": image_names.platform_of(image) if image else "",
            "size_bytes": image.get("Size", 0),
            "host_platform": machine_platform(context.machine),
            "free_bytes": image_copy.free_bytes(context.machine, api.info()),
            "tools": image_archive.installed_tools(),
            "addresses": _list_addresses(),
            "names": asdict(image_copy.list_names(api)),
            "intake": image_archive.build_receive_command(args.most_bytes),
        }
        return Result(msg="present" if image else "not on the host", data=data)


def _list_addresses() -> list[str]:
    """Return the IPv4 addresses of the host's physical networks, the fastest first (ConnectX before the office network)."""
    import psutil

    interfaces = psutil.net_if_stats()
    addresses = [
        (-interfaces[name].speed, address.address)
        for name, interface_addresses in psutil.net_if_addrs().items()
        if name in interfaces and interfaces[name].isup and not name.startswith(VIRTUAL_INTERFACE_PREFIXES)
        for address in interface_addresses
        if address.family.name == "AF_INET"
    ]
    return [address for _, address in sorted(addresses)]


class SendImage(Module["SendImage.Args"]):
    """Stream an image to another host's Docker: `docker save`, compressed, over one ssh connection.

    Nothing is stored in between. At every address, the other host must present the host key that the laptop's known_hosts
    has for it. The login uses a key created for this transfer, which is never written to disk.

    Returns: address, sent_bytes (before compression), seconds.

    Unreachable if the host does not answer at any address, or if the connection breaks: Docker on the other host keeps
    nothing of a partial stream. Fails if Docker on the other host refuses the image.
    """

    @dataclass(frozen=True)
    class Args:
        image: str = arg("the Id of the image on this host")
        incoming: str = arg("the temporary repository:tag on the other host")
        size_bytes: int = arg("the image's size, to show the progress", default=0)
        addresses: list[str] = arg("HOST:PORT of the other host's sshd, best first", default_factory=list)
        user: str = arg("user for the login on the other host", default="")
        host_key: str = arg("the other host's public key, such as ssh-ed25519 AAAA...", default="")
        packer: str = arg("zstd, pigz or gzip", default="gzip")
        key_secret: str = arg("the secret that holds the private key", default="SPARKWRIGHT_COPY_KEY")

    def run(self, args: Args, context: Context) -> Result:
        key = context.secrets.get(args.key_secret)
        if key is None:
            raise Failed(f"the secret {args.key_secret} is missing.")
        failures = ["no address given"] if not args.addresses else []
        for address in args.addresses:
            host, _, port = address.rpartition(":")
            reason, started_s = _explain_unreachable(host, int(port)), time.monotonic()
            if not reason:
                with _key_file(key) as path:
                    sent_bytes, reason = _stream_image(args, _build_ssh_command(args, host, port, path), context)
            if not reason:
                seconds = round(time.monotonic() - started_s, 3)
                data = {"address": address, "sent_bytes": sent_bytes, "seconds": seconds}
                return Result(msg=f"sent to {address}", changed=True, data=data)
            failures.append(f"{address}: {reason}")
        raise Unreachable(f"cannot reach the other host from here ({'; '.join(failures)}).")


def _explain_unreachable(host: str, port: int) -> str:
    try:
        dial(host, port, CONNECT_TIMEOUT_S).close()
        return ""
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__


@contextmanager
def _key_file(key: Secret) -> Iterator[str]:
    """Yield the path of the key for ssh: a file in memory, which disappears with this process."""
    descriptor = os.memfd_create("key")
    try:
        os.fchmod(descriptor, 0o600)
        os.write(descriptor, key.reveal().encode())
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _build_ssh_command(args: SendImage.Args, host: str, port: str, key_path: str) -> list[str]:
    key_type = args.host_key.split()[0]
    algorithms = "rsa-sha2-512,rsa-sha2-256" if key_type == "ssh-rsa" else key_type
    options = {
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": "/dev/null",
        "GlobalKnownHostsFile": "/dev/null",
        "HostKeyAlias": HOST_KEY_ALIAS,
        "HostKeyAlgorithms": algorithms,
        "KnownHostsCommand": f"/bin/echo {HOST_KEY_ALIAS} {args.host_key}",
        "Ciphers": "^aes128-gcm@openssh.com",  # the fastest, because the processor limits the throughput
        "ConnectTimeout": "10",
        "ServerAliveInterval": "5",
        "LogLevel": "ERROR",
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return ["ssh", "-F", "none", "-T", "-i", key_path, "-p", port, *words, "-l", args.user, "--", host, "load"]


def _stream_image(args: SendImage.Args, ssh_command: list[str], context: Context) -> tuple[int, str]:
    """Send the image. Returns the bytes sent, and why ssh itself failed ("" if it did not).

    Raises Failed if the receiving command failed.
    """
    pipe = subprocess.PIPE
    compressor_argv = list(image_archive.COMPRESSORS[args.packer][0])
    try:
        compressor = subprocess.Popen(compressor_argv, stdin=pipe, stdout=pipe)
        ssh = subprocess.Popen(ssh_command, stdin=compressor.stdout, stdout=pipe, stderr=subprocess.STDOUT)
    except FileNotFoundError as error:
        return 0, f"{error.filename} is not installed on this host"
    assert compressor.stdin is not None and compressor.stdout is not None
    compressor.stdout.close()  # only ssh keeps it open, so the compressor fails when ssh ends
    sent_bytes, monitor = 0, _SshMonitor(ssh)
    try:
        with closing(_export_image(args, context)) as chunks:
            for chunk in chunks:
                with monitor.limit_silence():
                    compressor.stdin.write(chunk)
                sent_bytes += len(chunk)
                context.progress(sent_bytes, max(args.size_bytes, sent_bytes), unit="bytes", text="copying")
        with monitor.limit_silence():
            compressor.stdin.close()
            compressor.wait()
    except BrokenPipeError:
        pass  # ssh has ended; its exit code and output show why
    except BaseException:
        ssh.kill()  # otherwise the receiver takes the end of the stream for the end of the image
        raise
    finally:
        if ssh.poll() is not None:
            compressor.kill()
    last_line = monitor.wait_for_end()
    compressor.wait()
    if ssh.returncode == SSH_FAILED_EXIT_CODE:
        return sent_bytes, last_line
    if ssh.returncode:
        raise Failed(f"the copy stopped after {sent_bytes} bytes: {last_line}", fix="Run the command again.")
    return sent_bytes, ""


class _SshMonitor:
    """Keeps the end of the output of ssh and the receiving command, and kills ssh if the transfer makes no progress."""

    def __init__(self, ssh: subprocess.Popen[bytes]) -> None:
        self._ssh = ssh
        self._output = bytearray()
        self._abort_reason = ""
        self._thread = threading.Thread(target=self._read_output, daemon=True)
        self._thread.start()

    @contextmanager
    def limit_silence(self) -> Iterator[None]:
        """Kill ssh if the body of the `with` statement takes longer than SILENCE_TIMEOUT_S."""
        timer = threading.Timer(SILENCE_TIMEOUT_S, self._abort, (f"no progress for {SILENCE_TIMEOUT_S:g} s",))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def wait_for_end(self) -> str:
        """Wait until ssh ends. Returns why it was killed, or the last line of the output."""
        try:
            self._ssh.wait(FINISH_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._abort(f"not finished {FINISH_TIMEOUT_S:g} s after the last byte")
            self._ssh.wait()
        self._thread.join(PIPE_TIMEOUT_S)
        lines = self._output.decode(errors="replace").strip().splitlines()
        return self._abort_reason or (one_line(lines[-1], max_chars=MAX_MESSAGE_CHARACTERS) if lines else "no output")

    def _read_output(self) -> None:
        assert self._ssh.stdout is not None
        with self._ssh.stdout as pipe:
            while piece := os.read(pipe.fileno(), MAX_OUTPUT_BYTES):
                self._output = (self._output + piece)[-MAX_OUTPUT_BYTES:]

    def _abort(self, reason: str) -> None:
        self._abort_reason = reason
        self._ssh.kill()


def _export_image(args: SendImage.Args, context: Context) -> Generator[bytes]:
    from docker.errors import APIError

    api: Any = DockerEngine(context.machine, EXPORT_TIMEOUT_S).client().api
    repository, _, tag = args.incoming.rpartition(":")
    try:
        api.tag(args.image, repository, tag, force=True)
        yield from api.get_image(args.incoming, chunk_size=CHUNK_BYTES)
    except APIError as error:
        raise Failed(f"Docker cannot export {args.image}: {error.explanation or error}") from None
    finally:
        api.remove_image(args.incoming, noprune=True)
