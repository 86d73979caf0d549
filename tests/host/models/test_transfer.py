"""Downloads with the real clients from a loopback hub that breaks off, sends wrong bytes, stalls and throttles."""

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from sparkwright.errors import Failed
from sparkwright.host.models import file_transfer, model_folders, transfer, transfer_process
from sparkwright.host.models.hub import Source
from sparkwright.host.models.transfer import RetryPolicy
from sparkwright.host.models.transfer_process import HF_TRANSFER_CONNECTIONS, SampleFile
from sparkwright.modules.model.hf_model import HfModel
from sparkwright.protocol.events import Event
from sparkwright.protocol.result import Result
from sparkwright.secret import Secret
from tests.modules.context import RecordingContext
from tests.modules.loopback_hub import COMMIT, MODEL, LoopbackHub
from tests.waiting import wait_until

MIB = 2**20
FAST_RETRY = RetryPolicy(max_tries=5, pauses_s=(0.0,), progress_interval_s=0.1, hub_retries=0)
BIG = "model-00001-of-00002.safetensors"
SMALL = "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


FILES = {
    "config.json": b'{"model_type": "tiny"}',
    INDEX: json.dumps({"weight_map": {"a": BIG, "b": SMALL}}).encode(),
    BIG: random.Random(1).randbytes(64 * MIB),
    SMALL: random.Random(2).randbytes(3 * MIB),
}
BIG_SHA256 = hashlib.sha256(FILES[BIG]).hexdigest()
BIG_SAMPLE = SampleFile(BIG, len(FILES[BIG]))


@pytest.fixture
def context(tmp_path: Path, hub: LoopbackHub) -> RecordingContext:
    return RecordingContext(tmp_path, hub_url=hub.url)


def fetch_model(context: RecordingContext, hub: LoopbackHub, mode: Any = "plain", **fields: Any) -> Result:
    arguments = {"id": MODEL, "commit": COMMIT, "files": hub.lock_entries(), "dir": "~/m", "transfer": mode, **fields}
    return HfModel(FAST_RETRY).run(HfModel.Args(**arguments), context)


def model_folder(context: RecordingContext) -> Path:
    return context.machine.home / "m"


def has_content(path: Path, data: bytes) -> bool:
    return hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256(data).digest()


def is_complete(context: RecordingContext, hub: LoopbackHub) -> bool:
    return all(has_content(model_folder(context) / path, data) for path, data in hub.files.items())


def is_second_part(range_header: str) -> bool:
    """Return True for the Range that starts in the second 10 MiB, which leaves a hole, and for a request without a Range."""
    return not range_header or int(range_header.removeprefix("bytes=").partition("-")[0]) // (10 * MIB) == 1


def stall(hub: LoopbackHub, after: int, when: Callable[[str], bool] = lambda range_header: True) -> None:
    """Stall downloads of the large file after this number of bytes. when: for requests with such a Range."""
    hub.faults.stalled, hub.faults.stall_after, hub.faults.stall_when = {BIG}, after, when


def release(hub: LoopbackHub) -> None:
    hub.faults.stalled = set()
    hub.released.set()


def kill_midway(context: RecordingContext, hub: LoopbackHub, mode: str) -> None:
    """Run a transfer in another process, and kill it in the middle of the large file, as in a power cut."""
    stall(hub, 2 * MIB, is_second_part)
    program = f"""
import json, sys
from pathlib import Path
from tests.modules.context import RecordingContext
from sparkwright.modules.model.hf_model import HfModel
HfModel().run(HfModel.Args(**json.loads(sys.stdin.read())), RecordingContext(Path({str(context.machine.home)!r}), hub_url={hub.url!r}))
"""
    arguments = {"id": MODEL, "commit": COMMIT, "files": hub.lock_entries(), "dir": "~/m", "transfer": mode}
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(json.dumps(arguments).encode())
    process.stdin.close()
    assert hub.stalls.wait(30)
    partial = wait_for_partial(model_folder(context), min_length=30 * MIB if mode == "hf_transfer" else 0)
    wait_until(lambda: any(path.stat().st_size == len(FILES[SMALL]) for path in model_folder(context).rglob(SMALL)))
    children = psutil.Process(process.pid).children()
    process.kill()
    process.wait()
    psutil.wait_procs(children, timeout=20)
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
    assert partial.exists()
    release(hub)


