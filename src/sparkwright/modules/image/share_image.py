from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkwright.errors import Failed
from sparkwright.host.images import image_copy, image_names, image_peer
from sparkwright.host.images.platform import platform_of
from sparkwright.host.module import Context, Module
from sparkwright.host.peers import peer_client, peer_server
from sparkwright.protocol.result import Result, arg


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
        token = peer_client.token(context.secrets, image_peer.COPY)
        if token is None:
            raise Failed("no token to serve the image with: it is served between the members of a cluster.")
        image = image_names.find(api, args.ref, args.ids, platform_of(context.machine))
        if not image:
            raise Failed(f"{args.ref} is not on this host.")
        if context.check:
            return Result(msg="present")
        info = api.info()
        self._refuse_little_room(context, info, image, args.readers)

        def hand_out(bind: str) -> int:
            return image_peer.hand_out(context.machine, image["Id"], token, args.readers, bind)

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
        needed = int(image.get("Size") or 0) * min(readers, image_peer.AT_ONCE)
        if free is not None and free < needed and not image_copy.in_containerd(info):
            raise Failed(f"{needed / 2**30:.1f} GiB needed to export the image, {free / 2**30:.1f} GiB free.")
