"""Samples in a file of constant size that stays readable after an interrupted write."""

from pathlib import Path

from sparkwright.guard import samples as memory_samples
from sparkwright.guard.samples import Meter


def test_flushed_samples_are_read_back_and_the_file_keeps_its_size(tmp_path: Path) -> None:
    path = tmp_path / "one.ring"
    ring = memory_samples.Ring(str(path), {"state": "guarding", "name": "a\nb"})
    for second in range(memory_samples.LINE_COUNT + 10):
        ring.add(1000.0 + second, second << 10, 1 << 20, 0.5)
        if second % 100 == 0:
            ring.flush()
    ring.set_header_row("state", "ended")
    ring.flush()
    header, samples = memory_samples.read(str(path))
    assert (header["state"], header["name"]) == ("ended", "a b")
    assert path.stat().st_size == memory_samples.FILE_BYTES
    assert [sample[0] for sample in samples] == [
        1000.0 + second for second in range(10, memory_samples.LINE_COUNT + 10)
    ]
    assert samples[-1] == (1000.0 + memory_samples.LINE_COUNT + 9, (memory_samples.LINE_COUNT + 9) << 10, 1 << 20, 0.5)


def test_torn_ring_is_read_up_to_the_damage(tmp_path: Path) -> None:
    path = tmp_path / "one.ring"
    ring = memory_samples.Ring(str(path), {"state": "guarding"})
    ring.add(1.0, 2048, 1024, 0)
    ring.flush()
    data = bytearray(path.read_bytes())
    begin = memory_samples.HEADER_BYTES + memory_samples.LINE_BYTES
    data[begin : begin + 2 * memory_samples.LINE_BYTES] = b"\xff" * 2 * memory_samples.LINE_BYTES
    path.write_bytes(data)
    header, samples = memory_samples.read(str(path))
    assert header == {"state": "guarding"}
    assert samples == [(1.0, 2048, 1024, 0.0)]


def test_dirty_pages_do_not_count_as_available(tmp_path: Path) -> None:
    meminfo = tmp_path / "proc/meminfo"
    meminfo.parent.mkdir()
    rows = {"MemTotal": 1000, "MemFree": 10, "MemAvailable": 500, "Buffers": 1}
    rows |= {"Dirty": 100, "Writeback": 50, "WritebackTmp": 7}
    meminfo.write_text("".join(f"{name}:   {size} kB\n" for name, size in rows.items()))
    meter = Meter(str(tmp_path))
    assert (meter.total, meter.free, meter.available) == (1000 << 10, 10 << 10, 350 << 10)
    meminfo.unlink()
    meminfo.write_text("MemTotal: 1000 kB\nMemAvailable: 20 kB\n")
    meter.read()
    assert (meter.free, meter.available) == (0, 20 << 10)
