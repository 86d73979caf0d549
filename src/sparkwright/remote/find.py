"""Discovery of hosts that are not in an inventory yet, from the user's ssh files and the local network."""

from __future__ import annotations

import contextlib
import re
import shlex
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from sparkwright.trust.names import below_home

# Discovery of ssh services on the local network with one multicast DNS query (RFC 6762), waiting two seconds for answers.
#
# The query is sent from its own port, so the answers come to this socket only (6.7): no group is joined, and avahi on this
# machine keeps port 5353. A host that announces no service is not found, because multicast DNS has no wildcards. See
# decision 30.

GROUP = ("224.0.0.251", 5353)
LISTEN_S = 2.0
PACKET_BYTES, MOST_PACKETS, MOST_HOSTS = 9000, 500, 200
#: services that reveal a host: ssh itself, avahi's workstations (`NAME [02:...]`), and those that desktops announce
SERVICES = tuple(f"_{item}._tcp.local" for item in ("ssh", "sftp-ssh", "workstation", "device-info", "smb"))
HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})\.local", re.I)
_WORKSTATION = re.compile(r"([A-Za-z0-9-]{1,63}) \[[0-9a-f:]{17}\]\._workstation\._tcp\.local", re.I)


def hosts(to: tuple[str, int] = GROUP, *, listen_s: float = LISTEN_S) -> list[str]:
    """Return the sorted names (NAME.local) of the hosts that answer; none if multicast does not work. Never raises.

    Args:
        to: address that the query is sent to; replaced in tests.
    """
    found: set[str] = set()
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            _ask(asking, to)
            for packet in _heard(asking, listen_s):
                found |= _named(packet)
                if len(found) >= MOST_HOSTS:
                    break
    except OSError:
        return sorted(found)
    return sorted(found)


def _ask(asking: socket.socket, to: tuple[str, int]) -> None:
    """Send the query on every network of this machine, except the loopback."""
    packet = question([(name, PTR) for name in SERVICES])
    if to != GROUP:
        asking.sendto(packet, to)
        return
    asking.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 255)
    for number, name in socket.if_nameindex():
        if not name.startswith("lo"):
            with contextlib.suppress(OSError):  # the network is down or has no IPv4
                which = struct.pack("=4s4si", socket.inet_aton(to[0]), b"\0" * 4, number)
                asking.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, which)
                asking.sendto(packet, to)


def _heard(asking: socket.socket, listen_s: float) -> list[bytes]:
    packets: list[bytes] = []
    until_s = time.monotonic() + listen_s
    while (left_s := until_s - time.monotonic()) > 0 and len(packets) < MOST_PACKETS:
        asking.settimeout(left_s)
        try:
            packets.append(asking.recv(PACKET_BYTES))
        except TimeoutError:
            break
    return packets


def _named(packet: bytes) -> set[str]:
    """Return the hosts in an answer: the hosts of services, and workstations by their own names."""
    try:
        rows = records(packet)
    except ValueError:
        return set()
    names = [text for _, kind, text in rows if kind == SRV]
    names += [f"{at[1]}.local" for _, kind, text in rows if kind == PTR and (at := _WORKSTATION.fullmatch(text))]
    return {name.lower() for name in names if HOST.fullmatch(name)}


# Candidate hosts for a new project, from all sources in parallel.

#: default and common names of a GB10: spark-1a2b, dgx1, gx10-3f, promaxgb10-77, aitopatom-9c
LIKELY = re.compile(r"spark|dgx|gx10|gb10|aitop|thinkstation-pgx|edgexpert|veriton", re.I)
CONFIG, KNOWN, NETWORK = "ssh configuration", "known_hosts", "mDNS"
#: limit on the candidates shown
MOST = 12


@dataclass(frozen=True, slots=True)
class Candidate:
    """A discovered host."""

    #: address, as passed to ssh
    address: str
    #: description of where it was found
    source: str


def find_candidates(ssh_folder: Path, network: Callable[[], Sequence[str]] = hosts) -> list[Candidate]:
    """Return the hosts in the user's ssh files and on the local network, those named like a Spark first, within two seconds.

    From known_hosts only names like a Spark's and names on the local network are used, because the others may be any machine.

    Args:
        ssh_folder: the folder ~/.ssh.
    """
    with ThreadPoolExecutor(max_workers=3) as at_once:
        config = at_once.submit(of_config, ssh_folder / "config")
        known = at_once.submit(of_known_hosts, ssh_folder / "known_hosts")
        near = at_once.submit(network)
    rows = [Candidate(name, CONFIG) for name in config.result()]
    rows += [Candidate(name, NETWORK) for name in near.result()]
    rows += [Candidate(name, KNOWN) for name in known.result() if LIKELY.search(name) or name.endswith(".local")]
    first: dict[str, Candidate] = {}
    for candidate in rows:
        first.setdefault(candidate.address.lower(), candidate)
    return sorted(first.values(), key=lambda candidate: not LIKELY.search(candidate.address))


A, PTR, AAAA, SRV = 1, 12, 28, 33
# The parts of DNS messages that a multicast query needs (RFC 1035 section 4, RFC 6762 section 18), without side effects.
#
# Answers are untrusted: invalid ones raise ValueError, and can cause neither endless loops nor unbounded memory.

