"""The folder of compile caches for a recipe's container on a host; none if the recipe keeps them itself, or wants none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkwright.engines.compile_caches import key_of, live_folder
from sparkwright.project.recipe.recipe import Recipe
from sparkwright.protocol.container import ContainerSpec
from sparkwright.trust.image_name import digest_of


def key(recipe: Recipe, spec: ContainerSpec, model: Mapping[str, Any], command: tuple[str, ...]) -> str:
    """Return the key of the folder; empty for none, and while image or model are not pinned.

    The key covers everything that compiled files may depend on: image, model, arguments, environment, files, user.

    Args:
        model: see `scope.pinned_model`.
        command: see `container_spec`.
    """
    caches, digest, commit = recipe.engine.caches, digest_of(spec.image), model.get("commit")
    if caches is None or not recipe.file.container.compile_caches or not digest or not commit:
        return ""
    if caches.kept_elsewhere(spec.env, _mounted(spec)):
        return ""
    words, further = recipe.engine.command(command), [item["commit"] for item in model.get("models", ())]
    return key_of(
        {
            "image": digest,
            "model": [recipe.file.model.id, commit, words.model, *further],
            "flags": caches.that_matter(words.flags),
            **{name: getattr(spec, name) for name in ("entrypoint", "env", "files", "user", "gpus")},
        }
    )


def options(recipe: Recipe, spec: ContainerSpec, home: str) -> list[tuple[str, str]]:
    """Return the options of `docker run` for the caches, as the host sets them. home: the home folder of the host's user."""
    caches = recipe.engine.caches
    if caches is None or not spec.caches:
        return []
    mounts = caches.sources(live_folder(home, spec.caches, spec.name)).items()
    variables = sorted((name, value) for name, value in caches.environment.items() if name not in spec.env)
    return [
        *(("--mount", f"type=bind,source={source},target={target}") for target, source in mounts),
        *(("-e", f"{name}={value}") for name, value in variables),
    ]


def _mounted(spec: ContainerSpec) -> list[str]:
    volumes = [volume.split(":")[1] for volume in spec.volumes]
    return [*volumes, *(item.partition(":")[0] for item in spec.tmpfs)]
