from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sparkwright import units
from sparkwright.errors import Failed
from sparkwright.host.containers import cache_removal, docker_client, recipe_files
from sparkwright.host.images import image_names
from sparkwright.host.module import Context, StateModule
from sparkwright.host.records import good_states
from sparkwright.protocol.result import Change, arg
from sparkwright.trust.image_name import Name
from sparkwright.visible import count


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
class Found:
    """The images to consider."""

    #: the largest first
    images: tuple[Image, ...] = field(default=())


class PruneImages(StateModule["PruneImages.Args", Found]):
    """Images that nothing needs are removed, the compile caches made with them too, and the disk has their room again.

    Never removed: an image that a container uses, running or not; the image of the last good state, which a roll back goes
    to; one that the lock pins for this host. The engine is never told to force: it refuses too when a container turns up.

    Returns: images (id, names, frees_bytes, kept), freed_bytes (what would be, in check mode).
    """

    @dataclass(frozen=True)
    class Args:
        repositories: list[str] = arg("only images of these repositories; [] for all", default_factory=list)
        pinned: dict[str, list[str]] = arg(
            "repository:tag@digest to keep, with the Ids that the lock allows for it", default_factory=dict
        )
        only: list[str] | None = arg("the confirmed Ids; default: all that may be removed", default=None)

    def read(self, args: Args, context: Context) -> Found:
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
        return Found(tuple(sorted(found, key=lambda image: -image.frees_bytes)))

    def differences(self, args: Args, found: Found) -> list[Change]:
        going = self._going(args, found)
        return [
            Change(image.names[0] if image.names else f"image {image.id[7:19]}", image.id, None, "unused")
            for image in going
        ]

    def describe(self, args: Args, found: Found) -> dict[str, Any]:
        going = self._going(args, found)
        freed = sum(image.frees_bytes for image in going)
        rows = [{**asdict(image), "names": list(image.names)} for image in found.images]
        return {"images": rows, "freed_bytes": freed, "msg": f"{count(len(going), 'image')}, {units.size(freed)}"}

    def act(self, args: Args, found: Found, changes: list[Change], context: Context) -> dict[str, Any]:
        cache_removal.with_image(context, {image.id for image in self._going(args, found)})
        for image in self._going(args, found):
            remove(context.docker().api, image.id)
        recipe_files.tidy(context)
        return {}

    @staticmethod
    def _going(args: Args, found: Found) -> list[Image]:
        return [image for image in found.images if not image.kept and (args.only is None or image.id in args.only)]


def remove(api: Any, image_id: str) -> None:
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
