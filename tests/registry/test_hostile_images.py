"""Images with false names: forged tags, archives with other images, and registries with wrong answers."""

from dataclasses import asdict
from typing import Any

import pytest

from sparkwright.errors import Failed, Refused
from sparkwright.host.images import image_copy, image_names
from sparkwright.modules.image.docker_image import AdoptImage, DockerImage, UndoLoad
from sparkwright.modules.image.image_transfer import InspectImage
from sparkwright.modules.server.container import Container
from sparkwright.modules.spark_lock import LockImage
from sparkwright.modules.storage import PruneImages
from sparkwright.protocol.container import ContainerSpec, locked_ids
from sparkwright.trust.image_name import ImageReference
from tests.modules.context import RecordingContext
from tests.registry.images import Images, load_archive, save_archive
from tests.registry.server import Proxy

pytestmark = pytest.mark.docker


def push_two_images(images: Images) -> tuple[str, dict[str, Any], str]:
    """Return the reference of a good image, which is not pulled, its lock entry, and the Id of another image on the host."""
    evil_id = images.pull(*images.push_and_lock("evil", seed=7)).data["id"]
    return *images.push_and_lock(seed=1), evil_id


def test_forged_tag_is_moved_to_the_pulled_image(images: Images, engine: Any) -> None:
    ref, entry, evil_id = push_two_images(images)
    name = ImageReference.parse(f"{ref}@{entry['digest']}")
    engine.tag(evil_id, *name.verified_tag.rsplit(":", 1))
    engine.tag(evil_id, name.repository, name.tag)
    result = images.pull(ref, entry)
    assert result.changed and result.diff[0].before == evil_id
    assert result.data["id"] != evil_id
    assert engine.inspect_image(name.verified_tag)["Id"] == engine.inspect_image(ref)["Id"] == result.data["id"]
    assert not images.pull(ref, entry).changed


def test_forged_tag_is_not_trusted_without_a_registry(images: Images, engine: Any) -> None:
    ref, entry, evil_id = push_two_images(images)
    name = ImageReference.parse(f"{ref}@{entry['digest']}")
    engine.tag(evil_id, *name.verified_tag.rsplit(":", 1))
    images.registry.stop()
    no_manifests: list[Any] = []
    for manifests in (entry["manifests"], no_manifests):
        with pytest.raises(Failed, match="does not answer"):
            DockerImage().run(DockerImage.Args(f"{ref}@{entry['digest']}", manifests=manifests), images.context)
    planned = DockerImage().run(DockerImage.Args(f"{ref}@{entry['digest']}"), images.check_context())
    assert "run `invoke lock`" in planned.diff[0].why
    assert InspectImage().run(InspectImage.Args(f"{ref}@{entry['digest']}"), images.context).data["impostor"] == evil_id


def test_digest_of_a_forged_tag_is_not_locked(images: Images, engine: Any) -> None:
    """The digest comes from the engine's record, not from the text of a tag."""
    ref, entry = images.push_and_lock(seed=1)
    images.pull(ref, entry)
    engine.tag(ref, images.name, f"sha256-{'0' * 64}")
    images.delete(entry["digest"])
    assert images.lock(ref)["digest"] == entry["digest"]


def test_old_lock_entry_uses_the_digest_recorded_by_the_engine(images: Images) -> None:
    ref, entry = images.push_and_lock()
    images.pull(ref, {**entry, "manifests": []})
    images.registry.stop()
    assert not images.pull(ref, {**entry, "manifests": []}).changed


def test_forged_tag_creates_no_container(images: Images, engine: Any) -> None:
    ref, entry, evil_id = push_two_images(images)
    pinned = f"{ref}@{entry['digest']}"
    engine.tag(evil_id, *ImageReference.parse(pinned).verified_tag.rsplit(":", 1))
    container = images.repository.partition("/")[0]
    for ids in (locked_ids(entry), ()):
        spec = ContainerSpec(container, pinned, gpus="", image_ids=ids)
        with pytest.raises(Failed, match="not verified"):
            Container().run(Container.Args(spec.to_json()), images.context)
    assert not engine.containers(all=True, filters={"name": container})


