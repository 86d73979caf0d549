"""The `runtime.install` and `runtime.fetch` commands: install root's copy of the runtime, and download wheels in advance."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from paramiko.channel import Channel

from sparkwright import units
from sparkwright.app.connect import Selection
from sparkwright.app.queries.host_requests import act_on_each
from sparkwright.console.command_output import print_text
from sparkwright.errors import Exit, Failed, Refused, Unreachable
from sparkwright.fleet.member import Member
from sparkwright.host.root_runtime import FOLDER
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.secret_source import describe_location, read_secrets
from sparkwright.protocol.event_reader import EventReader
from sparkwright.protocol.events import Event
from sparkwright.remote import runtime
from sparkwright.remote.ssh.ssh_link import SshLink
from sparkwright.transport.connection import Deadline, TimedOut
from sparkwright.trust.secret_names import BECOME_PASSWORD
from sparkwright.visible import one_line, parse_list

SUDO = "sudo"
BEGIN_MARKER = b"sparkwright-begin\n"
#: time limit for sending the runtime (11 MB) and installing it with sudo, in seconds
INSTALL_TIMEOUT_S = 600.0
#: time limit for finding the host's Python, in seconds
PYTHON_TIMEOUT_S = 60.0
#: size limit of a program's output, which is normally two lines
MAX_OUTPUT_BYTES = 2**20
CHUNK_BYTES = 64 * 1024
#: hash of a runtime that does not exist, so that the host reports its Python and processor (`runtime_missing`)
_ABSENT_HASH = "0" * 20
#: skips the line with the password, which sudo leaves on standard input if it needs no password, then runs the unpacker
_UNPACK_PROGRAM = (
    "import sys\n"
    f"while (line := sys.stdin.buffer.readline()) != {BEGIN_MARKER!r}:\n    line or sys.exit(1)\n"
    "exec(sys.stdin.buffer.read(int(sys.argv[1])))"
)
#: readable by everyone, for `doctor` and the runner; writable only by root
_INSTALL_SCRIPT = '"$@" || exit 1; chmod -R go=rX "$0"'
#: interval of the lines about a download, in seconds
PROGRESS_INTERVAL_S = 2.0


def install(selection: Selection) -> list[Exit]:
    """Install this version's runtime in root's folder on each host with sudo, and return the exit codes.

    Files in the user's folders on the host are neither run nor read. Raises Refused for a host that is not reached over ssh.
    """
    return act_on_each(selection, _install_on_host, json=False)


def _install_on_host(member: Member) -> Exit:
    link, where = member.open(), member.host.name
    if not isinstance(link, SshLink):
        raise Refused("root's runtime is only for hosts that are reached over ssh.", where=where)
    interpreter = runtime.parse_interpreter(_query_python(link, where), where)
    data = runtime.ensure_archive(interpreter.version, interpreter.machine).read_bytes()
    secret = read_secrets(member.host).get(BECOME_PASSWORD)
    password = secret.reveal() if secret else ""
    unpack_command = [
        interpreter.path,
        "-I",
        "-c",
        _UNPACK_PROGRAM,
        str(len(runtime.unpacker_source())),
        str(FOLDER),
        runtime.content_hash(),
    ]
    stdin_line, sudo_command = b"", [SUDO, "-n"]
    if password:
        stdin_line, sudo_command = f"{password}\n".encode(), [SUDO, "-S", "-p", ""]
        # sudo must not read the archive as passwords: each attempt counts towards a lockout of the account
        _, code, reason = _run_sudo(link, [*sudo_command, "-v"], stdin_line)
        if code:
            raise _install_error(reason, member.host, answered=False)
    argv = [*sudo_command, "sh", "-c", _INSTALL_SCRIPT, str(FOLDER.parent), *unpack_command]
    answer, code, reason = _run_sudo(link, argv, stdin_line + BEGIN_MARKER + runtime.unpacker_source() + data)
    if answer.get("event") != "shipped" or code:
        raise _install_error(reason, member.host, answered=bool(answer))
    print_text(f"{where}: {FOLDER}/{runtime.content_hash()} is installed, and belongs to root.")
    return Exit.OK


def _install_error(reason: str, host: Host, *, answered: bool) -> Failed:
    """Return the error of a failed installation. answered: True if sudo ran the unpacker, which gave the reason."""
    fix = (
        f"It needs about 80 MB in {FOLDER}; check with `df -h {FOLDER.parent}` on the host."
        if answered
        else f"sudo needs a NOPASSWD rule there, or the secret {BECOME_PASSWORD} ({describe_location(BECOME_PASSWORD, host)})."
    )
    return Failed(f"the runtime was not installed: {one_line(reason, max_chars=300)}.", where=host.name, fix=fix)


def _run_sudo(link: SshLink, argv: Sequence[str], data: bytes) -> tuple[Event, int, str]:
    """Run sudo on the host with `data` as its standard input.

    Returns:
        The unpacker's last event, empty if there is none; the exit code, -1 if unknown; and the reason for a failure.
    """
    channel, deadline = link.run(argv), Deadline(INSTALL_TIMEOUT_S)
    try:
        _send(channel, data, deadline)
        events = reversed(_read_events(channel, deadline))
        answer = next((event for event in events if event["event"] in ("shipped", "not_shipped")), {})
        if not channel.status_event.wait(deadline.remaining_s()):
            raise TimeoutError
        return answer, channel.exit_status, str(answer.get("why") or _last_error_line(channel))
    except (TimeoutError, TimedOut):
        return {}, -1, f"sudo did not exit within {INSTALL_TIMEOUT_S:g} s"
    finally:
        channel.close()


def _query_python(link: SshLink, where: str) -> Event:
    """Return the event that describes the host's Python and processor.

    Raises Unreachable if the host does not answer in time, and Refused if it has no Python 3.11 or newer.
    """
    channel = link.run(["sh", "-c", runtime.start_command(_ABSENT_HASH, "light")])
    try:
        events = _read_events(channel, Deadline(PYTHON_TIMEOUT_S))
    except (OSError, TimedOut):
        raise Unreachable(f"it did not report its Python within {PYTHON_TIMEOUT_S:g} s.", where=where) from None
    finally:
        channel.close()
    description = next((event for event in events if event["event"] == "runtime_missing"), None)
    if description is None:
        raise Refused("the host has no Python 3.11 or newer.", where=where)
    return description


def _send(channel: Channel, data: bytes, deadline: Deadline) -> None:
    """Send the data. Raises TimeoutError or TimedOut. A program that exits early reports the reason in its output."""
    try:
        for start in range(0, len(data), CHUNK_BYTES):
            channel.settimeout(deadline.remaining_s())
            channel.sendall(data[start : start + CHUNK_BYTES])
        channel.shutdown_write()
    except TimeoutError:
        raise
    except OSError:
        return


def _read_events(channel: Channel, deadline: Deadline) -> list[Event]:
    """Read a program's output to its end, or up to MAX_OUTPUT_BYTES. Raises OSError if it does not end in time."""
    reader, events, size = EventReader(), list[Event](), 0
    while size < MAX_OUTPUT_BYTES:
        channel.settimeout(deadline.remaining_s())
        data = channel.recv(CHUNK_BYTES)
        if not data:
            break
        size += len(data)
        events += reader.feed(data)
    return [*events, *reader.end()]


