"""Images that are not what their names claim: false tags, loads that bring more than they should, registries that lie."""

import io
import json
import tarfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from sparkwright.errors import Failed
from sparkwright.host.images import image_copy, image_names
from sparkwright.modules.image.docker_image import AdoptImage, DockerImage, UndoLoad
from sparkwright.modules.image.image_transfer import InspectImage
from sparkwright.modules.server.container import Container
from sparkwright.modules.spark_lock import LockImage
from sparkwright.modules.storage import PruneImages
from sparkwright.protocol.container import ContainerSpec, locked_ids
from sparkwright.trust.image_name import ImageReference
from tests.modules.context import RecordingContext
from tests.registry.server import Proxy, Registry
from tests.registry.test_docker_image import lock_image, pull_image

pytestmark = pytest.mark.docker


def push_two_images(registry: Registry, context: RecordingContext, repository: str) -> tuple[str, dict[str, Any], str]:
    """Return the reference of the good image, its lock entry, and the Id of another image on the host; the good one is not there."""
    registry.push(repository, "evil", seed=7)
    evil = f"{registry.address}/{repository}:evil"
    evil_id = pull_image(context, evil, lock_image(context, evil)).data["id"]
    registry.push(repository, "v1", seed=1)
    ref = f"{registry.address}/{repository}:v1"
    return ref, lock_image(context, ref), evil_id


def save_archive(engine: Any, image: str, tags: list[str]) -> bytes:
    """Return an image's archive as `docker save` writes it, with these tags in it."""
    saved = io.BytesIO(b"".join(engine.get_image(image)))
    out = io.BytesIO()
    with tarfile.open(fileobj=saved) as read, tarfile.open(fileobj=out, mode="w") as rewritten:
        for member in read.getmembers():
            data = read.extractfile(member).read() if member.isfile() else b""  # type: ignore[union-attr]
            if member.name == "repositories":
                continue
            if member.name == "manifest.json":
                data = json.dumps([{**row, "RepoTags": tags} for row in json.loads(data)]).encode()
                member.size = len(data)
            rewritten.addfile(member, io.BytesIO(data) if member.isfile() else None)
    return out.getvalue()


def load_archive(engine: Any, data: bytes) -> None:
    list(engine.load_image(io.BytesIO(data)))


def test_a_false_tag_of_the_pinned_digest_is_no_image_and_loses_it(
    registry: Registry, engine: Any, repository: str, context: RecordingContext
) -> None:
    ref, entry, evil_id = push_two_images(registry, context, repository)
    name = ImageReference.parse(f"{ref}@{entry['digest']}")
    engine.tag(evil_id, *name.verified_tag.rsplit(":", 1))
    engine.tag(evil_id, name.repository, name.tag)
    result = pull_image(context, ref, entry)
    assert result.changed and result.diff[0].before == evil_id
    assert result.data["id"] != evil_id
    assert engine.inspect_image(name.verified_tag)["Id"] == engine.inspect_image(ref)["Id"] == result.data["id"]
    assert not pull_image(context, ref, entry).changed


def test_a_false_tag_is_not_believed_when_the_registry_is_gone(
    registry: Registry, engine: Any, repository: str, context: RecordingContext
) -> None:
    ref, entry, evil_id = push_two_images(registry, context, repository)
    name = ImageReference.parse(f"{ref}@{entry['digest']}")
    engine.tag(evil_id, *name.verified_tag.rsplit(":", 1))
    registry.stop()
    for manifests in (entry["manifests"], []):
        with pytest.raises(Failed, match="does not answer"):
            DockerImage().run(DockerImage.Args(f"{ref}@{entry['digest']}", manifests=manifests), context)
    checked = RecordingContext(context.machine.home, architecture="x86_64", check=True)
    old = DockerImage().run(DockerImage.Args(f"{ref}@{entry['digest']}"), checked)
    assert "run `invoke lock`" in old.diff[0].why
    assert InspectImage().run(InspectImage.Args(f"{ref}@{entry['digest']}"), context).data["impostor"] == evil_id


