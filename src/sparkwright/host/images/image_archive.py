"""Checking an image's archive while it is streamed into an engine: `docker load` unpacks whatever it receives.

An archive (`docker save`) is a tar of layers, which are tars, each compressed or not. A few kilobytes of zeros in gzip, or an
entry with holes, can fill a disk before anything can be compared with the lock. So the unpacked size of everything is counted
here, up to a limit, and sparse entries, which no image builder writes, are refused.

As a program it passes its input on to `docker load`, and stops it if the archive is refused: `images.copy` runs it on the
receiving host.
"""

from __future__ import annotations

import bz2
import importlib
import lzma
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sparkwright
from sparkwright.errors import Failed
from sparkwright.shell import join

BLOCK = 512
#: limit of a name or of extended attributes; Linux allows 64 KiB of those
MAX_HEADER_BYTES = 2**20
PIECE_BYTES = 2**20
MAX_XZ_BYTES = 2**27  # memory for its dictionary
#: an image unpacks to two to four times what a pull downloads; an archive has names and frames beside its layers
MAX_UNPACK_RATIO, SLACK_RATIO, SLACK_BYTES = 8, 1.25, 64 * 2**20
_NOT_A_TAR = "the archive is not a tar, or is compressed twice."
LOAD_COMMAND = ("docker", "load", "-q")
_MAGIC: dict[bytes, Callable[[], Any]] = {
    b"\x1f\x8b": lambda: _GzipDecompressor(),
    b"BZh": bz2.BZ2Decompressor,
    b"\xfd7zXZ\0": lambda: lzma.LZMADecompressor(memlimit=MAX_XZ_BYTES),
    b"\x28\xb5\x2f\xfd": lambda: _zstd_decompressor(),
    **{bytes([n]) + b"\x2a\x4d\x18": lambda: _zstd_decompressor() for n in range(0x50, 0x60)},  # frames that zstd skips
}


def max_unpacked_bytes(claimed_bytes: int, locked_bytes: int | None) -> int:
    """Return the number of bytes that an image may unpack to.

    Args:
        claimed_bytes: its size, as reported by the sending host.
        locked_bytes: the download size of a pull, from spark.lock; None if unknown.
    """
    limit_bytes = claimed_bytes if locked_bytes is None else min(claimed_bytes, MAX_UNPACK_RATIO * locked_bytes)
    return int(limit_bytes * SLACK_RATIO) + SLACK_BYTES


def check_pieces(pieces: Iterable[bytes], max_bytes: int) -> Iterator[bytes]:
    """Yield the pieces of an archive after checking them. Raises Failed if it is malformed or unpacks to more than most_bytes."""
    budget = _Budget(max_bytes, max_bytes)
    archive = _TarParser(budget, nested=True)
    header: bytes | None = b""  # until the first header is complete and checked
    for piece in pieces:
        budget.spend(len(piece))
        archive.feed(piece)
        if header is not None:
            header += piece
            if len(header) < BLOCK:
                continue
            piece, header = header, None
        yield piece
    if header is not None:
        raise Failed(_NOT_A_TAR)


def receive_command(max_bytes: int) -> str:
    """Return the shell command that receives an archive on this host."""
    import_root = str(Path(sparkwright.__file__).parents[1])
    return join(["env", f"PYTHONPATH={import_root}", sys.executable, "-P", "-m", __name__, str(max_bytes)])


@dataclass
class _Budget:
    """The remaining budget of bytes, out of max_bytes."""

    max_bytes: int
    remaining_bytes: int

    def spend(self, count: int) -> None:
        self.remaining_bytes -= count
        if self.remaining_bytes < 0:
            raise Failed(f"the archive unpacks to more than {self.max_bytes} bytes, which is too much for this image.")


