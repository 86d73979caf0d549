"""Check an image archive while it is streamed to `docker load`, which would unpack anything.

An archive (`docker save`) is a tar of layers. Each layer is a tar, possibly compressed. A few kilobytes of compressed zeros, or
a sparse file, can fill the disk before the image can be compared with the lock. So the parser limits the total of unpacked
bytes, and refuses sparse files, which no image builder writes.

When `images.copy` runs it as a program on the receiving host, this module passes standard input to `docker load`, and kills that
process if the archive is refused.
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

BLOCK_BYTES = 512
#: maximum size of a long file name or of extended attributes (Linux allows 64 KiB of attributes)
MAX_HEADER_BYTES = 2**20
PIECE_BYTES = 2**20
#: maximum memory for the xz dictionary
MAX_XZ_BYTES = 2**27
#: an image unpacks to two to four times its download size
MAX_UNPACK_RATIO = 8
#: allowance for what an archive contains besides layers
SLACK_RATIO, SLACK_BYTES = 1.25, 64 * 2**20
_NOT_A_TAR = "the archive is not a tar, or is compressed twice."
_SPARSE_FILE = "the archive has a sparse file, which could fill the disk."
_INVALID_SIZE = "the archive has a file of invalid size."
LOAD_COMMAND = ("docker", "load", "-q")
_DECOMPRESSORS_BY_MAGIC: dict[bytes, Callable[[], Any]] = {
    b"\x1f\x8b": lambda: _GzipDecompressor(),
    b"BZh": bz2.BZ2Decompressor,
    b"\xfd7zXZ\0": lambda: lzma.LZMADecompressor(memlimit=MAX_XZ_BYTES),
    b"\x28\xb5\x2f\xfd": lambda: _zstd_decompressor(),
    **{bytes([n]) + b"\x2a\x4d\x18": lambda: _zstd_decompressor() for n in range(0x50, 0x60)},  # skippable zstd frames
}
#: compressors by name, best first, each with the command to compress and the one to decompress on the receiving host
COMPRESSORS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "zstd": (("zstd", "-q", "-c", "-1", "-T0"), ("zstd", "-q", "-d", "-c")),
    "pigz": (("pigz", "-c", "-1"), ("gzip", "-d", "-c")),
    "gzip": (("gzip", "-c", "-1"), ("gzip", "-d", "-c")),
}


def max_unpacked_bytes(claimed_bytes: int, locked_bytes: int | None) -> int:
    """Return the maximum unpacked size of an image.

    Args:
        claimed_bytes: the image's size, as reported by the sending host.
        locked_bytes: the image's download size, from spark.lock; None if unknown.
    """
    limit_bytes = claimed_bytes if locked_bytes is None else min(claimed_bytes, MAX_UNPACK_RATIO * locked_bytes)
    return int(limit_bytes * SLACK_RATIO) + SLACK_BYTES


def check_pieces(pieces: Iterable[bytes], max_bytes: int) -> Iterator[bytes]:
    """Yield the checked pieces of an archive. Raises Failed if it is malformed or unpacks to more than max_bytes."""
    budget = _Budget(max_bytes, max_bytes)
    archive = _TarParser(budget, nested=True)
    unchecked_data: bytes | None = b""  # data received before the first header is complete and checked
    for piece in pieces:
        budget.spend(len(piece))
        archive.feed(piece)
        if unchecked_data is not None:
            unchecked_data += piece
            if len(unchecked_data) < BLOCK_BYTES:
                continue
            piece, unchecked_data = unchecked_data, None
        yield piece
    if unchecked_data is not None:
        raise Failed(_NOT_A_TAR)


def build_receive_command(max_bytes: int) -> str:
    """Return the shell command that checks and loads an archive on this host."""
    import_root = str(Path(sparkwright.__file__).parents[1])
    return join(["env", f"PYTHONPATH={import_root}", sys.executable, "-P", "-m", __name__, str(max_bytes)])


@dataclass
class _Budget:
    """Limit on the bytes that an archive unpacks to."""

    max_bytes: int
    remaining_bytes: int

    def spend(self, count: int) -> None:
        self.remaining_bytes -= count
        if self.remaining_bytes < 0:
            raise Failed(f"the archive unpacks to more than {self.max_bytes} bytes, which is too much for this image.")


class _TarParser:
    """A parser of a tar stream. With `nested`, the files in it may be tars as well, compressed or not."""

    def __init__(self, budget: _Budget, *, nested: bool) -> None:
        self._budget = budget
        self._nested = nested
        self._header = bytearray()
        self._kind = b""  #: type flag of the current entry
        self._extended_header: bytearray | None = None  #: content of the current entry, if it describes the next one
        self._next_size: int | None = None  #: size of the next entry, if an extended header has it
        self._content_bytes = self._padding_bytes = 0  #: bytes left before the next header
        self._file: _FileParser | None = None
        self._ended = False

    def feed(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self._ended:
            if self._content_bytes:
                content, view = view[: self._content_bytes], view[self._content_bytes :]
                self._content_bytes -= len(content)
                self._consume(content)
            elif self._padding_bytes:
                skipped_bytes = min(self._padding_bytes, len(view))
                self._padding_bytes, view = self._padding_bytes - skipped_bytes, view[skipped_bytes:]
            else:
                missing_bytes = BLOCK_BYTES - len(self._header)
                self._header += view[:missing_bytes]
                view = view[missing_bytes:]
                if len(self._header) == BLOCK_BYTES:
                    self._start_entry(bytes(self._header))
                    self._header.clear()

    def _start_entry(self, header: bytes) -> None:
        if not any(header):
            self._ended = True
            return
        if not _is_header(header):
            raise Failed(_NOT_A_TAR)
        self._kind = header[156:157]
        if self._kind == b"S":
            raise Failed(_SPARSE_FILE)
        size = _parse_number(header[124:136])
        self._extended_header = self._file = None
        if self._kind in (b"x", b"g", b"L", b"K"):
            if size > MAX_HEADER_BYTES:
                raise Failed(f"the archive has a header of {size} bytes.")
            self._extended_header = bytearray()
        else:
            size = size if self._next_size is None else self._next_size
            self._next_size = None
            if self._kind in b"123456":
                size = 0  # links, devices and folders have no content, whatever their header claims
            elif self._nested:
                self._file = _FileParser(self._budget)
        self._content_bytes, self._padding_bytes = size, -size % BLOCK_BYTES

    def _consume(self, content: memoryview) -> None:
        if self._extended_header is not None:
            self._extended_header += content
            if not self._content_bytes and self._kind in (b"x", b"g"):
                self._parse_extended(bytes(self._extended_header))
        elif self._file is not None:
            self._file.feed(bytes(content))

    def _parse_extended(self, text: bytes) -> None:
        """Parse the records of an extended header, each `LENGTH NAME=VALUE` and a newline."""
        while text:
            length, space, _ = text.partition(b" ")
            if not space or not length.isdigit() or not len(length) + 1 < int(length) <= len(text):
                raise Failed("the archive has an invalid extended header.")
            record, text = text[len(length) + 1 : int(length)], text[int(length) :]
            name, _, value = record.rstrip(b"\n").partition(b"=")
            if name.startswith(b"GNU.sparse"):
                raise Failed(_SPARSE_FILE)
            if name == b"size" and self._kind == b"x":
                if not value.isdigit() or len(value) > 18:
                    raise Failed(_INVALID_SIZE)
                self._next_size = int(value)


class _FileParser:
    """A parser of one file in the archive. A tar, compressed or not, is a layer; anything else is short text and is skipped."""

    def __init__(self, budget: _Budget) -> None:
        self._budget = budget
        self._first_bytes: bytes | None = b""  #: None once the file's type is known
        self._decompressor: _Decompressor | None = None
        self._tar: _TarParser | None = None  #: the layer; None for text

    def feed(self, data: bytes) -> None:
        if self._first_bytes is not None:
            self._first_bytes += data
            data = self._first_bytes
            self._decompressor = _find_decompressor(data)
            if self._decompressor is None and len(data) < BLOCK_BYTES:
                return
            self._first_bytes = None
            if self._decompressor is not None or _is_header(data[:BLOCK_BYTES]):
                self._tar = _TarParser(self._budget, nested=False)
        if self._tar is None:
            return
        if self._decompressor is None:
            self._tar.feed(data)
            return
        try:
            for piece in self._decompressor.pieces(data):
                self._budget.spend(len(piece))
                self._tar.feed(piece)
        except (zlib.error, lzma.LZMAError, OSError, EOFError) as error:
            raise Failed(f"the archive has a layer that can't be unpacked ({type(error).__name__}).") from None


class _GzipDecompressor:
    """A gzip decompressor with the interface of those in bz2 and lzma."""

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

    def __init__(self, factory: Callable[[], Any]) -> None:
        self._factory = factory
        self._inner = factory()

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield the decompressed data, at most PIECE_BYTES at a time."""
        while True:
            if self._inner.eof:
                data = self._inner.unused_data + data
                if not data:
                    return
                self._inner = self._factory()
            piece, data = self._inner.decompress(data, PIECE_BYTES), b""
            if piece:
                yield piece
            if not self._inner.eof and (self._inner.needs_input or not piece):
                return