def test_a_false_tag_does_not_become_the_lock_of_a_tag_that_is_gone(
    registry: Registry, engine: Any, repository: str, context: RecordingContext
) -> None:
    """The digest in a host's answer is one that its engine recorded, not one that a tag spells."""
    registry.push(repository, "v1", seed=1)
    ref = f"{registry.address}/{repository}:v1"
    entry = lock_image(context, ref)
    pull_image(context, ref, entry)
    engine.tag(ref, f"{registry.address}/{repository}", f"sha256-{'0' * 64}")
    registry.delete(repository, entry["digest"])
    assert lock_image(context, ref)["digest"] == entry["digest"]


def test_an_old_lock_entry_goes_by_the_digest_that_the_engine_noted(
    registry: Registry, engine: Any, repository: str, context: RecordingContext
) -> None:
    registry.push(repository, "v1")
    ref = f"{registry.address}/{repository}:v1"
    entry = {**lock_image(context, ref), "manifests": []}
    pull_image(context, ref, entry)
    registry.stop()
    assert not pull_image(context, ref, entry).changed


def test_no_container_is_created_from_a_false_tag(
    registry: Registry, engine: Any, repository: str, context: RecordingContext
) -> None:
    ref, entry, evil_id = push_two_images(registry, context, repository)
    pinned = f"{ref}@{entry['digest']}"
    engine.tag(evil_id, *ImageReference.parse(pinned).verified_tag.rsplit(":", 1))
    container = repository.partition("/")[0]
    for ids in (locked_ids(entry), ()):
        spec = ContainerSpec(container, pinned, gpus="", image_ids=ids)
        with pytest.raises(Failed, match="not verified"):
            Container().run(Container.Args(spec.to_json()), context)
    assert not engine.containers(all=True, filters={"name": container})


