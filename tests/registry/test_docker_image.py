"""Images pulled by digest: a real registry, a real Docker Engine, and a faulty proxy between them."""

from typing import Any

import pytest
import requests

from sparkwright.errors import Failed, Refused
from sparkwright.host.containers import container_options
from sparkwright.host.images import image_names
from sparkwright.host.images.registry_documents import NotInRegistry
from sparkwright.modules.image.docker_image import DockerImage
from sparkwright.modules.spark_lock import LockImage
from sparkwright.protocol.container import ContainerSpec, locked_ids
from sparkwright.trust.image_name import ImageReference
from tests.modules.context import RecordingContext
from tests.registry.images import Images, load_archive
from tests.registry.server import MANIFEST, Proxy

pytestmark = pytest.mark.docker


def find_largest_layer(images: Images, entry: dict[str, Any]) -> str:
    """Return the digest of the largest layer for linux/amd64."""
    digest = next(manifest["digest"] for manifest in entry["manifests"] if manifest["platform"] == "linux/amd64")
    url = f"http://{images.registry.address}/v2/{images.repository}/manifests/{digest}"
    manifest = requests.get(url, headers={"Accept": MANIFEST}, timeout=5)
    return str(max(manifest.json()["layers"], key=lambda value: value["size"])["digest"])


def test_pull_reports_bytes_and_second_pull_needs_no_registry(images: Images, proxy: Proxy) -> None:
    ref, entry = images.push_and_lock(address=proxy.address, layer_bytes=(900_000, 500_000))
    first = images.pull(ref, entry)
    assert (first.changed, first.data["engine_version"]) == (True, "0.32.0")
    progress = [item for item in images.context.events if item["event"] == "progress" and item["unit"] == "bytes"]
    assert progress and progress[-1]["done"] <= progress[-1]["total"] <= 1_500_000
    images.registry.stop()
    requests_before = len(proxy.seen)
    assert not images.pull(ref, entry).changed
    assert len(proxy.seen) == requests_before


def test_moved_tag_does_not_change_a_locked_image(images: Images, engine: Any) -> None:
    ref, entry = images.push_and_lock("nightly", seed=1)
    moved = images.push("nightly", seed=2)
    assert moved != entry["digest"]
    images.pull(ref, entry)
    assert image_names.digests_of(engine.inspect_image(ref)) == [entry["digest"]]


def test_image_without_the_platform_of_the_host_is_refused(images: Images, proxy: Proxy) -> None:
    digest = images.push(platforms=("linux/amd64",))
    spark = RecordingContext(images.context.machine.home, architecture="aarch64")
    ref = f"{proxy.address}/{images.repository}:v1"
    with pytest.raises(Refused, match="is not available for linux/arm64, only for linux/amd64"):
        LockImage().run(LockImage.Args(ref), spark)
    proxy.seen.clear()
    with pytest.raises(Refused, match="is not available for linux/arm64, only for linux/amd64"):
        DockerImage().run(DockerImage.Args(f"{ref}@{digest}"), spark)
    assert proxy.count_requests("/blobs/") == 0


def test_interrupted_layer_is_resumed(images: Images, proxy: Proxy) -> None:
    ref, entry = images.push_and_lock(address=proxy.address, layer_bytes=(10_000, 3_000_000))
    layer = find_largest_layer(images, entry)
    proxy.cuts = {layer: [1_000_000]}
    assert images.pull(ref, entry).changed
    assert proxy.ranges == ["bytes=1000000-"]
    assert sum(sent for path, sent in proxy.seen if layer in path) < 3_100_000
    assert "interrupted" in "\n".join(images.context.notes)


def test_server_errors_are_retried_but_unknown_digests_are_not(images: Images, proxy: Proxy) -> None:
    ref, entry = images.push_and_lock(address=proxy.address)
    proxy.errors = {f"manifests/{entry['digest']}": 2}
    assert images.pull(ref, entry).changed
    assert "Retrying" in "\n".join(images.context.notes)
    proxy.seen.clear()
    with pytest.raises(NotInRegistry, match="invoke images.copy"):
        DockerImage().run(DockerImage.Args(f"{ref}@sha256:{'0' * 64}"), images.context)
    assert proxy.count_requests("0" * 64) <= 3  # HEAD and GET of the engine, without a retry


