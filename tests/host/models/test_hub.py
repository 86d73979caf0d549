"""Our client of the hub, compared with the official client, huggingface_hub 2, over the same loopback hub."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkwright.errors import Failed
from sparkwright.host.models import file_transfer, hub, hub_info
from sparkwright.host.models.file_transfer import TransferSettings
from sparkwright.host.models.hub import Source
from sparkwright.sandbox.http_server import Server
from sparkwright.sandbox.hub import Hub, HubApi
from sparkwright.secret import Secret
from tests.modules.loopback_hub import BLOCK, COMMIT, MODEL, LoopbackHub

huggingface_hub = pytest.importorskip("huggingface_hub", minversion="2.4")

LARGE, SMALL = "model.safetensors", "config.json"
RECIPES_MODEL = "Qwen/Qwen3.5-35B-A3B-FP8"


@pytest.fixture
def loopback() -> Iterator[LoopbackHub]:
    hub = LoopbackHub({SMALL: b"{}", LARGE: bytes(range(256)) * 4096 * 3})
    yield hub
    hub.close()


@pytest.fixture
def sandbox() -> Iterator[str]:
    server = Server(0, HubApi, Hub())
    server.start()
    yield f"http://127.0.0.1:{server.port}"
    server.stop()


def test_both_clients_read_the_same_files_sizes_and_hashes(sandbox: str) -> None:
    entry = hub_info.fetch_lock_entry(Source(sandbox, RECIPES_MODEL, "main"), lambda path: True)
    info = huggingface_hub.HfApi(endpoint=sandbox, token=False).model_info(RECIPES_MODEL, files_metadata=True)
    official = {
        file.rfilename: (file.size, file.lfs.sha256, None) if file.lfs else (file.size, None, file.blob_id)
        for file in info.siblings
    }
    assert entry["commit"] == info.sha
    assert {row["path"]: (row["size_bytes"], row["sha256"], row["blob_id"]) for row in entry["files"]} == official


@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize("path", [LARGE, SMALL])
def test_both_clients_find_a_file_at_the_same_url(loopback: LoopbackHub, path: str, store: bool) -> None:
    if store:
        loopback.add_store()
    source, row = Source(loopback.url, MODEL, COMMIT), loopback.row(path)
    ours = hub.locate_file(source, row)
    official = huggingface_hub.get_hf_file_metadata(source.file_url(path), token=False, endpoint=loopback.url)
    assert ours.url == official.location
    assert (official.size, official.etag) == (row["size_bytes"], row["sha256"] or row["blob_id"])
    assert ours.xet_hash == (official.xet_file_data.file_hash if official.xet_file_data else "")


@pytest.mark.parametrize("mode", ["plain", "xet"])
def test_both_clients_download_the_same_bytes(
    loopback: LoopbackHub, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = loopback.add_store()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", mode == "plain")
    huggingface_hub.hf_hub_download(
        MODEL, LARGE, revision=COMMIT, local_dir=tmp_path / "official", endpoint=loopback.url, token=False
    )
    assert bool(store.ranges) == (mode == "xet"), "the official client reads from the chunk store"
    source, settings = Source(loopback.url, MODEL, COMMIT), TransferSettings(mode, 0)
    file_transfer.download_file(source, loopback.row(LARGE), tmp_path / "ours", settings)
    assert (tmp_path / "ours" / LARGE).read_bytes() == (tmp_path / "official" / LARGE).read_bytes()


def test_a_slow_hub_may_pause_for_the_stall_limit(
    loopback: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "MAX_SILENCE_S", 0.2)
    loopback.faults.rate = 2 * BLOCK  # half a second between two blocks
    loopback.files[LARGE] = bytes(2 * BLOCK)
    settings = TransferSettings("plain", 0, stall_s=60)
    file_transfer.download_file(Source(loopback.url, MODEL, COMMIT), loopback.row(LARGE), tmp_path, settings)
    assert (tmp_path / LARGE).read_bytes() == loopback.files[LARGE]


@pytest.mark.parametrize("status", [401, 404, 500])
@pytest.mark.parametrize("code", ["RepoNotFound", "RevisionNotFound", "EntryNotFound", "GatedRepo"])
def test_both_clients_raise_the_same_errors(loopback: LoopbackHub, code: str, status: int) -> None:
    from huggingface_hub import errors

    official_error, message = {
        "RepoNotFound": (errors.RepositoryNotFoundError, "has no model"),
        "RevisionNotFound": (errors.RevisionNotFoundError, "has no revision"),
        "EntryNotFound": (errors.EntryNotFoundError, "no longer exists"),
        "GatedRepo": (errors.GatedRepoError, "is gated"),
    }[code]
    source, row = Source(loopback.url, MODEL, COMMIT), loopback.row(LARGE)
    loopback.faults.status, loopback.faults.headers[""] = status, {"X-Error-Code": code}
    with pytest.raises(official_error):
        huggingface_hub.get_hf_file_metadata(source.file_url(LARGE), token=False, endpoint=loopback.url)
    with pytest.raises(Failed, match=message):
        hub.locate_file(source, row)


@pytest.mark.parametrize(
    ("status", "headers", "message"),
    [
        (401, {"X-Error-Message": "Invalid credentials in Authorization header"}, "does not accept the token: Invalid"),
        (401, {}, "does not accept the token. Replace the secret HF_TOKEN .*, or remove it if the model is public"),
        (401, {"X-Error-Code": "RepoNotFound"}, "has no model"),
        (403, {"X-Error-Code": "GatedRepo"}, "is gated. Accept its license at .* with the token's account"),
        (403, {"X-Error-Message": "Enable it in your settings."}, "Enable it in your settings. Check the permissions"),
    ],
)
def test_a_token_that_the_hub_refuses_is_named(
    loopback: LoopbackHub, status: int, headers: dict[str, str], message: str
) -> None:
    loopback.faults.status, loopback.faults.headers[""] = status, headers
    with pytest.raises(Failed, match=message):
        hub.locate_file(Source(loopback.url, MODEL, COMMIT, Secret("hf_expired")), loopback.row(LARGE))


@pytest.mark.parametrize(("revision", "advice"), [(COMMIT, "lock --update"), ("v2", "Check `model.revision`")])
def test_the_advice_for_a_missing_revision_fits_a_pinned_commit(
    loopback: LoopbackHub, revision: str, advice: str
) -> None:
    loopback.faults.status, loopback.faults.headers[""] = 404, {"X-Error-Code": "RevisionNotFound"}
    with pytest.raises(Failed, match=f"has no revision '{revision}'.*{advice}"):
        hub.locate_file(Source(loopback.url, MODEL, revision), loopback.row(LARGE))