def wait_for_partial(folder: Path, *, min_length: int) -> Path:
    """Wait for a partial large file with at least 1 MiB on the disk. min_length: including its holes."""

    def find() -> Path | None:
        for path in folder.rglob(f"*{BIG_SHA256}*.incomplete"):
            if path.stat().st_blocks * 512 >= MIB and path.stat().st_size >= min_length:
                return path
        return None

    path: Path = wait_until(find, "a partial file")
    return path


@pytest.mark.parametrize("mode", ["plain", "hf_transfer", "xet", "auto"])
def test_every_mode_downloads_all_files_and_leaves_no_others(
    context: RecordingContext, hub: LoopbackHub, mode: str
) -> None:
    store = hub.add_store() if mode == "xet" else None
    result = fetch_model(context, hub, mode)
    assert result.changed and is_complete(context, hub)
    assert store is None or (len(store.ranges) == 2 and hub.count_gets(BIG) == 0), "large files come from the store"
    assert sorted(path.name for path in model_folder(context).rglob("*") if path.is_file()) == sorted(FILES)


def test_a_file_corrupted_by_a_killed_hf_transfer_is_downloaded_again(
    context: RecordingContext, hub: LoopbackHub
) -> None:
    """If the real hf_transfer is killed and the download continues by size, the size is right and the bytes are wrong."""
    target, url = model_folder(context) / f"{BIG_SHA256}.incomplete", f"{hub.url}/{MODEL}/resolve/{COMMIT}/{BIG}"
    target.parent.mkdir(parents=True)
    program = f"import hf_transfer\nhf_transfer.download({url!r}, {str(target)!r}, 4, {10 * MIB}, 3, 5, {{}})\n"
    stall(hub, MIB, is_second_part)
    first = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    assert hub.stalls.wait(30)
    wait_for_partial(model_folder(context), min_length=30 * MIB)
    first.kill()
    first.wait()
    release(hub)
    rest = urllib.request.Request(url, headers={"Range": f"bytes={target.stat().st_size}-"})
    if target.stat().st_size < len(FILES[BIG]):
        with urllib.request.urlopen(rest) as answer, target.open("ab") as file:
            file.write(answer.read())
    target = target.rename(model_folder(context) / BIG)
    assert target.stat().st_size == len(FILES[BIG])
    assert not has_content(target, FILES[BIG])
    for path in (INDEX, SMALL, "config.json"):
        (model_folder(context) / path).write_bytes(FILES[path])
    result = fetch_model(context, hub)
    assert result.data["fetched"] == [BIG]
    assert is_complete(context, hub)


@pytest.mark.parametrize(
    ("first", "second"),
    [("hf_transfer", "plain"), ("plain", "plain"), ("plain", "hf_transfer"), ("plain", "xet"), ("hf_transfer", "xet")],
)
def test_a_killed_transfer_is_completed_in_any_mode(
    context: RecordingContext, hub: LoopbackHub, first: str, second: str
) -> None:
    hub.add_store()
    kill_midway(context, hub, first)
    before = hub.count_gets(SMALL)
    result = fetch_model(context, hub, second)
    assert result.changed and is_complete(context, hub)
    assert hub.count_gets(SMALL) == before, "a complete file was downloaded again"


def test_a_killed_plain_transfer_continues_at_the_same_position(context: RecordingContext, hub: LoopbackHub) -> None:
    kill_midway(context, hub, "plain")
    hub.requests.clear()
    fetch_model(context, hub, "plain")
    (header,) = (header for method, path, header in hub.requests if path == BIG and method == "GET")
    assert header.startswith("bytes=") and header != "bytes=0-"


def test_a_transfer_from_the_chunk_store_continues_a_killed_plain_transfer(
    context: RecordingContext, hub: LoopbackHub
) -> None:
    store = hub.add_store()
    kill_midway(context, hub, "plain")
    fetch_model(context, hub, "xet")
    first, _, last = store.ranges[0].removeprefix("bytes=").partition("-")
    assert int(first) >= MIB and int(last) == len(FILES[BIG]) - 1
    assert is_complete(context, hub)