def test_image_removed_from_the_registry_is_used_from_the_host(images: Images) -> None:
    ref, entry = images.push_and_lock()
    images.pull(ref, entry)
    images.delete(entry["digest"])
    assert not images.pull(ref, entry).changed
    again = images.lock(ref)
    assert again["digest"] == entry["digest"]
    assert "has no" in "\n".join(images.context.notes) and "Using the host's copy" in "\n".join(images.context.notes)


def test_digest_is_restored_after_save_and_load(images: Images, engine: Any) -> None:
    ref, entry = images.push_and_lock(layer_bytes=(1000, 2000))
    images.pull(ref, entry)
    archive = b"".join(engine.get_image(ref))
    engine.remove_image(f"{images.name}@{entry['digest']}", force=True)
    engine.remove_image(ref, force=True)
    images.registry.stop()
    load_archive(engine, archive)
    assert engine.inspect_image(ref)["RepoDigests"] == []
    result = images.pull(ref, entry)
    assert (result.changed, result.msg) == (True, "already present; digest restored")
    assert not images.pull(ref, entry).changed
    image = engine.inspect_image(ref)
    spec = ContainerSpec("any", f"{ref}@{entry['digest']}", image_ids=locked_ids(entry))
    assert container_options._compare_image(spec, image) == []


def test_other_image_with_the_same_tag_is_replaced(images: Images) -> None:
    ref, first = images.push_and_lock(seed=1)
    images.push(seed=2)
    images.pull(ref, images.lock(ref))
    result = images.pull(ref, first)
    assert (result.changed, result.msg) == (True, "pulled")


def test_image_from_a_mirror_keeps_its_name(images: Images, proxy: Proxy, engine: Any) -> None:
    """The image's own registry is a closed port."""
    images.push()
    mirrored = images.lock(f"{proxy.address}/{images.repository}:v1")
    ref = f"127.0.0.1:9/{images.repository}:v1"
    result = images.pull(ref, mirrored, mirror=proxy.address)
    assert result.msg == f"pulled from {proxy.address}"
    assert not images.pull(ref, mirrored).changed
    ids = locked_ids(mirrored)
    assert engine.inspect_image(ref)["Id"] == image_names.find(engine, f"{ref}@{mirrored['digest']}", ids)["Id"]


def test_registry_is_used_if_the_mirror_lacks_the_image(images: Images, proxy: Proxy) -> None:
    ref, entry = images.push_and_lock()
    result = images.pull(ref, entry, mirror=f"{proxy.address}/empty")
    assert result.msg == "pulled"
    assert "Trying" in "\n".join(images.context.notes)


def test_unreachable_registry_is_reported(images: Images) -> None:
    with pytest.raises(Failed, match="does not answer"):
        images.lock(f"127.0.0.1:9/{images.repository}:v1")


@pytest.mark.parametrize(
    ("ref", "registry", "path", "pulled"),
    [
        ("vllm/vllm-openai:v1", "docker.io", "vllm/vllm-openai", "vllm/vllm-openai:v1"),
        ("debian", "docker.io", "library/debian", "debian:latest"),
        ("nvcr.io/nvidia/vllm:26.10-py3", "nvcr.io", "nvidia/vllm", "nvcr.io/nvidia/vllm:26.10-py3"),
        ("localhost:5000/a/b:c@sha256:0", "localhost:5000", "a/b", "localhost:5000/a/b@sha256:0"),
    ],
)
def test_reference_is_split(ref: str, registry: str, path: str, pulled: str) -> None:
    name = ImageReference.parse(ref)
    assert (name.registry, name.path, name.pull_reference) == (registry, path, pulled)
    assert name.at_mirror("mirror.lan:5000").repository == f"mirror.lan:5000/{path}"
