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

from sparkwright.trust.names import expand_home

# Discovery of ssh services on the local network with one multicast DNS query (RFC 6762), waiting two seconds for answers.
#
# The query is sent from its own port, so the answers come to this socket only (6.7): no group is joined, and avahi on this
# machine keeps port 5353. A host that announces no service is not found, because multicast DNS has no wildcards. See
# decision 30.

MULTICAST_ADDRESS = ("224.0.0.251", 5353)
LISTEN_S = 2.0
PACKET_BYTES, MAX_PACKETS, MAX_HOSTS = 9000, 500, 200
#: services that reveal a host: ssh itself, avahi's workstations (`NAME [02:...]`), and those that desktops announce
SERVICES = tuple(f"_{item}._tcp.local" for item in ("ssh", "sftp-ssh", "workstation", "device-info", "smb"))
LOCAL_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})\.local", re.I)
_WORKSTATION = re.compile(r"([A-Za-z0-9-]{1,63}) \[[0-9a-f:]{17}\]\._workstation\._tcp\.local", re.I)


def discover_hosts(address: tuple[str, int] = MULTICAST_ADDRESS, *, listen_s: float = LISTEN_S) -> list[str]:
    """Return the sorted names (NAME.local) of the hosts that answer; none if multicast does not work. Never raises.

    Args:
        address: address that the query is sent to; replaced in tests.
    """
    names: set[str] = set()
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            _send_query(sock, address)
            for packet in _receive_packets(sock, listen_s):
                names |= _hosts_in_answer(packet)
                if len(names) >= MAX_HOSTS:
                    break
    except OSError:
        return sorted(names)
    return sorted(names)


def _send_query(sock: socket.socket, address: tuple[str, int]) -> None:
    """Send the query on every network of this machine, except the loopback."""
    packet = build_query([(name, PTR) for name in SERVICES])
    if address != MULTICAST_ADDRESS:
        sock.sendto(packet, address)
        return
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 255)
    for number, name in socket.if_nameindex():
        if not name.startswith("lo"):
            with contextlib.suppress(OSError):  # the network is down or has no IPv4
                request = struct.pack("=4s4si", socket.inet_aton(address[0]), b"\0" * 4, number)
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, request)
                sock.sendto(packet, address)


def _receive_packets(sock: socket.socket, listen_s: float) -> list[bytes]:
    packets: list[bytes] = []
    deadline_s = time.monotonic() + listen_s
    while (left_s := deadline_s - time.monotonic()) > 0 and len(packets) < MAX_PACKETS:
        sock.settimeout(left_s)
        try:
            packets.append(sock.recv(PACKET_BYTES))
        except TimeoutError:
            break
    return packets


def _hosts_in_answer(packet: bytes) -> set[str]:
    """Return the hosts in an answer: the hosts of services, and workstations by their own names."""
    try:
        rows = parse_records(packet)
    except ValueError:
        return set()
    names = [text for _, kind, text in rows if kind == SRV]
    names += [f"{match[1]}.local" for _, kind, text in rows if kind == PTR and (match := _WORKSTATION.fullmatch(text))]
    return {name.lower() for name in names if LOCAL_NAME.fullmatch(name)}


# Candidate hosts for a new project, from all sources in parallel.

#: default and common names of a GB10: spark-1a2b, dgx1, gx10-3f, promaxgb10-77, aitopatom-9c
SPARK_NAME = re.compile(r"spark|dgx|gx10|gb10|aitop|thinkstation-pgx|edgexpert|veriton", re.I)
CONFIG_SOURCE, KNOWN_HOSTS_SOURCE, NETWORK_SOURCE = "ssh configuration", "known_hosts", "mDNS"
#: limit on the candidates shown
MAX_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Candidate:
    """A discovered host."""

    #: address, as passed to ssh
    address: str
    #: description of where it was found
    source: str


def find_candidates(ssh_folder: Path, network: Callable[[], Sequence[str]] = discover_hosts) -> list[Candidate]:
    """Return the hosts in the user's ssh files and on the local network, those named like a Spark first, within two seconds.

    From known_hosts only names like a Spark's and names on the local network are used, because the others may be any machine.

    Args:
        ssh_folder: the folder ~/.ssh.
    """
    with ThreadPoolExecutor(max_workers=3) as pool:
        config = pool.submit(hosts_in_config, ssh_folder / "config")
        known = pool.submit(hosts_in_known_hosts, ssh_folder / "known_hosts")
        discovered = pool.submit(network)
    rows = [Candidate(name, CONFIG_SOURCE) for name in config.result()]
    rows += [Candidate(name, NETWORK_SOURCE) for name in discovered.result()]
    rows += [
        Candidate(name, KNOWN_HOSTS_SOURCE)
        for name in known.result()
        if SPARK_NAME.search(name) or name.endswith(".local")
    ]
    by_address: dict[str, Candidate] = {}
    for candidate in rows:
        by_address.setdefault(candidate.address.lower(), candidate)
    return sorted(by_address.values(), key=lambda candidate: not SPARK_NAME.search(candidate.address))


A, PTR, AAAA, SRV = 1, 12, 28, 33
# The parts of DNS messages that a multicast query needs (RFC 1035 section 4, RFC 6762 section 18), without side effects.
#
# Answers are untrusted: invalid ones raise ValueError, and can cause neither endless loops nor unbounded memory.

CLASS_IN = 1
#: the bit that requests a unicast answer (RFC 6762, 5.4), and that in an answer flushes the cache (10.2)
TOP_BIT = 0x8000
RESPONSE = 0x8000
#: limits: the length of a name (RFC 1035, 2.3.4), and more records than any host sends in one packet
MAX_NAME_BYTES, MAX_RECORDS = 255, 200