def test_the_rest_is_requested_from_a_chunk_store_that_breaks_off(context: RecordingContext, hub: LoopbackHub) -> None:
    store = hub.add_store()
    store.cuts, store.cut_after = 1, MIB
    fetch_model(context, hub, "xet")
    assert is_complete(context, hub)


def test_a_file_that_is_not_in_the_chunk_store_is_downloaded_in_plain_mode(
    context: RecordingContext, hub: LoopbackHub
) -> None:
    result = fetch_model(context, hub, "xet")
    assert result.changed and is_complete(context, hub) and hub.count_gets(BIG) == 1


def test_partial_files_of_another_version_are_removed(context: RecordingContext, hub: LoopbackHub) -> None:
    kill_midway(context, hub, "plain")
    mode_file = model_folder(context) / model_folders.STAGING_FOLDER / file_transfer.MODE_FILE
    mode_file.write_text("plain huggingface_hub-0.36.2")
    hub.requests.clear()
    fetch_model(context, hub, "plain")
    assert ("GET", BIG, "") in hub.requests
    assert is_complete(context, hub)


def test_only_a_file_with_wrong_bytes_is_downloaded_again(context: RecordingContext, hub: LoopbackHub) -> None:
    hub.faults.wrong = {SMALL: 1}
    result = fetch_model(context, hub)
    assert is_complete(context, hub)
    assert f"hash mismatch after download, retrying: {SMALL}" in "\n".join(context.notes)
    assert (hub.count_gets(SMALL), hub.count_gets(BIG)) == (2, 1)
    assert result.changed


def test_a_file_is_not_replaced_by_one_with_wrong_bytes(context: RecordingContext, hub: LoopbackHub) -> None:
    fetch_model(context, hub)
    good = (model_folder(context) / SMALL).read_bytes()
    hub.files[SMALL] = random.Random(9).randbytes(3 * MIB)
    hub.faults.wrong = {SMALL: 99}
    with pytest.raises(Failed, match=f"hash mismatch twice: {SMALL}") as raised:
        fetch_model(context, hub)
    assert raised.value.fix.endswith("try another HF_ENDPOINT."), "the transfer was plain already"
    assert has_content(model_folder(context) / SMALL, good)


def test_a_second_run_reads_no_file(context: RecordingContext, hub: LoopbackHub) -> None:
    fetch_model(context, hub)
    opened: list[str] = []

    def audit(name: str, args: tuple[Any, ...]) -> None:
        if name == "open" and watching and str(args[0]).startswith(str(model_folder(context))):
            opened.append(str(args[0]))

    watching = True
    sys.addaudithook(audit)
    result = fetch_model(context, hub)
    watching = False
    assert not result.changed
    assert opened == []


def test_a_shard_of_the_index_that_is_not_locked_is_named(context: RecordingContext, hub: LoopbackHub) -> None:
    with pytest.raises(Failed, match=f"names missing files: {SMALL}"):
        fetch_model(context, hub, files=hub.lock_entries(without=(SMALL,)))


def test_incomplete_and_wrong_files_are_distinguished(context: RecordingContext, hub: LoopbackHub) -> None:
    fetch_model(context, hub)
    (model_folder(context) / SMALL).write_bytes(FILES[SMALL][:1000])
    (model_folder(context) / "config.json").write_bytes(b'{"model_type": "tinY"}')
    context.check = True
    diff = {item.field: item.before for item in fetch_model(context, hub).diff}
    assert diff == {SMALL: "1000 bytes", "config.json": "wrong"}


class StallClock:
    """A clock that advances by an hour at each reading while the hub stalls, until the transfer has noticed."""

    sleep = staticmethod(time.sleep)

    def __init__(self, hub: LoopbackHub, context: RecordingContext) -> None:
        self._hub, self._context, self._ahead_s = hub, context, 0.0

    def monotonic(self) -> float:
        if self._hub.stalls.is_set() and "Continuing with" not in "\n".join(self._context.notes):
            self._ahead_s += 3600
        return time.monotonic() + self._ahead_s


