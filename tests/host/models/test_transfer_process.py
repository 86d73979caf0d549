"""A hostile hub: names outside the folder, false sizes, redirects, endless answers. Real clients, real HTTP."""

import contextlib
import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkwright.errors import Failed
from sparkwright.host.models import file_transfer, transfer_process
from sparkwright.host.models import hub as hub_client
from sparkwright.host.models.file_transfer import TransferSettings
from sparkwright.host.models.hub import HubDown, Source
from sparkwright.host.models.transfer import RetryPolicy
from sparkwright.modules.model.hf_model import HfModel
from sparkwright.modules.model.model_files import VerifyModel
from sparkwright.modules.spark_lock import LockModel
from sparkwright.modules.storage import RemoveModel
from sparkwright.project import lockfile
from sparkwright.protocol.result import Result
from sparkwright.secret import Secret
from tests.host.models.test_model_folders import set_mounts
from tests.modules.chunk_store import TOKEN
from tests.modules.context import RecordingContext
from tests.modules.loopback_hub import COMMIT, MODEL, LoopbackHub
from tests.modules.two_faced import two_faced

FAST_RETRY = RetryPolicy(max_tries=2, pauses_s=(0.0,), hub_retries=0)
MIB = 2**20
KEYS = "../.ssh/authorized_keys"
BIG = "model.safetensors"
ODD = (
    "a, b.json", "x[1].safetensors", "ü #1.txt", "yes", "'q': x", "100%25?.txt", "~", "- {x}.bin", "A.json", "a.json",
    "sub dir/モデル 💥.gguf",
)  # fmt: skip


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    with contextlib.closing(
        LoopbackHub({"config.json": b"{}", BIG: bytes(range(256)) * (16 * MIB // 256)})
    ) as loopback:
        yield loopback


@pytest.fixture
def context(tmp_path: Path, hub: LoopbackHub) -> RecordingContext:
    (tmp_path / "home").mkdir()
    return RecordingContext(tmp_path / "home", hub_url=hub.url)


def lock_model(context: RecordingContext, **fields: Any) -> dict[str, Any]:
    return dict(LockModel().run(LockModel.Args(**{"id": MODEL, **fields}), context).data)


def fetch_files(
    context: RecordingContext, files: list[Any], mode: Any = "plain", retry: RetryPolicy = FAST_RETRY, **options: Any
) -> Result:
    args = HfModel.Args(id=MODEL, commit=COMMIT, files=files, dir="~/m", transfer=mode, **options)
    return HfModel(retry).run(args, context)


def redirect(hub: LoopbackHub, path: str, target: str, **headers: str) -> dict[str, Any]:
    """Redirect a file like the real hub, and return its row in the lock."""
    row = hub.row(path)
    etag = row["sha256"] or row["blob_id"]
    linked = {"X-Linked-Size": str(row["size_bytes"]), "X-Linked-Etag": etag, "X-Repo-Commit": COMMIT}
    hub.faults.moved[path] = target
    hub.faults.headers[path] = {**linked, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return row


@pytest.fixture
def other_hub(hub: LoopbackHub) -> Iterator[LoopbackHub]:
    """A hub with the same files at another address."""
    with contextlib.closing(LoopbackHub(dict(hub.files), address="127.0.0.2")) as other:
        yield other


def files_outside(context: RecordingContext) -> set[str]:
    """Return the files in the home outside the model and sparkwright's own state."""
    home = context.machine.home
    paths = (path.relative_to(home).parts for path in home.rglob("*") if not path.is_dir())
    return {"/".join(parts) for parts in paths if parts[0] != "m" and parts[:2] != (".local", "state")}


@pytest.mark.parametrize(
    ("names", "error"),
    [
        ([KEYS], "leaves its folder"),
        (["sub/../../x"], "leaves its folder"),
        (["/etc/cron.d/x"], "leaves its folder"),
        (["a\\..\\b"], "has a backslash"),
        (["a\x1b]52;c;aGk=\x07"], r"'a\\x1b\]52;c;aGk=\\x07' that has a control character"),
        ([".before/config.json"], "is in a folder reserved"),
        ([".cache/huggingface/x"], "is in a folder reserved"),
        (["a" * 250], "too long"),
        (["a", "a/b"], "'a' as a file and as a folder"),
    ],
)
def test_a_model_with_invalid_file_names_is_not_locked(
    context: RecordingContext, hub: LoopbackHub, names: list[str], error: str
) -> None:
    hub.files.update(dict.fromkeys(names, b"ssh-ed25519 AAAA"))
    with pytest.raises(Failed, match=error):
        lock_model(context)
    assert len(lock_model(context, ignore=names)["files"]) == 2


def test_nothing_is_written_outside_the_folder_by_a_hostile_plan(context: RecordingContext, hub: LoopbackHub) -> None:
    hub.files = {KEYS: b"ssh-ed25519 AAAA of somebody else"}
    with pytest.raises(Failed, match="leaves its folder"):
        fetch_files(context, hub.lock_entries())
    assert files_outside(context) == set()


@pytest.mark.parametrize("mode", ["plain", "hf_transfer"])
def test_odd_names_are_locked_fetched_verified_and_removed(
    context: RecordingContext, hub: LoopbackHub, tmp_path: Path, mode: str
) -> None:
    hub.files = {name: name.encode() * 10 for name in ODD} | {"x[1].safetensors": bytes(range(256)) * (80 * 2**10)}
    lockfile.Lock().with_model(MODEL, "main", lock_model(context)).save(tmp_path)
    entry = lockfile.load(tmp_path).model(MODEL, "main")
    assert entry is not None and {file["path"] for file in entry["files"]} == set(ODD)
    fetch_files(context, entry["files"], mode)
    folder = context.machine.home / "m"
    assert all((folder / name).read_bytes() == data for name, data in hub.files.items())
    args = VerifyModel.Args(id=MODEL, commit=COMMIT, files=entry["files"], dir="~/m", deep=True)
    assert VerifyModel().run(args, context).data["wrong"] == []
    set_mounts(context, {})
    RemoveModel().run(RemoveModel.Args(dir="~/m"), context)
    assert not folder.exists()


def test_a_name_with_brackets_matches_itself_as_a_pattern(context: RecordingContext, hub: LoopbackHub) -> None:
    hub.files["x[1].bin"] = b"x"
    assert [file["path"] for file in lock_model(context, allow=["x[1].bin"])["files"]] == ["x[1].bin"]


@pytest.mark.parametrize(
    "fields", [{"id": "../x/y"}, {"id": "a/b/c"}, {"id": "a/b\x1b"}, {"revision": "a b"}, {"revision": "../../x"}]
)
def test_an_invalid_model_id_or_revision_is_refused_without_a_request(
    context: RecordingContext, hub: LoopbackHub, fields: dict[str, str]
) -> None:
    with pytest.raises(Failed, match="is not a (model's name|valid git branch, tag or commit)"):
        lock_model(context, **fields)
    assert hub.requests == []


def model_info(**fields: Any) -> bytes:
    sibling = {"rfilename": "a", "size": 1, "blobId": "b" * 40, **fields.pop("sibling", {})}
    return json.dumps({"id": MODEL, "sha": COMMIT, "siblings": [sibling], **fields}).encode()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (model_info(sha="../../x"), "the commit in the hub's response about lab/tiny is not valid: '../../x'"),
        (model_info(siblings=None), "has no list of files"),
        (model_info(siblings=["a"]), "is not text"),
        (model_info(sibling={"size": -1}), "a size of -1 bytes"),
        (model_info(sibling={"size": 10**20}), "a size of 1.* bytes"),
        (model_info(sibling={"size": "1"}), "a size of 1 bytes"),
        (model_info(sibling={"blobId": None}), "no hash"),
        (model_info(sibling={"lfs": {"sha256": "../../x"}}), "the sha256 ../../x"),
        (model_info(siblings=[{"rfilename": "a", "size": 1, "blobId": "b" * 40}] * 2), "the file 'a' twice"),
        (model_info(siblings=[{}] * 20_001), "20001 files; at most 20000"),
        (b"<html>", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "has no list of files"),
        (b" " * (17 * MIB), "exceeds 16 MiB"),
    ],
)
def test_an_invalid_answer_about_a_model_is_refused(
    context: RecordingContext, hub: LoopbackHub, answer: bytes, error: str
) -> None:
    hub.faults.info = answer
    with pytest.raises(Failed, match=error):
        lock_model(context)


def test_an_answer_about_another_commit_is_refused(context: RecordingContext, hub: LoopbackHub) -> None:
    with pytest.raises(Failed, match=f"about commit {COMMIT} instead of {'c' * 40}"):
        lock_model(context, revision="c" * 40)


def test_a_busy_hub_that_requests_no_pause_is_tried_again(context: RecordingContext, hub: LoopbackHub) -> None:
    hub.faults.status, hub.faults.headers[""] = 503, {"Retry-After": "-5"}
    with pytest.raises(Failed, match="returned 503"):
        lock_model(context)
    assert len(hub.paths) == 3


@pytest.mark.parametrize("path", ["revision/main", "config.json"])
def test_the_pause_that_a_busy_hub_requests_is_made_and_reported(
    context: RecordingContext, hub: LoopbackHub, path: str
) -> None:
    hub.faults.busy, hub.faults.busy_path = [{"Retry-After": "1"}, {"RateLimit": '"api";r=0;t=0'}], path
    assert lock_model(context)["commit"] == COMMIT
    assert hub.faults.busy == []
    assert context.notes == [f"the hub {hub.url} returned 429. Retrying in 1 s."] * 2


@pytest.mark.parametrize(
    ("proxy", "kind", "problem"),
    [
        ("http://ops:word-1234@127.0.0.1:1", HubDown, "is behind the proxy 127.0.0.1:1, which refuses the connection"),
        ("https://ops:word-1234@127.0.0.1:1", Failed, "the proxy in the environment is not an http:// URL"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_named(
    context: RecordingContext, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch, proxy: str, kind: Any, problem: str
) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(kind, match=f"the hub {hub.url} .*{problem}.*Check HTTP_PROXY") as raised:
        lock_model(context)
    assert type(raised.value) is kind and "word-1234" not in str(raised.value)


def test_a_gguf_model_is_not_pinned_without_its_header(context: RecordingContext, hub: LoopbackHub) -> None:
    hub.files["m-Q4_K_M.gguf"] = b"GGUF"
    hub.faults.busy, hub.faults.busy_path = [{}] * 99, "m-Q4_K_M.gguf"
    with pytest.raises(HubDown, match="returned 429"):
        lock_model(context, engine="llama_cpp")


@pytest.mark.parametrize("mode", ["lock", "plain", "hf_transfer"])
def test_a_long_pause_is_reported_instead_of_made(context: RecordingContext, hub: LoopbackHub, mode: str) -> None:
    files = hub.lock_entries()
    hub.faults.status, hub.faults.headers[""] = 503, {"Retry-After": "86400"}
    with pytest.raises(Failed, match="returned 503 and requests a pause of 24 h. Run the command again after that"):
        lock_model(context) if mode == "lock" else fetch_files(context, files, mode)
    assert not any("Retrying" in note for note in context.notes)


def test_a_busy_hub_does_not_discard_a_partial_file(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.faults.cuts, hub.faults.cut_after = {BIG: 1}, {BIG: 8 * MIB}
    source, file, settings = Source(hub.url, MODEL, COMMIT), hub.row(BIG), TransferSettings("plain", 0)
    with pytest.raises(HubDown, match="interrupted"):
        file_transfer.download_file(source, file, tmp_path, settings)
    hub.faults.busy, hub.faults.busy_path, hub.faults.busy_method = [{}], BIG, "GET"
    with pytest.raises(HubDown, match="returned 429"):
        file_transfer.download_file(source, file, tmp_path, settings)
    file_transfer.download_file(source, file, tmp_path, settings)
    assert hub.sent[BIG] == file["size_bytes"]


def test_a_hub_that_does_not_answer_is_given_up(
    context: RecordingContext, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.faults.silent = True
    monkeypatch.setattr(hub_client, "RESPONSE_TIMEOUT_S", 0.5)
    with pytest.raises(Failed, match="does not answer"):
        lock_model(context)


def test_an_error_of_the_hub_is_shown_in_one_line(context: RecordingContext, hub: LoopbackHub) -> None:
    hub.faults.status = 418
    with pytest.raises(Failed, match="returned") as excinfo:
        lock_model(context)
    assert "\n" not in excinfo.value.message


@pytest.mark.parametrize("mode", ["plain", "hf_transfer"])
@pytest.mark.parametrize("header", ["Content-Length", "X-Linked-Size"])
def test_another_size_than_the_locked_one_is_refused_before_the_download(
    context: RecordingContext, hub: LoopbackHub, mode: str, header: str
) -> None:
    files = hub.lock_entries()
    hub.faults.headers[BIG] = {header: str(10**12)}
    with pytest.raises(Failed, match=f"{BIG} has 1000000000000 bytes on the hub, {16 * MIB} in spark.lock"):
        fetch_files(context, files, mode)
    assert hub.count_gets(BIG) == 0


def test_a_download_ends_at_the_locked_size(context: RecordingContext, hub: LoopbackHub) -> None:
    hub.faults.longer[BIG] = 64 * MIB
    with pytest.raises(Failed, match=f"received more than the {16 * MIB} bytes of {BIG}"):
        fetch_files(context, hub.lock_entries())
    assert disk_usage_bytes(context) <= 17 * MIB


def test_the_memory_of_a_transfer_with_a_false_length_is_limited(context: RecordingContext, hub: LoopbackHub) -> None:
    """hf_transfer plans all ranges of a file at once: for 10**15 bytes, 300 million."""
    hub.faults.headers[BIG] = {"Content-Range": f"bytes 0-0/{10**15}"}
    once = RetryPolicy(max_tries=1, pauses_s=(0.0,), hub_retries=0)
    with pytest.raises(Failed, match="the transfer process exited with -6"):
        # nothing is received until its memory is full, on a busy machine for longer than the default limit
        fetch_files(context, [hub.row(BIG)], "hf_transfer", once, stall_seconds=600)
    assert disk_usage_bytes(context) <= 64 * MIB
    peak_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    assert peak_bytes <= file_transfer.MAX_MEMORY_BYTES["hf_transfer"] + 256 * MIB


def test_an_etag_that_is_a_path_is_refused(context: RecordingContext, hub: LoopbackHub) -> None:
    hub.faults.headers["config.json"] = {"ETag": '"/../../../../../evil"'}
    with pytest.raises(Failed, match="ETag for config.json is invalid"):
        fetch_files(context, hub.lock_entries())
    assert files_outside(context) == set()


def disk_usage_bytes(context: RecordingContext) -> int:
    return sum(path.stat().st_blocks * 512 for path in context.machine.home.rglob("*") if path.is_file())


@pytest.mark.parametrize("mode", ["plain", "hf_transfer"])
@pytest.mark.parametrize("target", ["file://localhost/etc/passwd", "ftp://127.0.0.1/x", "loop", "relative loop"])
def test_a_redirect_in_a_loop_or_not_to_http_is_refused(
    context: RecordingContext, hub: LoopbackHub, mode: str, target: str
) -> None:
    path = f"/{MODEL}/resolve/{COMMIT}/config.json"
    row = redirect(hub, "config.json", {"loop": hub.url + path, "relative loop": path}.get(target, target))
    with pytest.raises(Failed, match="redirects in a loop, or to a URL that is not http"):
        fetch_files(context, [row], mode)
    assert not (context.machine.home / "m/config.json").exists()


def test_the_token_is_not_sent_to_the_target_of_a_redirected_answer(
    context: RecordingContext, hub: LoopbackHub, other_hub: LoopbackHub
) -> None:
    context.secrets = {"HF_TOKEN": Secret("hf_right")}
    hub.faults.moved_all = f"{other_hub.url}/api/models/{MODEL}/revision/main"
    assert len(lock_model(context)["files"]) == 2
    assert hub.tokens and other_hub.paths and not other_hub.tokens


@pytest.mark.parametrize("address", ["127.0.0.2", "127.0.0.1"])
@pytest.mark.parametrize("xet", [False, True])
@pytest.mark.parametrize("mode", ["plain", "hf_transfer"])
def test_the_token_is_not_sent_to_the_target_of_a_redirected_file(
    context: RecordingContext, hub: LoopbackHub, mode: str, xet: bool, address: str
) -> None:
    """With xet's headers, huggingface_hub leaves the redirect, and the token, to the client that downloads."""
    hub.faults.token, context.secrets = "hf_right", {"HF_TOKEN": Secret("hf_right")}
    with contextlib.closing(LoopbackHub(dict(hub.files), address=address)) as store:
        xet_headers = {"X_Xet_Hash": "a" * 64, "X_Xet_Refresh_Route": f"{store.url}/xet"} if xet else {}
        row = redirect(hub, BIG, f"{store.url}/{MODEL}/resolve/{COMMIT}/{BIG}", **xet_headers)
        fetch_files(context, [row], mode)
        source = Source(hub.url, MODEL, COMMIT, Secret("hf_right"))
        assert transfer_process.measure_rate(source, [transfer_process.SampleFile(BIG, row["size_bytes"])], 2) > 0
        assert store.count_gets(BIG) > 1 and store.tokens == []


def test_the_token_of_the_hub_is_not_sent_to_its_chunk_store(
    context: RecordingContext, hub: LoopbackHub, other_hub: LoopbackHub
) -> None:
    """The token of the store is requested from the hub, even if the hub names another URL for it."""
    store, row = hub.add_store(), hub.row(BIG)
    hub.faults.token, context.secrets = "hf_right", {"HF_TOKEN": Secret("hf_right")}
    hub.faults.headers[BIG] = {"X-Xet-Refresh-Route": f"{other_hub.url}/api/models/{MODEL}/xet-read-token/{COMMIT}"}
    fetch_files(context, [row], "xet")
    assert set(store.tokens) == {f"Bearer {TOKEN}"}
    assert other_hub.tokens == other_hub.paths == []


@pytest.mark.parametrize(
    "answer",
    ["no", {}, {"casUrl": "file:///etc", "accessToken": "x", "exp": 1}, {"casUrl": 1, "accessToken": 2, "exp": "x"}],
)
def test_an_invalid_answer_about_the_chunk_store_is_refused(
    context: RecordingContext, hub: LoopbackHub, answer: Any
) -> None:
    hub.add_store()
    hub.faults.xet_token = answer
    with pytest.raises(Failed, match="sent an invalid response about its chunk store. Use `transfer: plain`"):
        fetch_files(context, [hub.row(BIG)], "xet")


@pytest.mark.parametrize("longer", [False, True])
def test_other_bytes_of_a_chunk_store_are_not_used(context: RecordingContext, hub: LoopbackHub, longer: bool) -> None:
    store, row = hub.add_store(), hub.row(BIG)
    store.files[row["sha256"]] = hub.files[BIG] * 4 if longer else hub.files[BIG][::-1]
    with contextlib.suppress(Failed):  # the beginning of the longer file is correct
        fetch_files(context, [row], "xet")
        assert longer
    assert disk_usage_bytes(context) <= 17 * MIB
    assert (context.machine.home / "m" / BIG).exists() == longer


@pytest.mark.parametrize("mode", ["plain", "hf_transfer"])
def test_the_token_is_not_sent_without_tls_to_the_same_port(
    context: RecordingContext, hub: LoopbackHub, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A redirect from https://HOST:PORT to http://HOST:PORT; for huggingface_hub both are the same server."""
    with contextlib.closing(LoopbackHub(dict(hub.files))) as store, two_faced(tmp_path) as (port, certificate, behind):
        behind |= {True: hub.server.port, False: store.server.port}
        hub.faults.token = "hf_right"
        row = redirect(hub, BIG, f"http://127.0.0.1:{port}/{MODEL}/resolve/{COMMIT}/{BIG}")
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
        secrets = {"HF_TOKEN": Secret("hf_right")}
        secured = RecordingContext(context.machine.home, hub_url=f"https://127.0.0.1:{port}", secrets=secrets)
        fetch_files(secured, [row], mode)
        assert hub.tokens and store.count_gets(BIG) > 0 and store.tokens == []


def test_a_transfer_imports_nothing_from_the_working_folder(
    context: RecordingContext, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    (context.machine.home / "json.py").write_text("raise SystemExit('owned')\n")
    monkeypatch.chdir(context.machine.home)
    fetch_files(context, [hub.row("config.json")])
    assert (context.machine.home / "m/config.json").read_bytes() == b"{}"
