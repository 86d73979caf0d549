"""Removing images from a host's disk, and those that always stay, with a real engine."""

from typing import Any

import pytest

from sparkwright.host.images import image_names
from sparkwright.modules.storage import PruneImages
from tests.modules.context import RecordingContext
from tests.registry.server import Registry
from tests.registry.test_docker_image import lock_image, pull_image

pytestmark = pytest.mark.docker


def pull_new_image(
    registry: Registry, context: RecordingContext, repository: str, tag: str, seed: int
) -> tuple[str, str]:
    """Pull an image of its own to the host. Returns (repository:tag@digest, Id)."""
    registry.push(repository, tag, seed=seed, layer_bytes=(100_000 * seed,))
    ref = f"{registry.address}/{repository}:{tag}"
    entry = lock_image(context, ref)
    return f"{ref}@{entry['digest']}", pull_image(context, ref, entry).data["id"]


def test_only_what_nothing_needs_goes(
    registry: Registry, engine: Any, repository: str, context: RecordingContext
) -> None:
    (_, unused), (used, used_id), (good, good_id), (pinned, pinned_id) = (
        pull_new_image(registry, context, repository, f"v{seed}", seed) for seed in (1, 2, 3, 4)
    )
    context.state.write("verified", {"spec": {"name": "served", "image": good}})
    container = engine.create_container(used)["Id"]
    args = PruneImages.Args([f"{registry.address}/{repository}"], pinned={pinned: [pinned_id]})
    try:
        looked = RecordingContext(context.machine.home, architecture="x86_64", check=True)
        result = PruneImages().run(args, looked)
        reasons = {row["id"]: row["kept"] for row in result.data["images"]}
        assert reasons[unused] == ""
        assert reasons[used_id].startswith("in use by ")
        assert (reasons[good_id], reasons[pinned_id]) == ("the last good state", "pinned in spark.lock")
        assert 100_000 <= result.data["freed_bytes"] < 110_000
        assert engine.inspect_image(unused)
        assert PruneImages().run(args, context).changed
        left = {row["Id"] for row in engine.images()}
        assert unused not in left and {used_id, good_id, pinned_id} <= left
        assert not PruneImages().run(args, context).changed
    finally:
        engine.remove_container(container)


def test_a_name_that_means_another_image_by_now_stays_with_it(
    registry: Registry, engine: Any, repository: str, context: RecordingContext
) -> None:
    """Only images that were listed are removed: meanwhile someone moves a tag of one to another image."""
    (_, first), (_, second) = (pull_new_image(registry, context, repository, f"v{seed}", seed) for seed in (1, 2))
    mine, elsewhere = f"{registry.address}/{repository}", f"{registry.address}/{repository}-elsewhere"
    engine.tag(first, elsewhere, "moving")
    engine.tag(first, elsewhere, "staying")
    args = PruneImages.Args([mine], only=[first])
    module = PruneImages()
    rows = module.read(args, context)
    engine.tag(second, elsewhere, "moving", force=True)
    engine.tag(second, mine, "v1", force=True)
    try:
        module.act(args, rows, module.differences(args, rows), context)
        assert first not in {row["Id"] for row in engine.images(all=True)}
        for name in (f"{elsewhere}:moving", f"{mine}:v1", f"{mine}:v2"):
            assert engine.inspect_image(name)["Id"] == second
        assert image_names.remove_name(engine, f"{elsewhere}:moving", first) is False
        assert image_names.remove_name(engine, f"{elsewhere}:moving", second)
        assert image_names.remove_name(engine, f"{elsewhere}:moving", second), "gone already"
        assert engine.inspect_image(second)
    finally:
        for row in engine.images():
            if row["Id"] in (first, second):
                engine.remove_image(row["Id"], force=True)


def test_only_what_was_agreed_on_goes(
    registry: Registry, engine: Any, repository: str, context: RecordingContext
) -> None:
    (_, first), (_, second) = (pull_new_image(registry, context, repository, f"v{seed}", seed) for seed in (1, 2))
    PruneImages().run(PruneImages.Args([f"{registry.address}/{repository}"], only=[first]), context)
    left = {row["Id"] for row in engine.images()}
    assert first not in left and second in left