@pytest.fixture
def stall_s(hub: LoopbackHub, context: RecordingContext, monkeypatch: pytest.MonkeyPatch) -> float:
    """A limit in seconds without data, which a stall of the hub exceeds at once and a busy machine does not."""
    monkeypatch.setattr(transfer, "time", StallClock(hub, context))
    return 600.0


def has_range(range_header: str) -> bool:
    """Return True for hf_transfer's requests of data; a plain transfer sends no Range."""
    return range_header not in ("", "bytes=0-0")


@pytest.mark.parametrize(
    ("mode", "next_mode", "after"),
    [("plain", "hf_transfer", MIB), ("hf_transfer", "plain", MIB), ("hf_transfer", "plain", 0)],
)
def test_a_stalled_transfer_is_killed_and_continues_in_another_mode(
    context: RecordingContext, hub: LoopbackHub, stall_s: float, mode: str, next_mode: str, after: int
) -> None:
    stall(hub, after, has_range if mode == "hf_transfer" else lambda header: not header)
    result = fetch_model(context, hub, mode, stall_seconds=stall_s)
    assert f"no data received for 600 s. Continuing with {next_mode}." in "\n".join(context.notes)
    assert result.data["mode"] == next_mode
    assert is_complete(context, hub)


def test_a_transfer_that_breaks_off_continues_with_the_rest(context: RecordingContext, hub: LoopbackHub) -> None:
    hub.faults.cuts, hub.faults.cut_after = {BIG: 3}, {BIG: 8 * MIB}
    fetch_model(context, hub)
    assert is_complete(context, hub)
    assert hub.sent[BIG] < 2 * len(FILES[BIG])


def test_a_hub_that_returns_500_is_tried_again_and_then_reported(context: RecordingContext, hub: LoopbackHub) -> None:
    files = hub.lock_entries()
    hub.faults.status = 500
    with pytest.raises(Failed, match=r"the hub .* 0 of 4 missing files downloaded"):
        fetch_model(context, hub, files=files)
    assert "Retrying." in "\n".join(context.notes)


def test_a_transfer_makes_the_pause_that_the_hub_requests(context: RecordingContext, hub: LoopbackHub) -> None:
    hub.faults.busy, hub.faults.busy_path = [{"Retry-After": "1"}], INDEX
    fetch_model(context, hub)
    assert is_complete(context, hub)
    assert "returned 429. Retrying in 1 s." in "\n".join(context.notes)


def test_without_a_hub_the_missing_files_are_named(context: RecordingContext, hub: LoopbackHub) -> None:
    fetch_model(context, hub)
    (model_folder(context) / SMALL).unlink()
    files = hub.lock_entries()
    hub.close()
    with pytest.raises(Failed, match=f"does not answer.*still missing: .*{SMALL}"):
        fetch_model(context, hub, files=files)


def list_progress(context: RecordingContext) -> list[Event]:
    return [item for item in context.events if item["event"] == "progress" and item.get("parts")]


def test_progress_has_the_rate_and_the_remaining_time(context: RecordingContext, hub: LoopbackHub) -> None:
    hub.faults.rate = 20 * MIB  # slow enough for several reports on a busy machine
    fetch_model(context, hub)
    progress = list_progress(context)
    totals, last = [item["done"] for item in progress], progress[-1]
    assert totals == sorted(totals)
    assert 0 < last["done"] <= last["total"] == sum(map(len, FILES.values()))
    part = next(part for part in last["parts"] if part["path"] == BIG)
    assert 0 < part["done"] <= part["total"] == len(FILES[BIG])
    assert part["rate"] > 0 and part["left_s"] is not None
    assert BIG in last["text"] and any("left" in item["text"] for item in progress)


