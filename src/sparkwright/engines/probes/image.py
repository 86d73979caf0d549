"""The probe of a vision model: a picture of a red square."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from dataclasses import replace

from sparkwright.engines.openai_api import CHAT
from sparkwright.engines.probes.probe import Probe, Reply, Seen, quoted

#: vision models refuse pictures below 28 or 56 pixels
PIXELS = 112
RED = b"\xff\x00\x00"
NAMES = re.compile(r"\b(red|scarlet|crimson|rot|rouge|rojo)\b|红|紅|赤", re.IGNORECASE)
TOKENS = 512
SEARCHED_CHARS = 1 << 14


def png(pixels: int, colour: bytes) -> bytes:
    """Return a PNG square of one colour. colour: three bytes."""
    rows = (b"\x00" + colour * pixels) * pixels
    header = struct.pack(">IIBBBBB", pixels, pixels, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, *zip(*chunks, strict=True)))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def judge(reply: Reply) -> Seen:
    """Judge if the answer names the colour."""
    text = reply.content
    if NAMES.search(text[:SEARCHED_CHARS]):
        return Seen("proved", f"saw the red picture: {quoted(text)}")
    if reply.cut:
        return Seen("inconclusive", f"the answer had not ended within {TOKENS} tokens")
    if not text:
        return Seen("disproved", "content is null", "content null")
    return Seen("disproved", f"of a red picture it said {quoted(text)}", "picture not seen")


URL = "data:image/png;base64," + base64.b64encode(png(PIXELS, RED)).decode()
PROBE = Probe(
    "image",
    CHAT,
    {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What colour is this picture? Answer with one word."},
                    {"type": "image_url", "image_url": {"url": URL}},
                ],
            }
        ],
        "max_tokens": TOKENS,
    },
    judge,
    refused="picture refused",
)
#: no server listens there: port 9 is the discard service
OUT_OF_REACH = "http://127.0.0.1:9/picture.png"
VARIANTS = (
    PROBE.in_a_stream(),
    replace(
        PROBE,
        name="image, out of reach",
        body={
            **PROBE.body,
            "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": OUT_OF_REACH}}]}],
        },
        rule=lambda reply: Seen("proved", f"answered all the same: {quoted(reply.content)}"),
        variant=True,
        optional=True,
        of_server_error="a picture that cannot be fetched is answered as a fault of the server: repeating such a request is useless",
    ),
)
