"""Downloads that finish correctly: over a loopback hub that cuts, lies, stalls and throttles, with the real clients."""

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
from pathlib import Path
from typing import Any

import psutil
import pytest

from sparkwright.errors import Failed
from sparkwright.host.models import file_transfer, model_folders, transfer, transfer_process
from sparkwright.host.models.hub import Source
from sparkwright.host.models.transfer import RetryPolicy
from sparkwright.modules.model.hf_model import HfModel
from sparkwright.protocol.result import Result
from sparkwright.secret import Secret
from tests.modules.context import RecordingContext
from tests.modules.loopback_hub import COMMIT, MODEL, LoopbackHub

MIB = 2**20
FAST_RETRY = RetryPolicy(tries=5, pauses_s=(0.0,), progress_interval_s=0.1, hub_retries=0)
BIG = "model-00001-of-00002.safetensors"
SMALL = "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def random_bytes(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)


FILES = {
    "config.json": b'{"model_type": "tiny"}',
    INDEX: json.dumps({"weight_map": {"a": BIG, "b": SMALL}}).encode(),
    BIG: random_bytes(64 * MIB, 1),
    SMALL: random_bytes(3 * MIB, 2),
}

BIG_SHA256 = hashlib.sha256(FILES[BIG]).hexdigest()


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
    """Return True for the Range that starts in the second 10 MiB, so that the file gets a hole, and for a plain request."""
    return not range_header or int(range_header.removeprefix("bytes=").partition("-")[0]) // (10 * MIB) == 1


def kill_midway(context: RecordingContext, hub: LoopbackHub, mode: str) -> None:
    """Run it in a process of its own, and kill that (as a power cut would) in the middle of the large file."""
    hub.faults.stalled, hub.faults.stall_after, hub.faults.stall_when = {BIG}, 2 * MIB, is_second_part
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
    partial = wait_for_partial(model_folder(context), MIB, long=30 * MIB if mode == "hf_transfer" else 0)
    wait_for_whole(model_folder(context), SMALL)
    children = psutil.Process(process.pid).children()
    process.kill()
    process.wait()
    psutil.wait_procs(children, timeout=20)
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
    assert partial.exists()
    hub.faults.stalled = set()
    hub.released.set()


def wait_for_partial(top: Path, size: int, *, long: int = 0) -> Path:
    """Until the large file's partial one has so many bytes on the disk, and is so long with the holes in it."""
    deadline = threading.Event()
    for _ in range(600):
        for path in top.rglob(f"*{BIG_SHA256}*.incomplete"):
            if path.stat().st_blocks * 512 >= size and path.stat().st_size >= long:
                return path
        deadline.wait(0.05)
    raise AssertionError("no partial file grew")


def wait_for_whole(top: Path, name: str) -> None:
    """Until a file is all there, in its place or beside it."""
    for _ in range(600):
        if any(path.stat().st_size == len(FILES[name]) for path in top.rglob(name)):
            return
        threading.Event().wait(0.05)
    raise AssertionError(f"{name} never came")


# -- whole -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["plain", "hf_transfer", "xet", "auto"])
def test_every_mode_brings_it_whole_and_leaves_nothing_beside_it(
    context: RecordingContext, hub: LoopbackHub, mode: str
) -> None:
    store = hub.add_store() if mode == "xet" else None
    result = fetch_model(context, hub, mode)
    assert result.changed and is_complete(context, hub)
    assert store is None or (len(store.ranges) == 2 and hub.count_gets(BIG) == 0), "the large files come from the store"
    assert sorted(path.name for path in model_folder(context).rglob("*") if path.is_file()) == sorted(FILES)


def test_a_bare_client_that_goes_on_where_ranges_were_killed_corrupts_silently_and_it_is_caught(
    context: RecordingContext, hub: LoopbackHub
) -> None:
    """The real hf_transfer, killed, then a download that continues by size: right size, exit 0, wrong bytes. hf_model mends it."""
    target, url = model_folder(context) / f"{BIG_SHA256}.incomplete", f"{hub.url}/{MODEL}/resolve/{COMMIT}/{BIG}"
    target.parent.mkdir(parents=True)
    ranges = f"import hf_transfer\nhf_transfer.download({url!r}, {str(target)!r}, 4, {10 * MIB}, 3, 5, {{}})\n"
    hub.faults.stalled, hub.faults.stall_after, hub.faults.stall_when = {BIG}, MIB, is_second_part
    first = subprocess.Popen([sys.executable, "-c", ranges], stderr=subprocess.DEVNULL)
    assert hub.stalls.wait(30)
    wait_for_partial(model_folder(context), MIB, long=30 * MIB)
    first.kill()
    first.wait()
    hub.faults.stalled = set()
    hub.released.set()
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
    ("first", "then"),
    [("hf_transfer", "plain"), ("plain", "plain"), ("plain", "hf_transfer"), ("plain", "xet"), ("hf_transfer", "xet")],
)
def test_killed_and_started_again_nothing_is_lost_or_wrong(
    context: RecordingContext, hub: LoopbackHub, first: str, then: str
) -> None:
    hub.add_store()
    kill_midway(context, hub, first)
    before = hub.count_gets(SMALL)
    result = fetch_model(context, hub, then)
    assert result.changed and is_complete(context, hub)
    assert hub.count_gets(SMALL) == before, "a file that was whole already came again"


