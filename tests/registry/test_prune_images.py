"""What may go from a host's disk, and what never does, on a real engine."""

from __future__ import annotations

from typing import Any

import pytest

from sparkwright.modules.rpc.prune_images import PruneImages
from tests.modules.context import RecordingContext
from tests.registry.server import Registry
from tests.registry.test_docker_image import locked, pull

pytestmark = pytest.mark.docker


def bring(registry: Registry, context: RecordingContext, repository: str, tag: str, seed: int) -> tuple[str, str]:
    """An image of its own on the host: (repository:tag@digest, Id)."""
    registry.push(repository, tag, seed=seed, layer_bytes=(100_000 * seed,))
    ref = f"{registry.address}/{repository}:{tag}"
    entry = locked(context, ref)
    return f"{ref}@{entry['digest']}", pull(context, ref, entry).data["id"]


def test_only_what_nothing_needs_goes(
    registry: Registry, engine: Any, repository: str, context: RecordingContext
) -> None:
    (_, unused), (used, used_id), (good, good_id), (pinned, pinned_id) = (
        bring(registry, context, repository, f"v{seed}", seed) for seed in (1, 2, 3, 4)
    )
    context.state.write("verified", {"spec": {"name": "served", "image": good}})
    container = engine.create_container(used)["Id"]
    args = PruneImages.Args([f"{registry.address}/{repository}"], pinned={pinned: [pinned_id]})
    try:
        looked = RecordingContext(context.machine.home, architecture="x86_64", check=True)
        shown = PruneImages().run(args, looked)
        kept = {row["id"]: row["kept"] for row in shown.data["images"]}
        assert kept[unused] == ""
        assert kept[used_id].startswith("in use by ")
        assert (kept[good_id], kept[pinned_id]) == ("the last good state", "pinned in spark.lock")
        assert 100_000 <= shown.data["freed_bytes"] < 110_000
        assert engine.inspect_image(unused)
        assert PruneImages().run(args, context).changed
        left = {row["Id"] for row in engine.images()}
        assert unused not in left and {used_id, good_id, pinned_id} <= left
        assert not PruneImages().run(args, context).changed
    finally:
        engine.remove_container(container)


def test_only_what_was_agreed_on_goes(
    registry: Registry, engine: Any, repository: str, context: RecordingContext
) -> None:
    (_, first), (_, second) = (bring(registry, context, repository, f"v{seed}", seed) for seed in (1, 2))
    PruneImages().run(PruneImages.Args([f"{registry.address}/{repository}"], only=[first]), context)
    left = {row["Id"] for row in engine.images()}
    assert first not in left and second in left
