"""A hub that attacks: names outside the folder, false sizes, redirects, endless answers. Real clients, real HTTP."""

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
from sparkwright.host.models.hub import Source
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

FAST_RETRY = RetryPolicy(tries=2, pauses_s=(0.0,), hub_retries=0)
MIB = 2**20
KEYS = "../.ssh/authorized_keys"
BIG = "model.safetensors"
ODD = (
    "a, b.json",
    "x[1].safetensors",
    "ü #1.txt",
    "yes",
    "'q': x",
    "100%25?.txt",
    "~",
    "- {x}.bin",
    "A.json",
    "a.json",
    "sub dir/モデル 💥.gguf",
)


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    value = LoopbackHub({"config.json": b"{}", BIG: bytes(range(256)) * (16 * MIB // 256)})
    yield value
    value.released.set()
    value.close()


@pytest.fixture
def context(tmp_path: Path, hub: LoopbackHub) -> RecordingContext:
    (tmp_path / "home").mkdir()
    return RecordingContext(tmp_path / "home", hub_url=hub.url)


def lock_model(context: RecordingContext, **fields: Any) -> dict[str, Any]:
    return dict(LockModel().run(LockModel.Args(**{"id": MODEL, **fields}), context).data)


def fetch_files(
    context: RecordingContext,
    files: list[dict[str, Any]],
    mode: Any = "plain",
    retry_policy: RetryPolicy = FAST_RETRY,
    **options: Any,
) -> Result:
    args = HfModel.Args(id=MODEL, commit=COMMIT, files=files, dir="~/m", transfer=mode, **options)
    return HfModel(retry_policy).run(args, context)


def files_outside(context: RecordingContext) -> set[str]:
    """Return the files in the home outside the model and sparkwright's own state."""
    home = context.machine.home
    paths = (path.relative_to(home).parts for path in home.rglob("*") if not path.is_dir())
    return {"/".join(parts) for parts in paths if parts[0] != "m" and parts[:2] != (".local", "state")}


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "why"),
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
def test_a_name_that_leads_elsewhere_is_refused_when_it_is_locked(
    context: RecordingContext, hub: LoopbackHub, names: list[str], why: str
) -> None:
    hub.files.update(dict.fromkeys(names, b"ssh-ed25519 AAAA"))
    with pytest.raises(Failed, match=why):
        lock_model(context)
    assert len(lock_model(context, ignore=names)["files"]) == 2, "it can be left out"


def test_nothing_is_written_outside_the_folder_even_when_the_plan_says_so(
    context: RecordingContext, hub: LoopbackHub
) -> None:
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
    top = context.machine.home / "m"
    assert all((top / name).read_bytes() == data for name, data in hub.files.items())
    args = VerifyModel.Args(id=MODEL, commit=COMMIT, files=entry["files"], dir="~/m", deep=True)
    assert VerifyModel().run(args, context).data["wrong"] == []
    set_mounts(context, {})
    RemoveModel().run(RemoveModel.Args(dir="~/m"), context)
    assert not top.exists()


def test_a_name_with_brackets_is_its_own_pattern(context: RecordingContext, hub: LoopbackHub) -> None:
    hub.files["x[1].bin"] = b"x"
    assert [file["path"] for file in lock_model(context, allow=["x[1].bin"])["files"]] == ["x[1].bin"]


@pytest.mark.parametrize(
    "fields", [{"id": "../x/y"}, {"id": "a/b/c"}, {"id": "a/b\x1b"}, {"revision": "a b"}, {"revision": "../../x"}]
)
def test_an_id_and_a_revision_are_what_a_hub_and_git_allow(
    context: RecordingContext, hub: LoopbackHub, fields: dict[str, str]
) -> None:
    with pytest.raises(Failed, match="is not a (model's name|valid git branch, tag or commit)"):
        lock_model(context, **fields)
    assert hub.requests == []


# -- answers -----------------------------------------------------------------------------------------------------------


def model_info(**fields: Any) -> bytes:
    sibling = {"rfilename": "a", "size": 1, "blobId": "b" * 40, **fields.pop("sibling", {})}
    return json.dumps({"id": MODEL, "sha": COMMIT, "siblings": [sibling], **fields}).encode()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (model_info(sha="../../x"), "the commit in the hub's answer about lab/tiny is not valid: '../../x'"),
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
def test_an_answer_that_can_not_be_is_a_sentence(
    context: RecordingContext, hub: LoopbackHub, answer: bytes, why: str
) -> None:
    hub.faults.info = answer
    with pytest.raises(Failed, match=why):
        lock_model(context)


def test_a_commit_that_was_asked_for_is_the_one_that_is_locked(context: RecordingContext, hub: LoopbackHub) -> None:
    with pytest.raises(Failed, match=f"about commit {COMMIT} instead of {'c' * 40}"):
        lock_model(context, revision="c" * 40)


def test_a_busy_hub_is_asked_again_and_does_not_say_how_long_to_wait(
    context: RecordingContext, hub: LoopbackHub
) -> None:
    hub.faults.status, hub.faults.headers[""] = 503, {"Retry-After": "86400"}
    with pytest.raises(Failed, match="returned 503"):
        lock_model(context)
    assert len(hub.paths) == 3


def test_a_hub_that_never_ends_its_answer_is_left(
    context: RecordingContext, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.faults.silent = True
    monkeypatch.setattr(hub_client, "RESPONSE_TIMEOUT_S", 0.5)
    with pytest.raises(Failed, match="does not answer"):
        lock_model(context)


def test_of_an_error_a_line_is_shown(context: RecordingContext, hub: LoopbackHub) -> None:
    hub.faults.status = 418
    with pytest.raises(Failed, match="returned") as excinfo:
        lock_model(context)
    assert "\n" not in excinfo.value.message


# -- bytes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["plain", "hf_transfer"])
@pytest.mark.parametrize("header", ["Content-Length", "X-Linked-Size"])
def test_a_size_that_is_not_the_locked_one_is_refused_before_a_byte_is_fetched(
    context: RecordingContext, hub: LoopbackHub, mode: str, header: str
) -> None:
    files = hub.lock_entries()
    hub.faults.headers[BIG] = {header: str(10**12)}
    with pytest.raises(Failed, match=f"{BIG} has 1000000000000 bytes on the hub, {16 * MIB} in spark.lock"):
        fetch_files(context, files, mode)
    assert hub.count_gets(BIG) == 0


def test_a_file_that_does_not_end_is_cut_where_the_lock_ends_it(context: RecordingContext, hub: LoopbackHub) -> None:
    hub.faults.longer[BIG] = 64 * MIB
    with pytest.raises(Failed, match=f"received more than the {16 * MIB} bytes of {BIG}"):
        fetch_files(context, hub.lock_entries())
    assert disk_usage_bytes(context) <= 17 * MIB


def test_a_length_that_only_hf_transfer_is_told_ends_the_transfer_and_not_the_host(
    context: RecordingContext, hub: LoopbackHub
) -> None:
    """It plans all ranges of a file at once: 10**15 bytes are 300 million of them."""
    hub.faults.headers[BIG] = {"Content-Range": f"bytes 0-0/{10**15}"}
    once = RetryPolicy(tries=1, pauses_s=(0.0,), hub_retries=0)
    with pytest.raises(Failed, match="the transfer process exited with -6"):
        # until its memory is full nothing is received: on a busy machine for longer than the usual limit
        fetch_files(context, [hub.row(BIG)], "hf_transfer", once, stall_seconds=600)
    assert disk_usage_bytes(context) <= 64 * MIB
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    assert most <= file_transfer.MEMORY_BYTES["hf_transfer"] + 256 * MIB


def test_the_etag_makes_no_path(context: RecordingContext, hub: LoopbackHub) -> None:
    hub.faults.headers["config.json"] = {"ETag": '"/../../../../../evil"'}
    with pytest.raises(Failed, match="ETag of config.json is invalid"):
        fetch_files(context, hub.lock_entries())
    assert files_outside(context) == set()


def disk_usage_bytes(context: RecordingContext) -> int:
    return sum(path.stat().st_blocks * 512 for path in context.machine.home.rglob("*") if path.is_file())


# -- redirects ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["plain", "hf_transfer"])
@pytest.mark.parametrize("to", ["file://localhost/etc/passwd", "ftp://127.0.0.1/x", "circle", "relative"])
def test_a_redirect_leads_to_http_and_not_in_circles(
    context: RecordingContext, hub: LoopbackHub, mode: str, to: str
) -> None:
    here = f"/{MODEL}/resolve/{COMMIT}/config.json"
    where = {"circle": hub.url + here, "relative": here}.get(to, to)
    row = hub.row("config.json")
    hub.faults.moved["config.json"] = where
    hub.faults.headers["config.json"] = {
        "X-Linked-Size": "2",
        "X-Linked-Etag": str(row["blob_id"]),
        "X-Repo-Commit": COMMIT,
    }
    with pytest.raises(Failed, match="redirects in a loop, or to a URL that is not http"):
        fetch_files(context, [row], mode)
    assert not (context.machine.home / "m/config.json").exists()


def test_the_token_is_not_sent_where_an_answer_is_redirected_to(context: RecordingContext, hub: LoopbackHub) -> None:
    other = LoopbackHub(dict(hub.files), address="127.0.0.2")
    context.secrets = {"HF_TOKEN": Secret("hf_right")}
    hub.faults.moved_all = f"{other.url}/api/models/{MODEL}/revision/main"
    try:
        assert len(lock_model(context)["files"]) == 2
        assert hub.tokens and other.paths and not other.tokens
    finally:
        other.close()


@pytest.mark.parametrize("address", ["127.0.0.2", "127.0.0.1"])
@pytest.mark.parametrize("xet", [False, True])
@pytest.mark.parametrize("mode", ["plain", "hf_transfer"])
def test_the_token_is_not_sent_where_a_file_is_redirected_to(
    context: RecordingContext, hub: LoopbackHub, mode: str, xet: bool, address: str
) -> None:
    """address: of another host, and of another server of the same. xet: with xet's headers huggingface_hub leaves the redirect, and the token, to the client that fetches."""
    store = LoopbackHub(dict(hub.files), address=address)
    row = hub.row(BIG)
    hub.faults.token = "hf_right"
    context.secrets = {"HF_TOKEN": Secret("hf_right")}
    hub.faults.moved[BIG] = f"{store.url}/{MODEL}/resolve/{COMMIT}/{BIG}"
    hub.faults.headers[BIG] = {
        "X-Linked-Size": str(row["size_bytes"]),
        "X-Linked-Etag": str(row["sha256"]),
        "X-Repo-Commit": COMMIT,
        **({"X-Xet-Hash": "a" * 64, "X-Xet-Refresh-Route": f"{store.url}/xet"} if xet else {}),
    }
    try:
        fetch_files(context, [row], mode)
        source = Source(hub.url, MODEL, COMMIT, Secret("hf_right"))
        assert transfer_process.measure_rate(source, [transfer_process.SampleFile(BIG, row["size_bytes"])], 2) > 0
        assert store.count_gets(BIG) > 1
        assert store.tokens == []
    finally:
        store.close()


def test_the_token_for_the_hub_is_not_sent_to_its_chunk_store(context: RecordingContext, hub: LoopbackHub) -> None:
    """The hub may name the place that renews the store's token; the token is requested from the hub all the same."""
    store, row = hub.add_store(), hub.row(BIG)
    elsewhere = LoopbackHub(dict(hub.files), address="127.0.0.2")
    hub.faults.token, context.secrets = "hf_right", {"HF_TOKEN": Secret("hf_right")}
    hub.faults.headers[BIG] = {"X-Xet-Refresh-Route": f"{elsewhere.url}/api/models/{MODEL}/xet-read-token/{COMMIT}"}
    try:
        fetch_files(context, [row], "xet")
        assert set(store.tokens) == {f"Bearer {TOKEN}"}
        assert elsewhere.tokens == elsewhere.paths == []
    finally:
        elsewhere.close()


@pytest.mark.parametrize(
    "message",
    ["no", {}, {"casUrl": "file:///etc", "accessToken": "x", "exp": 1}, {"casUrl": 1, "accessToken": 2, "exp": "x"}],
)
def test_an_answer_about_the_chunk_store_that_can_not_be_is_a_sentence(
    context: RecordingContext, hub: LoopbackHub, message: Any
) -> None:
    hub.add_store()
    hub.faults.xet_token = message
    with pytest.raises(Failed, match="about its chunk store is invalid. Use `transfer: plain`"):
        fetch_files(context, [hub.row(BIG)], "xet")


@pytest.mark.parametrize("longer", [False, True])
def test_a_chunk_store_gives_the_locked_bytes_and_no_more(
    context: RecordingContext, hub: LoopbackHub, longer: bool
) -> None:
    store, row = hub.add_store(), hub.row(BIG)
    store.files[row["sha256"]] = hub.files[BIG] * 4 if longer else hub.files[BIG][::-1]
    with contextlib.suppress(Failed):  # the beginning of a longer file is right
        fetch_files(context, [row], "xet")
        assert longer
    assert disk_usage_bytes(context) <= 17 * MIB
    assert (context.machine.home / "m" / BIG).exists() == longer


@pytest.mark.parametrize("mode", ["plain", "hf_transfer"])
def test_the_token_does_not_leave_tls_on_the_same_port(
    context: RecordingContext, hub: LoopbackHub, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """https://HOST:PORT that redirects a file to http://HOST:PORT: huggingface_hub takes both for the same place."""
    store = LoopbackHub(dict(hub.files))
    row = hub.row(BIG)
    with two_faced(tmp_path) as (port, certificate, behind):
        behind |= {True: hub.server.port, False: store.server.port}
        hub.faults.token = "hf_right"
        hub.faults.moved[BIG] = f"http://127.0.0.1:{port}/{MODEL}/resolve/{COMMIT}/{BIG}"
        hub.faults.headers[BIG] = {
            "X-Linked-Size": str(row["size_bytes"]),
            "X-Linked-Etag": str(row["sha256"]),
            "X-Repo-Commit": COMMIT,
        }
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
        secured = RecordingContext(context.machine.home, hub_url=f"https://127.0.0.1:{port}")
        secured.secrets = {"HF_TOKEN": Secret("hf_right")}
        try:
            fetch_files(secured, [row], mode)
            assert hub.tokens and store.count_gets(BIG) > 0 and store.tokens == []
        finally:
            store.close()


def test_a_transfer_runs_nothing_of_the_folder_it_is_begun_in(
    context: RecordingContext, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    (context.machine.home / "json.py").write_text("raise SystemExit('owned')\n")
    monkeypatch.chdir(context.machine.home)
    fetch_files(context, [hub.row("config.json")])
    assert (context.machine.home / "m/config.json").read_bytes() == b"{}"
