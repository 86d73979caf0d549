"""`runtime.install`: a copy of the runtime that belongs to root, which `become` then runs instead of the user's."""

from __future__ import annotations

import json
from collections.abc import Iterator

from paramiko.channel import Channel

from sparkwright.app.connect import Chosen
from sparkwright.app.questions.one_module import in_turn
from sparkwright.console.out import say
from sparkwright.errors import Exit, Failed, Refused
from sparkwright.fleet.member import Member
from sparkwright.host.root_runtime import FOLDER
from sparkwright.protocol.events import Event
from sparkwright.remote import bootstrap, runtime
from sparkwright.remote.ssh.ssh_link import SshLink
from sparkwright.visible import one_line

PASSWORD = "BECOME_PASSWORD"
SUDO = "sudo"
BEGIN = b"sparkwright-begin\n"
INSTALL_S = 180.0
CHUNK_BYTES = 64 * 1024
#: which Python and processor the host has, as a `runtime_missing` event
_ABSENT = "0" * 20
#: what unpacks is at the beginning of standard input, after a line that sudo may have left there: the password
_UNPACK = (
    "import sys\n"
    f"while (line := sys.stdin.buffer.readline()) != {BEGIN!r}:\n    line or sys.exit(1)\n"
    "exec(sys.stdin.buffer.read(int(sys.argv[1])))"
)
#: readable for all, for `doctor` and the runner; writable for root
_INSTALL = '"$@" || exit 1; chmod -R go=rX "$0"'


def install(chosen: Chosen) -> list[Exit]:
    """Put this version's runtime into root's folder on each host, from the laptop straight to root. Returns their exit codes.

    Nothing of the user's folders on the host is run or read for it. Raises Refused for a host that is not reached over ssh.
    """
    return in_turn(chosen, lambda member: _install(chosen, member), json=False)


def _install(chosen: Chosen, member: Member) -> Exit:
    link, where = member.open(), member.host.name
    if not isinstance(link, SshLink):
        raise Refused("a runtime of root's is for hosts that are reached over ssh.", where=where)
    found = bootstrap.interpreter(_python(link, where), where)
    data = runtime.archive(found.version, found.machine).read_bytes()
    secret = chosen.inventory.secrets(member.host).get(PASSWORD)
    password = secret.reveal() if secret else ""
    unpack = [found.path, "-I", "-c", _UNPACK, str(len(bootstrap.unpacker())), str(FOLDER), runtime.content_hash()]
    channel = link.run([SUDO, "-S", "-p", "", "sh", "-c", _INSTALL, str(FOLDER.parent), *unpack])
    try:
        channel.settimeout(INSTALL_S)
        channel.sendall(f"{password}\n".encode() + BEGIN + bootstrap.unpacker())
        for at in range(0, len(data), CHUNK_BYTES):
            channel.sendall(data[at : at + CHUNK_BYTES])
        channel.shutdown_write()
        answer = next(
            (one for one in reversed(list(_events(channel))) if one.get("event") in ("shipped", "not_shipped")), {}
        )
        code = channel.recv_exit_status()
    except OSError:
        answer, code = {}, 1  # sudo went away: its words say why
    if answer.get("event") != "shipped" or code:
        message = str(answer.get("why") or _last_words(channel))
        fix = f"It needs sudo there: a NOPASSWD rule, or the secret {PASSWORD} (hosts/groups.yml, `secrets`)."
        raise Failed(f"the runtime is not installed: {one_line(message, at_most=300)}.", where=where, fix=fix)
    say(f"{where}: {FOLDER}/{runtime.content_hash()} is installed, and belongs to root.")
    return Exit.OK


def _python(link: SshLink, where: str) -> Event:
    """Which Python a runtime that is not there would be made for."""
    channel = link.run(["sh", "-c", bootstrap.start(_ABSENT, "light")])
    channel.settimeout(INSTALL_S)
    found = next((one for one in _events(channel) if one.get("event") == "runtime_missing"), None)
    if found is None:
        raise Refused("the host has no Python 3.11 or newer.", where=where)
    return found


def _events(channel: Channel) -> Iterator[Event]:
    """What a program reports, as far as it is JSON."""
    with channel.makefile("rb") as lines:
        for line in lines.read(CHUNK_BYTES).splitlines():
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                yield found


def _last_words(channel: Channel) -> str:
    lines = channel.recv_stderr(CHUNK_BYTES).decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "sudo gave no reason"