def test_a_plain_transfer_goes_on_where_it_was_killed(context: RecordingContext, hub: LoopbackHub) -> None:
    kill_midway(context, hub, "plain")
    hub.requests.clear()
    fetch_model(context, hub, "plain")
    ranges = [given for method, path, given in hub.requests if path == BIG and method == "GET"]
    assert [given.startswith("bytes=") and given != "bytes=0-" for given in ranges] == [True]


def test_a_transfer_from_the_chunk_store_goes_on_where_a_plain_one_was_killed(
    context: RecordingContext, hub: LoopbackHub
) -> None:
    store = hub.add_store()
    kill_midway(context, hub, "plain")
    fetch_model(context, hub, "xet")
    first, _, last = store.ranges[0].removeprefix("bytes=").partition("-")
    assert int(first) >= MIB and int(last) == len(FILES[BIG]) - 1
    assert is_complete(context, hub)


def test_a_chunk_store_that_breaks_off_is_asked_for_the_rest(context: RecordingContext, hub: LoopbackHub) -> None:
    store = hub.add_store()
    store.cuts, store.cut_after = 1, MIB
    fetch_model(context, hub, "xet")
    assert is_complete(context, hub)


def test_a_file_that_is_not_in_the_chunk_store_comes_plainly(context: RecordingContext, hub: LoopbackHub) -> None:
    result = fetch_model(context, hub, "xet")
    assert result.changed and is_complete(context, hub) and hub.count_gets(BIG) == 1


def test_what_another_version_left_is_removed(context: RecordingContext, hub: LoopbackHub) -> None:
    kill_midway(context, hub, "plain")
    mark = model_folder(context) / model_folders.STAGING_FOLDER / file_transfer.MODE_FILE
    mark.write_text("plain huggingface_hub-0.36.2")
    hub.requests.clear()
    fetch_model(context, hub, "plain")
    assert ("GET", BIG, "") in hub.requests
    assert is_complete(context, hub)


def test_only_the_wrong_file_comes_again(context: RecordingContext, hub: LoopbackHub) -> None:
    hub.faults.wrong = {SMALL: 1}
    result = fetch_model(context, hub)
    assert is_complete(context, hub)
    assert f"hash mismatch after download, retrying: {SMALL}" in "\n".join(context.notes)
    assert (hub.count_gets(SMALL), hub.count_gets(BIG)) == (2, 1)
    assert result.changed


def test_wrong_bytes_never_stand_where_a_server_reads(context: RecordingContext, hub: LoopbackHub) -> None:
    fetch_model(context, hub)
    good = (model_folder(context) / SMALL).read_bytes()
    hub.files[SMALL] = random_bytes(3 * MIB, 9)
    hub.faults.wrong = {SMALL: 99}
    with pytest.raises(Failed, match=f"hash mismatch twice: {SMALL}"):
        fetch_model(context, hub)
    assert has_content(model_folder(context) / SMALL, good)


def test_a_second_run_reads_no_file(context: RecordingContext, hub: LoopbackHub) -> None:
    fetch_model(context, hub)
    opened: list[str] = []

    def audit(name: str, given: tuple[Any, ...]) -> None:
        if name == "open" and watching and str(given[0]).startswith(str(model_folder(context))):
            opened.append(str(given[0]))

    watching = True
    sys.addaudithook(audit)
    result = fetch_model(context, hub)
    watching = False
    assert not result.changed
    assert opened == []


def test_a_shard_that_the_index_names_and_the_lock_does_not_is_named(
    context: RecordingContext, hub: LoopbackHub
) -> None:
    with pytest.raises(Failed, match=f"names missing files: {SMALL}"):
        fetch_model(context, hub, files=hub.lock_entries(without=(SMALL,)))