def _find_decompressor(first_bytes: bytes) -> _Decompressor | None:
    factory = next((value for magic, value in _DECOMPRESSORS_BY_MAGIC.items() if first_bytes.startswith(magic)), None)
    return _Decompressor(factory) if factory else None


def _zstd_decompressor() -> Any:
    try:
        zstd: Any = importlib.import_module("compression.zstd")
    except ImportError:  # before Python 3.14
        message = "the archive has a zstd layer, which needs Python 3.14 or later to check."
        fix = "Let this host pull the image from the registry (`sparkwright deploy`) instead of copying it."
        raise Failed(message, fix=fix) from None
    return zstd.ZstdDecompressor()


def _is_header(block: bytes) -> bool:
    """Return True if a block has a valid header checksum, over unsigned or signed bytes."""
    if len(block) < BLOCK_BYTES:
        return False
    checked_bytes = block[:148] + b" " * 8 + block[156:]
    try:
        return _parse_number(block[148:156]) in (
            sum(checked_bytes),
            sum(checked_bytes) - 256 * sum(byte > 127 for byte in checked_bytes),
        )
    except Failed:
        return False


def _parse_number(field: bytes) -> int:
    """Parse a number in a header: octal digits, or binary if the first bit is set."""
    if field[0] & 0x80:
        value = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        if value >= 2**62:
            raise Failed(_INVALID_SIZE)
        return value
    digits = field.strip(b" \0")
    if any(digit not in b"01234567" for digit in digits):
        raise Failed(_INVALID_SIZE)
    return int(digits or b"0", 8)