IN = 1
#: the bit that requests a unicast answer (RFC 6762, 5.4), and that in an answer flushes the cache (10.2)
TOP_BIT = 0x8000
RESPONSE = 0x8000
#: limits: the length of a name (RFC 1035, 2.3.4), and more records than any host sends in one packet
NAME_BYTES, MOST_RECORDS = 255, 200

Record = tuple[str, int, str]


def question(names: Sequence[tuple[str, int]]) -> bytes:
    """Return a packet that queries each (name, kind) and requests unicast answers."""
    parts = [_written(name) + struct.pack("!HH", kind, IN | TOP_BIT) for name, kind in names]
    return struct.pack("!6H", 0, 0, len(parts), 0, 0, 0) + b"".join(parts)


def records(packet: bytes) -> list[Record]:
    """Return the records of an answer as (name, kind, value). Raises ValueError.

    The value is a name for PTR, a host for SRV, and an address for A. Other kinds are left out.
    """
    if len(packet) < 12:
        raise ValueError("is too short")
    _, flags, questions, *counts = struct.unpack_from("!6H", packet)
    if not flags & RESPONSE or questions + sum(counts) > MOST_RECORDS:
        raise ValueError("is not an answer")
    at = 12
    for _ in range(questions):
        _, at = _name(packet, at)
        at += 4
    found: list[Record] = []
    for _ in range(sum(counts)):
        name, at = _name(packet, at)
        kind, kind_class, _, size = _unpacked("!HHIH", packet, at)
        at += 10
        if at + size > len(packet):
            raise ValueError("is cut off")
        if kind_class & ~TOP_BIT == IN and (text := _data(packet, at, kind, size)):
            found.append((name, kind, text))
        at += size
    return found


def _data(packet: bytes, at: int, kind: int, size: int) -> str:
    if kind == PTR:
        return _name(packet, at)[0]
    if kind == SRV and size > 6:
        return _name(packet, at + 6)[0]
    if kind == A and size == 4:
        return ".".join(map(str, packet[at : at + 4]))
    return ""


def _written(name: str) -> bytes:
    labels = [label.encode() for label in name.rstrip(".").split(".")]
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def _name(packet: bytes, at: int) -> tuple[str, int]:
    """Return a name and the offset after it. Pointers must lead backwards, so that they can't form a loop."""
    labels: list[str] = []
    end, length, before = 0, 0, at
    while True:
        size = _byte(packet, at)
        if size & 0xC0 == 0xC0:
            end, at = end or at + 2, (size & 0x3F) << 8 | _byte(packet, at + 1)
            if at >= before:
                raise ValueError("has a name with a forward pointer")
            before = at
            continue
        if size & 0xC0:
            raise ValueError("has a label of an unknown kind")
        at += 1
        if not size:
            return ".".join(labels), end or at
        length += size + 1
        if length > NAME_BYTES or at + size > len(packet):
            raise ValueError("has a name that is too long")
        labels.append(packet[at : at + size].decode(errors="replace"))
        at += size


def _byte(packet: bytes, at: int) -> int:
    if at >= len(packet):
        raise ValueError("is cut off")
    return packet[at]


def _unpacked(form: str, packet: bytes, at: int) -> tuple[int, ...]:
    try:
        return struct.unpack_from(form, packet, at)
    except struct.error:
        raise ValueError("is cut off") from None


#: limit on nested Include directives in ssh_config(5)
MOST_DEEP = 16
MOST_FILES, MOST_INCLUDES, MOST_BYTES = 100, 50, 1_000_000
#: a host name or IP address
SSH_NAMES_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.:-]{0,252}[A-Za-z0-9_])?")
_KEYWORD = re.compile(r"(host|include)[\s=](.*)", re.I | re.S)


def of_config(path: Path) -> list[str]:
    """Return the names in `Host` lines that are not patterns, including those of included files, without duplicates."""
    return list(dict.fromkeys(_names(path, path.parent, 0)))


def of_known_hosts(path: Path) -> list[str]:
    """Return the names in a known_hosts file, except hashed names, patterns, revoked hosts, and names with a port."""
    found: dict[str, None] = {}
    for line in _lines(path):
        first = line.split(maxsplit=1)[0] if line.split() else ""
        if not first.startswith(("#", "@", "|")):
            found |= {name: None for name in first.split(",") if SSH_NAMES_NAME.fullmatch(name)}
    return list(found)


def _names(path: Path, folder: Path, deep: int) -> Iterator[str]:
    for line in _lines(path):
        parts = _KEYWORD.fullmatch(line.strip())
        if parts is None:
            continue
        try:
            words = shlex.split(parts[2].strip().removeprefix("="), comments=True)
        except ValueError:
            continue
        if parts[1].lower() == "host":
            yield from (word for word in words if SSH_NAMES_NAME.fullmatch(word))
        elif deep < MOST_DEEP:
            for word in words[:MOST_INCLUDES]:
                yield from _included(word, folder, deep + 1)


def _included(pattern: str, folder: Path, deep: int) -> Iterator[str]:
    """Yield the names in included files. As in ssh, a pattern without a folder is relative to the first file's folder."""
    wanted = folder / below_home(pattern)
    top = Path(wanted.anchor)
    try:
        files = sorted(islice(top.glob(str(wanted.relative_to(top))), MOST_FILES))
    except (ValueError, NotImplementedError, OSError):
        return
    for file in files:
        yield from _names(file, folder, deep)


def _lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES).decode(errors="replace").splitlines() if path.is_file() else []
    except OSError:
        return []
