"""Modules about what a host stores: they list and remove models, images and compile caches."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
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


@dataclass(frozen=True, slots=True)
class PruneCachesState:
    """The compile caches of the host."""

    #: the most recently used first
    rows: tuple[CompileCache, ...] = ()


class PruneCaches(StateModule["PruneCaches.Args", PruneCachesState]):
    """Remove compile caches that are not needed, and those that were moved aside.

    Never removed: the cache of a container, running or not; that of the last verified state, and of the state that a
    rollback returns to. Files that a container wrote as root are removed by a container.

    Returns: caches (name, container, image, model, size_bytes, used_s, kept, why_aside), freed_bytes (in check mode: what
    would be freed).
    """

    @dataclass(frozen=True)
    class Args:
        only: list[str] | None = arg("the confirmed names; default: all that may be removed", default=None)

    def read(self, args: Args, context: Context) -> PruneCachesState:
        return PruneCachesState(tuple(cache_removal.list_caches(context)))

    def differences(self, args: Args, observed: PruneCachesState) -> list[Change]:
        return [
            Change("compile cache", row.name, None, row.why_aside or "unused")
            for row in _removable_caches(args, observed)
        ]

    def describe(self, args: Args, observed: PruneCachesState) -> dict[str, Any]:
        removable = _removable_caches(args, observed)
        freed = sum(row.size_bytes for row in removable)
        msg = f"{format_count(len(removable), 'compile cache')}, {units.format_size(freed)}"
        return {"caches": [asdict(row) for row in observed.rows], "freed_bytes": freed, "msg": msg}

    def act(self, args: Args, observed: PruneCachesState, changes: list[Change], context: Context) -> dict[str, Any]:
        return {"freed_bytes": cache_removal.remove(context, [row.name for row in _removable_caches(args, observed)])}


def _removable_caches(args: PruneCaches.Args, observed: PruneCachesState) -> list[CompileCache]:
    return [row for row in observed.rows if not row.kept and (args.only is None or row.name in args.only)]


@dataclass(frozen=True, slots=True)
class Image:
    """An image on the host."""

    id: str
    names: tuple[str, ...]
    #: bytes that removing this image alone frees; layers that others use stay
    frees_bytes: int
    #: why it stays; empty when it may be removed
    kept: str = ""


@dataclass(frozen=True, slots=True)
class PruneImagesState:
    """The images to consider."""

    #: the largest first
    images: tuple[Image, ...] = field(default=())


class PruneImages(StateModule["PruneImages.Args", PruneImagesState]):
    """Remove images that are not needed, and the compile caches made with them.

    Never removed: an image that a container uses, running or not; the image of the last verified state, which a rollback
    needs; one that the lock pins for this host. Removal is never forced: the engine also refuses if a container appears.

    Returns: images (id, names, frees_bytes, kept), freed_bytes (in check mode: what would be freed).
    """

    @dataclass(frozen=True)
    class Args:
        repositories: list[str] = arg("only images of these repositories; [] for all", default_factory=list)
        pinned: dict[str, list[str]] = arg(
            "images to keep, as repository:tag@digest, with the Ids that the lock allows", default_factory=dict
        )
        only: list[str] | None = arg("the confirmed Ids; default: all that may be removed", default=None)

    def read(self, args: Args, context: Context) -> PruneImagesState:
        api: Any = context.docker().api
        pinned = dict.fromkeys(_find_ids(api, args.pinned), "pinned in spark.lock")
        reasons = {**pinned, **_images_of_verified_states(api, context), **_images_in_use(api)}
        unique_bytes = _unique_bytes(api)
        images = []
        for row in api.images():
            names = image_names.names_of(row)
            if args.repositories and not {ImageReference.parse(name).repository for name in names} & set(
                args.repositories
            ):
                continue
            freed_bytes = unique_bytes.get(row["Id"], row.get("Size") or 0)
            images.append(Image(row["Id"], tuple(names), freed_bytes, reasons.get(row["Id"], "")))
        return PruneImagesState(tuple(sorted(images, key=lambda image: -image.frees_bytes)))

    def differences(self, args: Args, observed: PruneImagesState) -> list[Change]:
        removable = self._removable_images(args, observed)
        return [
            Change(image.names[0] if image.names else f"image {image.id[7:19]}", image.id, None, "unused")
            for image in removable
        ]

    def describe(self, args: Args, observed: PruneImagesState) -> dict[str, Any]:
        removable = self._removable_images(args, observed)
        freed = sum(image.frees_bytes for image in removable)
        rows = [{**asdict(image), "names": list(image.names)} for image in observed.images]
        return {
            "images": rows,
            "freed_bytes": freed,
            "msg": f"{format_count(len(removable), 'image')}, {units.format_size(freed)}",
        }

    def act(self, args: Args, observed: PruneImagesState, changes: list[Change], context: Context) -> dict[str, Any]:
        cache_removal.remove_for_images(context, {image.id for image in self._removable_images(args, observed)})
        for image in self._removable_images(args, observed):
            remove_image(context.docker().api, image.id)
        recipe_files.remove_unneeded(context)
        return {}

    @staticmethod
    def _removable_images(args: Args, observed: PruneImagesState) -> list[Image]:
        return [image for image in observed.images if not image.kept and (args.only is None or image.id in args.only)]


def remove_image(api: Any, image_id: str) -> None:
    """Remove an image by its Id, with all names that it has now, without force. Raises Failed when the engine refuses.

    A name that was given to another image since the list was made stays with that one. The engine refuses an Id that several
    repositories name: the names of all but one are taken away first.
    """
    from docker.errors import APIError

    try:
        names = {
            name: ImageReference.parse(name).repository
            for name in image_names.names_of(image_names.inspect(api, image_id))
        }
        last = next(reversed(names.values()), "")
        for name in (name for name, repository in names.items() if repository != last):
            image_names.remove_name(api, name, image_id)
        with contextlib.suppress(docker_client.errors().NotFound):
            api.remove_image(image_id)
    except APIError as error:
        raise Failed(f"Docker did not remove {image_id[7:19]}: {error.explanation or error}") from None


def _images_in_use(api: Any) -> dict[str, str]:
    """Return the images that containers were created from, by Id, each with its container."""
    return {row["ImageID"]: f"in use by {row['Names'][0].lstrip('/')}" for row in api.containers(all=True)}


def _images_of_verified_states(api: Any, context: Context) -> dict[str, str]:
    specs = [verified_states.load_last(server).get("spec") or {} for server in context.state.servers()]
    ids_by_name = {spec["image"]: spec.get("image_ids") or [] for spec in specs if spec.get("image")}
    return dict.fromkeys(_find_ids(api, ids_by_name), "the last good state")


def _find_ids(api: Any, ids_by_name: Mapping[str, Collection[str]]) -> Iterator[str]:
    for ref, ids in ids_by_name.items():
        image = image_names.find(api, ref, ids)
        if image:
            yield str(image["Id"])


def _unique_bytes(api: Any) -> dict[str, int]:
    """Return the bytes that each image shares with no other, by Id, as the Docker Engine counts them; empty if it can't."""
    from docker.errors import APIError

    try:
        rows = api.df().get("Images") or ()
    except APIError:
        return {}
    return {row["Id"]: row["Size"] - max(row.get("SharedSize") or 0, 0) for row in rows}