def test_a_name_that_moves_while_the_container_is_created_starts_nothing(
    registry: Registry, engine: Any, repository: str, context: RecordingContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref, entry, evil_id = push_two_images(registry, context, repository)
    pull_image(context, ref, entry)
    container = repository.partition("/")[0]
    spec = ContainerSpec(container, ref, gpus="")  # by tag, as it may be without a lock
    api = context.docker().api
    create = api.create_container_from_config

    def moved(*given: Any) -> Any:
        engine.tag(evil_id, *ref.rsplit(":", 1))
        return create(*given)

    monkeypatch.setattr(api, "create_container_from_config", moved)
    with pytest.raises(Failed, match="moved to"):
        Container().run(Container.Args(spec.to_json()), context)
    assert not engine.containers(all=True, filters={"name": container})


def test_a_load_that_brings_other_tags_and_takes_a_name_is_undone(
    registry: Registry, engine: Any, repository: str, context: RecordingContext
) -> None:
    ref, entry, evil_id = push_two_images(registry, context, repository)
    good_id = pull_image(context, ref, entry).data["id"]
    name = ImageReference.parse(f"{ref}@{entry['digest']}")
    engine.tag(good_id, *name.verified_tag.rsplit(":", 1))
    incoming, other = f"{name.repository}:incoming-1", f"{name.repository}:backdoor"
    sent = save_archive(engine, evil_id, [incoming, other, name.verified_tag, ref])
    before = InspectImage().run(InspectImage.Args(name.pull_reference), context).data["names"]
    load_archive(engine, sent)
    engine.tag(evil_id, name.repository, "own-doing")
    assert engine.inspect_image(ref)["Id"] == evil_id
    ids = list(locked_ids(entry))
    args = AdoptImage.Args(incoming, f"{ref}@{entry['digest']}", [], "linux/amd64", ids, before)
    with pytest.raises(Failed, match=r"is not .*its Id is .* the lock has"):
        AdoptImage().run(args, context)
    tags = image_copy.list_names(engine).tags
    assert tags[ref] == tags[name.verified_tag] == good_id
    assert incoming not in tags and other not in tags
    assert tags[f"{name.repository}:own-doing"] == evil_id


def test_a_load_that_broke_off_leaves_nothing_of_what_it_brought(
    registry: Registry, engine: Any, repository: str, context: RecordingContext
) -> None:
    _, _, evil_id = push_two_images(registry, context, repository)
    sent = save_archive(engine, evil_id, [f"{registry.address}/{repository}:backdoor"])
    nameless = save_archive(engine, evil_id, [])
    engine.remove_image(evil_id, force=True)
    before = image_copy.list_names(engine)
    load_archive(engine, sent)
    result = UndoLoad().run(UndoLoad.Args(asdict(before)), context)
    assert result.changed and "backdoor was not requested" in result.msg
    load_archive(engine, nameless)
    assert evil_id in image_copy.list_names(engine).nameless
    assert UndoLoad().run(UndoLoad.Args(asdict(before)), context).changed
    assert evil_id not in [row["Id"] for row in engine.images()]
    assert not UndoLoad().run(UndoLoad.Args(asdict(before)), context).changed


def test_prune_keeps_the_pinned_image_and_not_what_has_its_tag(
    registry: Registry, engine: Any, repository: str, context: RecordingContext
) -> None:
    ref, entry, evil_id = push_two_images(registry, context, repository)
    good_id = pull_image(context, ref, entry).data["id"]
    sent = save_archive(engine, good_id, [f"{registry.address}/{repository}:copy"])
    engine.remove_image(good_id, force=True)
    load_archive(engine, sent)
    pinned = f"{ref}@{entry['digest']}"
    engine.tag(evil_id, *ImageReference.parse(pinned).verified_tag.rsplit(":", 1))
    args = PruneImages.Args([f"{registry.address}/{repository}"], {pinned: list(locked_ids(entry))})
    checked = RecordingContext(context.machine.home, architecture="x86_64", check=True)
    reasons = {row["id"]: row["kept"] for row in PruneImages().run(args, checked).data["images"]}
    assert (reasons[good_id], reasons[evil_id]) == ("pinned in spark.lock", "")


def test_a_registry_that_answers_another_manifest_is_refused_for_the_lock_and_for_a_pull(
    proxy: Proxy, registry: Registry, engine: Any, repository: str, context: RecordingContext
) -> None:
    registry.push(repository, "v1", seed=1)
    ref = f"{proxy.address}/{repository}:v1"
    entry = lock_image(context, ref)
    registry.push(repository, "evil", seed=7)
    proxy.instead = {f"manifests/{entry['digest']}": f"/v2/{repository}/manifests/evil"}
    with pytest.raises(Failed, match=r"returned sha256:\w+ instead"):
        LockImage().run(LockImage.Args(f"{ref}@{entry['digest']}"), context)
    with pytest.raises(Failed):
        pull_image(context, ref, entry)
    mine = next(manifest for manifest in entry["manifests"] if manifest["platform"] == "linux/amd64")
    assert image_names.inspect(engine, mine["config"]) == {}


def test_a_lock_whose_hashes_are_not_the_images_stops_the_pull(
    registry: Registry, engine: Any, repository: str, context: RecordingContext
) -> None:
    registry.push(repository, "v1", seed=1)
    ref = f"{registry.address}/{repository}:v1"
    entry = lock_image(context, ref)
    false = [
        {**manifest, "config": "sha256:" + "1" * 64, "digest": "sha256:" + "2" * 64} for manifest in entry["manifests"]
    ]
    with pytest.raises(Failed, match="does not match the lock"):
        pull_image(context, ref, {**entry, "manifests": false})


@pytest.mark.parametrize(
    "ref", ["vllm/Upper:v1", "a/b:v1 --privileged", "a/../b:v1", "a/b:v1@sha256:0", "-x", "a/b?c=d:v1"]
)
def test_what_is_no_image_reference_is_refused_before_anybody_is_asked(ref: str, tmp_path: Path, engine: Any) -> None:
    from sparkwright.errors import Refused

    context = RecordingContext(tmp_path, architecture="x86_64")
    for run in (
        lambda: LockImage().run(LockImage.Args(ref), context),
        lambda: InspectImage().run(InspectImage.Args(ref), context),
    ):
        with pytest.raises(Refused, match="the image"):
            run()