def test_progress_counts_bytes_on_the_disk(
    context: RecordingContext, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """hf_transfer leaves a hole in the file while an earlier range is missing."""
    reports: list[int] = []

    def report(done: int, *args: Any, **options: Any) -> None:
        if hub.faults.stalled and hub.sent.get(BIG, 0) >= len(FILES[BIG]) - 10 * MIB:
            reports.append(done)
            if len(reports) == 10:
                raise InterruptedError

    monkeypatch.setattr(context, "progress", report)
    stall(hub, 0, is_second_part)
    with pytest.raises(InterruptedError):
        fetch_model(context, hub, "hf_transfer")
    assert 30 * MIB < max(reports) < sum(map(len, FILES.values())) - 8 * MIB


LARGE_SAMPLE = SampleFile(BIG, 2 * transfer_process.MIN_MEASURED_BYTES)
NO_SOURCE = Source("http://127.0.0.1:1", MODEL, COMMIT)


@pytest.fixture
def quick_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_process, "WINDOW_S", 0.4)
    monkeypatch.setattr(transfer_process, "MAX_SILENCE_S", 60.0)
    monkeypatch.setattr(transfer_process, "MIN_MEASURED_BYTES", MIB)


@pytest.fixture
def source(hub: LoopbackHub) -> Source:
    return Source(hub.url, MODEL, COMMIT)


@pytest.mark.usefixtures("quick_measurement")
def test_more_connections_are_faster_if_each_is_throttled(hub: LoopbackHub, source: Source) -> None:
    hub.faults.rate = MIB
    one, many = (transfer_process.measure_rate(source, [BIG_SAMPLE], count) for count in (1, HF_TRANSFER_CONNECTIONS))
    assert 0 < one < many / transfer_process.MIN_SPEEDUP


@pytest.mark.parametrize(
    ("one", "many", "xet", "chosen"),
    [
        (3e6, 48e6, 0.0, "hf_transfer"), (9e8, 9.1e8, 0.0, "plain"), (0, 0, 0.0, "plain"),
        (3e6, 48e6, 90e6, "xet"), (3e6, 48e6, 49e6, "xet"), (3e6, 48e6, 47e6, "hf_transfer"),
    ],
)  # fmt: skip
def test_auto_chooses_the_mode_by_the_measured_rates(one: float, many: float, xet: float, chosen: str) -> None:
    rates = {1: one, HF_TRANSFER_CONNECTIONS: many}
    choice = transfer_process.choose_mode(NO_SOURCE, [LARGE_SAMPLE], 8, rates.__getitem__, lambda: xet)
    assert choice.mode == chosen and ("xet" in choice.reason) == bool(xet)
    assert ("1 connection 3 MB/s, 16 connections 48 MB/s" in choice.reason) == (many == 48e6)


@pytest.mark.usefixtures("quick_measurement")
def test_the_chunk_store_is_measured_with_its_own_client(hub: LoopbackHub, source: Source) -> None:
    assert transfer_process.measure_xet_rate(source, [BIG_SAMPLE]) == 0.0, "the hub has no store"
    store = hub.add_store()
    assert transfer_process.measure_xet_rate(source, [BIG_SAMPLE]) > 0
    assert len(store.ranges) == transfer_process.XET_STREAMS
    store.files = {}
    assert transfer_process.measure_xet_rate(source, [BIG_SAMPLE]) == 0.0, "the store does not have the file"


@pytest.mark.usefixtures("quick_measurement")
def test_auto_chooses_the_chunk_store_of_a_throttled_hub(hub: LoopbackHub, source: Source) -> None:
    hub.add_store()
    hub.faults.rate = MIB
    choice = transfer_process.choose_mode(source, [BIG_SAMPLE], 8)
    assert choice.mode == "xet" and "1 connection" in choice.reason


def test_a_small_model_is_not_measured(context: RecordingContext, hub: LoopbackHub) -> None:
    fetch_model(context, hub, "auto")
    assert "transfer: plain (70.3 MB is too little to measure)" in "\n".join(context.notes)


def test_a_gated_model_needs_a_token(context: RecordingContext, hub: LoopbackHub) -> None:
    hub.faults.token = "hf_right"
    with pytest.raises(Failed, match=r"is gated. Accept its license at .*/lab/tiny, then set a token"):
        fetch_model(context, hub)
    context.secrets = {"HF_TOKEN": Secret("hf_right")}
    assert fetch_model(context, hub).changed