def _last_error_line(channel: Channel) -> str:
    output = channel.recv_stderr(CHUNK_BYTES) if channel.recv_stderr_ready() else b""
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "sudo gave no reason"


def fetch_wheels(machines: str, pythons: str) -> None:
    """Download the runtime's wheels for comma-separated processors and Python versions. Raises Refused for an unknown value."""
    targets = [(machine, version) for machine in parse_list(machines) for version in parse_list(pythons)]
    for machine, version in targets:
        if machine not in runtime.MACHINES:
            raise Refused(f"--machine must be one of {', '.join(runtime.MACHINES)}, got '{machine}'.")
        if version not in runtime.PYTHON_VERSIONS:
            raise Refused(f"--python must be one of {', '.join(runtime.PYTHON_VERSIONS)}, got '{version}'.")
    if not targets:
        raise Refused("no processor or no Python was named: pass --machine aarch64 --python 3.12.")
    for machine, version in targets:
        was_cached, started_s = runtime.is_cached(version, machine), time.monotonic()
        wheels = runtime.fetch_wheels(version, machine, _progress_callback(f"{machine}, Python {version}"))
        size = units.format_size(sum(path.stat().st_size for path in wheels))
        source = (
            "already cached" if was_cached else f"downloaded in {units.format_duration(time.monotonic() - started_s)}"
        )
        print(f"{machine}, Python {version}: {len(wheels)} wheels, {size}, {source}; hashes verified.")


def _progress_callback(title: str) -> Callable[[int, int, str], None]:
    """Return a callback that prints the current wheel every PROGRESS_INTERVAL_S."""
    last_print_s = time.monotonic()

    def progress(done: int, total: int, name: str) -> None:
        nonlocal last_print_s
        if name and time.monotonic() - last_print_s >= PROGRESS_INTERVAL_S:
            last_print_s = time.monotonic()
            print_text(f"{title}: wheel {done + 1} of {total}, {name}", file=sys.stderr)

    return progress
