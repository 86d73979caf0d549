"""Damaged data about a model from a hub, a lock, a peer, or the model's folder."""

import json
from pathlib import Path
from typing import Any

import yaml

from sparkwright.app.plans import preparation
from sparkwright.errors import Failed, Refused
from sparkwright.host.models import hub_info, model_folders, peer
from sparkwright.host.models.hub import Source
from sparkwright.host.models.manifest import Manifest
from sparkwright.host.state import StateFolder
from sparkwright.project import lockfile
from sparkwright.sandbox import hub as sandbox_hub
from sparkwright.trust import model_files
from sparkwright.visible import one_line
from tests.fuzz.harness import NASTY, damaged_texts, damaged_values, feed, feed_json

MODEL = "Qwen/Qwen3.5-35B-A3B-FP8"
SOURCE = Source("http://127.0.0.1:1", MODEL, "main")


def hub_answer() -> dict[str, Any]:
    siblings = [sandbox_hub.sibling_entry(MODEL, path) for path in sandbox_hub.list_files(MODEL)[:7]]
    return {"id": MODEL, "sha": sandbox_hub.commit(MODEL), "private": False, "tags": [], "siblings": siblings}


def is_inside(path: str) -> bool:
    return (Path("/models/m") / path).resolve().is_relative_to("/models/m/")


def lock_answer(answer: Any, folder: Path) -> None:
    """Lock the model of a hub's answer; the lock must be unchanged when it is loaded."""
    entry = hub_info.parse_lock_entry(answer, SOURCE, lambda path: True)
    assert all(is_inside(file["path"]) for file in entry["files"])
    locked = lockfile.Lock().with_model(MODEL, "main", entry)
    locked.save(folder)
    assert lockfile.load(folder) == locked


def test_answers_of_a_hub(tmp_path: Path) -> None:
    feed_json(lambda data: lock_answer(hub_info.parse_answer(data, SOURCE), tmp_path), [hub_answer()])


def test_file_names_from_a_hub(tmp_path: Path) -> None:
    names = ("a, b.json", "x[1].bin", "'q': #1", "a/b/c")
    rows = [{"rfilename": name, "size": 1, "blobId": "b" * 40} for name in names]
    feed(lambda row: lock_answer({**hub_answer(), "siblings": [row]}, tmp_path), damaged_values(rows))


def lock_data() -> dict[str, Any]:
    entry = hub_info.parse_lock_entry(hub_answer(), SOURCE, lambda path: True)
    image = {"digest": "sha256:" + "d" * 64, "platforms": ["linux/arm64"]}
    return {"schema": 1, "images": {"a/b:v1": image}, "models": {f"{MODEL}@main": {**entry, "config": {"a": [1]}}}}


def test_lock(tmp_path: Path) -> None:
    def read(data: Any) -> None:
        text = yaml.safe_dump(data, allow_unicode=True)
        (tmp_path / "spark.lock").write_text(text, encoding="utf-8", errors="replace")
        locked = lockfile.load(tmp_path)
        assert all(is_inside(file["path"]) for entry in locked.models.values() for file in entry["files"])
        locked.save(tmp_path)
        assert lockfile.load(tmp_path) == locked

    feed(read, damaged_values([lock_data()]))


def test_lock_entry_from_a_host() -> None:
    def read(value: Any) -> None:
        lockfile.build_entry("model", "a/b@main", value if isinstance(value, dict) else {})

    feed(read, damaged_values([lock_data()["models"][f"{MODEL}@main"]]))


def test_files_in_a_plan() -> None:
    def read(value: Any) -> None:
        model_files.check_files(value if isinstance(value, list) else [value], "the plan")

    feed(read, damaged_values([lock_data()["models"][f"{MODEL}@main"]["files"]]))


def test_ids_and_revisions() -> None:
    def read(text: bytes) -> None:
        name = text.decode(errors="surrogateescape")
        if not model_files.check_model_id(name):
            assert is_inside(name)
        model_files.check_revision(name)

    feed(read, damaged_texts([MODEL.encode(), b"refs/pr/1"]))


def test_addresses_of_a_peer() -> None:
    def read(value: Any) -> None:
        for url in preparation.parse_peer_urls(value if isinstance(value, dict) else {}, "spark1"):
            assert url.startswith("http://") and url.count("/") == 2

    seed = {"urls": ["http://10.0.0.2:4711", "http://169.254.1.1:1"], "dir": "/m", "size_bytes": 1}
    feed(read, damaged_values([seed]))


def test_range_header() -> None:
    feed(lambda text: peer._parse_range(text.decode("latin-1"), 1000), damaged_texts([b"bytes=0-99", b"bytes=5-"]))


def test_record_of_kept_files(tmp_path: Path) -> None:
    record_path = tmp_path / "m" / model_folders.KEPT_FOLDER / model_folders.KEPT_RECORD_FILE
    (tmp_path / "keys").write_text("mine")

    def read(text: bytes) -> None:
        record_path.parent.mkdir(parents=True, exist_ok=True)
        record_path.write_bytes(text)
        model_folders.kept_commit(tmp_path / "m")
        model_folders.restore_kept(tmp_path / "m")
        assert (tmp_path / "keys").read_text() == "mine"

    feed(read, damaged_texts([json.dumps({"commit": "a" * 40, "new": ["a", "b/c", "../keys"]}).encode()]))


def test_index_of_shards(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    manifest = Manifest(StateFolder(tmp_path / "state"), folder, {})

    def read(text: bytes) -> None:
        (folder / "model.safetensors.index.json").write_bytes(text)
        manifest.indexes.clear()
        manifest.missing_shards([{"path": "model.safetensors.index.json"}])

    feed(read, damaged_texts([sandbox_hub.file_content(MODEL, "model.safetensors.index.json")]))


def test_files_with_nasty_values_are_accepted_or_refused() -> None:
    for item in NASTY:
        for rows in ([item], [{"path": item, "size_bytes": 1, "sha256": None, "blob_id": "b" * 40}]):
            try:
                model_files.check_files(rows, "the hub")
            except (Failed, Refused) as error:
                assert str(error) == one_line(str(error))
