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
from sparkwright.host.containers.cache_removal import Row
from sparkwright.host.images import image_names
from sparkwright.host.models import model_folders
from sparkwright.host.models.manifest import Manifest
from sparkwright.host.module import Context, Module, StateModule
from sparkwright.host.records import good_states
from sparkwright.protocol.result import Change, Result, arg
from sparkwright.trust.image_name import Name
from sparkwright.visible import count


@dataclass(frozen=True, slots=True)
class PruneCachesFound:
    """The compile caches of the host."""

    #: the most recently used first
    rows: tuple[Row, ...] = ()


class PruneCaches(StateModule["PruneCaches.Args", PruneCachesFound]):
    """Remove compile caches that are not needed, and those that were moved aside.

    Never removed: the cache of a container, running or not; that of the last verified state, and of the state that a
    rollback returns to. Files that a container wrote as root are removed by a container.

    Returns: caches (name, container, image, model, size_bytes, used_s, kept, why_aside), freed_bytes (in check mode: what
    would be freed).
    """

    @dataclass(frozen=True)
    class Args:
        only: list[str] | None = arg("the confirmed names; default: all that may be removed", default=None)

    def read(self, args: Args, context: Context) -> PruneCachesFound:
        return PruneCachesFound(tuple(cache_removal.rows(context)))

    def differences(self, args: Args, found: PruneCachesFound) -> list[Change]:
        return [Change("compile cache", row.name, None, row.why_aside or "unused") for row in _going(args, found)]

    def describe(self, args: Args, found: PruneCachesFound) -> dict[str, Any]:
        going = _going(args, found)
        freed = sum(row.size_bytes for row in going)
        msg = f"{count(len(going), 'compile cache')}, {units.size(freed)}"
        return {"caches": [asdict(row) for row in found.rows], "freed_bytes": freed, "msg": msg}

    def act(self, args: Args, found: PruneCachesFound, changes: list[Change], context: Context) -> dict[str, Any]:
        return {"freed_bytes": cache_removal.remove(context, [row.name for row in _going(args, found)])}


def _going(args: PruneCaches.Args, found: PruneCachesFound) -> list[Row]:
    return [row for row in found.rows if not row.kept and (args.only is None or row.name in args.only)]


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
class PruneImagesFound:
    """The images to consider."""

    #: the largest first
    images: tuple[Image, ...] = field(default=())


class PruneImages(StateModule["PruneImages.Args", PruneImagesFound]):
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

    def read(self, args: Args, context: Context) -> PruneImagesFound:
        api: Any = context.docker().api
        pinned = dict.fromkeys(_ids(api, args.pinned), "pinned in spark.lock")
        why = {**pinned, **_last_good(api, context), **_used(api)}
        unique = _unique_bytes(api)
        found = []
        for row in api.images():
            names = image_names.names_of(row)
            if args.repositories and not {Name.parse(name).repository for name in names} & set(args.repositories):
                continue
            frees = unique.get(row["Id"], row.get("Size") or 0)
            found.append(Image(row["Id"], tuple(names), frees, why.get(row["Id"], "")))
        return PruneImagesFound(tuple(sorted(found, key=lambda image: -image.frees_bytes)))

    def differences(self, args: Args, found: PruneImagesFound) -> list[Change]:
        going = self._going(args, found)
        return [
            Change(image.names[0] if image.names else f"image {image.id[7:19]}", image.id, None, "unused")
            for image in going
        ]

    def describe(self, args: Args, found: PruneImagesFound) -> dict[str, Any]:
        going = self._going(args, found)
        freed = sum(image.frees_bytes for image in going)
        rows = [{**asdict(image), "names": list(image.names)} for image in found.images]
        return {"images": rows, "freed_bytes": freed, "msg": f"{count(len(going), 'image')}, {units.size(freed)}"}

    def act(self, args: Args, found: PruneImagesFound, changes: list[Change], context: Context) -> dict[str, Any]:
        cache_removal.with_image(context, {image.id for image in self._going(args, found)})
        for image in self._going(args, found):
            remove_image(context.docker().api, image.id)
        recipe_files.tidy(context)
        return {}

    @staticmethod
    def _going(args: Args, found: PruneImagesFound) -> list[Image]:
        return [image for image in found.images if not image.kept and (args.only is None or image.id in args.only)]


