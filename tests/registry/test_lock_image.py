"""The lock entry of an image: read from the registry without a pull."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from sparkwright.errors import Failed
from sparkwright.modules.spark_lock import LockImage
from sparkwright.project import lockfile
from tests.modules.context import RecordingContext
from tests.registry.images import Images
from tests.registry.server import MANIFEST, Proxy, Registry

pytestmark = pytest.mark.docker


def test_entry_describes_every_platform_without_a_pull(images: Images, proxy: Proxy) -> None:
    digest = images.push(layer_bytes=(50_000, 70_000), version="0.31.0")
    entry = images.lock(f"{proxy.address}/{images.repository}:v1")
    assert (entry["digest"], entry["engine_version"]) == (digest, "0.31.0")
    assert entry["platforms"] == ["linux/amd64", "linux/arm64"]
    assert entry["created"] == "2026-10-01T00:00:00Z"
    assert [manifest["platform"] for manifest in entry["manifests"]] == entry["platforms"]
    assert len({manifest[key] for manifest in entry["manifests"] for key in ("digest", "config")}) == 4
    assert 120_000 < entry["size_bytes"] < 122_000
    assert sum(sent for _, sent in proxy.seen) < 10_000


def test_manifest_without_an_index(images: Images) -> None:
    manifest = images.registry._manifest(images.repository, "linux/amd64", 0, (1000,), "0.32.0")
    digest = images.registry.put_manifest(images.repository, "one", manifest, MANIFEST)
    entry = images.lock(f"{images.name}:one")
    assert (entry["digest"], entry["platforms"]) == (digest, ["linux/amd64"])
    assert entry["manifests"][0]["digest"] == digest


def test_removed_digest_is_distinguished_from_a_moved_tag(images: Images) -> None:
    old = images.push("nightly", seed=1)
    images.push("nightly", seed=2)
    args = LockImage.Args(f"{images.name}:nightly", pinned=old)
    assert LockImage().run(args, images.context).data["gone"] is False
    images.delete(old)
    assert LockImage().run(args, images.context).data["gone"] is True


def test_entry_is_written_with_a_line_for_each_platform_and_read_back(images: Images, tmp_path: Path) -> None:
    _, entry = images.push_and_lock()
    lockfile.Lock().with_image("a/b:v1", entry).save(tmp_path)
    text = (tmp_path / "spark.lock").read_text()
    assert sum(line.lstrip().startswith("- {platform: linux/") for line in text.splitlines()) == 2
    kept = {key: value for key, value in entry.items() if key != "gone"}
    assert lockfile.load(tmp_path).image("a/b:v1") == {**kept, "options": None}


def test_login_of_docker_is_used(
    tmp_path: Path, engine: Any, repository: str, context: RecordingContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    import bcrypt

    unprotected = Registry(tmp_path / "private")
    unprotected.start()
    unprotected.push(repository, "v1")
    unprotected.stop()
    private = Registry(tmp_path / "private", htpasswd="nobody:" + bcrypt.hashpw(b"tests", bcrypt.gensalt(4)).decode())
    private.start()
    try:
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        ref = f"{private.address}/{repository}:v1"
        with pytest.raises(Failed, match="denies"):
            LockImage().run(LockImage.Args(ref), context)
        login = {"auth": base64.b64encode(b"nobody:tests").decode()}
        (tmp_path / "config.json").write_text(json.dumps({"auths": {private.address: login}}))
        logged_in = RecordingContext(tmp_path / "home", architecture="x86_64")
        assert LockImage().run(LockImage.Args(ref), logged_in).data["manifests"]
    finally:
        private.stop()