def installed_tools() -> list[str]:
    """Return the names of the programs needed for a copy that are installed on this host."""
    return [name for name in (*COMPRESSORS, "ssh", "docker") if shutil.which(name)]


def select_compressor(source_tools: list[str], target_tools: list[str]) -> str:
    """Return the best compressor that is installed on the source and can be decompressed on the target."""
    return next(
        name
        for name, (_, decompress_command) in COMPRESSORS.items()
        if name == "gzip" or {name, decompress_command[0]} <= {*source_tools, *target_tools}
    )


def build_load_command(compressor: str, receiver: str) -> str:
    """Return the shell command that decompresses the stream and pipes it to `receiver`, the target's `build_receive_command`."""
    return f"{' '.join(COMPRESSORS[compressor][1])} | {receiver}"


def main(arguments: list[str]) -> int:
    """Check standard input and pass it to `docker load`. Returns 1 if either refuses it."""
    process = subprocess.Popen(LOAD_COMMAND, stdin=subprocess.PIPE)
    assert process.stdin is not None
    try:
        for piece in check_pieces(iter(lambda: os.read(0, PIECE_BYTES), b""), int(arguments[0])):
            process.stdin.write(piece)
        process.stdin.close()
    except Failed as error:
        process.kill()  # so that it does not mistake the end of the stream for the end of the image
        process.wait()
        print(str(error), file=sys.stderr)  # the sending host shows this line
        return 1
    except BrokenPipeError:
        pass  # `docker load` has ended, with an error message and its exit code
    return process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
