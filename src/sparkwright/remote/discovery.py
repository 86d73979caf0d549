"""Discovery of hosts that are not in the inventory yet, from the user's ssh files and the local network."""

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

MULTICAST_ADDRESS = ("224.0.0.251", 5353)
LISTEN_TIMEOUT_S = 2.0
MAX_PACKET_BYTES, MAX_PACKETS, MAX_HOSTS = 9000, 500, 200
#: services that reveal a host: ssh, avahi's workstations (`NAME [02:...]`), and those that desktops announce
SERVICES = tuple(f"_{name}._tcp.local" for name in ("ssh", "sftp-ssh", "workstation", "device-info", "smb"))
LOCAL_NAME_PATTERN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})\.local", re.I)
_WORKSTATION_PATTERN = re.compile(r"([A-Za-z0-9-]{1,63}) \[[0-9a-f:]{17}\]\._workstation\._tcp\.local", re.I)
#: default and common names of a GB10: spark-1a2b, dgx1, gx10-3f, promaxgb10-77, aitopatom-9c
SPARK_NAME_PATTERN = re.compile(r"spark|dgx|gx10|gb10|aitop|thinkstation-pgx|edgexpert|veriton", re.I)
CONFIG_SOURCE, KNOWN_HOSTS_SOURCE, NETWORK_SOURCE = "ssh configuration", "known_hosts", "mDNS"
#: maximum number of candidates that are shown
MAX_SHOWN_CANDIDATES = 12
#: types of DNS records (RFC 1035, 3.2.2; RFC 2782)
A, PTR, SRV = 1, 12, 33
CLASS_IN = 1
#: bit that requests a unicast answer in a query (RFC 6762, 5.4), and flushes the cache in an answer (10.2)
UNICAST_OR_CACHE_FLUSH_BIT = 0x8000
RESPONSE_FLAG = 0x8000
MAX_NAME_BYTES = 255  # RFC 1035, 2.3.4
MAX_RECORDS = 200  # more than any host sends in one packet
#: limit on nested Include directives in ssh_config(5)
MAX_INCLUDE_DEPTH = 16
MAX_FILES, MAX_INCLUDES, MAX_FILE_BYTES = 100, 50, 1_000_000
#: a host name or IP address
SSH_HOST_NAME_PATTERN = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.:-]{0,252}[A-Za-z0-9_])?")
_KEYWORD_PATTERN = re.compile(r"(host|include)[\s=](.*)", re.I | re.S)

#: name, type and value
Record = tuple[str, int, str]


def discover_hosts(address: tuple[str, int] = MULTICAST_ADDRESS, *, listen_s: float = LISTEN_TIMEOUT_S) -> list[str]:
    """Return the sorted names (NAME.local) of the ssh hosts that answer one multicast DNS query (RFC 6762). Never raises.

    The query is sent from a port other than 5353, so the answers are sent to this socket only (6.7). This needs neither
    port 5353, which avahi may be using, nor membership in a multicast group. Hosts that announce no service are not
    found, because multicast DNS has no wildcards (decision 30).

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
    """Send the query over every network interface of this machine, except the loopback."""
    packet = build_query([(name, PTR) for name in SERVICES])
    if address != MULTICAST_ADDRESS:
        sock.sendto(packet, address)
        return
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 255)
    for index, name in socket.if_nameindex():
        if not name.startswith("lo"):
            with contextlib.suppress(OSError):  # the interface is down or has no IPv4 address
                interface = struct.pack("=4s4si", socket.inet_aton(address[0]), b"\0" * 4, index)
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, interface)
                sock.sendto(packet, address)


def _receive_packets(sock: socket.socket, listen_s: float) -> list[bytes]:
    packets: list[bytes] = []
    deadline_s = time.monotonic() + listen_s
    while (remaining_s := deadline_s - time.monotonic()) > 0 and len(packets) < MAX_PACKETS:
        sock.settimeout(remaining_s)
        try:
            packets.append(sock.recv(MAX_PACKET_BYTES))
        except TimeoutError:
            break
    return packets


def _hosts_in_answer(packet: bytes) -> set[str]:
    """Return the hosts in an answer: those of SRV records and the workstations in PTR records; none if it is invalid."""
    try:
        records = parse_records(packet)
    except ValueError:
        return set()
    names = [value for _, record_type, value in records if record_type == SRV]
    workstations = (_WORKSTATION_PATTERN.fullmatch(value) for _, record_type, value in records if record_type == PTR)
    names += [f"{match[1]}.local" for match in workstations if match]
    return {name.lower() for name in names if LOCAL_NAME_PATTERN.fullmatch(name)}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A discovered host."""

    #: address, as passed to ssh
    address: str
    #: ssh configuration, known_hosts or mDNS
    source: str


def find_candidates(
    ssh_folder: Path, find_network_hosts: Callable[[], Sequence[str]] = discover_hosts
) -> list[Candidate]:
    """Return the hosts in the user's ssh files and on the local network, those named like a Spark first.

    Takes two seconds. From known_hosts, which may list any machine, only `.local` names and names like a Spark's are returned.

    Args:
        find_network_hosts: returns the hosts on the local network; replaced in tests.
    """
    with ThreadPoolExecutor(max_workers=3) as pool:
        config = pool.submit(hosts_in_config, ssh_folder / "config")
        known_hosts = pool.submit(hosts_in_known_hosts, ssh_folder / "known_hosts")
        network_names = pool.submit(find_network_hosts)
    candidates = [Candidate(name, CONFIG_SOURCE) for name in config.result()]
    candidates += [Candidate(name, NETWORK_SOURCE) for name in network_names.result()]
    candidates += [
        Candidate(name, KNOWN_HOSTS_SOURCE)
        for name in known_hosts.result()
        if SPARK_NAME_PATTERN.search(name) or name.endswith(".local")
    ]
    candidate_by_address: dict[str, Candidate] = {}
    for candidate in candidates:
        candidate_by_address.setdefault(candidate.address.lower(), candidate)
    return sorted(candidate_by_address.values(), key=lambda candidate: not SPARK_NAME_PATTERN.search(candidate.address))


