"""Archives that unpack to far more than their size are refused while they are streamed to the engine."""

import bz2
import gzip
import io
import itertools
import lzma
import tarfile
from collections.abc import Callable, Iterable

import pytest

from sparkwright.errors import Failed
from sparkwright.host.images import image_archive

MIB = 2**20
PIECES = (1, 511, MIB)


def build_tar(files: Iterable[tuple[str, bytes]], kind: bytes = tarfile.REGTYPE, **fields: object) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size, info.type = len(data), kind
            for field, value in fields.items():
                setattr(info, field, value)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def check_archive(data: bytes, max_bytes: int, piece_bytes: int = MIB) -> bytes:
    pieces = (data[start : start + piece_bytes] for start in range(0, len(data), piece_bytes))
    return b"".join(image_archive.check_pieces(pieces, max_bytes))


LAYER = build_tar([("etc/motd", b"hello\n" * 300), ("a" * 200, b"x" * 700)])
ZEROS = build_tar([("zeros", bytes(32 * MIB))])
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "gzip with two members": lambda data: gzip.compress(data[:MIB]) + gzip.compress(data[MIB:]),
    "bzip2": bz2.compress,
    "bzip2 with two streams": lambda data: bz2.compress(data[:MIB]) + bz2.compress(data[MIB:]),
    "xz": lambda data: lzma.compress(data, preset=0),
}


@pytest.mark.parametrize("size", PIECES)
@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_valid_archive_is_unchanged(pack: Callable[[bytes], bytes], size: int) -> None:
    files = {
        "one/layer.tar": pack(LAYER),
        "two/layer.tar": pack(build_tar([])),
        "manifest.json": b"[]" * 300,
        "version": b"1.0",
    }
    archive = build_tar(files.items())
    assert check_archive(archive, len(archive) + 2 * len(LAYER) + 20_480, size) == archive


@pytest.mark.parametrize("pack", COMPRESSIONS.values(), ids=COMPRESSIONS)
def test_layer_that_unpacks_to_too_much_is_stopped(pack: Callable[[bytes], bytes]) -> None:
    archive = build_tar([("one/layer.tar", pack(ZEROS))])
    assert len(archive) < MIB
    with pytest.raises(Failed, match=f"unpacks to more than {8 * MIB} bytes"):
        check_archive(archive, 8 * MIB, 16 * 1024)
    assert check_archive(archive, 34 * MIB) == archive


def test_endless_archive_is_stopped() -> None:
    endless = itertools.chain([build_tar([("one/layer.tar", LAYER)])], itertools.repeat(bytes(MIB)))
    with pytest.raises(Failed, match="unpacks to more"):
        for _ in image_archive.check_pieces(endless, 4 * MIB):
            pass


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_archive_is_refused(pack: Callable[[bytes], bytes]) -> None:
    """docker load would decompress it once more."""
    with pytest.raises(Failed, match="not a tar, or is compressed twice"):
        check_archive(pack(build_tar([("one/layer.tar", LAYER)])), 2**40)


def test_unknown_compression_of_a_layer_is_refused() -> None:
    for begin in (b"\x28\xb5\x2f\xfd", b"\x52\x2a\x4d\x18"):
        with pytest.raises(Failed, match="zstd|can't be unpacked"):
            check_archive(build_tar([("one/layer.tar", begin + bytes(600))]), 2**40)


def test_sparse_files_are_refused() -> None:
    old = bytearray(build_tar([("zeros", b"x" * 512)]))
    old[156:157] = b"S"
    old[148:156] = b"%06o\0 " % (sum(old[:148]) + 8 * 32 + sum(old[156:512]))
    records = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(2**40)}
    for layer in (bytes(old), build_tar([("zeros", b"x")], pax_headers=records)):
        for archive in (layer, *(build_tar([("one/layer.tar", pack(layer))]) for pack in (bytes, gzip.compress))):
            with pytest.raises(Failed, match="sparse file"):
                check_archive(archive, 2**40, 4096)


def test_size_of_an_extended_header_counts() -> None:
    """As in Go, although the plain header has size 0: the following bytes are data, not an entry."""
    archive = bytearray(build_tar([("one", b"y" * 1024)], pax_headers={"size": "1024"}))
    header = memoryview(archive)[2 * 512 : 3 * 512]
    header[124:136] = b"%011o\0" % 0
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 8 * 32 + sum(header[156:]))
    assert check_archive(bytes(archive), MIB) == archive


def test_header_of_gigabytes_is_refused() -> None:
    info = tarfile.TarInfo("x")
    info.size, info.type = 2**33, tarfile.XHDTYPE
    with pytest.raises(Failed, match=f"a header of {2**33} bytes"):
        check_archive(info.tobuf(tarfile.GNU_FORMAT), 2**40)


@pytest.mark.parametrize(
    ("claimed", "locked", "max_mib"),
    [(10 * MIB, None, 76.5), (10 * MIB, 5 * MIB, 76.5), (2**40, 5 * MIB, 114), (2**40, 0, 64)],
)
def test_lock_limits_the_claimed_size(claimed: int, locked: int | None, max_mib: float) -> None:
    assert image_archive.max_unpacked_bytes(claimed, locked) == max_mib * MIB