class _TarParser:
    """A parser of a tar stream.

    Args:
        nested: its files may be tars as well, compressed or not.
    """

    def __init__(self, left: _Budget, *, nested: bool) -> None:
        self._budget = left
        self._nested = nested
        self._header = bytearray()
        self._extended_header: bytearray | None = None  #: of an entry that describes the next one
        self._size: int | None = None  #: of the next entry, from its extended header
        self._data = self._padding = 0  #: bytes until the next header
        self._file: _FileParser | None = None
        self._ended = False

    def feed(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self._ended:
            if self._data:
                part, view = view[: self._data], view[self._data :]
                self._data -= len(part)
                self._consume(part)
            elif self._padding:
                skipped = min(self._padding, len(view))
                self._padding, view = self._padding - skipped, view[skipped:]
            else:
                missing = BLOCK - len(self._header)
                self._header += view[:missing]
                view = view[missing:]
                if len(self._header) == BLOCK:
                    self._start_entry(bytes(self._header))
                    self._header.clear()

    def _start_entry(self, header: bytes) -> None:
        if not any(header):
            self._ended = True
            return
        if not _is_header(header):
            raise Failed(_NOT_A_TAR)
        kind = header[156:157]
        if kind == b"S":
            raise Failed("the archive has a sparse file, which would fill the disk.")
        size = _parse_number(header[124:136])
        self._extended_header = self._file = None
        if kind in (b"x", b"g", b"L", b"K"):
            if size > MAX_HEADER_BYTES:
                raise Failed(f"the archive has a header of {size} bytes.")
            self._extended_header = bytearray()
            self._kind = kind
        else:
            size = size if self._size is None else self._size
            self._size = None
            if kind in b"123456" and kind != b"":
                size = 0  # links, devices and folders have no content, whatever their header claims
            elif self._nested:
                self._file = _FileParser(self._budget)
        self._data, self._padding = size, -size % BLOCK

    def _consume(self, part: memoryview) -> None:
        if self._extended_header is not None:
            self._extended_header += part
            if not self._data and self._kind in (b"x", b"g"):
                self._parse_extended(bytes(self._extended_header))
        elif self._file is not None:
            self._file.feed(bytes(part))

    def _parse_extended(self, text: bytes) -> None:
        """Parse the records of an extended header, each `LENGTH NAME=VALUE` and a newline."""
        while text:
            length, space, _ = text.partition(b" ")
            if not space or not length.isdigit() or not len(length) + 1 < int(length) <= len(text):
                raise Failed("the archive has an extended header that is none.")
            record, text = text[len(length) + 1 : int(length)], text[int(length) :]
            name, _, value = record.rstrip(b"\n").partition(b"=")
            if name.startswith(b"GNU.sparse"):
                raise Failed("the archive has a sparse file, which would fill the disk.")
            if name == b"size" and self._kind == b"x":
                if not value.isdigit() or len(value) > 18:
                    raise Failed("the archive has a file of no size.")
                self._size = int(value)


class _FileParser:
    """A file in the archive: a layer if it is a tar, compressed or not; else small text, which is not unpacked."""

    def __init__(self, left: _Budget) -> None:
        self._budget = left
        self._begin = b""
        self._unpacker: _Decompressor | None = None
        self._tar: _TarParser | None = None
        self._known = False

    def feed(self, data: bytes) -> None:
        if not self._known:
            self._begin += data
            if len(self._begin) < BLOCK:
                return self._feed_short()
            data, self._begin, self._known = self._begin, b"", True
            self._unpacker = _find_decompressor(data)
            if self._unpacker is not None or _is_header(data[:BLOCK]):
                self._tar = _TarParser(self._budget, nested=False)
        if self._unpacker is not None:
            self._unpack(self._unpacker, data)
        elif self._tar is not None:
            self._tar.feed(data)
        return None

    def _feed_short(self) -> None:
        """Start to decompress a file shorter than a block, if it is compressed."""
        self._unpacker = _find_decompressor(self._begin)
        if self._unpacker is not None:
            data, self._begin, self._known, self._tar = self._begin, b"", True, _TarParser(self._budget, nested=False)
            self._unpack(self._unpacker, data)

    def _unpack(self, unpacker: _Decompressor, data: bytes) -> None:
        assert self._tar is not None
        try:
            for piece in unpacker.pieces(data):
                self._budget.spend(len(piece))
                self._tar.feed(piece)
        except (zlib.error, lzma.LZMAError, OSError, EOFError) as error:
            raise Failed(f"the archive has a layer that can't be unpacked ({type(error).__name__}).") from None


class _GzipDecompressor:
    """gzip with the interface of bz2's and lzma's decompressors."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(31)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


class _Decompressor:
    """A decompressor for a stream of one or more compressed members."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._inner = make()

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield the decompressed data, in pieces of limited size."""
        while True:
            if self._inner.eof:
                data = self._inner.unused_data + data
                if not data:
                    return
                self._inner = self._make()
            piece, data = self._inner.decompress(data, PIECE_BYTES), b""
            if piece:
                yield piece
            if not self._inner.eof and (self._inner.needs_input or not piece):
                return


def _find_decompressor(begin: bytes) -> _Decompressor | None:
    """Return a decompressor for a file that begins like this; None if it is not compressed."""
    make = next((make for magic, make in _MAGIC.items() if begin.startswith(magic)), None)
    return _Decompressor(make) if make else None


def _zstd_decompressor() -> Any:
    try:
        zstd: Any = importlib.import_module("compression.zstd")
    except ImportError:  # before Python 3.14
        message = "the archive has a layer in zstd, whose size can't be checked with a Python before 3.14."
        fix = (
            "Without `images.copy`: `sparkwright deploy` lets this host pull the image by its digest from the registry."
        )
        raise Failed(message, fix=fix) from None
    return zstd.ZstdDecompressor()


def _is_header(block: bytes) -> bool:
    """Return True if a block is an entry's header, by its checksum over signed or unsigned bytes."""
    if len(block) < BLOCK:
        return False
    rest = block[:148] + b" " * 8 + block[156:]
    try:
        return _parse_number(block[148:156]) in (sum(rest), sum(rest) - 256 * sum(byte > 127 for byte in rest))
    except Failed:
        return False


def _parse_number(field: bytes) -> int:
    """Parse a number in a header: octal digits, or binary if the first bit is set."""
    if field[0] & 0x80:
        value = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        if value >= 2**62:
            raise Failed("the archive has a file of no size.")
        return value
    digits = field.strip(b" \0")
    if any(digit not in b"01234567" for digit in digits):
        raise Failed("the archive has a file of no size.")
    return int(digits or b"0", 8)


def main(arguments: list[str]) -> int:
    """Check standard input and pass it to `docker load`. Returns 1 if either refuses it."""
    process = subprocess.Popen(LOAD_COMMAND, stdin=subprocess.PIPE)
    assert process.stdin is not None
    try:
        for piece in check_pieces(iter(lambda: os.read(0, PIECE_BYTES), b""), int(arguments[0])):
            process.stdin.write(piece)
        process.stdin.close()
    except Failed as error:
        process.kill()  # before it mistakes the end of the stream for the end of the image
        process.wait()
        print(str(error), file=sys.stderr)  # the other side shows one line
        return 1
    except BrokenPipeError:
        pass  # its exit code and its output have the reason
    return process.wait()


#: by name, best first: the command to compress, and the command to decompress on the receiving side
PACKERS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "zstd": (("zstd", "-q", "-c", "-1", "-T0"), ("zstd", "-q", "-d", "-c")),
    "pigz": (("pigz", "-c", "-1"), ("gzip", "-d", "-c")),
    "gzip": (("gzip", "-c", "-1"), ("gzip", "-d", "-c")),
}


def installed_tools() -> list[str]:
    """Return the names of the programs that are installed on this host."""
    return [name for name in (*PACKERS, "ssh", "docker") if shutil.which(name)]


def select_packer(source: list[str], target: list[str]) -> str:
    """Return the best compressor that the source has and the target can decompress."""
    return next(
        name for name, (_, unpack) in PACKERS.items() if name == "gzip" or {name, unpack[0]} <= {*source, *target}
    )


def load_command(name: str, receiver: str) -> str:
    """Return the shell command that receives the stream.

    Args:
        receiver: the receiving host's `image_archive.receive_command`.
    """
    return f"{' '.join(PACKERS[name][1])} | {receiver}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