def test_a_half_and_a_wrong_file_are_told_apart(context: RecordingContext, hub: LoopbackHub) -> None:
    fetch_model(context, hub)
    (model_folder(context) / SMALL).write_bytes(FILES[SMALL][:1000])
    (model_folder(context) / "config.json").write_bytes(b'{"model_type": "tinY"}')
    context.check = True
    diff = {item.field: item.before for item in fetch_model(context, hub).diff}
    assert diff == {SMALL: "1000 bytes", "config.json": "wrong"}


# -- finishing ---------------------------------------------------------------------------------------------------------


class StallClock:
    """A clock that runs on by an hour a look while the hub stalls, until the transfer has noticed."""

    sleep = staticmethod(time.sleep)

    def __init__(self, hub: LoopbackHub, context: RecordingContext) -> None:
        self._hub, self._context, self._ahead_s = hub, context, 0.0

    def monotonic(self) -> float:
        if self._hub.stalls.is_set() and "Continuing with" not in "\n".join(self._context.notes):
            self._ahead_s += 3600
        return time.monotonic() + self._ahead_s


@pytest.fixture
def stall_s(hub: LoopbackHub, context: RecordingContext, monkeypatch: pytest.MonkeyPatch) -> float:
    """Return seconds without data that no busy machine lets pass, while a stall of the hub does at once."""
    monkeypatch.setattr(transfer, "time", StallClock(hub, context))
    return 600.0


@pytest.mark.parametrize(("mode", "following"), [("plain", "hf_transfer"), ("hf_transfer", "plain")])
def test_a_transfer_that_hangs_is_killed_and_goes_on_in_the_next_mode(
    context: RecordingContext, hub: LoopbackHub, stall_s: float, mode: str, following: str
) -> None:
    hub.faults.stalled, hub.faults.stall_after = {BIG}, MIB
    plain = mode == "plain"  # one request without a Range; the other mode's are the ones with
    hub.faults.stall_when = lambda wanted: not wanted if plain else wanted not in ("", "bytes=0-0")
    result = fetch_model(context, hub, mode, stall_seconds=stall_s)
    assert f"no data received for 600 s. Continuing with {following}." in "\n".join(context.notes)
    assert result.data["mode"] == following
    assert is_complete(context, hub)


def test_a_file_that_grows_in_size_but_not_on_the_disk_counts_as_hanging(
    context: RecordingContext, hub: LoopbackHub, stall_s: float
) -> None:
    """hf_transfer makes its file as long as its last range at once: only written blocks are progress."""
    hub.faults.stalled, hub.faults.stall_after = {BIG}, 0
    hub.faults.stall_when = lambda wanted: wanted not in ("", "bytes=0-0")
    result = fetch_model(context, hub, "hf_transfer", stall_seconds=stall_s)
    assert result.data["mode"] == "plain"
    assert is_complete(context, hub)


def test_a_transfer_that_is_cut_goes_on_with_the_rest(context: RecordingContext, hub: LoopbackHub) -> None:
    hub.faults.cuts, hub.faults.cut_after = {BIG: 3}, {BIG: 8 * MIB}
    fetch_model(context, hub)
    assert is_complete(context, hub)
    assert hub.sent[BIG] < 2 * len(FILES[BIG])


def test_a_hub_that_answers_500_is_tried_again_then_named(context: RecordingContext, hub: LoopbackHub) -> None:
    files = hub.lock_entries()
    hub.faults.status = 500
    with pytest.raises(Failed, match=r"the hub .* 0 of 4 missing files downloaded"):
        fetch_model(context, hub, files=files)
    assert "Retrying." in "\n".join(context.notes)


def test_half_a_copy_and_no_hub_is_a_failure_that_names_what_is_missing(
    context: RecordingContext, hub: LoopbackHub
) -> None:
    fetch_model(context, hub)
    (model_folder(context) / SMALL).unlink()
    files = hub.lock_entries()
    hub.close()
    with pytest.raises(Failed, match=f"does not answer.*still missing: .*{SMALL}"):
        fetch_model(context, hub, files=files)


def test_progress_says_rate_and_time_left_for_each_file_and_in_all(context: RecordingContext, hub: LoopbackHub) -> None:
    hub.faults.rate = 20 * MIB  # slow enough that a busy machine looks at it several times
    fetch_model(context, hub)
    result = [item for item in context.events if item["event"] == "progress" and item.get("parts")]
    last = result[-1]
    assert 0 < last["done"] <= last["total"] == sum(map(len, FILES.values()))
    part = next(part for part in last["parts"] if part["path"] == BIG)
    assert 0 < part["done"] <= part["total"] == len(FILES[BIG])
    assert part["rate"] > 0 and part["left_s"] is not None
    assert BIG in last["text"] and any("left" in item["text"] for item in result)