def remove_image(api: Any, image_id: str) -> None:
    """Remove an image by its Id, with all names that it has now, without force. Raises Failed when the engine refuses.

    A name that was given to another image since the list was made stays with that one. The engine refuses an Id that several
    repositories name: the names of all but one are taken away first.
    """
    from docker.errors import APIError

    try:
        names = {name: Name.parse(name).repository for name in image_names.names_of(image_names.inspect(api, image_id))}
        last = next(reversed(names.values()), "")
        for name in (name for name, repository in names.items() if repository != last):
            image_names.remove_name(api, name, image_id)
        with contextlib.suppress(docker_client.errors().NotFound):
            api.remove_image(image_id)
    except APIError as error:
        raise Failed(f"Docker did not remove {image_id[7:19]}: {error.explanation or error}") from None


def _used(api: Any) -> dict[str, str]:
    """Return the images that containers were created from, by Id, each with its container."""
    return {row["ImageID"]: f"in use by {row['Names'][0].lstrip('/')}" for row in api.containers(all=True)}


def _last_good(api: Any, context: Context) -> dict[str, str]:
    specs = [good_states.last(server).get("spec") or {} for server in context.state.servers()]
    wanted = {spec["image"]: spec.get("image_ids") or [] for spec in specs if spec.get("image")}
    return dict.fromkeys(_ids(api, wanted), "the last good state")


def _ids(api: Any, wanted: Mapping[str, Collection[str]]) -> Iterator[str]:
    for ref, ids in wanted.items():
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
        manifest = Manifest.of(context.state, context.machine.expand(args.dir))
        here = (
            model_folder for model_folder in model_folders.found(context) if model_folder.dir == str(manifest.folder)
        )
        users = [user for model_folder in here for user in model_folder.used_by]
        if users:
            error = Failed(f"{manifest.folder} is in use by {', '.join(users)}.", fix="Remove the container first.")
            error.exit = Exit.REFUSED
            raise error
        return manifest

    def differences(self, args: Args, found: Manifest) -> list[Change]:
        there = [path for path in model_folders.own_files(found) if path.exists()]
        size = model_folders.on_disk(found)
        holds = f"{count(len(there), 'file')}, {units.size(size)}"
        return [Change(str(found.folder), holds, None)] if there or size else []

    def describe(self, args: Args, found: Manifest) -> dict[str, Any]:
        return {"dir": str(found.folder), "freed_bytes": 0, "left": 0}

    def act(self, args: Args, found: Manifest, changes: list[Change], context: Context) -> dict[str, Any]:
        freed = model_folders.on_disk(found)
        for part in model_folders.kept_by_transfers(found.folder):
            shutil.rmtree(part, ignore_errors=True)
        for path in model_folders.own_files(found):
            path.unlink(missing_ok=True)
        for folder in (*sorted(filter(Path.is_dir, found.folder.rglob("*")), reverse=True), found.folder):
            with contextlib.suppress(OSError):  # the folder is not empty
                folder.rmdir()
        found.forget()
        left = sum(1 for path in found.folder.rglob("*") if path.is_file()) if found.folder.exists() else 0
        others = f"; {count(left, 'other file')} kept" if left else ""
        return {"freed_bytes": freed, "left": left, "msg": f"{units.size(freed)} freed{others}"}


class Models(Module["Models.Args"]):
    """List the models on this host: every folder that sparkwright verified, and the containers that use it. Changes nothing.

    Returns: models, each with dir, id, commit, files, size_bytes (on disk), changed (files that differ from the verified
    ones), used_by (containers, running or not, that mount it).
    """

    @dataclass(frozen=True)
    class Args:
        pass

    def run(self, args: Args, context: Context) -> Result:
        found = [asdict(model_folder) for model_folder in model_folders.found(context)]
        return Result(msg=f"{count(len(found), 'model')}", data={"models": found})
