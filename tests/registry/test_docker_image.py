"""Images by digest: a real registry, a real engine, and a faulty proxy between them."""

import io
from typing import Any

import pytest

from sparkwright.errors import Failed, Refused
from sparkwright.host.containers import container_options
from sparkwright.host.images import image_names
from sparkwright.host.images.registry_documents import NotInRegistry
from sparkwright.modules.image.docker_image import DockerImage
from sparkwright.modules.spark_lock import LockImage
from sparkwright.protocol.container import ContainerSpec, locked_ids
from sparkwright.protocol.result import Result
from sparkwright.trust.image_name import ImageReference
from tests.modules.context import RecordingContext
from tests.registry.server import Proxy, Registry

pytestmark = pytest.mark.docker


def lock_image(context: RecordingContext, ref: str) -> dict[str, Any]:
    return LockImage().run(LockImage.Args(ref), context).data


def pull_image(context: RecordingContext, ref: str, entry: dict[str, Any], **arguments: Any) -> Result:
    args = DockerImage.Args(f"{ref}@{entry['digest']}", manifests=entry["manifests"], **arguments)
    return DockerImage().run(args, context)


def find_biggest_layer(entry: dict[str, Any], registry: Registry, repository: str) -> str:
    import requests

    digest = next(manifest["digest"] for manifest in entry["manifests"] if manifest["platform"] == "linux/amd64")
    kind = {"Accept": "application/vnd.docker.distribution.manifest.v2+json"}
    manifest = requests.get(f"http://{registry.address}/v2/{repository}/manifests/{digest}", headers=kind, timeout=5)
    return str(max(manifest.json()["layers"], key=lambda value: value["size"])["digest"])


def test_a_pull_by_digest_shows_its_bytes_and_the_second_asks_nobody(
    proxy: Proxy, registry: Registry, engine: Any, repository: str, context: RecordingContext
) -> None:
    registry.push(repository, "v1", layer_bytes=(900_000, 500_000))
    ref = f"{proxy.address}/{repository}:v1"
    entry = lock_image(context, ref)
    first = pull_image(context, ref, entry)
    assert (first.changed, first.data["engine_version"]) == (True, "0.32.0")
    progress = [item for item in context.events if item["event"] == "progress" and item["unit"] == "bytes"]
    assert progress and progress[-1]["done"] <= progress[-1]["total"] <= 1_500_000
    registry.stop()
    options = len(proxy.seen)
    assert not pull_image(context, ref, entry).changed
    assert len(proxy.seen) == options


def test_a_moved_tag_changes_nothing_for_a_locked_host(
    registry: Registry, engine: Any, repository: str, context: RecordingContext
) -> None:
    registry.push(repository, "nightly", seed=1)
    ref = f"{registry.address}/{repository}:nightly"
    entry = lock_image(context, ref)
    moved = registry.push(repository, "nightly", seed=2)
    assert moved != entry["digest"]
    pull_image(context, ref, entry)
    assert image_names.digests_of(engine.inspect_image(ref)) == [entry["digest"]]


def test_an_image_without_this_hosts_platform_is_refused_before_a_byte_is_pulled(
    proxy: Proxy, registry: Registry, engine: Any, repository: str, context: RecordingContext
) -> None:
    digest = registry.push(repository, "v1", platforms=("linux/amd64",))
    spark = RecordingContext(context.machine.home, architecture="aarch64")
    ref = f"{proxy.address}/{repository}:v1"
    with pytest.raises(Refused, match="has no linux/arm64, only linux/amd64"):
        lock_image(spark, ref)
    proxy.seen.clear()
    with pytest.raises(Refused, match="has no linux/arm64, only linux/amd64"):
        DockerImage().run(DockerImage.Args(f"{ref}@{digest}"), spark)
    assert proxy.count_requests("/blobs/") == 0


def test_a_cut_in_the_middle_of_a_layer_goes_on_where_it_broke_off(
    proxy: Proxy, registry: Registry, engine: Any, repository: str, context: RecordingContext
) -> None:
    registry.push(repository, "v1", layer_bytes=(10_000, 3_000_000))
    ref = f"{proxy.address}/{repository}:v1"
    entry = lock_image(context, ref)
    layer = find_biggest_layer(entry, registry, repository)
    proxy.cuts = {layer: [1_000_000]}
    assert pull_image(context, ref, entry).changed
    assert proxy.ranges == ["bytes=1000000-"]
    assert sum(sent for path, sent in proxy.seen if layer in path) < 3_100_000
    assert "interrupted" in "\n".join(context.notes)


def test_a_registry_that_answers_500_is_asked_again_and_an_unknown_digest_is_not(
    proxy: Proxy, registry: Registry, engine: Any, repository: str, context: RecordingContext
) -> None:
    registry.push(repository, "v1")
    ref = f"{proxy.address}/{repository}:v1"
    entry = lock_image(context, ref)
    proxy.errors = {f"manifests/{entry['digest']}": 2}
    assert pull_image(context, ref, entry).changed
    assert "Retrying" in "\n".join(context.notes)
    proxy.seen.clear()
    with pytest.raises(NotInRegistry, match="invoke images.copy"):
        DockerImage().run(DockerImage.Args(f"{ref}@sha256:{'0' * 64}"), context)
    assert proxy.count_requests("0" * 64) <= 3  # one question of the engine: HEAD, GET; no second try


