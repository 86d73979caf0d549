"""Modules that list and remove models, images and compile caches."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sparkwright import units
from sparkwright.errors import Exit, Failed
from sparkwright.host.containers import cache_removal, docker_client, recipe_files
from sparkwright.host.containers.cache_removal import CompileCache
from sparkwright.host.images import image_names
from sparkwright.host.models import model_folders
from sparkwright.host.models.manifest import Manifest
from sparkwright.host.module import Context, Module, StateModule
from sparkwright.host.records import verified_states
from sparkwright.protocol.result import Change, Result, arg
from sparkwright.trust.image_name import ImageReference
from sparkwright.visible import format_count


class PruneCaches(StateModule["PruneCaches.Args", list[CompileCache]]):
    """Remove compile caches that are not needed, and those that were moved aside.

    Never removed: the cache of a container, running or not, of the last verified state, or of the state that a rollback
    returns to. Files that a container wrote as root are removed from within a container.

    Returns: caches (name, container, image, model, size_bytes, used_s, kept, why_aside), freed_bytes (in check mode: what
    would be freed).
    """

    @dataclass(frozen=True)
    class Args:
        only: list[str] | None = arg("names of the caches to remove; null: all removable ones", default=None)

    def read(self, args: Args, context: Context) -> list[CompileCache]:
        return cache_removal.list_caches(context)

    def differences(self, args: Args, observed: list[CompileCache]) -> list[Change]:
        return [
            Change("compile cache", cache.name, None, cache.why_aside or "unused")
            for cache in _removable_caches(args, observed)
        ]

    def describe(self, args: Args, observed: list[CompileCache]) -> dict[str, Any]:
        removable_caches = _removable_caches(args, observed)
        freed_bytes = sum(cache.size_bytes for cache in removable_caches)
        msg = f"{format_count(len(removable_caches), 'compile cache')}, {units.format_size(freed_bytes)}"
        return {"caches": [asdict(cache) for cache in observed], "freed_bytes": freed_bytes, "msg": msg}

    def act(self, args: Args, observed: list[CompileCache], changes: list[Change], context: Context) -> dict[str, Any]:
        names = [cache.name for cache in _removable_caches(args, observed)]
        return {"freed_bytes": cache_removal.remove(context, names)}


def _removable_caches(args: PruneCaches.Args, observed: list[CompileCache]) -> list[CompileCache]:
    return [cache for cache in observed if not cache.kept and (args.only is None or cache.name in args.only)]


@dataclass(frozen=True, slots=True)
class Image:
    """An image on the host."""

    id: str
    names: tuple[str, ...]
    #: bytes that removing only this image frees, without the layers that it shares with other images
    frees_bytes: int
    #: why it is kept; empty if it may be removed
    kept: str = ""


class PruneImages(StateModule["PruneImages.Args", list[Image]]):
    """Remove images that are not needed, and the compile caches made with them.

    Never removed: an image that a container uses, running or not; the image of the last verified state, which a rollback
    needs; an image that spark.lock pins for this host. Removal is never forced, so that the Docker Engine keeps an image that
    a new container uses.

    Returns: images (id, names, frees_bytes, kept), freed_bytes (in check mode: what would be freed).
    """

    @dataclass(frozen=True)
    class Args:
        repositories: list[str] = arg("only images of these repositories; [] for all", default_factory=list)
        pinned: dict[str, list[str]] = arg(
            "images to keep, as repository:tag@digest, with the Ids that the lock allows", default_factory=dict
        )
        only: list[str] | None = arg("ids of the images to remove; null: all removable ones", default=None)

    def read(self, args: Args, context: Context) -> list[Image]:
        api: Any = context.docker().api
        pinned_reasons = dict.fromkeys(_find_ids(api, args.pinned), "pinned in spark.lock")
        reasons = {**pinned_reasons, **_images_of_verified_states(api, context), **_images_in_use(api)}
        unique_bytes = _unique_bytes(api)
        images = []
        for image in api.images():
            names = image_names.names_of(image)
            repositories = {ImageReference.parse(name).repository for name in names}
            if args.repositories and not repositories & set(args.repositories):
                continue
            freed_bytes = unique_bytes.get(image["Id"], image.get("Size") or 0)
            images.append(Image(image["Id"], tuple(names), freed_bytes, reasons.get(image["Id"], "")))
        return sorted(images, key=lambda image: -image.frees_bytes)

    def differences(self, args: Args, observed: list[Image]) -> list[Change]:
        return [
            Change(image.names[0] if image.names else f"image {image.id[7:19]}", image.id, None, "unused")
            for image in self._removable_images(args, observed)
        ]

    def describe(self, args: Args, observed: list[Image]) -> dict[str, Any]:
        removable_images = self._removable_images(args, observed)
        freed_bytes = sum(image.frees_bytes for image in removable_images)
        images = [{**asdict(image), "names": list(image.names)} for image in observed]
        msg = f"{format_count(len(removable_images), 'image')}, {units.format_size(freed_bytes)}"
        return {"images": images, "freed_bytes": freed_bytes, "msg": msg}

    def act(self, args: Args, observed: list[Image], changes: list[Change], context: Context) -> dict[str, Any]:
        removable_ids = [image.id for image in self._removable_images(args, observed)]
        cache_removal.remove_for_images(context, set(removable_ids))
        for image_id in removable_ids:
            remove_image(context.docker().api, image_id)
        recipe_files.remove_unneeded(context)
        return {}

    @staticmethod
    def _removable_images(args: Args, observed: list[Image]) -> list[Image]:
        return [image for image in observed if not image.kept and (args.only is None or image.id in args.only)]


def remove_image(api: Any, image_id: str) -> None:
    """Remove an image and all its current names, without force. Raises Failed if the Docker Engine refuses.

    A name that has moved to another image since the images were listed is kept. The engine does not remove an image by its
    Id while it has several tags, or names in several repositories, so all of them but one tag are removed first.
    """
    from docker.errors import APIError

    try:
        image = image_names.inspect(api, image_id)
        names = image_names.names_of(image)
        last_name = next((name for name in reversed(names) if "@" not in name), names[-1] if names else "")
        last_repository = ImageReference.parse(last_name).repository if names else ""
        for name in names:
            is_digest_of_last = "@" in name and ImageReference.parse(name).repository == last_repository
            if name != last_name and not is_digest_of_last:
                image_names.remove_name(api, name, image_id)
        with contextlib.suppress(docker_client.errors().NotFound):
            api.remove_image(image_id)
    except APIError as error:
        raise Failed(f"Docker could not remove {image_id[7:19]}: {error.explanation or error}") from None


def _images_in_use(api: Any) -> dict[str, str]:
    """Return the reason to keep each image that a container uses, by image Id."""
    return {
        container["ImageID"]: f"in use by {container['Names'][0].lstrip('/')}" for container in api.containers(all=True)
    }


def _images_of_verified_states(api: Any, context: Context) -> dict[str, str]:
    specs = [verified_states.load_last(server).spec for server in context.state.servers()]
    ids_by_name = {spec["image"]: spec.get("image_ids") or [] for spec in specs if spec.get("image")}
    return dict.fromkeys(_find_ids(api, ids_by_name), "the last good state")


def _find_ids(api: Any, ids_by_name: Mapping[str, Collection[str]]) -> Iterator[str]:
    for ref, ids in ids_by_name.items():
        image = image_names.find(api, ref, ids)
        if image:
            yield str(image["Id"])


def _unique_bytes(api: Any) -> dict[str, int]:
    """Return the unshared bytes of each image, by Id; empty if the Docker Engine does not report them."""
    from docker.errors import APIError

    try:
        images = api.df().get("Images") or ()
    except APIError:
        return {}
    return {image["Id"]: image["Size"] - max(image.get("SharedSize") or 0, 0) for image in images}


class RemoveModel(StateModule["RemoveModel.Args", Manifest]):
    """Remove a model's verified files, and leftovers of transfers, from this host.

    Other files in the folder are kept and counted; targets of links in it are kept too. Refused if any container mounts the
    folder, running or not, because a restored previous server needs its model.

    Returns: dir, freed_bytes, left (number of other files that remain).
    """

    @dataclass(frozen=True)
    class Args:
        dir: str = arg("the folder; ~ is the user's home")

    def read(self, args: Args, context: Context) -> Manifest:
        manifest = Manifest.load(context.state, context.machine.expand(args.dir))
        container_names = [
            name
            for model_folder in model_folders.list_folders(context)
            if model_folder.dir == str(manifest.folder)
            for name in model_folder.used_by
        ]
        if container_names:
            error = Failed(
                f"{manifest.folder} is in use by {', '.join(container_names)}.", fix="Remove the container first."
            )
            error.exit = Exit.REFUSED
            raise error
        return manifest

    def differences(self, args: Args, observed: Manifest) -> list[Change]:
        paths = [path for path in model_folders.own_files(observed) if path.exists()]
        size_bytes = model_folders.removable_bytes(observed)
        contents = f"{format_count(len(paths), 'file')}, {units.format_size(size_bytes)}"
        return [Change(str(observed.folder), contents, None)] if paths or size_bytes else []

    def describe(self, args: Args, observed: Manifest) -> dict[str, Any]:
        return {"dir": str(observed.folder), "freed_bytes": 0, "left": 0}

    def act(self, args: Args, observed: Manifest, changes: list[Change], context: Context) -> dict[str, Any]:
        freed_bytes = model_folders.removable_bytes(observed)
        for transfer_folder in model_folders.transfer_folders(observed.folder):
            shutil.rmtree(transfer_folder, ignore_errors=True)
        for path in model_folders.own_files(observed):
            path.unlink(missing_ok=True)
        for folder in (*sorted(filter(Path.is_dir, observed.folder.rglob("*")), reverse=True), observed.folder):
            with contextlib.suppress(OSError):  # the folder is not empty
                folder.rmdir()
        observed.forget()
        remaining_count = (
            sum(1 for path in observed.folder.rglob("*") if path.is_file()) if observed.folder.exists() else 0
        )
        others_note = f"; {format_count(remaining_count, 'other file')} kept" if remaining_count else ""
        return {
            "freed_bytes": freed_bytes,
            "left": remaining_count,
            "msg": f"{units.format_size(freed_bytes)} freed{others_note}",
        }


class Models(Module["Models.Args"]):
    """List the verified models on this host, and the containers that use them. Changes nothing.

    Returns: models, each with dir, id, commit, files, size_bytes (on disk), changed (files that differ from the verified
    ones), used_by (containers, running or not, that mount it).
    """

    @dataclass(frozen=True)
    class Args:
        pass

    def run(self, args: Args, context: Context) -> Result:
        models = [asdict(model_folder) for model_folder in model_folders.list_folders(context)]
        return Result(msg=format_count(len(models), "model"), data={"models": models})