def test_a_failed_transfer_leaves_the_old_model_and_keeps_its_downloads(
    context: RecordingContext, hub: LoopbackHub
) -> None:
    fetch_model(context, hub)
    old = dict(hub.files)
    hub.files = {path: data[::-1] for path, data in old.items() if path != INDEX} | {INDEX: old[INDEX]}
    hub.faults.wrong = {BIG: 99}
    with pytest.raises(Failed, match=f"hash mismatch twice: {BIG}"):
        fetch_model(context, hub)
    assert all(has_content(model_folder(context) / path, data) for path, data in old.items()), "a mixture of two models"
    hub.faults.wrong, before = {}, hub.count_gets(SMALL)
    fetch_model(context, hub)
    assert is_complete(context, hub)
    assert hub.count_gets(SMALL) == before, "a kept file was downloaded again"


@pytest.mark.parametrize("mode", ["plain", "hf_transfer"])
def test_a_full_disk_leaves_the_old_model_and_no_partial_file(
    context: RecordingContext, hub: LoopbackHub, tmp_path: Path, mode: str
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=40m", "none", str(disk)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small disk needs root and mount")
    try:
        for path in ("config.json", SMALL):
            (disk / path).write_bytes(b"old")
        # the simulated host reports enough space
        context = RecordingContext(tmp_path, hub_url=hub.url, root=str(tmp_path / "root"), sandbox=True)
        for path, text in {"proc/meminfo": "MemTotal: 1 kB\n", "sandbox/disk_free": str(10**12)}.items():
            (tmp_path / "root" / path).parent.mkdir(parents=True)
            (tmp_path / "root" / path).write_text(text)
        with pytest.raises(Failed, match="the disk is full"):
            fetch_model(context, hub, mode, dir=str(disk))
        assert not list(disk.rglob("*.incomplete")) and not (disk / BIG).exists()
        assert {(disk / path).read_bytes() for path in ("config.json", SMALL)} == {b"old"}
        assert sum(path.stat().st_blocks * 512 for path in disk.rglob("*")) < 4 * MIB, "the partial download remains"
    finally:
        subprocess.run(["umount", str(disk)], check=False)


def test_a_folder_of_another_user_is_reported(context: RecordingContext, hub: LoopbackHub) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become nobody")
    target = context.machine.home / "theirs"
    target.mkdir(mode=0o755)
    for folder in (target, *target.parents):
        if folder.stat().st_uid == 0 and folder != Path("/") and not folder.stat().st_mode & 0o005:
            folder.chmod(0o755)
    os.seteuid(65534)
    try:
        with pytest.raises(Failed, match="no permission to (create|write in)"):
            fetch_model(context, hub, dir=str(target / "m"))
    finally:
        os.seteuid(0)


def test_the_token_is_not_in_the_command_line_or_environment_of_the_transfer(
    context: RecordingContext, hub: LoopbackHub
) -> None:
    secret = "hf_" + hashlib.sha256(b"token").hexdigest()
    hub.faults.token, context.secrets = secret, {"HF_TOKEN": Secret(secret)}
    stall(hub, MIB)
    process_data: list[bytes] = []

    def read_processes() -> None:
        assert hub.stalls.wait(30)
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(OSError):  # another process may have ended
                files = (Path(f"/proc/{child.pid}/{name}") for name in ("cmdline", "environ"))
                process_data.append(b"".join(path.read_bytes() for path in files))
        release(hub)

    reader = threading.Thread(target=read_processes)
    reader.start()
    fetch_model(context, hub)
    reader.join()
    assert any(b"sparkwright.host.models.transfer_process" in data for data in process_data)
    assert not any(secret.encode() in data for data in process_data)
    assert not any(secret.encode() in path.read_bytes() for path in context.machine.home.rglob("*") if path.is_file())
    assert secret not in json.dumps(context.events)


def test_a_killed_transfer_process_is_started_again(context: RecordingContext, hub: LoopbackHub) -> None:
    stall(hub, MIB)

    def kill() -> None:
        assert hub.stalls.wait(30)
        hub.faults.stalled = set()
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error):  # a zombie of an earlier test has no command line
                if "sparkwright.host.models.transfer_process" in child.cmdline():
                    os.kill(child.pid, signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    fetch_model(context, hub)
    assert "the transfer process exited with -9. Retrying." in "\n".join(context.notes)
    assert is_complete(context, hub)