def test_a_digest_that_is_gone_upstream_is_used_from_the_host(
    registry: Registry, engine: Any, repository: str, context: RecordingContext
) -> None:
    registry.push(repository, "v1")
    ref = f"{registry.address}/{repository}:v1"
    entry = lock_image(context, ref)
    pull_image(context, ref, entry)
    registry.delete(repository, entry["digest"])
    assert not pull_image(context, ref, entry).changed
    again = lock_image(context, ref)
    assert again["digest"] == entry["digest"]
    assert "has no" in "\n".join(context.notes) and "Using the host's copy" in "\n".join(context.notes)


def test_after_save_and_load_the_digest_is_known_again_without_a_registry(
    registry: Registry, engine: Any, repository: str, context: RecordingContext
) -> None:
    registry.push(repository, "v1", layer_bytes=(1000, 2000))
    ref = f"{registry.address}/{repository}:v1"
    entry = lock_image(context, ref)
    pull_image(context, ref, entry)
    archive = b"".join(engine.get_image(ref))
    engine.remove_image(f"{registry.address}/{repository}@{entry['digest']}", force=True)
    engine.remove_image(ref, force=True)
    registry.stop()
    list(engine.load_image(io.BytesIO(archive)))
    assert engine.inspect_image(ref)["RepoDigests"] == []
    result = pull_image(context, ref, entry)
    assert (result.changed, result.msg) == (True, "already present; digest restored")
    assert not pull_image(context, ref, entry).changed
    image = engine.inspect_image(ref)
    spec = ContainerSpec("any", f"{ref}@{entry['digest']}", image_ids=locked_ids(entry))
    assert container_options._compare_image(spec, image) == []


def test_another_image_under_the_same_tag_is_not_taken_for_the_locked_one(
    registry: Registry, engine: Any, repository: str, context: RecordingContext
) -> None:
    registry.push(repository, "v1", seed=1)
    ref = f"{registry.address}/{repository}:v1"
    first = lock_image(context, ref)
    registry.push(repository, "v1", seed=2)
    pull_image(context, ref, lock_image(context, ref))
    result = pull_image(context, ref, first)
    assert (result.changed, result.msg) == (True, "pulled")


def test_a_mirror_gives_the_bytes_and_the_image_keeps_its_own_name(
    proxy: Proxy, registry: Registry, engine: Any, repository: str, context: RecordingContext
) -> None:
    """The image's own registry is a closed port."""
    registry.push(repository, "v1")
    mirrored = lock_image(context, f"{proxy.address}/{repository}:v1")
    ref = f"127.0.0.1:9/{repository}:v1"
    result = pull_image(context, ref, mirrored, mirror=proxy.address)
    assert result.msg == f"pulled from {proxy.address}"
    assert not pull_image(context, ref, mirrored).changed
    ids = locked_ids(mirrored)
    assert engine.inspect_image(ref)["Id"] == image_names.find(engine, f"{ref}@{mirrored['digest']}", ids)["Id"]


def test_a_mirror_that_lost_the_image_is_said_and_the_registry_asked(
    proxy: Proxy, registry: Registry, engine: Any, repository: str, context: RecordingContext
) -> None:
    registry.push(repository, "v1")
    ref = f"{registry.address}/{repository}:v1"
    entry = lock_image(context, ref)
    result = pull_image(context, ref, entry, mirror=f"{proxy.address}/empty")
    assert result.msg == "pulled"
    assert "Trying" in "\n".join(context.notes)


def test_a_registry_that_is_down_says_so(engine: Any, repository: str, context: RecordingContext) -> None:
    with pytest.raises(Failed, match="does not answer"):
        lock_image(context, f"127.0.0.1:9/{repository}:v1")


@pytest.mark.parametrize(
    ("ref", "registry", "path", "asked"),
    [
        ("vllm/vllm-openai:v1", "docker.io", "vllm/vllm-openai", "vllm/vllm-openai:v1"),
        ("debian", "docker.io", "library/debian", "debian:latest"),
        ("nvcr.io/nvidia/vllm:26.10-py3", "nvcr.io", "nvidia/vllm", "nvcr.io/nvidia/vllm:26.10-py3"),
        ("localhost:5000/a/b:c@sha256:0", "localhost:5000", "a/b", "localhost:5000/a/b@sha256:0"),
    ],
)
def test_a_reference_in_its_parts(ref: str, registry: str, path: str, asked: str) -> None:
    name = ImageReference.parse(ref)
    assert (name.registry, name.path, name.pull_reference) == (registry, path, asked)
    assert name.at_mirror("mirror.lan:5000").repository == f"mirror.lan:5000/{path}"
