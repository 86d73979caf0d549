"""The `runtime.install` and `runtime.fetch` commands: install root's copy on hosts, and download wheels in advance."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

from paramiko.channel import Channel

from sparkwright import units
from sparkwright.app.connect import Selection
from sparkwright.app.questions.host_requests import in_turn
from sparkwright.console.out import say
from sparkwright.errors import Exit, Failed, Refused, Unreachable
from sparkwright.fleet.member import Member
from sparkwright.host.root_runtime import FOLDER
from sparkwright.protocol.event_reader import Received
from sparkwright.protocol.events import Event
from sparkwright.remote import runtime
from sparkwright.remote.ssh.ssh_link import SshLink
from sparkwright.transport.connection import Deadline, TimedOut
from sparkwright.visible import listed, one_line

PASSWORD = "BECOME_PASSWORD"
SUDO = "sudo"
BEGIN = b"sparkwright-begin\n"
#: time limits in seconds: for sending the runtime (11 MB) and installing it with sudo, and for finding the host's Python
INSTALL_S, PYTHON_S = 600.0, 60.0
#: size limit of a program's output, which is normally two lines
MOST_BYTES = 2**20
CHUNK_BYTES = 64 * 1024
#: hash of a runtime that does not exist, for which the host answers with its Python and processor (`runtime_missing`)
_ABSENT = "0" * 20
#: The unpacker comes first on standard input, after the password line, which sudo may not have consumed.
_UNPACK = (
    "import sys\n"
    f"while (line := sys.stdin.buffer.readline()) != {BEGIN!r}:\n    line or sys.exit(1)\n"
    "exec(sys.stdin.buffer.read(int(sys.argv[1])))"
)
#: readable by everyone, for `doctor` and the runner; writable only by root
_INSTALL = '"$@" || exit 1; chmod -R go=rX "$0"'


def install(selection: Selection) -> list[Exit]:
    """Install this version's runtime in root's folder on each host with sudo, and return the exit codes.

    It runs and reads nothing in the user's folders on the host. Raises Refused for a host that is not reached over ssh.
    """
    return in_turn(selection, lambda member: _install(selection, member), json=False)


def _install(selection: Selection, member: Member) -> Exit:
    link, where = member.open(), member.host.name
    if not isinstance(link, SshLink):
        raise Refused("root's runtime is only for hosts that are reached over ssh.", where=where)
    found = runtime.interpreter(_python(link, where), where)
    data = runtime.archive(found.version, found.machine).read_bytes()
    secret = selection.inventory.secrets(member.host).get(PASSWORD)
    password = secret.reveal() if secret else ""
    unpack = [found.path, "-I", "-c", _UNPACK, str(len(runtime.unpacker())), str(FOLDER), runtime.content_hash()]
    channel = link.run([SUDO, "-S", "-p", "", "sh", "-c", _INSTALL, str(FOLDER.parent), *unpack])
    deadline = Deadline(INSTALL_S)
    try:
        for piece in (f"{password}\n".encode() + BEGIN + runtime.unpacker(), *_pieces(data)):
            channel.settimeout(deadline.left_s())
            channel.sendall(piece)
        channel.shutdown_write()
        answer = next(
            (event for event in reversed(_events(channel, deadline)) if event["event"] in ("shipped", "not_shipped")),
            {},
        )
        if not channel.status_event.wait(deadline.left_s()):
            raise TimeoutError
        code = channel.exit_status
        why = str(answer.get("why") or _last_words(channel))
    except (TimeoutError, TimedOut):
        answer, code, why = {}, -1, f"sudo did not exit within {INSTALL_S:g} s"
    except OSError:  # sudo exited; its error output has the reason
        answer, code, why = {}, -1, _last_words(channel)
    finally:
        channel.close()
    if answer.get("event") != "shipped" or code:
        fix = f"It needs sudo there: a NOPASSWD rule, or the secret {PASSWORD} (hosts/groups.yml, `secrets`)."
        raise Failed(f"the runtime is not installed: {one_line(why, at_most=300)}.", where=where, fix=fix)
    say(f"{where}: {FOLDER}/{runtime.content_hash()} is installed, and belongs to root.")
    return Exit.OK


def _python(link: SshLink, where: str) -> Event:
    """Return the event that describes the Python that a new runtime on the host would be built for.


    Raises Unreachable if the host does not answer in time, and Refused if it has no Python 3.11 or newer.
    """
    channel = link.run(["sh", "-c", runtime.start(_ABSENT, "light")])
    try:
        events = _events(channel, Deadline(PYTHON_S))
    except (OSError, TimedOut):
        raise Unreachable(f"it did not report its Python within {PYTHON_S:g} s.", where=where) from None
    finally:
        channel.close()
    found = next((event for event in events if event["event"] == "runtime_missing"), None)
    if found is None:
        raise Refused("the host has no Python 3.11 or newer.", where=where)
    return found


def _pieces(data: bytes) -> Iterator[bytes]:
    """Yield the data in pieces, each with its own time limit for being sent."""
    for at in range(0, len(data), CHUNK_BYTES):
        yield data[at : at + CHUNK_BYTES]


def _events(channel: Channel, deadline: Deadline) -> list[Event]:
    """Read a program's output to its end, or up to MOST_BYTES. Raises OSError if it does not end in time."""
    received, events, size = Received(), list[Event](), 0
    while size < MOST_BYTES:
        channel.settimeout(deadline.left_s())
        data = channel.recv(CHUNK_BYTES)
        if not data:
            break
        size += len(data)
        events += received.feed(data)
    return [*events, *received.end()]


def _last_words(channel: Channel) -> str:
    """Return the last line of the error output that was received."""
    found = channel.recv_stderr(CHUNK_BYTES) if channel.recv_stderr_ready() else b""
    lines = found.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "sudo gave no reason"


QUIET_S = 2.0


def fetch(machines: str, pythons: str) -> None:
    """Download the runtime's wheels. Raises Refused for an unknown processor or Python version.

    Args:
        machines: processors, separated by commas.
        pythons: versions of Python, separated by commas.
    """
    wanted = [(machine, version) for machine in listed(machines) for version in listed(pythons)]
    for machine, version in wanted:
        if machine not in runtime.MACHINES:
            raise Refused(f"--machine must be one of {', '.join(runtime.MACHINES)}, got '{machine}'.")
        if version not in runtime.PYTHONS:
            raise Refused(f"--python must be one of {', '.join(runtime.PYTHONS)}, got '{version}'.")
    if not wanted:
        raise Refused("no processor and Python were named: pass --machine aarch64 --python 3.12.")
    for machine, version in wanted:
        cached, started_s = runtime.here(version, machine), time.monotonic()
        found = runtime.fetched(version, machine, _progress(f"{machine}, Python {version}"))
        size = units.size(sum(path.stat().st_size for path in found))
        how = "already cached" if cached else f"downloaded in {units.duration(time.monotonic() - started_s)}"
        print(f"{machine}, Python {version}: {len(found)} wheels, {size}, {how}; hashes verified.")


def _progress(what: str) -> Callable[[int, int, str], None]:
    """Return a callback that prints the current wheel every two seconds; a shorter download prints nothing."""
    printed_s = time.monotonic()

    def progress(done: int, total: int, name: str) -> None:
        nonlocal printed_s
        if name and time.monotonic() - printed_s >= QUIET_S:
            printed_s = time.monotonic()
            say(f"{what}: wheel {done + 1} of {total}, {name}", file=sys.stderr)

    return progress