Record = tuple[str, int, str]


def build_query(names: Sequence[tuple[str, int]]) -> bytes:
    """Return a packet that queries each (name, kind) and requests unicast answers."""
    parts = [_encode_name(name) + struct.pack("!HH", kind, CLASS_IN | TOP_BIT) for name, kind in names]
    return struct.pack("!6H", 0, 0, len(parts), 0, 0, 0) + b"".join(parts)


def parse_records(packet: bytes) -> list[Record]:
    """Return the records of an answer as (name, kind, value). Raises ValueError.

    The value is a name for PTR, a host for SRV, and an address for A. Other kinds are left out.
    """
    if len(packet) < 12:
        raise ValueError("is too short")
    _, flags, questions, *counts = struct.unpack_from("!6H", packet)
    if not flags & RESPONSE or questions + sum(counts) > MAX_RECORDS:
        raise ValueError("is not an answer")
    offset = 12
    for _ in range(questions):
        _, offset = _parse_name(packet, offset)
        offset += 4
    parsed: list[Record] = []
    for _ in range(sum(counts)):
        name, offset = _parse_name(packet, offset)
        kind, kind_class, _, size = _unpack("!HHIH", packet, offset)
        offset += 10
        if offset + size > len(packet):
            raise ValueError("is cut off")
        if kind_class & ~TOP_BIT == CLASS_IN and (text := _parse_value(packet, offset, kind, size)):
            parsed.append((name, kind, text))
        offset += size
    return parsed


def _parse_value(packet: bytes, offset: int, kind: int, size: int) -> str:
    if kind == PTR:
        return _parse_name(packet, offset)[0]
    if kind == SRV and size > 6:
        return _parse_name(packet, offset + 6)[0]
    if kind == A and size == 4:
        return ".".join(map(str, packet[offset : offset + 4]))
    return ""


def _encode_name(name: str) -> bytes:
    labels = [label.encode() for label in name.rstrip(".").split(".")]
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def _parse_name(packet: bytes, offset: int) -> tuple[str, int]:
    """Return a name and the offset after it. Pointers must lead backwards, so that they can't form a loop."""
    labels: list[str] = []
    end, length, previous = 0, 0, offset
    while True:
        size = _read_byte(packet, offset)
        if size & 0xC0 == 0xC0:
            end, offset = end or offset + 2, (size & 0x3F) << 8 | _read_byte(packet, offset + 1)
            if offset >= previous:
                raise ValueError("has a name with a forward pointer")
            previous = offset
            continue
        if size & 0xC0:
            raise ValueError("has a label of an unknown kind")
        offset += 1
        if not size:
            return ".".join(labels), end or offset
        length += size + 1
        if length > MAX_NAME_BYTES or offset + size > len(packet):
            raise ValueError("has a name that is too long")
        labels.append(packet[offset : offset + size].decode(errors="replace"))
        offset += size


def _read_byte(packet: bytes, offset: int) -> int:
    if offset >= len(packet):
        raise ValueError("is cut off")
    return packet[offset]


def _unpack(layout: str, packet: bytes, offset: int) -> tuple[int, ...]:
    try:
        return struct.unpack_from(layout, packet, offset)
    except struct.error:
        raise ValueError("is cut off") from None


#: limit on nested Include directives in ssh_config(5)
MAX_INCLUDE_DEPTH = 16
MAX_FILES, MAX_INCLUDES, MAX_FILE_BYTES = 100, 50, 1_000_000
#: a host name or IP address
SSH_HOST_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.:-]{0,252}[A-Za-z0-9_])?")
_KEYWORD = re.compile(r"(host|include)[\s=](.*)", re.I | re.S)


def hosts_in_config(path: Path) -> list[str]:
    """Return the names in `Host` lines that are not patterns, including those of included files, without duplicates."""
    return list(dict.fromkeys(_config_hosts(path, path.parent, 0)))


def hosts_in_known_hosts(path: Path) -> list[str]:
    """Return the names in a known_hosts file, except hashed names, patterns, revoked hosts, and names with a port."""
    hosts_found: dict[str, None] = {}
    for line in _read_lines(path):
        first = line.split(maxsplit=1)[0] if line.split() else ""
        if not first.startswith(("#", "@", "|")):
            hosts_found |= {name: None for name in first.split(",") if SSH_HOST_NAME.fullmatch(name)}
    return list(hosts_found)


def _config_hosts(path: Path, folder: Path, depth: int) -> Iterator[str]:
    for line in _read_lines(path):
        parts = _KEYWORD.fullmatch(line.strip())
        if parts is None:
            continue
        try:
            words = shlex.split(parts[2].strip().removeprefix("="), comments=True)
        except ValueError:
            continue
        if parts[1].lower() == "host":
            yield from (word for word in words if SSH_HOST_NAME.fullmatch(word))
        elif depth < MAX_INCLUDE_DEPTH:
            for word in words[:MAX_INCLUDES]:
                yield from _included_hosts(word, folder, depth + 1)


def _included_hosts(pattern: str, folder: Path, depth: int) -> Iterator[str]:
    """Yield the names in included files. As in ssh, a pattern without a folder is relative to the first file's folder."""
    full_pattern = folder / expand_home(pattern)
    top = Path(full_pattern.anchor)
    try:
        files = sorted(islice(top.glob(str(full_pattern.relative_to(top))), MAX_FILES))
    except (ValueError, NotImplementedError, OSError):
        return
    for file in files:
        yield from _config_hosts(file, folder, depth)


def _read_lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES).decode(errors="replace").splitlines() if path.is_file() else []
    except OSError:
        return []
