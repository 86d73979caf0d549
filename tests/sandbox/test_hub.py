"""The simulated hub answers like the real one, to plain HTTP and to the real huggingface_hub."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from sparkwright.sandbox import hub
from sparkwright.sandbox.http_server import Server
from sparkwright.sandbox.hub import Hub, HubApi, commit

MODEL = "Qwen/Qwen3.5-35B-A3B-FP8"
GATED_MODELS = "meta-llama/Llama-3.1-8B-Instruct"
SHARD = "model-00001-of-00014.safetensors"


class RunningHub:
    def __init__(self) -> None:
        self.moved = False
        self.server = Server(0, HubApi, Hub(is_moved=lambda: self.moved))
        self.server.start()
        self.url = f"http://127.0.0.1:{self.server.port}"
        self.api = HfApi(endpoint=self.url, token=False)

    def request(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=10)
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        result = response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        connection.close()
        return result


@pytest.fixture
def running_hub() -> Iterator[RunningHub]:
    running = RunningHub()
    yield running
    running.server.stop()


def test_a_tree_lists_sizes_and_sha256(running_hub: RunningHub) -> None:
    status, _, data = running_hub.request(f"/api/models/{MODEL}/tree/main?recursive=1")
    rows: dict[str, Any] = {row["path"]: row for row in json.loads(data)}
    assert status == 200 and sorted(rows) == sorted(hub.list_files(MODEL))
    siblings = running_hub.api.model_info(MODEL, files_metadata=True).siblings or ()
    info = {sibling.rfilename: sibling for sibling in siblings}
    assert rows[SHARD]["lfs"] == {"oid": info[SHARD].lfs.sha256, "size": 2_500_000, "pointerSize": 135}  # type: ignore[union-attr]
    assert "lfs" not in rows["config.json"] and rows["config.json"]["oid"] == info["config.json"].blob_id
    assert {item.path for item in running_hub.api.list_repo_tree(MODEL, recursive=True)} == set(rows)


@pytest.mark.parametrize(
    ("header", "status", "span"),
    [
        ("bytes=10-19", 206, (10, 20)),
        ("bytes=2499990-", 206, (2_499_990, None)),
        ("bytes=-5", 206, (-5, None)),
        ("bytes=10-9999999", 206, (10, None)),
        ("bytes=-9999999", 206, (0, None)),
        ("bytes=2500000-", 416, (0, 0)),
        ("bytes=-0", 416, (0, 0)),
    ],
)
def test_a_range_is_served(running_hub: RunningHub, header: str, status: int, span: tuple[int, int | None]) -> None:
    actual_status, headers, data = running_hub.request(f"/{MODEL}/resolve/main/{SHARD}", Range=header)
    assert (actual_status, data) == (status, hub.file_content(MODEL, SHARD)[slice(*span)])
    assert headers["content-range"].endswith("/2500000")


def test_errors_have_the_codes_of_the_real_hub(running_hub: RunningHub) -> None:
    cases = [
        ("/api/models/no/such", {}, 401, "RepoNotFound"),
        ("/api/models/no/such", {"Authorization": "Bearer hf_x"}, 404, "RepoNotFound"),
        (f"/{GATED_MODELS}/resolve/main/config.json", {}, 401, "GatedRepo"),
        (f"/{GATED_MODELS}/resolve/main/config.json", {"Authorization": f"Bearer {hub.STRANGER_TOKEN}"}, 403, "GatedRepo"),
        (f"/api/models/{MODEL}/revision/v9", {}, 404, "RevisionNotFound"),
        (f"/{MODEL}/resolve/main/nothing", {}, 404, "EntryNotFound"),
    ]  # fmt: skip
    for path, headers, status, code in cases:
        response = running_hub.request(path, **headers)
        assert (response[0], response[1]["x-error-code"]) == (status, code), path
    assert running_hub.request(f"/{GATED_MODELS}/resolve/main/config.json", Authorization="Bearer hf_x")[0] == 200
    for error, model, revision in (
        (RepositoryNotFoundError, "no/such", None), (GatedRepoError, GATED_MODELS, None), (RevisionNotFoundError, MODEL, "v9")
    ):  # fmt: skip
        with pytest.raises(error):
            running_hub.api.model_info(model, revision=revision)


def test_after_a_second_commit_both_commits_can_be_downloaded(running_hub: RunningHub, tmp_path: Path) -> None:
    before = running_hub.api.model_info(MODEL).sha
    with pytest.raises(RevisionNotFoundError):
        running_hub.api.model_info(MODEL, revision=commit(MODEL, moved=True))
    running_hub.moved = True
    after = running_hub.api.model_info(MODEL).sha
    assert (before, after) == (commit(MODEL), commit(MODEL, moved=True)) and before != after
    for revision in (before, after):
        folder = snapshot_download(
            MODEL, revision=revision, local_dir=tmp_path / str(revision), endpoint=running_hub.url, token=False,
            allow_patterns=["README.md", "*-00001-*", "*-00002-*"],
        )  # fmt: skip
        for name in ("README.md", SHARD, "model-00002-of-00014.safetensors"):
            assert (Path(folder) / name).read_bytes() == hub.file_content(MODEL, name, moved=revision == after)
    assert hub.file_content(MODEL, SHARD) != hub.file_content(MODEL, SHARD, moved=True)
