"""The lock entry of an image: all of it comes from the registry, nothing is pulled."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from sparkwright.errors import Failed, Refused
from sparkwright.modules.spark_lock import LockImage
from sparkwright.project import lockfile
from tests.modules.context import RecordingContext
from tests.registry.server import Proxy, Registry

pytestmark = pytest.mark.docker


def test_the_entry_names_every_platform_and_what_is_in_it_without_pulling(
    proxy: Proxy, registry: Registry, engine: Any, repository: str, context: RecordingContext
) -> None:
    digest = registry.push(repository, "v1", layer_bytes=(50_000, 70_000), version="0.31.0")
    entry = LockImage().run(LockImage.Args(f"{proxy.address}/{repository}:v1"), context).data
    assert (entry["digest"], entry["engine_version"]) == (digest, "0.31.0")
    assert entry["platforms"] == ["linux/amd64", "linux/arm64"]
    assert entry["created"] == "2026-10-01T00:00:00Z"
    assert [manifest["platform"] for manifest in entry["manifests"]] == entry["platforms"]
    assert len({manifest[key] for manifest in entry["manifests"] for key in ("digest", "config")}) == 4
    assert 120_000 < entry["size_bytes"] < 122_000
    assert sum(sent for _, sent in proxy.seen) < 10_000


def test_a_manifest_without_an_index_is_an_entry_too(
    registry: Registry, engine: Any, repository: str, context: RecordingContext
) -> None:
    manifest = registry._manifest(repository, "linux/amd64", 0, (1000,), "0.32.0")
    digest = registry.put_manifest(repository, "one", manifest, "application/vnd.docker.distribution.manifest.v2+json")
    entry = LockImage().run(LockImage.Args(f"{registry.address}/{repository}:one"), context).data
    assert (entry["digest"], entry["platforms"]) == (digest, ["linux/amd64"])
    assert entry["manifests"][0]["digest"] == digest


def test_a_digest_that_the_registry_lost_is_told_apart_from_a_moved_tag(
    registry: Registry, engine: Any, repository: str, context: RecordingContext
) -> None:
    old = registry.push(repository, "nightly", seed=1)
    registry.push(repository, "nightly", seed=2)
    args = LockImage.Args(f"{registry.address}/{repository}:nightly", pinned=old)
    assert LockImage().run(args, context).data["gone"] is False
    registry.delete(repository, old)
    assert LockImage().run(args, context).data["gone"] is True


def test_the_entry_stands_in_the_lock_with_one_line_a_platform_and_comes_back(
    registry: Registry, engine: Any, repository: str, context: RecordingContext, tmp_path: Path
) -> None:
    registry.push(repository, "v1")
    entry = LockImage().run(LockImage.Args(f"{registry.address}/{repository}:v1"), context).data
    lockfile.Lock().with_image("a/b:v1", entry).save(tmp_path)
    text = (tmp_path / "spark.lock").read_text()
    assert sum(line.lstrip().startswith("- {platform: linux/") for line in text.splitlines()) == 2
    kept = {key: value for key, value in entry.items() if key != "gone"}
    assert lockfile.load(tmp_path).image("a/b:v1") == {**kept, "options": None}


def test_a_lock_broken_by_hand_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "spark.lock").write_text("schema: 1\nimages:\n  a/b:v1:\n    digest: sha256:short\n")
    with pytest.raises(Refused, match=r"spark\.lock:4"):
        lockfile.load(tmp_path)


def test_dockers_own_login_is_used_and_its_absence_explained(
    tmp_path: Path, engine: Any, repository: str, context: RecordingContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    import bcrypt

    open_one = Registry(tmp_path / "private")
    open_one.start()
    open_one.push(repository, "v1")
    open_one.stop()
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