class RemoveModel(StateModule["RemoveModel.Args", Manifest]):
    """Remove a model's files from this host: those that sparkwright verified there, and leftovers of transfers.

    Files of others in the same folder are kept, and counted; so are targets of links in it. A folder that any container
    mounts, running or not, is refused, because the previous server needs its model to be restored.

    Returns: dir, freed_bytes, left (files of others that remain).
    """

    @dataclass(frozen=True)
    class Args:
        dir: str = arg("the folder; ~ is the user's home")

    def read(self, args: Args, context: Context) -> Manifest:
        manifest = Manifest.load(context.state, context.machine.expand(args.dir))
        folders = (
            model_folder
            for model_folder in model_folders.list_folders(context)
            if model_folder.dir == str(manifest.folder)
        )
        users = [user for model_folder in folders for user in model_folder.used_by]
        if users:
            error = Failed(f"{manifest.folder} is in use by {', '.join(users)}.", fix="Remove the container first.")
            error.exit = Exit.REFUSED
            raise error
        return manifest

    def differences(self, args: Args, observed: Manifest) -> list[Change]:
        paths = [path for path in model_folders.own_files(observed) if path.exists()]
        size = model_folders.removable_bytes(observed)
        contents = f"{format_count(len(paths), 'file')}, {units.format_size(size)}"
        return [Change(str(observed.folder), contents, None)] if paths or size else []

    def describe(self, args: Args, observed: Manifest) -> dict[str, Any]:
        return {"dir": str(observed.folder), "freed_bytes": 0, "left": 0}

    def act(self, args: Args, observed: Manifest, changes: list[Change], context: Context) -> dict[str, Any]:
        freed = model_folders.removable_bytes(observed)
        for part in model_folders.transfer_folders(observed.folder):
            shutil.rmtree(part, ignore_errors=True)
        for path in model_folders.own_files(observed):
            path.unlink(missing_ok=True)
        for folder in (*sorted(filter(Path.is_dir, observed.folder.rglob("*")), reverse=True), observed.folder):
            with contextlib.suppress(OSError):  # the folder is not empty
                folder.rmdir()
        observed.forget()
        left = sum(1 for path in observed.folder.rglob("*") if path.is_file()) if observed.folder.exists() else 0
        others = f"; {format_count(left, 'other file')} kept" if left else ""
        return {"freed_bytes": freed, "left": left, "msg": f"{units.format_size(freed)} freed{others}"}


class Models(Module["Models.Args"]):
    """List the models on this host: every folder that sparkwright verified, and the containers that use it. Changes nothing.

    Returns: models, each with dir, id, commit, files, size_bytes (on disk), changed (files that differ from the verified
    ones), used_by (containers, running or not, that mount it).
    """

    @dataclass(frozen=True)
    class Args:
        pass

    def run(self, args: Args, context: Context) -> Result:
        models = [asdict(model_folder) for model_folder in model_folders.list_folders(context)]
        return Result(msg=f"{format_count(len(models), 'model')}", data={"models": models})
