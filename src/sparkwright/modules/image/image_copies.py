"""Modules that take an image from another host, or hand it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkwright.errors import Failed
from sparkwright.host.images import image_copy, image_names, loads
from sparkwright.host.images.image_names import machine_platform
from sparkwright.host.module import Context, Module
from sparkwright.host.peers import peer_client, peer_server
from sparkwright.protocol.result import Result, arg
from sparkwright.trust.image_name import Name


class AdoptImage(Module["AdoptImage.Args"]):
    """An image that another host sent is the one that was asked for; then it gets its names, its digest among them.

    What proves it is its Id, when the lock holds Ids for it. Else it is what the sending host has, by that host's word: the
    hashes of all its layers, and the platform. Whatever else the load brought is removed, and names that it took are given
    back; what others pulled, tagged or built meanwhile stays.

    Returns: id, undone (what else the load had done, a sentence each). Fails, and removes what arrived, when it is something
    else.
    """

    @dataclass(frozen=True)
    class Args:
        incoming: str = arg("the tag under which it arrived; removed again")
        ref: str = arg("repository:tag[@sha256:digest] that it must be")
        layers: list[str] = arg("the hashes of its layers on the host it came from")
        platform: str = arg("as linux/arm64")
        ids: list[str] = arg("the Ids that the lock allows for the digest; one must be its own", default_factory=list)
        before: dict[str, Any] | None = arg("the names before the load, as `inspect_image` returns them", default=None)

    def run(self, args: Args, context: Context) -> Result:
        api: Any = context.docker().api
        name = Name.given(args.ref)
        undone = loads.undo(api, loads.Names(**args.before), args.incoming) if args.before else []
        for sentence in undone:
            context.note(sentence)
        image = image_names.inspect(api, args.incoming)
        if not image:
            raise Failed("no image arrived.", fix="Run the command again.")
        reason = _why_another(args, name, image)
        if reason:
            image_names.remove_name(api, args.incoming, image["Id"])
            raise Failed(f"the image that arrived is not {args.ref}: {reason}; removed it.")
        if name.digest:
            image_names.name_by_digest(api, image["Id"], name)
        else:
            api.tag(image["Id"], name.repository, name.tag or "latest", force=True)
        image_names.remove_name(api, args.incoming, image["Id"])
        how = "its Id is the lock's" if args.ids else "the same, layer by layer"
        return Result(msg=how, changed=True, data={"id": image["Id"], "undone": undone})


def _why_another(args: AdoptImage.Args, name: Name, image: dict[str, Any]) -> str:
    """Return why the image that arrived is not the requested one; empty if it is."""
    has = image_names.platform_of(image)
    if has != args.platform:
        return f"it is for {has}, not {args.platform}"
    if args.ids and not image_names.proves(image, name.digest, args.ids):
        return f"its Id is {image['Id']}, the lock has {', '.join(args.ids)}"
    same = (image.get("RootFS") or {}).get("Layers") == args.layers
    return "" if same else f"the layers of {image['Id']} differ"


class ShareImage(Module["ShareImage.Args"]):
    """Hand an image that was proved here to the other members of a cluster, for one copy: over HTTP on one address, with a token.

    The process ends when all readers are done, or two minutes after the last question.

    Returns: offer (urls, size_bytes, containerd: whether the engine keeps images in containerd's store).

    Fails: the image is not here as the lock has it; too little room for the engine to export it.
    """

    @dataclass(frozen=True)
    class Args:
        ref: str = arg("repository:tag@sha256:digest")
        bind: str = arg("the address to listen on")
        interfaces: list[str] = arg(
            "the interfaces of the fabric, whose other addresses serve it, too", default_factory=list
        )
        ids: list[str] = arg("the Ids that the lock allows for the digest", default_factory=list)
        readers: int = arg("how many hosts will copy it", default=1)

    def run(self, args: Args, context: Context) -> Result:
        api: Any = context.docker().api
        token = peer_client.token(context.secrets, image_copy.COPY)
        if token is None:
            raise Failed("no token to serve the image with: it is served between the members of a cluster.")
        image = image_names.find(api, args.ref, args.ids, machine_platform(context.machine))
        if not image:
            raise Failed(f"{args.ref} is not on this host.")
        if context.check:
            return Result(msg="present")
        info = api.info()
        self._refuse_little_room(context, info, image, args.readers)

        def hand_out(bind: str) -> int:
            return image_copy.hand_out(context.machine, image["Id"], token, args.readers, bind)

        urls = peer_server.on_each(args.bind, args.interfaces, hand_out, context.note)
        offer = {
            "urls": urls,
            "size_bytes": int(image.get("Size") or 0),
            "containerd": image_copy.in_containerd(info),
        }
        return Result(msg=f"serving {args.ref} on {peer_server.shown(urls)}", data={"offer": offer})

    @staticmethod
    def _refuse_little_room(context: Context, info: dict[str, Any], image: dict[str, Any], readers: int) -> None:
        """Raise Failed if there is no room for the export: with overlay2 an engine writes the whole image to disk for each
        reader."""
        free = image_copy.free_bytes(context.machine, info)
        needed = int(image.get("Size") or 0) * min(readers, image_copy.AT_ONCE)
        if free is not None and free < needed and not image_copy.in_containerd(info):
            raise Failed(f"{needed / 2**30:.1f} GiB needed to export the image, {free / 2**30:.1f} GiB free.")


class UndoLoad(Module["UndoLoad.Args"]):
    """After a `docker load` that failed: what it brought is removed, and names that it took are given back.

    What others pulled, tagged or built meanwhile stays.

    Returns: undone (a sentence each).
    """

    @dataclass(frozen=True)
    class Args:
        before: dict[str, Any] = arg("the engine's names before the load, as `inspect_image` returns them")

    def run(self, args: Args, context: Context) -> Result:
        api: Any = context.docker().api
        undone = loads.undo(api, loads.Names(**args.before))
        return Result(msg="; ".join(undone), changed=bool(undone), data={"undone": undone})