def test_tag_that_moves_during_creation_starts_no_container(
    images: Images, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref, entry, evil_id = push_two_images(images)
    images.pull(ref, entry)
    container = images.repository.partition("/")[0]
    spec = ContainerSpec(container, ref, gpus="")  # by tag, as without a lock
    api = images.context.docker().api
    create: Any = api.create_container_from_config

    def move_tag_and_create(*args: Any) -> Any:
        engine.tag(evil_id, *ref.rsplit(":", 1))
        return create(*args)

    monkeypatch.setattr(api, "create_container_from_config", move_tag_and_create)
    with pytest.raises(Failed, match="moved to"):
        Container().run(Container.Args(spec.to_json()), images.context)
    assert not engine.containers(all=True, filters={"name": container})


def test_load_that_adds_and_moves_tags_is_undone(images: Images, engine: Any) -> None:
    ref, entry, evil_id = push_two_images(images)
    good_id = images.pull(ref, entry).data["id"]
    name = ImageReference.parse(f"{ref}@{entry['digest']}")
    engine.tag(good_id, *name.verified_tag.rsplit(":", 1))
    incoming, other = f"{name.repository}:incoming-1", f"{name.repository}:backdoor"
    sent = save_archive(engine, evil_id, [incoming, other, name.verified_tag, ref])
    before = InspectImage().run(InspectImage.Args(name.pull_reference), images.context).data["names"]
    load_archive(engine, sent)
    engine.tag(evil_id, name.repository, "by-user")
    assert engine.inspect_image(ref)["Id"] == evil_id
    ids = list(locked_ids(entry))
    args = AdoptImage.Args(incoming, f"{ref}@{entry['digest']}", [], "linux/amd64", ids, before)
    with pytest.raises(Failed, match=r"is not .*its Id is .* the lock has"):
        AdoptImage().run(args, images.context)
    tags = image_copy.list_names(engine).tags
    assert tags[ref] == tags[name.verified_tag] == good_id
    assert incoming not in tags and other not in tags
    assert tags[f"{name.repository}:by-user"] == evil_id


def test_interrupted_load_is_undone(images: Images, engine: Any) -> None:
    _, _, evil_id = push_two_images(images)
    sent = save_archive(engine, evil_id, [f"{images.name}:backdoor"])
    nameless = save_archive(engine, evil_id, [])
    engine.remove_image(evil_id, force=True)
    before = image_copy.list_names(engine)
    load_archive(engine, sent)
    result = UndoLoad().run(UndoLoad.Args(asdict(before)), images.context)
    assert result.changed and "backdoor was not requested" in result.msg
    load_archive(engine, nameless)
    assert evil_id in image_copy.list_names(engine).nameless
    assert UndoLoad().run(UndoLoad.Args(asdict(before)), images.context).changed
    assert evil_id not in [row["Id"] for row in engine.images()]
    assert not UndoLoad().run(UndoLoad.Args(asdict(before)), images.context).changed


def test_prune_keeps_the_pinned_image_but_not_a_forged_tag(images: Images, engine: Any) -> None:
    ref, entry, evil_id = push_two_images(images)
    good_id = images.pull(ref, entry).data["id"]
    sent = save_archive(engine, good_id, [f"{images.name}:copy"])
    engine.remove_image(good_id, force=True)
    load_archive(engine, sent)
    pinned = f"{ref}@{entry['digest']}"
    engine.tag(evil_id, *ImageReference.parse(pinned).verified_tag.rsplit(":", 1))
    args = PruneImages.Args([images.name], {pinned: list(locked_ids(entry))})
    result = PruneImages().run(args, images.check_context())
    reasons = {row["id"]: row["kept"] for row in result.data["images"]}
    assert (reasons[good_id], reasons[evil_id]) == ("pinned in spark.lock", "")


def test_wrong_manifest_is_refused_for_lock_and_pull(images: Images, proxy: Proxy, engine: Any) -> None:
    ref, entry = images.push_and_lock(address=proxy.address, seed=1)
    images.push("evil", seed=7)
    proxy.instead = {f"manifests/{entry['digest']}": f"/v2/{images.repository}/manifests/evil"}
    with pytest.raises(Failed, match=r"returned sha256:\w+ instead"):
        LockImage().run(LockImage.Args(f"{ref}@{entry['digest']}"), images.context)
    with pytest.raises(Failed):
        images.pull(ref, entry)
    manifest = next(manifest for manifest in entry["manifests"] if manifest["platform"] == "linux/amd64")
    assert image_names.inspect(engine, manifest["config"]) == {}


def test_pull_with_wrong_hashes_in_the_lock_is_refused(images: Images) -> None:
    ref, entry = images.push_and_lock(seed=1)
    wrong = {"config": "sha256:" + "1" * 64, "digest": "sha256:" + "2" * 64}
    manifests = [{**manifest, **wrong} for manifest in entry["manifests"]]
    with pytest.raises(Failed, match="does not match the lock"):
        images.pull(ref, {**entry, "manifests": manifests})


@pytest.mark.parametrize(
    "ref", ["vllm/Upper:v1", "a/b:v1 --privileged", "a/../b:v1", "a/b:v1@sha256:0", "-x", "a/b?c=d:v1"]
)
@pytest.mark.parametrize("module", [LockImage, InspectImage])
def test_invalid_image_reference_is_refused(ref: str, module: Any, context: RecordingContext) -> None:
    with pytest.raises(Refused, match="the image"):
        module().run(module.Args(ref), context)
