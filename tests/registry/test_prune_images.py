"""`images.prune` with a real Docker Engine: it removes only unused images of the listed repositories."""

from typing import Any

import pytest

from sparkwright.host.images import image_names
from sparkwright.modules.storage import PruneImages
from tests.registry.images import Images

pytestmark = pytest.mark.docker


def pull_new_image(images: Images, seed: int) -> tuple[str, str]:
    """Push and pull another image. Return its pinned reference and its Id."""
    ref, entry = images.push_and_lock(f"v{seed}", seed=seed, layer_bytes=(100_000 * seed,))
    return f"{ref}@{entry['digest']}", images.pull(ref, entry).data["id"]


def test_images_in_use_or_pinned_are_kept(images: Images, engine: Any) -> None:
    (_, unused), (used, used_id), (good, good_id), (pinned, pinned_id) = (
        pull_new_image(images, seed) for seed in (1, 2, 3, 4)
    )
    images.context.state.write("verified", {"spec": {"name": "served", "image": good}})
    container = engine.create_container(used)["Id"]
    args = PruneImages.Args([images.name], pinned={pinned: [pinned_id]})
    try:
        result = PruneImages().run(args, images.check_context())
        reasons = {row["id"]: row["kept"] for row in result.data["images"]}
        assert reasons[unused] == ""
        assert reasons[used_id].startswith("in use by ")
        assert (reasons[good_id], reasons[pinned_id]) == ("the last good state", "pinned in spark.lock")
        assert 100_000 <= result.data["freed_bytes"] < 110_000
        assert engine.inspect_image(unused)
        assert PruneImages().run(args, images.context).changed
        left = {row["Id"] for row in engine.images()}
        assert unused not in left and {used_id, good_id, pinned_id} <= left
        assert not PruneImages().run(args, images.context).changed
    finally:
        engine.remove_container(container)


def test_tags_that_moved_meanwhile_are_kept(images: Images, engine: Any) -> None:
    """Between the list and the removal, a user moves tags of a listed image to another image."""
    (_, first), (_, second) = (pull_new_image(images, seed) for seed in (1, 2))
    own, other = images.name, f"{images.name}-other"
    engine.tag(first, other, "moving")
    engine.tag(first, other, "staying")
    args = PruneImages.Args([own], only=[first])
    module = PruneImages()
    rows = module.read(args, images.context)
    engine.tag(second, other, "moving", force=True)
    engine.tag(second, own, "v1", force=True)
    try:
        module.act(args, rows, module.differences(args, rows), images.context)
        assert first not in {row["Id"] for row in engine.images(all=True)}
        for name in (f"{other}:moving", f"{own}:v1", f"{own}:v2"):
            assert engine.inspect_image(name)["Id"] == second
        assert image_names.remove_name(engine, f"{other}:moving", first) is False
        assert image_names.remove_name(engine, f"{other}:moving", second)
        assert image_names.remove_name(engine, f"{other}:moving", second)
        assert engine.inspect_image(second)
    finally:
        for row in engine.images():
            if row["Id"] in (first, second):
                engine.remove_image(row["Id"], force=True)


def test_image_with_several_tags_in_one_repository_is_removed(images: Images, engine: Any) -> None:
    """A deployed image has two: the recipe's tag and the tag that records its digest."""
    _, image_id = pull_new_image(images, 1)
    engine.tag(image_id, images.name, "second")
    engine.tag(image_id, images.name, "third")
    PruneImages().run(PruneImages.Args([images.name], only=[image_id]), images.context)
    assert image_id not in {row["Id"] for row in engine.images(all=True)}


def test_only_the_selected_image_is_removed(images: Images, engine: Any) -> None:
    (_, first), (_, second) = (pull_new_image(images, seed) for seed in (1, 2))
    PruneImages().run(PruneImages.Args([images.name], only=[first]), images.context)
    left = {row["Id"] for row in engine.images()}
    assert first not in left and second in left