def test_progress_counts_bytes_on_the_disk_not_the_size_that_ranges_make(
    context: RecordingContext, hub: LoopbackHub
) -> None:
    hub.faults.rate = 10 * MIB
    fetch_model(context, hub, "hf_transfer")
    done = [item["done"] for item in context.events if item["event"] == "progress" and item.get("parts")]
    assert done == sorted(done)
    assert done[0] < len(FILES[BIG]) / 2


# -- which mode --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "many", "chosen"), [(3e6, 48e6, "hf_transfer"), (9e8, 9.1e8, "plain"), (0, 0, "plain")]
)
def test_auto_takes_ranges_where_more_connections_bring_more(one: float, many: float, chosen: str) -> None:
    source, size = Source("http://127.0.0.1:1", MODEL, COMMIT), 2 * transfer_process.SMALL_BYTES
    choice = transfer_process.choose_mode(
        source,
        [transfer_process.SampleFile(BIG, size)],
        8,
        {1: one, transfer_process.MANY_CONNECTIONS: many}.__getitem__,
    )
    assert choice.mode == chosen
    assert ("1 connection 3 MB/s, 16 connections 48 MB/s" in choice.why) == (chosen == "hf_transfer")


def test_a_throttled_way_is_measured_as_one(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.faults.rate = MIB
    source, samples = Source(hub.url, MODEL, COMMIT), [transfer_process.SampleFile(BIG, len(FILES[BIG]))]
    monkeypatch.setattr(transfer_process, "WINDOW_S", 0.4)
    value, many = (
        transfer_process.measure_rate(source, samples, connections)
        for connections in (1, transfer_process.MANY_CONNECTIONS)
    )
    assert 0 < value < many / transfer_process.MIN_SPEEDUP


@pytest.mark.parametrize(("xet", "chosen"), [(90e6, "xet"), (49e6, "xet"), (47e6, "hf_transfer"), (0.0, "hf_transfer")])
def test_auto_takes_the_chunk_store_where_that_brings_most(xet: float, chosen: str) -> None:
    source, sample = (
        Source("http://127.0.0.1:1", MODEL, COMMIT),
        transfer_process.SampleFile(BIG, 2 * transfer_process.SMALL_BYTES),
    )
    rates = {1: 3e6, transfer_process.MANY_CONNECTIONS: 48e6}
    choice = transfer_process.choose_mode(source, [sample], 8, rates.__getitem__, lambda: xet)
    assert choice.mode == chosen and ("xet" in choice.why) == bool(xet)


def test_the_chunk_store_is_measured_with_its_own_client(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    source, samples = Source(hub.url, MODEL, COMMIT), [transfer_process.SampleFile(BIG, len(FILES[BIG]))]
    monkeypatch.setattr(transfer_process, "WINDOW_S", 0.4)
    monkeypatch.setattr(transfer_process, "MAX_SILENCE_S", 60.0)
    assert transfer_process.measure_xet_rate(source, samples) == 0.0, "the hub names no store"
    store = hub.add_store()
    assert transfer_process.measure_xet_rate(source, samples) > 0
    assert len(store.ranges) == transfer_process.XET_STREAMS
    store.files = {}
    assert transfer_process.measure_xet_rate(source, samples) == 0.0, "a store without the file is no candidate"


def test_a_whole_measurement_takes_the_chunk_store_of_a_hub_that_throttles(
    context: RecordingContext, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add_store()
    hub.faults.rate = MIB
    monkeypatch.setattr(transfer_process, "WINDOW_S", 0.4)
    monkeypatch.setattr(transfer_process, "MAX_SILENCE_S", 60.0)
    monkeypatch.setattr(transfer_process, "SMALL_BYTES", MIB)
    source = Source(hub.url, MODEL, COMMIT)
    choice = transfer_process.choose_mode(source, [transfer_process.SampleFile(BIG, len(FILES[BIG]))], 8)
    assert choice.mode == "xet" and "1 connection" in choice.why


def test_too_little_to_measure_is_said(context: RecordingContext, hub: LoopbackHub) -> None:
    fetch_model(context, hub, "auto")
    assert "transfer: plain (70.3 MB is too little to measure)" in "\n".join(context.notes)


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_a_gated_model_says_where_to_accept_and_a_token_opens_it(context: RecordingContext, hub: LoopbackHub) -> None:
    hub.faults.token = "hf_right"
    with pytest.raises(Failed, match=r"is gated. Accept its license at .*/lab/tiny, then set a token"):
        fetch_model(context, hub)
    context.secrets = {"HF_TOKEN": Secret("hf_right")}
    assert fetch_model(context, hub).changed


def test_a_transfer_that_ends_in_the_middle_leaves_the_old_model_whole_and_what_is_new_waits(
    context: RecordingContext, hub: LoopbackHub
) -> None:
    fetch_model(context, hub)
    old = dict(hub.files)
    hub.files = {path: data[::-1] for path, data in old.items() if path != INDEX} | {INDEX: old[INDEX]}
    hub.faults.wrong = {BIG: 99}
    with pytest.raises(Failed, match=f"hash mismatch twice: {BIG}"):
        fetch_model(context, hub)
    assert all(has_content(model_folder(context) / path, data) for path, data in old.items()), "half of each model"
    hub.faults.wrong, before = {}, hub.count_gets(SMALL)
    fetch_model(context, hub)
    assert is_complete(context, hub)
    assert hub.count_gets(SMALL) == before, "what waited came again"


@pytest.mark.parametrize("mode", ["plain", "hf_transfer"])
def test_a_disk_that_fills_up_in_the_middle_leaves_the_old_model_and_no_partial_file(
    context: RecordingContext, hub: LoopbackHub, tmp_path: Path, mode: str
) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=40m", "none", str(place)]
    if os.geteuid() != 0 or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("a small disk needs root and mount")
    try:
        for path in ("config.json", SMALL):
            (place / path).write_bytes(b"old")
        roomy = RecordingContext(tmp_path, hub_url=hub.url, root=str(tmp_path / "root"), sandbox=True)
        (tmp_path / "root/sandbox").mkdir(parents=True)
        (tmp_path / "root/proc").mkdir(parents=True)
        (tmp_path / "root/proc/meminfo").write_text("MemTotal: 1 kB\n")
        (tmp_path / "root/sandbox/disk_free").write_text(str(10**12))
        with pytest.raises(Failed, match="the disk is full"):
            fetch_model(roomy, hub, mode, dir=str(place))
        assert not list(place.rglob("*.incomplete")) and not (place / BIG).exists()
        assert {(place / path).read_bytes() for path in ("config.json", SMALL)} == {b"old"}
        assert sum(path.stat().st_blocks * 512 for path in place.rglob("*")) < 4 * MIB, "what did not fit stays"
    finally:
        subprocess.run(["umount", str(place)], check=False)


def test_a_folder_of_somebody_else_is_a_sentence(context: RecordingContext, hub: LoopbackHub) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become nobody")
    target = context.machine.home / "theirs"
    target.mkdir(mode=0o755)
    for above in (target, *target.parents):
        if above.stat().st_uid == 0 and above != Path("/") and not above.stat().st_mode & 0o005:
            above.chmod(0o755)
    os.seteuid(65534)
    try:
        with pytest.raises(Failed, match="no permission to (create|write in)"):
            fetch_model(context, hub, dir=str(target / "m"))
    finally:
        os.seteuid(0)


def test_the_process_that_fetches_gets_the_token_on_no_command_line_and_in_no_environment(
    context: RecordingContext, hub: LoopbackHub
) -> None:
    secret = "hf_" + hashlib.sha256(b"token").hexdigest()
    hub.faults.token, context.secrets = secret, {"HF_TOKEN": Secret(secret)}
    hub.faults.stalled, hub.faults.stall_after = {BIG}, MIB
    seen: list[bytes] = []

    def look() -> None:
        assert hub.stalls.wait(30)
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(OSError):  # a process of another kind may end meanwhile
                seen.append(
                    Path(f"/proc/{child.pid}/cmdline").read_bytes() + Path(f"/proc/{child.pid}/environ").read_bytes()
                )
        hub.faults.stalled = set()
        hub.released.set()

    looker = threading.Thread(target=look)
    looker.start()
    fetch_model(context, hub)
    looker.join()
    assert any(b"sparkwright.host.models.transfer_process" in item for item in seen)
    assert not any(secret.encode() in item for item in seen)
    everything = b"".join(path.read_bytes() for path in context.machine.home.rglob("*") if path.is_file())
    assert secret.encode() not in everything
    assert secret not in json.dumps(context.events)


def test_a_child_that_is_killed_is_started_again(context: RecordingContext, hub: LoopbackHub) -> None:
    hub.faults.stalled, hub.faults.stall_after = {BIG}, MIB

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
