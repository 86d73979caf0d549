"""DNS messages, as far as a multicast query needs them: RFC 1035 section 4, RFC 6762 section 18. Pure.

An answer is untrusted: an invalid one raises ValueError, and nothing loops or grows with it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

A, PTR, AAAA, SRV = 1, 12, 28, 33
IN = 1
#: the bit that requests a unicast answer (RFC 6762, 5.4), and in an answer that it replaces the cache (10.2)
TOP_BIT = 0x8000
RESPONSE = 0x8000
#: RFC 1035, 2.3.4; and more records than any host of a local network sends in one packet
NAME_BYTES, MOST_RECORDS = 255, 200

Record = tuple[str, int, str]


def question(names: Sequence[tuple[str, int]]) -> bytes:
    """Return a query for each (name, kind), to be answered by unicast."""
    parts = [_written(name) + struct.pack("!HH", kind, IN | TOP_BIT) for name, kind in names]
    return struct.pack("!6H", 0, 0, len(parts), 0, 0, 0) + b"".join(parts)


def records(packet: bytes) -> list[Record]:
    """Return the records of an answer: (name, kind, value).

    The value of a PTR is a name, of an SRV its host, of an A its address; others are left out. Raises ValueError.
    """
    if len(packet) < 12:
        raise ValueError("is too short")
    _, flags, questions, *counts = struct.unpack_from("!6H", packet)
    if not flags & RESPONSE or questions + sum(counts) > MOST_RECORDS:
        raise ValueError("is no answer")
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
    """Return a name, and the offset after it. A pointer must lead backwards, so that no two can form a circle."""
    labels: list[str] = []
    end, length, before = 0, 0, at
    while True:
        size = _byte(packet, at)
        if size & 0xC0 == 0xC0:
            end, at = end or at + 2, (size & 0x3F) << 8 | _byte(packet, at + 1)
            if at >= before:
                raise ValueError("has a name that leads forwards")
            before = at
            continue
        if size & 0xC0:
            raise ValueError("has a label of no known kind")
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