def build_query(names: Sequence[tuple[str, int]]) -> bytes:
    """Return a DNS packet that queries each (name, type) and requests unicast answers."""
    parts = [
        _encode_name(name) + struct.pack("!HH", record_type, CLASS_IN | UNICAST_OR_CACHE_FLUSH_BIT)
        for name, record_type in names
    ]
    return struct.pack("!6H", 0, 0, len(parts), 0, 0, 0) + b"".join(parts)


def parse_records(packet: bytes) -> list[Record]:
    """Return the records of a DNS answer (RFC 1035, 4; RFC 6762, 18): names for PTR, hosts for SRV, addresses for A.

    Answers are untrusted. Raises ValueError for an invalid one, which can't cause an endless loop or exhaust the memory.
    """
    if len(packet) < 12:
        raise ValueError("is too short")
    _, flags, question_count, *record_counts = struct.unpack_from("!6H", packet)
    if not flags & RESPONSE_FLAG or question_count + sum(record_counts) > MAX_RECORDS:
        raise ValueError("is not an answer")
    offset = 12
    for _ in range(question_count):
        _, offset = _parse_name(packet, offset)
        offset += 4
    parsed_records: list[Record] = []
    for _ in range(sum(record_counts)):
        name, offset = _parse_name(packet, offset)
        record_type, record_class, _, size = _unpack("!HHIH", packet, offset)
        offset += 10
        if offset + size > len(packet):
            raise ValueError("is cut off")
        if record_class & ~UNICAST_OR_CACHE_FLUSH_BIT == CLASS_IN and (
            value := _parse_value(packet, offset, record_type, size)
        ):
            parsed_records.append((name, record_type, value))
        offset += size
    return parsed_records


def _parse_value(packet: bytes, offset: int, record_type: int, size: int) -> str:
    if record_type == PTR:
        return _parse_name(packet, offset)[0]
    if record_type == SRV and size > 6:
        return _parse_name(packet, offset + 6)[0]
    if record_type == A and size == 4:
        return ".".join(map(str, packet[offset : offset + 4]))
    return ""


def _encode_name(name: str) -> bytes:
    labels = [label.encode() for label in name.rstrip(".").split(".")]
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def _parse_name(packet: bytes, offset: int) -> tuple[str, int]:
    """Return a name and the offset after it. Compression pointers must point backwards, so that they can't form a loop."""
    labels: list[str] = []
    end_offset, name_bytes, previous_offset = 0, 0, offset
    while True:
        size = _read_byte(packet, offset)
        if size & 0xC0 == 0xC0:
            end_offset, offset = end_offset or offset + 2, (size & 0x3F) << 8 | _read_byte(packet, offset + 1)
            if offset >= previous_offset:
                raise ValueError("has a name with a forward pointer")
            previous_offset = offset
            continue
        if size & 0xC0:
            raise ValueError("has a label of an unknown kind")
        offset += 1
        if not size:
            return ".".join(labels), end_offset or offset
        name_bytes += size + 1
        if name_bytes > MAX_NAME_BYTES or offset + size > len(packet):
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


def hosts_in_config(path: Path) -> list[str]:
    """Return the names, without patterns, in the `Host` lines of an ssh configuration and the files that it includes."""
    return list(dict.fromkeys(_config_hosts(path, path.parent, 0)))


def hosts_in_known_hosts(path: Path) -> list[str]:
    """Return the names in a known_hosts file, except hashed names, patterns, names with a port, and lines with a marker."""
    hosts: dict[str, None] = {}
    for line in _read_lines(path):
        name_field = line.split(maxsplit=1)[0] if line.split() else ""
        if not name_field.startswith(("#", "@", "|")):
            hosts |= {name: None for name in name_field.split(",") if SSH_HOST_NAME_PATTERN.fullmatch(name)}
    return list(hosts)


def _config_hosts(path: Path, folder: Path, depth: int) -> Iterator[str]:
    for line in _read_lines(path):
        match = _KEYWORD_PATTERN.fullmatch(line.strip())
        if match is None:
            continue
        try:
            words = shlex.split(match[2].strip().removeprefix("="), comments=True)
        except ValueError:
            continue
        if match[1].lower() == "host":
            yield from (word for word in words if SSH_HOST_NAME_PATTERN.fullmatch(word))
        elif depth < MAX_INCLUDE_DEPTH:
            for word in words[:MAX_INCLUDES]:
                yield from _included_hosts(word, folder, depth + 1)


def _included_hosts(pattern: str, folder: Path, depth: int) -> Iterator[str]:
    """Yield the names in included files. As in ssh, a pattern is relative to the folder of the main file."""
    full_pattern = folder / expand_home(pattern)
    root = Path(full_pattern.anchor)
    try:
        files = sorted(islice(root.glob(str(full_pattern.relative_to(root))), MAX_FILES))
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
